// Paths of lines over the steps, and means of their points.

/** @typedef {import("./axis.js").Scale} Scale */

/** @param {number[]} steps @param {(number | null)[]} values @param {Scale} x @param {(value: number) => number} y */
export function pathOf(steps, values, x, y) {
  let path = "";
  let isOpen = false;
  values.forEach((value, at) => {
    if (value === null) return;
    const isKnown = Number.isFinite(value);
    if (isKnown) path += `${isOpen ? "L" : "M"}${x(steps[at]).toFixed(1)} ${y(value).toFixed(1)}`;
    isOpen = isKnown;
  });
  return path;
}

/** Means of the last finite values; a value that is not finite begins anew. @param {(number | null)[]} values @param {number} number */
export function smooth(values, number) {
  /** @type {number[]} */
  let last = [];
  let sum = 0;
  return values.map((value) => {
    if (value === null) return null;
    if (!Number.isFinite(value)) { last = []; sum = 0; return value; }
    last.push(value);
    sum += value;
    if (last.length > number) sum -= /** @type {number} */ (last.shift());
    return sum / last.length;
  });
}
