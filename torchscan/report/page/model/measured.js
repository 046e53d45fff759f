// Figures of a run, which are by call, on rows, which may be of several equal calls.

import { most } from "./format.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{figures: Record<string, Record<string, number>>, producers: Record<string, string>}} Measured */

/** What a run measures. Times and counts of several calls add up; of the others, the largest is shown. */
const NAMES = ["latency", "gradient", "update", "std", "dead", "nonfinite"];
const SUMMED = new Set(["latency", "nonfinite"]);
/** What is known of a row only where a value was not finite. */
const MARKS = ["producer", "source", "holds"];

/** The keys of all calls that a row stands for. @param {Row} row @returns {string[]} */
export function callsOf(row) { return row.calls ?? [row.key]; }

/** The labels of these calls, in the same order: their keys, unless a module was called again. @param {Row} row @returns {string[]} */
export function labelsOf(row) { return row.labels ?? callsOf(row); }

/** Put measured figures on the rows, and those of each call that a row stands for. @param {Row[]} rows @param {Measured} measured */
export function apply(rows, measured) {
  for (const row of rows) {
    for (const name of [...NAMES, ...MARKS, "blocks"]) delete row[name];
  }
  for (const row of rows) {
    const calls = callsOf(row);
    const found = calls.map((key) => (Object.hasOwn(measured.figures, key) ? measured.figures[key] : {}));
    for (const name of NAMES) join(row, name, found.map((figures) => figures[name]));
    const source = calls.findIndex((key) => Object.hasOwn(measured.producers, key));
    if (source >= 0) {
      row.producer = measured.producers[calls[source]];
      row.source = source;
      markAbove(rows, row);
    }
  }
}

/** @param {Row} row @param {string} name @param {(number | undefined)[]} values of its calls */
function join(row, name, values) {
  const known = /** @type {number[]} */ (values.filter((value) => value !== undefined));
  if (values.length > 1 && known.length) row.blocks = { ...row.blocks, [name]: values };
  if (!known.length || (name === "latency" && known.length < values.length)) return; // a part is not a sum
  row[name] = SUMMED.has(name) ? known.reduce((sum, value) => sum + value, 0) : most(known);
}

/** What the producer is in, so that one finds the way to it. @param {Row[]} rows @param {Row} producer */
function markAbove(rows, producer) {
  const calls = callsOf(producer);
  for (let at = producer.in; at !== null; at = rows[at].in) {
    // calls of a row are in the order of the calls that they are in
    rows[at].source = Math.floor(producer.source * callsOf(rows[at]).length / calls.length);
    rows[at].holds = labelsOf(producer)[producer.source];
  }
}
