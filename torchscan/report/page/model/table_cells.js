// What stands in the table of layers: its columns, and the bar or strip beside a figure.

import { make } from "./elements.js";
import { fieldOf } from "./figures.js";
import { count, share } from "./format.js";
import { keepTag } from "./keep.js";
import { callsOf } from "./measured.js";
import { cellsOf, cellsOfRows, drawStrip } from "./tones.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {import("./tones.js").Scale} Scale */
/** @typedef {Record<string, any>} Row */
/** @typedef {{key: string, label: string, isNumber: boolean, always?: boolean, isGiven?: boolean, yields?: number, title?: string, of: (row: Row, isUp?: boolean) => any, text: (row: Row) => string}} Column `always`: also on a narrow screen. `isGiven`: of an overlay, whose name may be long. `yields`: the lowest is left out first where the table is too wide; without it, never */

const STRIP_WIDE = 84, STRIP_TALL = 8;
/** overlays beside the chosen figure, at most: each takes the place of a cost */
const MOST_OVERLAYS = 2;

/** Beside overlays, costs are left out first, and the user's own values last. */
const RANKS = { cost: 0, output: 10, overlay: 20 };

/** What stands beside the chosen figure of a watched run, instead of the costs of its model. */
const WATCHED = /** @type {[string, string][]} */ ([["std", "Std"], ["update", "Update"]]);

/** The name, the output, costs or what a watched run has measured, and the chosen figure. @param {Figure} figure @param {Figure[]} figures of the page @param {Row[]} rows @returns {Column[]} */
export function columnsOf(figure, figures, rows) {
  const counted = (/** @type {string} */ key, /** @type {string} */ label) => ({ key, label, isNumber: true, of: (/** @type {Row} */ row) => row[key], text: (/** @type {Row} */ row) => count(row[key]) });
  const field = { key: "rf", label: "RF", isNumber: true, of: (/** @type {Row} */ row) => fieldOf(row), text: (/** @type {Row} */ row) => row.rf || "–" };
  const watched = WATCHED.flatMap(([key, label]) => {
    const found = figures.find((each) => each.key === key);
    return found && found !== figure ? [{ key, label, isNumber: true, title: found.label, of: found.value, text: (/** @type {Row} */ row) => found.text(found.value(row), row) }] : [];
  });
  const overlays = figures.filter((each) => each.range && each !== figure).slice(0, MOST_OVERLAYS).map(overlayColumn);
  const arithmetic = { ...counted("macs", "MACs"), text: (/** @type {Row} */ row) => `${row.complete ? "" : "≥ "}${count(row.macs)}` };
  const costs = watched.length ? [counted("params", "Params")] : [counted("params", "Params"), arithmetic, field];
  const known = costs.filter((column) => column.key !== figure.key && rows.some((row) => row[column.key])).slice(0, Math.max(0, costs.length - overlays.length));
  const hasGiven = figures.some((each) => each.range);
  const yielding = (/** @type {Column[]} */ columns, /** @type {number} */ rank) => (hasGiven ? columns.map((column, at) => ({ ...column, yields: rank + columns.length - at })) : columns);
  return [
    { key: "name", label: "Layer", isNumber: false, always: true, of: (row) => row.name, text: (row) => row.name },
    ...yielding([{ key: "output", label: "Output", isNumber: true, of: (row) => row.output[0] ?? "", text: (row) => (row.output[0] ?? "–") + (row.output.length > 1 ? ` +${row.output.length - 1}` : "") }], RANKS.output),
    ...yielding([...known, ...watched], RANKS.cost), ...yielding(overlays, RANKS.overlay),
    figure.range ? { ...overlayColumn(figure), always: true } : { key: figure.key, label: figure.label[0].toUpperCase() + figure.label.slice(1), isNumber: true, always: true, of: figure.value, text: (row) => figure.text(figure.value(row), row) },
  ];
}

/** A layer's own values, under the user's name: those inside it have rows themselves. @param {Figure} figure @returns {Column} */
function overlayColumn(figure) {
  return { key: figure.key, label: figure.label, isNumber: true, isGiven: true, title: figure.fullName, of: figure.value, text: (row) => (Number.isNaN(figure.value(row)) ? "–" : figure.text(NaN, row)) };
}

/** Whether a row matches a search. A folded row has the paths of all that it stands for. @param {Row} row @param {string} wanted */
export function isMeant({ path, name, type, calls }, wanted) {
  return `${path} ${name} ${type}`.toLowerCase().includes(wanted) || (calls ?? []).some((/** @type {string} */ key) => key.toLowerCase().includes(wanted));
}

/** A bar beside a figure, and its share of the whole; of several modules, what each has measured. @param {Row} row @param {Figure} figure @param {number} whole @param {Scale} scale */
export function partOf(row, figure, whole, scale) {
  const cells = cellsOf(figure, row) ?? (figure.scale ? cellsOfRows(figure, [row], [0]) : null);
  if (cells) {
    const drawn = make("svg", { class: "cells", width: STRIP_WIDE, height: STRIP_TALL, viewBox: `0 0 ${STRIP_WIDE} ${STRIP_TALL}`, preserveAspectRatio: "none", "aria-hidden": "true" }, drawStrip(cells, scale, STRIP_WIDE, STRIP_TALL));
    return make("span", { class: "part" }, drawn);
  }
  const part = whole ? Math.min(1, figure.value(row) / whole) : 0;
  const drawn = make("span", { class: "share" }, make("i", { class: `on-${figure.colour(row)}` }));
  drawn.firstChild.style.width = `${100 * part}%`;
  return make("span", { class: "part" }, figure.adds ? make("span", { class: "percent" }, share(part)) : "", drawn);
}

/** The letter of a kept layer, and a word where NaN or Inf came from. @param {Row} row @param {import("./keep.js").Kept | null} kept */
export function marksOf(row, kept) {
  const mark = kept?.markOf(callsOf(row)[0]);
  const source = row.producer === undefined ? [] : [make("span", { class: "badge", title: row.producer }, "first NaN or Inf")];
  const inside = row.holds && row.producer === undefined ? [make("span", { class: "badge inside", title: `first NaN or Inf: ${row.holds}` })] : [];
  return [...(mark ? [keepTag(mark)] : []), ...source, ...inside];
}
