// What a heat map shows of layers: how it is written, and from which values to which its tones go.

import { digits, percent } from "./numbers.js";

/** @typedef {import("./unpack.js").Arrays} Arrays */
/**
 * @typedef {object} Shown
 * @property {string} name
 * @property {number} bits of tensors whose NaN or Inf makes it unknown: outputs, gradients, weights, in the order of CODES
 * @property {string} label
 * @property {string} short for narrow screens
 * @property {"largest" | "mean"} pick of several steps in a column
 * @property {string} folded what a folded row shows
 * @property {string} none why a row has no value
 * @property {string} missing why no row has a value
 * @property {(value: number) => string} text
 * @property {number} [limit] that is drawn
 * @property {string[]} [codes] of findings that it shows
 */

/** decades that tones tell apart, at most and at least */
const MAX_DECADES = 10, MIN_DECADES = 2;
const CODES = ["outputs", "gradients", "weights"];

/** @type {Shown[]} */
export const QUANTITIES = [
  { name: "gradient", bits: 2, label: "gradient norm", short: "gradient", pick: "largest", folded: "the norm over all its weights", none: "no weights", missing: "gradients of weights were not recorded", text: digits },
  { name: "update", bits: 4, label: "update ÷ weight", short: "update", pick: "largest", folded: "the ratio over all its weights", none: "no weights", missing: "weights were not recorded before and after a step", text: digits, limit: 1e-5, codes: ["layer-does-not-learn", "network-stuck"] },
  { name: "std", bits: 1, label: "std of outputs", short: "std", pick: "mean", folded: "its own output", none: "no floating-point output", missing: "outputs were not recorded", text: digits },
  { name: "dead", bits: 1, label: "dead units", short: "dead", pick: "largest", folded: "the share of all its units", none: "no units that can die", missing: "there is no ReLU whose outputs were recorded", text: percent, codes: ["layer-dead"] },
  { name: "nan", bits: 7, label: "NaN", short: "NaN", pick: "largest", folded: "any of its modules", none: "", missing: "", text: () => "" },
];

/** From which logarithm the tones go to which, in whole decades. @param {Arrays} arrays @param {string} name @returns {[number, number]} */
export function decadesOf(arrays, name) {
  if (name === "dead") return [-3, 0];
  const found = arrays.quantities.get(name);
  if (!found) return [0, 1];
  /** @type {number[]} */
  const logs = [];
  for (const values of found.rows.values()) {
    const spacing = Math.max(1, values.length >> 6);
    for (let at = 0; at < values.length; at += spacing) if (values[at] > 0) logs.push(Math.log10(values[at]));
  }
  if (!logs.length) return [0, 1];
  logs.sort((one, other) => one - other);
  const high = Math.ceil(logs[Math.floor(0.998 * (logs.length - 1))] - 1e-9);
  const low = Math.floor(logs[Math.floor(0.01 * logs.length)] + 1e-9);
  return [Math.max(high - MAX_DECADES, Math.min(low, high - MIN_DECADES)), high];
}

/** @param {Shown} shown @param {number | null} value */
export function textOf(shown, value) {
  return value === null || Number.isNaN(value) ? "–" : shown.text(value);
}

/** Where values are not finite. @param {number} bits */
export function placesOf(bits) {
  const found = CODES.filter((_, bit) => bits & (1 << bit));
  return found.length ? `NaN or Inf in ${found.join(", ")}` : "finite";
}
