// The training of a run: cards, findings, curves and layers over the steps. One range and one crosshair for all.

import { Axis } from "./axis.js";
import { BrokenView } from "./broken.js";
import { Cards } from "./cards.js";
import { CurvesView } from "./curves.js";
import { make } from "./elements.js";
import { LayersHeat } from "./layers_heat.js";
import { whole } from "./numbers.js";
import { otherLosses } from "./other_losses.js";
import { QUANTITIES } from "./quantities.js";
import { describeLayer, describeStep } from "./readouts.js";
import { chooseQuantity, chooseScale, putControls } from "./segments.js";
import { summarize } from "./summary.js";
import { NO_ARRAYS, unpack } from "./unpack.js";

/** @typedef {import("./brush.js").Range} Range */
/** @typedef {{link: (key: string, text: string) => HTMLElement, select: (key: string) => void, point: (step: number) => void, show: (range: Range, isWhole: boolean) => void, modelName: string, kept: import("./keep.js").Kept}} On */

export class TrainingView {
  /** @param {On} on */
  constructor(on) {
    this.on = on;
    this.element = make("div", { class: "training" });
    this.findings = make("ul", { class: "findings", "aria-label": "findings" });
    /** @type {any} */
    this.data = null;
    this.arrays = NO_ARRAYS;
    /** @type {import("./other_losses.js").OtherLoss[]} */
    this.others = [];
    /** @type {any} */
    this.facts = {};
    /** @type {{row: number, step: number} | null} the first value that is not finite */
    this.producer = null;
    /** @type {import("./axis.js").Unit} */
    this.unit = "step";
    /** @type {Range | null} null: the whole run */
    this.chosen = null;
    /** @type {Range} */
    this.whole = [0, 1];
    this.axis = new Axis(this.unit, NO_ARRAYS.curve, []);
    this.cross = 0;
    /** the last recorded step */
    this.latest = 0;
    /** rows that are selected and pointed at; -1: none */
    this.selected = -1;
    this.pointed = -1;
    this.selectedKey = "";
  }

  get modelName() { return this.on.modelName; }

  /** @returns {Range} */
  get range() {
    if (!this.chosen) return this.whole;
    const [first, last] = this.whole;
    return [Math.min(Math.max(first, this.chosen[0]), last), Math.min(this.chosen[1], last)];
  }

  /** New data of the same run. @param {any} data */
  async take(data) {
    const isFollowing = !this.data || this.cross >= this.latest;
    this.arrays = await unpack(data.packed);
    this.data = data;
    this.others = otherLosses(data.others);
    this.facts = summarize(this.arrays, data);
    const { curve, first, last } = this.arrays;
    const firsts = [curve.steps[0], first[0]].filter((each) => each !== undefined);
    const lasts = [curve.steps.at(-1), last.at(-1)].filter((each) => each !== undefined);
    const ends = this.others.map(({ steps }) => steps[steps.length - 1]);
    this.whole = [Math.min(...firsts), Math.max(...lasts, ...ends, Math.min(...firsts) + 1)];
    this.producer = this.findProducer();
    this.latest = last.at(-1) ?? this.whole[1];
    if (isFollowing) this.cross = data.nan?.step ?? data.spike?.step ?? this.latest;
    this.axis = new Axis(this.unit, curve, data.marks);
    if (!this.heat) this.build();
    else this.refresh();
    this.draw();
  }

  /** The row with the first value that is not finite, unless the loss or the weights were not finite before. */
  findProducer() {
    const { nan } = this.data;
    if (!nan?.isSource) return null;
    const row = this.rowOf(nan.key);
    return row < 0 ? null : { row, step: nan.step };
  }

  /** The row of a call; -1: none. @param {string} key */
  rowOf(key) {
    const path = key.replace(/@\d+$/, "");
    return this.arrays.rows.findIndex((row) => row.key === path && !row.folded);
  }

