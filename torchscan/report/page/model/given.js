// Values by path that the page was given, on its rows: a row's own, or the range of those inside it.

import { least, most } from "./format.js";
import { callsOf } from "./measured.js";

/** @typedef {Record<string, any>} Row */
/** of a module, or of its parameters and buffers by name @typedef {number | Record<string, number>} GivenValue */
/** @typedef {Record<string, GivenValue>} GivenValues by the keys of calls */
/** `number` of `of` modules have a value; of `isOwn` false, these are inside @typedef {{low: number, high: number, number: number, of: number, isOwn: boolean}} Given */

/** The values of a call, each with the name of its parameter or buffer; "": of the module. @param {GivenValues} values @param {string} key @returns {[string, number][]} */
export function valuesAt(values, key) {
  if (!Object.hasOwn(values, key)) return [];
  const found = values[key];
  return typeof found === "number" ? [["", found]] : Object.entries(found);
}

/** Put the values of an overlay on the rows that have some, or have some inside. @param {Row[]} rows @param {string} overlay @param {GivenValues} values */
export function placeGiven(rows, overlay, values) {
  /** @type {Map<number, Given>} */
  const inside = new Map();
  for (let at = rows.length - 1; at >= 0; at -= 1) { // what is inside a row comes after it
    const row = rows[at];
    const own = ownOf(row, values);
    const inner = inside.get(at);
    const shown = own ?? inner;
    if (shown) row.given = { ...row.given, [overlay]: shown };
    if (row.in === null) continue;
    for (const each of [own, inner]) if (each) inside.set(row.in, united({ ...each, isOwn: false }, inside.get(row.in)));
  }
}

/** Of several rows in one box: their own values, or else those inside. @param {Row[]} rows @returns {Record<string, Given> | undefined} */
export function joinedGiven(rows) {
  /** @type {Record<string, Given>} */
  const found = {};
  const number = rows.reduce((sum, row) => sum + callsOf(row).length, 0);
  for (const overlay of new Set(rows.flatMap((row) => Object.keys(row.given ?? {})))) {
    const all = rows.flatMap((row) => row.given?.[overlay] ?? []);
    const own = all.filter((each) => each.isOwn);
    const joined = (own.length ? own : all).reduce((sum, each) => united(each, sum));
    found[overlay] = { ...joined, of: number };
  }
  return Object.keys(found).length ? found : undefined;
}

/** @param {Row} row @param {GivenValues} values @returns {Given | undefined} */
function ownOf(row, values) {
  const calls = callsOf(row);
  const found = calls.map((key) => valuesAt(values, key).map(([, value]) => value)).filter((each) => each.length);
  if (!found.length) return undefined;
  const all = found.flat();
  return { low: least(all), high: most(all), number: found.length, of: calls.length, isOwn: true };
}

/** @param {Given} one @param {Given | undefined} other @returns {Given} */
function united(one, other) {
  if (!other) return one;
  return { ...one, low: Math.min(one.low, other.low), high: Math.max(one.high, other.high), number: one.number + other.number, of: one.of + other.of };
}
