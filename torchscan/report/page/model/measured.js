// Figures of a run, which are by call, on rows, which may be of several equal calls.

import { most } from "./format.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{figures: Record<string, Record<string, number>>, producers: Record<string, string>}} Measured */

/** Times and counts add up; of norms and changes the greatest is shown. */
const GREATEST = new Set(["gradient", "update"]), NAMES = ["latency", "gradient", "update", "nonfinite"];

/** The keys of all calls that a row stands for. @param {Row} row @returns {string[]} */
export function callsOf(row) { return row.calls ?? [row.key]; }

/** The labels of these calls, in the same order: their keys, unless a module was called again. @param {Row} row @returns {string[]} */
export function labelsOf(row) { return row.labels ?? callsOf(row); }

/** @param {Row[]} rows @param {Measured} measured */
export function apply(rows, measured) {
  for (const row of rows) for (const name of [...NAMES, "producer", "holds"]) delete row[name];
  for (const row of rows) {
    for (const name of NAMES) {
      const calls = callsOf(row), values = calls.flatMap((key) => (Object.hasOwn(measured.figures, key) ? measured.figures[key][name] ?? [] : []));
      if (name === "latency" && values.length < calls.length) continue; // a part is no sum
      if (values.length) row[name] = GREATEST.has(name) ? most(values) : values.reduce((sum, value) => sum + value, 0);
    }
    const producer = callsOf(row).find((key) => Object.hasOwn(measured.producers, key));
    if (producer !== undefined) { row.producer = measured.producers[producer]; markAbove(rows, row.in); }
  }
}

/** What the producer is in, so that one finds the way to it. @param {Row[]} rows @param {number | null} above */
function markAbove(rows, above) {
  for (let at = above; at !== null; at = rows[at].in) rows[at].holds = true;
}
