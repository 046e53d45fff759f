// What a page can show of a layer, and how it is written.

import { make } from "./elements.js";
import { bytes, count, duration, ratio } from "./format.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{key: string, label: string, value: (row: Row) => number, text: (value: number) => string, colour: (row: Row) => string, adds: boolean}} Figure */

const of = (/** @type {string} */ key) => (/** @type {Row} */ row) => row[key] ?? 0;
const always = (/** @type {string} */ name) => () => name;

/** @type {Figure[]} */
const ALL = [
  { key: "time", label: "time", value: of("time"), text: duration, colour: (row) => row.limiter || "launch", adds: true },
  { key: "macs", label: "MACs", value: of("macs"), text: count, colour: always("compute"), adds: true },
  { key: "flops", label: "FLOPs", value: of("flops"), text: count, colour: always("compute"), adds: true },
  { key: "params", label: "parameters", value: of("params"), text: count, colour: always("parameters"), adds: true },
  { key: "bytes", label: "bytes moved", value: of("bytes"), text: bytes, colour: always("memory"), adds: true },
  { key: "intensity", label: "FLOPs per byte", value: (row) => (row.bytes ? row.flops / row.bytes : 0), text: ratio, colour: (row) => row.limiter || "compute", adds: false },
  { key: "activations", label: "activations left", value: of("activations"), text: bytes, colour: always("activations"), adds: false },
  { key: "peak", label: "peak memory", value: of("peak"), text: bytes, colour: always("activations"), adds: false },
  { key: "rf", label: "receptive field", value: (row) => parseFloat(row.rf) || 0, text: (value) => (value ? String(value) : "–"), colour: always("compute"), adds: false },
];

/** Those that the page has. @param {Row[]} rows */
export function figuresOf(rows) { return ALL.filter((figure) => rows.some((row) => figure.value(row))); }

/** What a unit in the middle sees of the input, drawn. @param {Row | undefined} row */
export function seenBy(row) {
  if (!row?.sees) return null;
  const [left, top, wide, tall, across, down] = row.sees, x0 = Math.min(0, left), y0 = Math.min(0, top);
  const x1 = Math.max(across, left + wide), y1 = Math.max(down, top + tall), width = 96, scale = width / (x1 - x0);
  return make("svg", { class: "sees", width, height: ((y1 - y0) * scale).toFixed(1), viewBox: `${x0} ${y0} ${x1 - x0} ${y1 - y0}`, role: "img", "aria-label": `a unit in the middle sees ${wide}×${tall} of ${across}×${down}` },
    make("rect", { class: "groove", x: 0, y: 0, width: across, height: down }), make("rect", { class: "seen", x: left, y: top, width: wide, height: tall, "vector-effect": "non-scaling-stroke" }));
}

/** What is said of a layer where one points at it. @param {Row} row @param {Figure[]} figures @returns {[string, string][]} */
export function saidOf(row, figures) {
  const said = figures.filter((figure) => figure.key !== "rf").map((figure) => /** @type {[string, string]} */ ([figure.label, figure.text(figure.value(row))]));
  return /** @type {[string, string][]} */ ([
    ["", row.path || row.name], ["type", row.type],
    ...(row.repeats > 1 ? [["repeats", `${row.repeats} equal modules; figures are their sums`]] : []),
    ["input", row.input.join(", ")], ["output", row.output.join(", ")],
    ...said, ["receptive field", row.rf], ["limited by", row.limiter ?? ""],
    ...(row.settings ?? []).map((/** @type {[string, string]} */ [name, value]) => [name || "settings", value]),
  ]).filter(([, value]) => value && value !== "–");
}
