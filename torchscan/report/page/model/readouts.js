// What is pointed at, in words: a line under each heading.

import { make } from "./elements.js";
import { digits, lastUpTo, whole } from "./numbers.js";
import { describeOthers } from "./other_losses.js";
import { placesOf } from "./quantities.js";

/** @typedef {import("./training.js").TrainingView} TrainingView */

/** steps between which a value is compared: a tenth of the run, at most so many */
const COMPARED = 100;

/** The last known value up to a point. @param {(number | null)[]} values @param {number} at */
function known(values, at) {
  for (let place = at; place >= 0; place -= 1) if (values[place] !== null) return values[place];
  return null;
}

/** Loss, gradient norm and learning rate of a step. @param {TrainingView} view @returns {(string | Node)[]} */
export function describeStep({ arrays, axis, cross, data, others }) {
  const { steps, losses, norms, rates } = arrays.curve;
  const at = Math.max(0, lastUpTo(steps, cross));
  const evaluation = data.evaluations.filter((/** @type {any} */ each) => each.step <= cross + 1).at(-1);
  const values = /** @type {[string, number | null | undefined][]} */ ([["loss", losses[at]], ["gradient norm", known(norms, at)], ["learning rate", known(rates, at)], ["last evaluation", evaluation?.loss]]);
  const parts = values.filter(([, value]) => value !== null && value !== undefined);
  return [make("b", {}, axis.describe(cross)), ...parts.flatMap(([name, value]) => [` · ${name} `, make("b", {}, digits(value))]), ...describeOthers(others, cross)];
}

/** The first row that has a value, or else the first. @param {import("./layers_heat.js").LayersHeat | undefined} heat */
function firstKnown(heat) {
  const seen = heat?.rows.seen ?? [];
  return seen.find((row) => heat?.values?.has(row)) ?? seen[0] ?? -1;
}

/** The value of a layer in a step, before it and in the end. @param {TrainingView} view @returns {(string | Node)[]} */
export function describeLayer(view) {
  const { heat, arrays, cross } = view;
  const row = view.pointed >= 0 ? view.pointed : firstKnown(heat);
  const found = arrays.rows[row];
  if (!heat || !found) return [];
  const { quantity } = heat;
  const column = heat.columns.at(cross);
  const start = [make("b", {}, found.folded ? found.name : found.key || found.name), ` · ${found.type} · ${view.axis.describe(cross)}`];
  if (column < 0) return [...start, " · not recorded"];
  const bits = arrays.wrong.get(row)?.[column] ?? 0;
  if (quantity.name === "nan" || bits) return [...start, " · ", make("b", {}, placesOf(bits))];
  if (!heat.values?.has(row)) return [...start, ` · ${quantity.label} –, ${heat.values ? quantity.none : quantity.missing}`];
  const [first, last] = view.whole;
  const compared = Math.min(COMPARED, Math.max(1, Math.round((last - first) / 10)));
  const before = heat.columns.at(cross - compared);
  const earlier = before < 0 ? "" : ` · ${whole(compared)} ${compared === 1 ? "step" : "steps"} earlier ${heat.textAt(row, before)}`;
  const counted = heat.countedIn(row, column);
  const held = counted >= 0 && counted < column ? ` (counted in step ${whole(arrays.last[counted])})` : "";
  const end = view.range[1] < last ? `step ${whole(view.range[1])}` : "last";
  return [...start, ` · ${quantity.label} `, make("b", {}, heat.textAt(row, column)), `${held}${earlier} · ${end} ${heat.textAt(row, heat.lastColumn)}`];
}
