// Figures of a run's present state, from its curves and the last columns of its layers.

import { digits, whole } from "./numbers.js";

/** @typedef {import("./unpack.js").Arrays} Arrays */
/** @typedef {{row: number, value: number}} OfRow */

/** steps whose mean is the present value: a tenth of all, at most so many */
const MAX_RECENT = 100;
/** share of the columns that count as now */
const RECENT_SHARE = 0.2, MIN_RECENT = 3;
/** update ÷ weight below which a layer is slow */
export const SLOW = 1e-5;

/** @param {Arrays} arrays @param {any} data */
export function summarize(arrays, data) {
  const { steps, losses, norms, rates } = arrays.curve;
  const loss = recentMean(losses);
  const norm = recentMean(norms);
  const largest = largestOf(norms);
  const isFinite = (/** @type {number | null} */ value) => value !== null && Number.isFinite(value);
  const firstWrong = losses.findIndex((value) => value !== null && !Number.isFinite(value));
  const evaluations = data.evaluations.filter((/** @type {any} */ each) => Number.isFinite(each.loss));
  return {
    ...data.facts,
    loss: loss.value,
    lossOf: loss.number,
    lastLoss: losses.filter((value) => value !== null).at(-1) ?? null,
    wrongLossStep: firstWrong < 0 ? null : steps[firstWrong],
    wrongLoss: firstWrong < 0 ? null : losses[firstWrong],
    lastFinite: lastPoint(steps, firstWrong < 0 ? losses : losses.slice(0, firstWrong)),
    norm: norm.value,
    normOf: norm.number > 1 ? `mean of ${norm.number}` : "now",
    largestNorm: largest < 0 ? null : norms[largest],
    largestNormStep: largest < 0 ? null : steps[largest],
    rate: rates.filter(isFinite).at(-1) ?? null,
    evaluation: evaluations.at(-1)?.loss ?? null,
    evaluationStep: evaluations.at(-1)?.step ?? null,
    best: evaluations.reduce((/** @type {any} */ best, /** @type {any} */ each) => (best && best.loss <= each.loss ? best : each), null),
  };
}

/** Since when the loss is not finite, with the last value before. @param {any} facts */
export function sinceText({ wrongLossStep, lastFinite }) {
  return `since step ${whole(wrongLossStep)}${lastFinite ? `; ${digits(lastFinite.value)} in step ${whole(lastFinite.step)}` : ""}`;
}

/** @param {number[]} steps @param {(number | null)[]} values */
function lastPoint(steps, values) {
  for (let at = values.length - 1; at >= 0; at -= 1) {
    const value = values[at];
    if (value !== null && Number.isFinite(value)) return { step: steps[at], value };
  }
  return null;
}

/** The mean of the last finite values. @param {(number | null)[]} values */
function recentMean(values) {
  const known = /** @type {number[]} */ (values.filter((value) => value !== null));
  if (known.length && !Number.isFinite(known[known.length - 1])) return { value: known[known.length - 1], number: 1 };
  const number = Math.min(MAX_RECENT, Math.max(1, Math.floor(known.length / 10)));
  const last = known.slice(-number);
  return { value: last.length ? last.reduce((sum, value) => sum + value, 0) / last.length : null, number };
}

/** @param {(number | null)[]} values */
function largestOf(values) {
  let found = -1;
  values.forEach((value, at) => {
    if (value !== null && Number.isFinite(value) && (found < 0 || value > /** @type {number} */ (values[found]))) found = at;
  });
  return found;
}

/** The present value of each module without modules inside it: the median of the last columns. @param {Arrays} arrays @param {string} name @returns {OfRow[]} */
export function nowByLayer(arrays, name) {
  const rows = arrays.quantities.get(name)?.rows ?? new Map();
  const found = [];
  for (const [row, values] of rows) {
    if (arrays.rows[row].hasInner) continue;
    const known = [...values].filter((value) => !Number.isNaN(value));
    const last = known.slice(-Math.max(MIN_RECENT, Math.round(RECENT_SHARE * known.length))).sort((one, other) => one - other);
    if (last.length) found.push({ row, value: last[last.length >> 1] });
  }
  return found;
}

/** Modules whose weights are recorded, with a gradient and without: frozen ones, and those that no pass calls. @param {Arrays} arrays */
export function learningLayers(arrays) {
  const layers = nowByLayer(arrays, "update");
  const gradients = arrays.quantities.get("gradient")?.rows ?? new Map();
  if (!gradients.size) return { layers, num: 0 };
  const learning = layers.filter(({ row }) => gradients.has(row));
  return { layers: learning, num: layers.length - learning.length };
}

/** The module without modules inside it that has the largest value in a column. @param {Arrays} arrays @param {string} name @param {number} column @returns {OfRow | null} */
export function largestLayer(arrays, name, column) {
  let best = null;
  for (const [row, values] of arrays.quantities.get(name)?.rows ?? []) {
    if (arrays.rows[row].hasInner || Number.isNaN(values[column])) continue;
    if (!best || values[column] > best.value) best = { row, value: values[column] };
  }
  return best;
}

/** The first step from which a value is as high as it is now, as far as it was counted. @param {Arrays} arrays @param {string} name @param {OfRow} layer */
export function risenSince(arrays, name, layer) {
  const values = arrays.quantities.get(name)?.counted.get(layer.row) ?? new Float32Array();
  const begin = values.findIndex((value) => !Number.isNaN(value));
  let found = begin;
  for (let at = values.length - 1; at >= 0; at -= 1) {
    if (Number.isNaN(values[at])) continue;
    if (values[at] < 0.9 * layer.value) break;
    found = at;
  }
  return { step: arrays.first[found] ?? 0, isFirst: found === begin };
}
