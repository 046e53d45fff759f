// What stands around a heat map: notes above it, steps and a legend below it, brackets beside it.

import { labeledMarks } from "./axis.js";
import { make, place } from "./elements.js";
import { tick, whole } from "./numbers.js";

/** @typedef {import("./layers_heat.js").LayersHeat} LayersHeat */

export const HEAD = 20;

export class HeatFrame {
  /** @param {LayersHeat} heat */
  constructor(heat) {
    this.heat = heat;
    this.head = make("svg", { class: "heat-head" });
    this.now = make("text", { class: "small accent", y: HEAD - 7 });
    this.foot = make("svg", { class: "heat-foot" });
    this.key = make("div", { class: "heat-key" });
    this.side = make("svg", { class: "heat-side" });
  }

  draw() {
    this.drawHead();
    this.drawFoot();
    this.drawKey();
    this.drawSide();
  }

  drawHead() {
    const { frame, scale, range, view, options } = this.heat;
    const [from, to] = range;
    const marks = view.data.marks.filter((/** @type {any} */ mark) => mark.step >= from && mark.step <= to);
    const drawn = marks.map((/** @type {any} */ mark) => make("line", { class: "mark", x1: scale(mark.step), x2: scale(mark.step), y1: HEAD - 4, y2: HEAD }));
    drawn.push(...labeledMarks(marks, scale, frame.right + 20).map((mark) => make("text", { class: "soft", x: scale(mark.step), y: HEAD - 7, "text-anchor": "middle" }, mark.text)));
    if (options.groups && view.producer) drawn.push(this.producerLabel(view.producer.step));
    const isEnd = to >= view.whole[1];
    const end = isEnd ? "last" : `step ${whole(to)}`;
    if (!options.groups) drawn.push(make("text", { class: "small bold", x: frame.width, y: HEAD - 7, "text-anchor": "end" }, isEnd ? "last" : whole(to)));
    if (!options.groups && !frame.isNarrow) {
      place(this.now, { x: frame.right + 36 + 6.5 * end.length });
      drawn.push(make("text", { class: "small bold", x: frame.right + 24, y: HEAD - 7 }, end), this.now);
    }
    place(this.head, { width: frame.width, height: HEAD });
    this.head.replaceChildren(...drawn);
  }

  /** Where the line to the producer begins. @param {number} step */
  producerLabel(step) {
    const { frame, scale, view } = this.heat;
    const text = frame.isNarrow ? `first NaN or Inf, step ${whole(step)}` : `first NaN or Inf: ${view.data.nan.path || view.modelName}, step ${whole(step)}`;
    const half = 3.2 * text.length;
    const x = Math.min(frame.width - half, Math.max(half, scale(step + 0.5)));
    return make("text", { class: "small bold bad", x, y: HEAD - 7, "text-anchor": "middle" }, text);
  }

  drawFoot() {
    const { frame, scale, range, view, options, profile, values } = this.heat;
    const drawn = view.tickMarks(scale, range, 1, frame.isNarrow ? 3 : 8);
    if (!frame.isNarrow) drawn.push(make("text", { class: "soft", x: 14, y: 16 }, view.axis.name));
    if (!frame.isNarrow && !options.groups && values) {
      for (const decade of profile.ticks()) drawn.push(make("text", { class: "soft", x: profile.x(decade), y: 16, "text-anchor": "middle" }, this.label(decade)));
    }
    place(this.foot, { width: frame.width, height: 22 });
    this.foot.replaceChildren(...drawn);
  }

  /** @param {number} decade */
  label(decade) {
    const value = 10 ** decade;
    return this.heat.quantity.name === "dead" ? `${Number((100 * value).toPrecision(2))} %` : tick(Number(value.toPrecision(1)));
  }

