// What a page can show of a layer, and how it is written.

import { make } from "./elements.js";
import { bytes, count, duration, most, ratio } from "./format.js";
import { labelsOf } from "./measured.js";
import { middleOf, seenBy, seesAll, sidesOf, sightOf } from "./sees.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{key: string, label: string, value: (row: Row) => number, text: (value: number, row: Row) => string, colour: (row: Row) => string, adds: boolean}} Figure */

/** What a run has measured may be exactly zero; a dash stands for what it has not. @param {string} key */
function measured(key) {
  return (/** @type {number} */ value, /** @type {Row} */ row) => {
    if (row[key] === undefined) return "–";
    return value === 0 ? "0" : value >= 1e4 || value < 1e-3 ? value.toExponential(2) : value.toPrecision(3);
  };
}

/** The largest side; what sees everything comes last. @param {Row} row */
export function fieldOf(row) { return seesAll(row) ? Infinity : most(sidesOf(row).filter(Number.isFinite), 0); }

const of = (/** @type {string} */ key) => (/** @type {Row} */ row) => row[key] ?? 0;
const always = (/** @type {string} */ name) => () => name;

/** Figures that are shown where they are zero, too. */
const MEASURED = new Set(["gradient", "update"]);

/** @type {Figure[]} */
const ALL = [
  { key: "nonfinite", label: "NaN and Inf", value: of("nonfinite"), text: count, colour: always("wrong"), adds: false },
  { key: "latency", label: "measured time", value: of("latency"), text: duration, colour: always("compute"), adds: true },
  { key: "gradient", label: "gradient norm", value: of("gradient"), text: measured("gradient"), colour: always("memory"), adds: false },
  { key: "update", label: "update ÷ weight", value: of("update"), text: measured("update"), colour: always("parameters"), adds: false },
  { key: "time", label: "time", value: of("time"), text: duration, colour: (row) => row.limiter || "launch", adds: true },
  { key: "macs", label: "MACs", value: of("macs"), text: count, colour: always("compute"), adds: true },
  { key: "flops", label: "FLOPs", value: of("flops"), text: count, colour: always("compute"), adds: true },
  { key: "params", label: "parameters", value: of("params"), text: count, colour: always("parameters"), adds: true },
  { key: "bytes", label: "bytes moved", value: of("bytes"), text: bytes, colour: always("memory"), adds: true },
  { key: "intensity", label: "FLOPs per byte", value: (row) => (row.bytes ? row.flops / row.bytes : 0), text: ratio, colour: (row) => row.limiter || "compute", adds: false },
  { key: "activations", label: "activations kept", value: of("activations"), text: bytes, colour: always("activations"), adds: false },
  { key: "peak", label: "peak memory", value: of("peak"), text: bytes, colour: always("activations"), adds: false },
  { key: "rf", label: "receptive field", value: fieldOf, text: (_, row) => row.rf || "–", colour: always("compute"), adds: false },
];

/** Those that the page has; one without a value for any row, if there are none: a page is coloured by something. @param {Row[]} rows */
export function figuresOf(rows) {
  const found = ALL.filter((figure) => rows.some((row) => figure.value(row) || (MEASURED.has(figure.key) && row[figure.key] !== undefined)));
  return found.length ? found : ALL.filter((figure) => figure.key === "params");
}

/** What a unit in the middle sees of the input, drawn. @param {Row | undefined} row */
export function sightIn(row) {
  if (!row?.sees) return null;
  const unit = middleOf(row.sees), seen = seenBy(row.sees, unit, 96);
  return make("svg", { class: "sees", width: seen.wide, height: seen.tall, viewBox: `-1 -1 ${seen.wide + 2} ${seen.tall + 2}`, role: "img", "aria-label": sightOf(row.sees, unit) }, seen.element);
}

/** What is said of a layer where one points at it. @param {Row} row @param {Figure[]} figures @returns {[string, string][]} */
export function saidOf(row, figures) {
  const said = figures.filter((figure) => figure.key !== "rf").map((figure) => /** @type {[string, string]} */ ([figure.label, figure.text(figure.value(row), row)]));
  return /** @type {[string, string][]} */ ([
    ["", row.calls ? row.path : labelsOf(row)[0] || row.name], ["type", row.type],
    ...(row.repeats > 1 ? [["repeats", `${row.repeats} identical modules: times, arithmetic, bytes and parameters are sums`]] : []),
    ["input", row.input.join(", ")], ["output", row.output.join(", ")],
    ...said, ["first NaN or Inf", row.producer ?? ""], ["receptive field", row.rf], ["limited by", row.limiter ?? ""],
    ...(row.settings ?? []).map((/** @type {[string, string]} */ [name, value]) => [name || "settings", value]),
  ]).filter(([, value]) => value && value !== "–");
}
