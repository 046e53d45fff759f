// How to read the charts of distributions: one that is made up, with what is to be seen in it.

import { DistributionPanel } from "./distribution_panel.js";
import { make } from "./elements.js";

/** @typedef {import("./histories.js").History} History */

const NUM_STEPS = 32, LEFT_OUT = [8, 9, 10], NAN_FROM = 29, SHIFT_FROM = 18;
/** where the quantiles of a normal distribution lie */
const QUANTILES = [-2.33, -1.64, -0.67, 0, 0.67, 1.64, 2.33];
/** the powers of ten from which shares of values are known, and how many */
const POWER = -7, NUM_POWERS = 9;

/** Where each mark stands, in percent of the chart, and what it says. @type {[number, number, string][]} */
const MARKS = [
  [20, 27, "Bands: 98, 90 and 50 of 100 values lie within the light, the medium and the dark one. Steps run from left to right."],
  [20, 50, "The zero band has a fixed height, and the heading says how far it reaches: “log, zero band ±0.1”. The darker it is, the more values lie in it. Outside it, the scale is logarithmic in both directions."],
  [72, 27, "The line is the median. It is drawn outside the zero band only."],
  [40, 50, "Nothing is drawn where the layer was not called."],
  [94, 60, "Red: some values were NaN or infinite."],
  [54, 97, "The text below a chart has the values of the last step, or of the step that you point at or choose with the arrow keys: smallest … largest value, median, share in the zero band."],
];

/** A tensor whose values spread and move away from zero. @returns {History} */
function madeUp() {
  const steps = Array.from({ length: NUM_STEPS }, (_, step) => step).filter((step) => !LEFT_OUT.includes(step));
  const spread = steps.map((step) => 0.4 + step / 16);
  const middle = steps.map((step) => Math.max(0, 0.45 * (step - SHIFT_FROM)));
  const near = steps.map((_, at) => Math.round(100 * Math.min(1, 0.08 / spread[at]) * Math.exp(-middle[at])));
  const at = (/** @type {number} */ deviations) => steps.map((_, place) => middle[place] + deviations * spread[place]);
  return {
    call: "", kind: "output", name: "an example", first: steps, last: steps, until: steps.map((step) => step + 1),
    min: at(-3.5), max: at(3.5), quantiles: QUANTILES.map(at),
    near: { power: POWER, percent: Array.from({ length: NUM_POWERS + 1 }, () => near) },
    nan: steps.map((step) => Number(step >= NAN_FROM)), inf: steps.map(() => 0),
  };
}

/** The colors of the bands. */
export function legend() {
  const band = (/** @type {number} */ opacity, /** @type {string} */ text) => {
    const sample = make("i", { class: "on-launch" });
    sample.style.opacity = String(opacity);
    return make("span", {}, sample, text);
  };
  return make("div", { class: "key" }, band(0.3, "1–99 %"), band(0.6, "5–95"), band(1, "25–75"),
    make("span", {}, make("i", { class: "line" }), "median, outside the zero band"));
}

export function help() {
  const panel = new DistributionPanel(madeUp(), "an example", "", (step) => panel.point(step));
  const draw = () => {
    panel.measure();
    panel.draw({ range: [0, NUM_STEPS - 1], notes: [] });
  };
  const marked = make("div", { class: "marked" });
  const list = make("ol", {}, ...MARKS.map(([, , text]) => make("li", {}, text)));
  const inside = make("div", {}, panel.figure, list);
  const element = make("details", { class: "help", ontoggle: draw }, make("summary", {}, "How to read these charts"), inside);
  const marks = MARKS.map(([left, top], at) => {
    const mark = make("i", { "aria-hidden": "true" }, String(at + 1));
    mark.style.left = `${left}%`;
    mark.style.top = `${top}%`;
    return mark;
  });
  panel.svg.before(marked);
  marked.append(panel.svg, ...marks);
  return element;
}
