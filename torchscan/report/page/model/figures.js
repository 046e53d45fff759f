// What a page can show of a layer, and how it is written.

import { bytes, count, duration, most, ratio } from "./format.js";
import { joinedGiven } from "./given.js";
import { labelsOf } from "./measured.js";
import { digits, percent } from "./numbers.js";
import { seesAll, sidesOf } from "./sees.js";

/** @typedef {Record<string, any>} Row */
/**
 * @typedef {{
 *   key: string, label: string, value: (row: Row, isLowest?: boolean) => number, text: (value: number, row: Row) => string,
 *   colour: (row: Row) => string, adds: boolean, isMeasured?: boolean, byLimiter?: boolean, scale?: "log" | "linear",
 *   fullName?: string, range?: import("./tones.js").Scale, ends?: (row: Row) => number[],
 *   cells?: (row: Row) => import("./tones.js").Cell[], legend?: (boxes: import("./plan.js").Box[]) => HTMLElement[],
 * }} Figure `scale`: its colors are tones between the smallest and the largest value. Those after it are of overlays:
 * the name in full, the tones, the lowest and the highest value of a row, all of them, and what the legend says
 */

/** A dash stands for what was not measured; zero may be measured. @param {string} key @param {(value: number) => string} text */
function measured(key, text) {
  return (/** @type {number} */ value, /** @type {Row} */ row) => {
    if (row[key] === undefined) return "–";
    return value === 0 ? "0" : text(value);
  };
}

/** The largest side; what sees everything comes last. @param {Row} row */
export function fieldOf(row) { return seesAll(row) ? Infinity : most(sidesOf(row).filter(Number.isFinite), 0); }

const of = (/** @type {string} */ key) => (/** @type {Row} */ row) => row[key] ?? 0;
const always = (/** @type {string} */ name) => () => name;

/** @type {Figure[]} */
const ALL = [
  { key: "nonfinite", label: "NaN and Inf", value: of("nonfinite"), text: measured("nonfinite", count), colour: (row) => (row.producer === undefined ? "launch" : "wrong"), adds: false, isMeasured: true },
  { key: "latency", label: "measured time", value: of("latency"), text: measured("latency", duration), colour: always("compute"), adds: true, isMeasured: true },
  { key: "gradient", label: "output gradient", value: of("gradient"), text: measured("gradient", digits), colour: always("memory"), adds: false, isMeasured: true, scale: "log" },
  { key: "update", label: "update ÷ weight", value: of("update"), text: measured("update", digits), colour: always("parameters"), adds: false, isMeasured: true, scale: "log" },
  { key: "std", label: "std of outputs", value: of("std"), text: measured("std", digits), colour: always("activations"), adds: false, isMeasured: true, scale: "log" },
  { key: "dead", label: "dead units", value: of("dead"), text: measured("dead", percent), colour: always("temporary"), adds: false, isMeasured: true, scale: "linear" },
  { key: "time", label: "time", value: of("time"), text: duration, colour: (row) => row.limiter || "launch", adds: true, byLimiter: true },
  { key: "macs", label: "MACs", value: of("macs"), text: count, colour: always("compute"), adds: true },
  { key: "flops", label: "FLOPs", value: of("flops"), text: count, colour: always("compute"), adds: true },
  { key: "params", label: "parameters", value: of("params"), text: count, colour: always("parameters"), adds: true },
  { key: "bytes", label: "bytes moved", value: of("bytes"), text: bytes, colour: always("memory"), adds: true },
  { key: "intensity", label: "FLOPs per byte", value: (row) => (row.bytes ? row.flops / row.bytes : 0), text: ratio, colour: (row) => row.limiter || "compute", adds: false, byLimiter: true },
  { key: "activations", label: "activations kept", value: of("activations"), text: bytes, colour: always("activations"), adds: false },
  { key: "peak", label: "peak memory", value: of("peak"), text: bytes, colour: always("activations"), adds: false },
  { key: "forward", label: "forward pass", value: of("forward"), text: measured("forward", duration), colour: always("compute"), adds: true },
  { key: "backward", label: "backward pass", value: of("backward"), text: measured("backward", duration), colour: always("compute"), adds: true },
  { key: "rf", label: "receptive field", value: fieldOf, text: (_, row) => row.rf || "–", colour: always("compute"), adds: false },
];

