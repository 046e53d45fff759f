// Letters and colors of kept layers: the same in the graph, in the table and on their panels.

import { make } from "./elements.js";

/** @typedef {{letter: string, color: string}} Mark the color is one of the letters in COLORS */

/** Colors of the style sheet, `--keepA` to `--keepF`; the seventh layer takes the first one again. */
export const COLORS = "ABCDEF";
const NUM_LETTERS = 26;

/** A, B, …, Z, AA, AB, … @param {number} number @returns {string} */
function letterOf(number) {
  const last = String.fromCharCode(65 + (number % NUM_LETTERS));
  return number < NUM_LETTERS ? last : `${letterOf(Math.floor(number / NUM_LETTERS) - 1)}${last}`;
}

/** The layers that are kept, by the key of their first call. */
export class Kept {
  /** @param {() => void} [changed] called after a layer was kept or released */
  constructor(changed) {
    this.changed = changed ?? (() => {});
    /** @type {Map<string, number>} the number of its letter by key */
    this.numbers = new Map();
    /** @type {Map<string, string>} which of its calls is shown, by key */
    this.calls = new Map();
  }

  /** Give a layer the first free letter, unless it has one. @param {string} key @param {string} [call] that is shown @returns {Mark} */
  keep(key, call = key) {
    const isNew = !this.numbers.has(key);
    if (isNew) {
      this.calls.set(key, call);
      const taken = new Set(this.numbers.values());
      let number = 0;
      while (taken.has(number)) number += 1;
      this.numbers.set(key, number);
      this.changed();
    }
    return /** @type {Mark} */ (this.markOf(key));
  }

  /** Another call of a kept layer is shown. @param {string} key @param {string} call */
  show(key, call) {
    this.calls.set(key, call);
    this.changed();
  }

  /** The letter of a call that is shown. @param {string} call @returns {Mark | null} */
  markOfCall(call) {
    for (const [key, shown] of this.calls) if (shown === call) return this.markOf(key);
    return null;
  }

  /** Take its letter back. @param {string} key */
  release(key) {
    this.calls.delete(key);
    if (this.numbers.delete(key)) this.changed();
  }

  /** @param {string} key @returns {Mark | null} */
  markOf(key) {
    const number = this.numbers.get(key);
    if (number === undefined) return null;
    return { letter: letterOf(number), color: COLORS[number % COLORS.length] };
  }
}

/** The letter in its color, for a row or a panel. @param {Mark} mark @returns {HTMLElement} */
export function keepTag(mark) {
  const label = `kept as ${mark.letter}`;
  return make("span", { class: `tag keep-${mark.color}`, title: label }, mark.letter);
}

/** The same in a drawing, 14 pixels wide. @param {Mark} mark @param {number} x @param {number} y */
export function drawnTag(mark, x, y) {
  return make("g", { class: `tag keep-${mark.color}`, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` },
    make("rect", { width: 14, height: 14, rx: 3 }),
    make("text", { x: 7, y: 11, "text-anchor": "middle" }, mark.letter));
}
