// Columns of steps on the pixels of a heat map.

import { lastUpTo } from "./numbers.js";

/** @typedef {import("./unpack.js").Arrays} Arrays */
/** @typedef {import("./axis.js").Scale} Scale */

/** a column without a successor for longer than so many columns is over */
const MAX_GAP = 4;

export class HeatColumns {
  /** @param {Arrays} arrays */
  constructor(arrays) {
    this.arrays = arrays;
    const { first, last, until } = arrays;
    const widths = until.map((end, at) => end - first[at]).sort((one, other) => one - other);
    this.width = widths[widths.length >> 1] ?? 1;
    this.ends = until.map((end, at) => Math.min(end, last[at] + 1 + MAX_GAP * this.width));
    /** columns of each pixel, from and until */
    this.from = new Int32Array(0);
    this.to = new Int32Array(0);
  }

  /** The column of a step; -1: there is none. @param {number} step */
  at(step) {
    const found = this.before(step);
    return found >= 0 && step < this.ends[found] ? found : -1;
  }

  /** The last column that begins up to a step. @param {number} step */
  before(step) { return lastUpTo(this.arrays.first, step); }

  /** Work out which columns lie under each pixel. @param {Scale} scale @param {number} left @param {number} number of pixels @param {number} size of one */
  spread(scale, left, number, size) {
    this.from = new Int32Array(number);
    this.to = new Int32Array(number);
    const { first } = this.arrays;
    for (let pixel = 0; pixel < number; pixel += 1) {
      const start = scale.step(left + pixel * size);
      const end = scale.step(left + (pixel + 1) * size);
      let from = this.before(start);
      if (from < 0 || start >= this.ends[from]) from += 1;
      let to = Math.max(0, this.before(end) + 1);
      if (to > 0 && first[to - 1] === end && to - 1 > from) to -= 1;
      this.from[pixel] = from;
      this.to[pixel] = Math.max(from, to);
    }
  }

  /** The value under a pixel: the largest of its columns, or their mean; NaN where there is none. @param {Float32Array} values @param {number} pixel @param {boolean} isLargest */
  value(values, pixel, isLargest) {
    let found = NaN;
    let sum = 0;
    let number = 0;
    for (let at = this.from[pixel]; at < this.to[pixel]; at += 1) {
      const value = values[at];
      if (Number.isNaN(value)) continue;
      if (!(found >= value)) found = value;
      sum += value;
      number += 1;
    }
    return isLargest || !number ? found : sum / number;
  }

  /** Where values under a pixel are not finite. @param {Uint8Array} wrong @param {number} pixel */
  bits(wrong, pixel) {
    let found = 0;
    for (let at = this.from[pixel]; at < this.to[pixel]; at += 1) found |= wrong[at];
    return found;
  }
}