/** Those that the page has; one without a value for any row, if there are none: a page is coloured by something. @param {Row[]} rows */
export function figuresOf(rows) {
  const found = ALL.filter((figure) => rows.some((row) => figure.value(row) || isKnown(figure, row)));
  return found.length ? found : ALL.filter((figure) => figure.key === "params");
}

/** Whether a run has measured it, be it zero. @param {Figure} figure @param {Row} row */
export function isKnown(figure, row) { return Boolean(figure.isMeasured) && row[figure.key] !== undefined; }

/** What the figure of several modules is. @param {Figure} figure */
export function foldingOf(figure) { return figure.range ? "range" : figure.adds || figure.key === "nonfinite" ? "sum" : "largest"; }

/** Whether a run has seen NaN or Inf in a row that is not their source. @param {Row} row */
export function hasReceived(row) { return row.nonfinite > 0 && row.producer === undefined && !row.holds; }

/**
 * One row for several: figures are sums, or the largest.
 * @param {Row[]} rows @param {string} name @returns {Row}
 */
export function joinedRow(rows, name) {
  const types = [...new Set(rows.map((row) => row.type))];
  /** @type {Row} */
  const found = { name, path: name, key: name, type: types.length === 1 ? types[0] : `${types.length} types`, repeats: rows.length, input: [], output: [], rf: "", calls: [name] };
  for (const figure of ALL.filter((each) => each.key !== "rf" && each.key !== "intensity")) {
    const values = rows.map((row) => row[figure.key]).filter((value) => value !== undefined);
    const isPart = figure.key === "latency" && values.length < rows.length;
    if (!values.length || isPart) continue;
    found[figure.key] = foldingOf(figure) === "sum" ? values.reduce((sum, value) => sum + value, 0) : most(values);
  }
  const given = joinedGiven(rows);
  if (given) found.given = given;
  found.complete = rows.every((row) => row.complete);
  const source = rows.find((row) => row.producer !== undefined || row.holds);
  if (source) found.holds = source.holds ?? source.path;
  if (rows.some((row) => row.failed)) found.failed = true;
  return found;
}

/**
 * What is said of a layer where one points at it; the first is its name, without a label.
 * @param {Row} row @param {Figure[]} figures @param {Figure} [chosen] comes before the others @returns {[string, string][]}
 */
export function saidOf(row, figures, chosen) {
  const others = figures.filter((figure) => figure.key !== "rf" && figure !== chosen);
  const ordered = chosen && chosen.key !== "rf" ? [chosen, ...others] : others;
  const number = row.calls ? Math.max(row.calls.length, row.repeats) : 1;
  const folding = (/** @type {Figure} */ figure) => (number > 1 ? ` (${foldingOf(figure)} of ${number})` : "");
  const said = ordered.map((figure, at) => [`${figure.label}${at ? "" : folding(figure)}`, figure.text(figure.value(row), row)]);
  const settings = (row.settings ?? []).map((/** @type {[string, string]} */ [name, value]) => [name || "settings", value]);
  const found = [
    ["", titleOf(row)],
    ["type", `${row.type}${row.repeats > 1 ? ` ×${count(row.repeats)}` : ""}`],
    ...(row.producer === undefined ? [] : [["first NaN or Inf", row.producer || "here"]]),
    ...said.slice(0, 1),
    ["input", tensorsOf(row.takes, row.input)], ["output", tensorsOf(row.gives, row.output)],
    ...settings, ...said.slice(1),
    ["receptive field", row.rf], ["limited by", row.limiter ?? ""],
    ...(row.repeats > 1 ? [["repeats", `times, arithmetic, bytes and parameters are sums, other values are the ${row.given ? "range or the " : ""}largest`]] : []),
  ];
  return /** @type {[string, string][]} */ (found.filter(([, value]) => value && value !== "–"));
}

/** The path of a row, from the first to the last of several calls. @param {Row} row */
function titleOf(row) {
  const labels = labelsOf(row);
  const last = labels[labels.length - 1];
  return labels.length > 1 && last !== labels[0] ? `${labels[0]} … ${last}` : labels[0] || row.name;
}

/** @param {[string, string][] | undefined} named @param {string[]} shapes */
function tensorsOf(named, shapes) {
  return named ? named.map(([name, shape]) => `${name} ${shape}`).join(", ") : shapes.join(", ");
}
