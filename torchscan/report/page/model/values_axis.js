// Scales of values, upwards: linear or logarithmic, with few round ticks.

import { roundUp } from "./axis.js";
import { least, most } from "./format.js";

/** @typedef {{y: (value: number) => number, ticks: number[], isLog: boolean}} ValueScale */

/**
 * @param {(number | null)[]} values
 * @param {number} top @param {number} bottom pixels
 * @param {{isLog?: boolean, number?: number, hasZero?: boolean}} [options] unless it is said, logarithmic where values differ much
 * @returns {ValueScale}
 */
export function valueScale(values, top, bottom, options = {}) {
  const known = /** @type {number[]} */ (values.filter((each) => each !== null && Number.isFinite(each)));
  let low = least(known), high = most(known);
  if (low > high) [low, high] = [0, 1];
  const isLog = low > 0 && (options.isLog ?? differMuch(known));
  if (options.hasZero) low = Math.min(0, low);
  const number = options.number ?? 4;
  if (isLog) {
    if (high < 1.05 * low) [low, high] = [low / 1.1, high * 1.1];
    const size = Math.log(high / low);
    const y = (/** @type {number} */ value) => bottom - (Math.log(Math.max(value, 1e-300) / low) / size) * (bottom - top);
    return { y, ticks: logTicks(low, high, number), isLog };
  }
  if (high - low < 1e-12 + 1e-6 * Math.abs(high)) [low, high] = [low - 0.5 * Math.abs(low || 1), high + 0.5 * Math.abs(high || 1)];
  if (options.hasZero) low = Math.min(0, low);
  const y = (/** @type {number} */ value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  return { y, ticks: evenTicks(low, high, number), isLog };
}

/** Whether the middle of positive values is far below the largest. @param {number[]} values */
export function differMuch(values) {
  const sorted = [...values].sort((one, other) => one - other);
  if (!sorted.length || sorted[0] <= 0) return false;
  return sorted[sorted.length - 1] > 4 * sorted[sorted.length >> 1];
}

/** @param {number} low @param {number} high @param {number} number */
function evenTicks(low, high, number) {
  let distance = roundUp((high - low) / number);
  if (Math.floor(high / distance) - Math.ceil(low / distance) < 1) distance = roundUp((high - low) / (2 * number)); // a single tick says nothing
  const found = [];
  for (let at = Math.ceil(low / distance - 1e-9); at * distance <= high * (1 + 1e-12) + 1e-12; at += 1) found.push(Number((at * distance).toPrecision(10)));
  return found;
}

/** Powers of ten, with 2 and 5 between them where there is room. @param {number} low @param {number} high @param {number} number */
function logTicks(low, high, number) {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const powers = Array.from({ length: to - from + 1 }, (_, at) => 10 ** (from + at));
  const inside = (/** @type {number[]} */ values) => values.filter((each) => each >= low * 0.999 && each <= high * 1.001);
  const choices = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]].map((digits) => inside(powers.flatMap((power) => digits.map((digit) => digit * power))));
  const fitting = choices.find((ticks) => ticks.length <= number + 1);
  if (fitting?.length) return fitting;
  const only = choices[choices.length - 1];
  if (!only.length) return evenTicks(low, high, number);
  const every = Math.ceil(only.length / number);
  return only.filter((_, at) => (only.length - 1 - at) % every === 0);
}
