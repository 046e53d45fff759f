// How to read a picture of distributions: one that is made up, with what is to be seen in it.

import { make } from "./elements.js";
import { HeatView } from "./heat.js";

const STEPS = 32, LEFT_OUT = [11, 12, 13, 14], SIDE = 12, NEAREST = 246;

/** Where each mark stands, in percent of the picture, and what it says. @type {[number, number, string][]} */
const MARKS = [
  [17, 38, "Darker cells hold more of the tensor's values. Steps run from left to right."],
  [27, 59, "The thick line is the median. Nine values in ten lie between the thin lines."],
  [73, 52, "The dashed line is zero: positive values lie above it, negative values below."],
  [39, 26, "Nothing is drawn where the layer was not called."],
  [94, 14, "Red at the top: some values were NaN or infinite."],
  [4, 90, "The scale is on the left. On the logarithmic one, each row is half an octave."],
];

/** A tensor whose values spread until there is no number for them. */
function madeUp() {
  const steps = Array.from({ length: STEPS }, (_, step) => step).filter((step) => !LEFT_OUT.includes(step));
  const spread = steps.map((step) => 2 ** (step / 10 - 2));
  const rows = Array.from({ length: 2 * SIDE + 1 }, (_, row) => spread.map((of) => {
    const far = 2 ** ((Math.abs(row - SIDE) - 5) / 2) / of, share = row === SIDE ? 0.2 : far * Math.exp(-far * far / 2);
    return Math.min(15, Math.round(22 * share)).toString(16).toUpperCase();
  }).join(""));
  return {
    call: "", kind: "output", name: "an example", rows, nearest: NEAREST, up: SIDE, down: SIDE,
    first: steps, last: steps, until: steps.map((step) => step + 1),
    least: spread.map((of) => -2.5 * of), most: spread.map((of) => 2.5 * of), mean: spread.map(() => 0),
    quantiles: spread.map((of, at) => [-1.64 * of, 0.3 * of * Math.sin(at / 2), 1.64 * of]),
    nan: steps.map((step) => (step > STEPS - 4 ? 1 : 0)), inf: steps.map(() => 0),
  };
}

export function help() {
  const picture = make("div", { class: "heats" }), made = make("details", { class: "help", ontoggle: () => view.redraw() }, make("summary", {}, "How to read these plots"));
  const view = new HeatView(picture, async () => ({ histories: [], isWhole: true }), (step) => view.point(step));
  view.put([madeUp()]);
  const marks = MARKS.map(([left, top], at) => { const mark = make("i", { "aria-hidden": "true" }, String(at + 1)); mark.style.left = `${left}%`; mark.style.top = `${top}%`; return mark; });
  const { canvas } = view.drawn[0], marked = make("div", { class: "marked" });
  canvas.before(marked);
  marked.append(canvas, ...marks);
  made.append(make("div", {}, picture, make("ol", {}, ...MARKS.map(([, , said]) => make("li", {}, said)))));
  return made;
}
