// The scale of values: linear within a decade away from zero, else logarithmic on both sides of a band around zero.

import { roundUp } from "./axis.js";
import { least, most } from "./format.js";
import { QUANTILES } from "./histories.js";
import { tick } from "./numbers.js";

/** @typedef {import("./histories.js").History} History */
/** @typedef {{value: number, text: string}} Tick */
/** @typedef {LinearScale | SymlogScale} Scale */

/** pixels: half of the zero band, and between two ticks at least */
const HALF_BAND = 5, MIN_DISTANCE = 20;
/** the largest value of a linear scale that leaves zero out, in multiples of the smallest */
const DECADE = 10;
/** how far values reach (98 of 100 of them) in a column of small values, in multiples of the zero band, at least */
const REACH = 12;
/** sides whose lengths differ by less than this share are drawn equally long */
const ALIKE = 0.6;

/** @param {number} value @param {number} [digits] significant ones */
export function numberText(value, digits = 3) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  const isPlain = size >= 1e-2 && size < 1e4;
  const text = isPlain ? value.toPrecision(Math.max(digits, Math.floor(Math.log10(size)) + 1)) : value.toExponential(1);
  return text.replaceAll("-", "−").replace("e+", "e");
}

/** @param {(number | null)[]} values @returns {number[]} */
function known(values) {
  return values.filter((value) => value !== null).map(Number);
}

export class LinearScale {
  /** @param {number} bottom @param {number} top @param {number} tall in pixels */
  constructor(bottom, top, tall) {
    const margin = top > bottom ? 0.06 * (top - bottom) : 0.1 * Math.abs(top);
    this.bottom = bottom - margin;
    this.top = top + margin;
    this.tall = tall;
    this.zero = 0;
    this.digits = 4;
  }

  get name() { return "linear, away from zero"; }

  /** @param {number} value */
  y(value) {
    const part = (this.top - value) / (this.top - this.bottom);
    return this.tall * Math.min(1, Math.max(0, part));
  }

  /** @returns {Tick[]} */
  get ticks() {
    const step = roundUp((this.top - this.bottom) / 4);
    const first = Math.ceil(this.bottom / step), last = Math.floor(this.top / step);
    return Array.from({ length: last - first + 1 }, (_, at) => {
      const value = step * (first + at);
      return { value, text: tick(value) };
    });
  }

  /** @returns {number | null} the share of a column's values in the zero band */
  shareNear() { return null; }
}

export class SymlogScale {
  /** @param {number} zero where the zero band ends @param {number} bottom @param {number} top @param {number} tall in pixels */
  constructor(zero, bottom, top, tall) {
    const decades = (/** @type {number} */ value) => (value > zero ? Math.log10(value / zero) : 0);
    let up = decades(top), down = decades(-bottom);
    if (Math.min(up, down) > ALIKE * Math.max(up, down)) up = down = Math.max(up, down);
    this.zero = zero;
    this.tall = tall;
    this.digits = 2;
    this.decade = (tall - 2 * HALF_BAND) / Math.max(up + down, 1);
    this.up = up;
    this.down = down;
    const isBelow = up > 0 && down === 0;
    this.middle = isBelow ? tall - HALF_BAND : HALF_BAND + this.decade * up;
  }

  get name() { return `log, zero band ±${tick(this.zero)}`; }

  /** @param {number} value */
  y(value) {
    const size = Math.abs(value);
    if (size <= this.zero) return this.middle - HALF_BAND * value / this.zero;
    const away = HALF_BAND + this.decade * Math.log10(size / this.zero);
    const y = this.middle - Math.sign(value) * away;
    return Math.min(this.tall, Math.max(0, y));
  }

  /** @returns {[number, number]} the upper and the lower edge of the zero band */
  get band() { return [this.middle - HALF_BAND, this.middle + HALF_BAND]; }

  /** Zero, and a few powers of ten on both sides. @returns {Tick[]} */
  get ticks() {
    const decades = Math.max(this.up, this.down);
    const stride = Math.max(Math.ceil(MIN_DISTANCE / this.decade), Math.ceil(decades / 2.5));
    const values = [0];
    for (let power = stride; power <= decades + 1e-9; power += stride) {
      const value = 10 ** (Math.round(Math.log10(this.zero)) + power);
      if (power <= this.up + 1e-9) values.push(value);
      if (power <= this.down + 1e-9) values.push(-value);
    }
    return values.map((value) => ({ value, text: tick(value) }));
  }

  /** @param {History} history @param {number} at @returns {number | null} the share of a column's values in the zero band */
  shareNear(history, at) {
    if (history.quantiles[QUANTILES.median][at] === null) return null;
    const { power, percent } = history.near;
    const row = Math.round(Math.log10(this.zero)) - power + 1;
    if (row >= percent.length) return 1;
    return percent[Math.max(0, row)][at] / 100;
  }
}

/** One scale for series that are compared. @param {History[]} histories @param {number} tall in pixels @returns {Scale} */
export function scaleOf(histories, tall) {
  const bottom = least(histories.flatMap((each) => known(each.quantiles[QUANTILES.p1])));
  const top = most(histories.flatMap((each) => known(each.quantiles[QUANTILES.p99])));
  const isPositive = bottom > 0 && top <= DECADE * bottom, isNegative = top < 0 && bottom >= DECADE * top;
  if (isPositive || isNegative) return new LinearScale(bottom, top, tall);
  const sizes = sizesOf(histories);
  if (!sizes.length) return new SymlogScale(1, 0, 0, tall);
  const usual = sizes[Math.floor(0.1 * sizes.length)];
  const floor = most(histories.map((each) => each.near.power));
  const power = Math.max(Math.floor(Math.log10(usual / REACH) + 1e-9), floor);
  return new SymlogScale(10 ** power, bottom, top, tall);
}

/** How far each column reaches, the smallest first. Where nearly all values are zero, its extremes count. @param {History[]} histories @returns {number[]} */
function sizesOf(histories) {
  const { p1, p99 } = QUANTILES;
  /** @type {((history: History) => (number | null)[][])[]} */
  const edges = [
    (history) => [history.quantiles[p1], history.quantiles[p99]],
    (history) => [history.min, history.max],
  ];
  for (const edge of edges) {
    const sizes = histories.flatMap((history) => {
      const [low, high] = edge(history);
      return low.map((value, at) => Math.max(Math.abs(value ?? 0), Math.abs(high[at] ?? 0)));
    });
    const positive = sizes.filter((size) => size > 0);
    if (positive.length) return positive.sort((one, other) => one - other);
  }
  return [];
}