  /** Tones with their values, and what a column and a folded row hold. */
  drawKey() {
    const { quantity, view, values } = this.heat;
    const isMissing = quantity.name !== "nan" && !values;
    const isTonal = quantity.name !== "nan" && !isMissing;
    const hatched = view.arrays.wrong.size ? (view.producer ? "received it" : "NaN or Inf") : "NaN or Inf: none";
    this.key.replaceChildren(
      ...(isTonal ? [make("span", { class: "name" }, quantity.label), this.ramp()] : []),
      ...(view.producer ? [make("span", {}, make("i", { class: "sample solid" }), "first NaN or Inf")] : []),
      make("span", {}, make("i", { class: "sample hatched" }), hatched),
      ...(isMissing || !this.hasBlanks() ? [] : [make("span", {}, make("i", { class: "sample blank" }), "no step recorded")]),
      make("span", { class: "about" }, isMissing ? quantity.missing : `a column: ${this.holds()}${this.hasFolded() ? ` · a folded block: ${quantity.folded}` : ""}`),
    );
  }

  ramp() {
    const [low, high] = this.heat.decades;
    const every = Math.ceil((high - low) / 3);
    const ticks = [];
    for (let decade = high; decade >= low; decade -= every) ticks.push(decade);
    const labels = ticks.map((decade) => {
      const made = make("span", {}, this.label(decade));
      made.style.left = `${(100 * (decade - low)) / (high - low)}%`;
      return made;
    });
    return make("span", { class: "ramp" }, make("i"), ...labels);
  }

  /** Whether a row that is shown is folded. */
  hasFolded() {
    const { rows, view } = this.heat;
    return rows.seen.some((row) => view.arrays.rows[row].hasInner && !rows.opened.has(row));
  }

  /** Whether cells within the run have no step. */
  hasBlanks() {
    const { from, to } = this.heat.columns;
    return from.some((first, at) => first >= to[at]);
  }

  /** How many steps a column holds, which of their values it shows, and whether there are finer ones. */
  holds() {
    const { columns, range: [from, to], quantity, view } = this.heat;
    const { facts, arrays } = view;
    const size = to - from + 1;
    const number = Math.max(1, columns.before(to) - Math.max(0, columns.before(from)) + 1);
    const isFinest = number <= columns.from.length;
    const steps = Math.max(isFinest ? 1 : 2, Math.round(size / Math.min(number, columns.from.length)));
    const hasAll = facts.sampled <= arrays.first.length;
    const every = (arrays.quantities.get(quantity.name)?.every ?? 1) * columns.width;
    const counted = every > columns.width ? `; counted in every ${every}th step, held until the next` : "";
    if (isFinest && hasAll) return `${steps === 1 ? "one step" : `one step (1 in ${whole(steps)} was recorded)`}${counted}`;
    const share = facts.passes ? facts.sampled / facts.passes : 1;
    const seldom = share < 0.6 ? ` (1 in ${Math.round(1 / share)} was recorded)` : "";
    return `${whole(steps)} steps${seldom}, their ${quantity.pick}${isFinest ? "; this page has no finer ones" : ""}${counted}`;
  }

  /** Brackets beside rows that have something in common. */
  drawSide() {
    const { frame, tall, options, rows } = this.heat;
    this.side.replaceChildren();
    if (!options.groups) return;
    place(this.side, { width: frame.width - frame.right, height: tall * rows.seen.length });
    this.side.style.left = `${frame.right}px`;
    for (const { from, to, title, text, isBad } of options.groups(rows.seen)) {
      const [top, bottom] = [from * tall + 2, (to + 1) * tall - 2];
      const middle = (top + bottom) / 2;
      const isTight = frame.isNarrow || bottom - top < 26;
      const both = isTight && !frame.isNarrow && text ? `${title}, ${text}` : title;
      if (!isBad) this.side.append(make("path", { class: "bracket", d: `M4 ${top}h4V${bottom}h-4` }));
      this.side.append(make("text", { class: `small${isBad ? " bold bad" : ""}`, x: 14, y: middle + (isTight ? 4 : -2) }, both));
      if (!isTight) this.side.append(make("text", { class: "soft", x: 14, y: middle + 12 }, text));
    }
  }
}
