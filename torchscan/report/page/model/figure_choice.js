// The figure that a page is colored by: one that people choose, or else what was measured.

import { make } from "./elements.js";
import { figuresOf } from "./figures.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {Record<string, any>} Row */

/** figures that come first if a page has them */
const FOREMOST = ["nonfinite", "latency", "gradient", "time", "macs"];

export class FigureChoice {
  /** @param {Row[]} rows @param {() => void} changed called after another figure was chosen @param {Figure[]} [overlays] come first */
  constructor(rows, changed, overlays = []) {
    this.rows = rows;
    this.overlays = overlays;
    this.figures = [...overlays, ...figuresOf(rows)];
    this.figure = this.foremost();
    this.isChosen = false;
    const choose = () => {
      this.isChosen = true;
      this.figure = this.figures[this.select.selectedIndex];
      changed();
    };
    this.select = make("select", { "aria-label": "color by", onchange: choose }, ...this.options());
    this.element = make("label", {}, "color by ", this.select);
  }

  /** The rows have other figures. */
  refresh() {
    this.figures = [...this.overlays, ...figuresOf(this.rows)];
    const isThere = this.figures.some((each) => each.key === this.figure.key);
    if (!this.isChosen || !isThere) this.figure = this.foremost();
    const { options, value } = this.select;
    if (options.length !== this.figures.length || value !== this.figure.key) this.select.replaceChildren(...this.options());
  }

  /** What a page is colored by until something else is chosen: what was measured, rather than what was worked out. @returns {Figure} */
  foremost() {
    const known = this.figures.filter((each) => this.hasAny(each));
    const first = FOREMOST.flatMap((key) => known.filter((each) => each.key === key));
    return this.overlays[0] ?? first[0] ?? known[0] ?? this.figures[0];
  }

  /** Whether a figure is worth being shown first: counts of NaN only where there are any. @param {Figure} figure */
  hasAny(figure) { return figure.key !== "nonfinite" || this.rows.some((row) => figure.value(row)); }

  options() { return this.figures.map((figure) => make("option", { value: figure.key, selected: figure.key === this.figure.key ? "" : undefined, title: figure.fullName }, figure.label)); }
}