  build() {
    this.cards = new Cards(this);
    const tracks = make("div", { class: "curves" });
    const host = make("div", { class: "layers-heat" });
    this.readCurves = make("p", { class: "readout" });
    this.readLayers = make("p", { class: "readout" });
    this.controls = make("span", { class: "controls" });
    this.heatControls = make("span", { class: "controls" });
    const loss = make("section", { class: "panel loss", "aria-label": "Loss" }, make("h2", {}, make("span", {}, "Loss"), this.controls), this.readCurves, tracks);
    const layers = make("section", { class: "panel heat-panel", "aria-label": "Layers over the steps" }, make("h2", {}, make("span", {}, "Layers over the steps", make("span", { class: "hint" }, "click a row to open it")), this.heatControls), this.readLayers, host);
    this.curves = new CurvesView(tracks, this);
    this.heat = new LayersHeat(host, this);
    this.heat.quantity = this.firstQuantity();
    this.sections = make("div", { class: "sections" }, loss, layers);
    this.element.append(this.cards.element, this.findings, this.sections);
    addEventListener("keydown", (event) => { if (event.key === "Escape" && this.chosen) this.show(null); });
    let width = 0;
    new ResizeObserver(() => { if (this.element.clientWidth !== width) { width = this.element.clientWidth; this.draw(); } }).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** What the first finding is about, or else the first quantity that the run has. */
  firstQuantity() {
    const known = QUANTITIES.filter(({ name }) => this.arrays.quantities.get(name)?.rows.size);
    const codes = this.data.findings.map((/** @type {any} */ each) => each.code);
    return known.find(({ codes: own = [] }) => own.includes(codes[0])) ?? known[0] ?? QUANTITIES[0];
  }

  refresh() {
    this.heat?.refresh();
    this.broken?.heat.refresh();
  }

  draw() {
    if (!this.heat || !this.sections) return;
    if (this.data.nan && !this.broken) {
      this.broken = new BrokenView(this);
      this.sections.prepend(this.broken.element);
    }
    this.select(this.selectedKey, false);
    this.cards?.draw();
    this.drawFindings();
    this.drawControls();
    this.curves?.draw();
    this.broken?.draw();
    this.drawHeats();
  }

  drawHeats() {
    this.heat?.draw();
    this.broken?.heat.draw();
    this.drawHeatControls();
    this.read();
  }

  drawFindings() {
    const items = this.data.findings.map((/** @type {any} */ each) => make("li", {}, each.text, ...(each.key === undefined ? [] : [" ", this.link(each.key, "show the layer")]), ...(each.step === undefined || each.key !== undefined ? [] : [" ", this.stepLink(each.step)])));
    this.findings.hidden = !items.length;
    this.findings.replaceChildren(...items);
  }

  /** @param {number} step */
  stepLink(step) { return make("button", { type: "button", class: "linked", onclick: () => { this.point(step); } }, `point to step ${whole(step)}`); }

  // -- controls ----------------------------------------------------------------------------------

  drawControls() { if (this.controls) putControls(this.controls, chooseScale(this)); }

  drawHeatControls() { if (this.heatControls) putControls(this.heatControls, chooseQuantity(this)); }

  /** @param {import("./axis.js").Unit} unit */
  measure(unit) {
    this.unit = unit;
    this.axis = new Axis(unit, this.arrays.curve, this.data.marks);
    this.draw();
  }

  // -- what all charts share ---------------------------------------------------------------------

  /** Show some steps; null: the whole run. @param {Range | null} range */
  show(range) {
    const isWhole = !range || (range[0] <= this.whole[0] && range[1] >= this.whole[1]);
    this.chosen = isWhole ? null : range;
    this.curves?.draw();
    this.heat?.draw();
    this.read();
    this.on.show(this.range, isWhole);
  }

  /** @param {number} step @param {boolean} [isOwn] whether other parts of the page are to follow */
  point(step, isOwn = true) {
    this.cross = Math.min(this.whole[1], Math.max(this.whole[0], step));
    this.curves?.point();
    this.heat?.point();
    this.broken?.heat.point();
    this.read();
    if (isOwn) this.on.point(this.cross);
  }

  /** Move the crosshair. @param {KeyboardEvent} event */
  pressArrow(event) {
    const [first, last] = this.range;
    const size = Math.max(1, Math.round((last - first) / 200));
    const moves = /** @type {Record<string, number>} */ ({ ArrowLeft: this.cross - size, ArrowRight: this.cross + size, Home: first, End: last });
    if (moves[event.key] === undefined) return;
    event.preventDefault();
    this.point(Math.min(last, Math.max(first, moves[event.key])));
  }

  /** A module was selected, here or elsewhere. @param {string} key @param {boolean} [draws] */
  select(key, draws = true) {
    this.selectedKey = key;
    const found = this.rowOf(key);
    this.selected = found > 0 || (found === 0 && this.arrays.rows.length === 1) ? found : -1;
    if (this.selected >= 0 && this.pointed < 0) this.pointed = this.selected;
    if (draws) { this.heat?.paint(); this.broken?.heat.paint(); this.read(); }
  }

  /** @param {number} row */
  choose(row) { this.on.select(this.arrays.rows[row].key); }

  /** @param {string} key @param {string} text */
  link(key, text) { return this.on.link(key, text); }

  /** The path of a module, or else its type. @param {number} row */
  nameOf(row) {
    const found = this.arrays.rows[row];
    if (!found) return "";
    return /(^|\.)\d+$/.test(found.key) ? `${found.key} (${found.type})` : found.key || found.type;
  }

  /** The letter of a kept module. @param {number} row */
  markOf(row) {
    const { key, folded } = this.arrays.rows[row];
    return folded ? null : this.on.kept.markOfCall(key);
  }

  /** @param {number} step */
  columnOf(step) { return this.heat?.columns.before(step) ?? -1; }

  /** @param {number} column */
  endOf(column) { return this.heat?.columns.ends[column] ?? 0; }

  /** Round places of an axis, with their labels. @param {import("./axis.js").Scale} scale @param {Range} range @param {number} y @param {number} number */
  tickMarks(scale, range, y, number) {
    return (this.axis.ticks(...range, number)).flatMap(([step, text]) => {
      const x = scale(step);
      return [make("line", { class: "tick", x1: x, x2: x, y1: y, y2: y + 4 }), make("text", { class: "soft", x, y: y + 15, "text-anchor": "middle" }, text)];
    });
  }

  /** Say in words what is pointed at. */
  read() {
    this.readCurves?.replaceChildren(...describeStep(this));
    this.readLayers?.replaceChildren(...describeLayer(this));
  }
}
