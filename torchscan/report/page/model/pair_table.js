// The table of two sides in step: a column for each side and the difference.

import { make } from "./elements.js";
import { most } from "./format.js";
import { LayersView } from "./layers.js";
import { SIGNS, WORDS } from "./pair_marks.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {import("./table_cells.js").Column} Column */
/** @typedef {Record<string, any>} Row */

/** figures that stand in the table besides the chosen one */
const STEADY = ["params", "macs", "forward"];

export class PairTable extends LayersView {
  /** whether rows without a difference are left out */
  onlyDifferent = false;

  /** @param {boolean} isOnly */
  filter(isOnly) {
    this.onlyDifferent = isOnly;
    this.drawn = "";
    if (this.figure) this.show(this.selected, this.figure);
  }

  /** @param {Figure} figure @returns {Column[]} */
  columns(figure) {
    const isShown = (/** @type {Figure} */ each) => each !== figure && this.rows.some((row) => differenceOf(each, row));
    const steady = this.figures.filter((each) => STEADY.includes(each.key) && isShown(each));
    return [
      { key: "name", label: "Layer", isNumber: false, always: true, of: (row) => row.name, text: (row) => row.name },
      { key: "what", label: "Difference", isNumber: false, always: true, of: (row) => `${row.kind === "same" ? "~" : row.kind}${row.what.join()}`, text: wordsOf },
      ...steady.flatMap((each) => columnsOf(each, false)), ...columnsOf(figure, true),
    ];
  }

  /** @param {Figure} figure */
  measure(figure) {
    super.measure(figure);
    const below = this.rows.filter((row) => row.depth > 0);
    this.whole = most((below.length ? below : this.rows).map((row) => Math.abs(differenceOf(figure, row))), 0);
  }

  found() {
    const all = super.found();
    return this.onlyDifferent ? all.filter((at) => this.rows[at].kind !== "same") : all;
  }

  /** @param {number} at @param {Column[]} columns */
  line(at, columns) {
    const made = super.line(at, columns);
    made.classList.add(`is-${this.rows[at].kind}`);
    made.children[1].className = "what";
    made.children[1].title = wordsOf(this.rows[at]);
    return made;
  }

  /** @param {number} at @param {boolean} isTree */
  nameCell(at, isTree) {
    const row = this.rows[at], cell = super.nameCell(at, isTree);
    const sign = make("span", { class: `sign keep-${row.kind}`, title: WORDS[row.kind] }, SIGNS[row.kind] ?? "");
    cell.insertBefore(sign, cell.children[1]);
    return cell;
  }

  /** The share of the difference, and a bar. @param {Row} row */
  part(row) {
    const figure = /** @type {Figure} */ (this.figure);
    const difference = differenceOf(figure, row);
    const before = valueOf(figure, row, 0);
    const isKnown = Number.isFinite(difference) && difference !== 0 && before > 0;
    const percent = isKnown ? signed(difference, (value) => percentText(100 * value / before)) : "";
    const bar = make("i", { class: difference > 0 ? "more" : difference < 0 ? "less" : "" });
    bar.style.width = `${this.whole && Number.isFinite(difference) ? 100 * Math.min(1, Math.abs(difference) / this.whole) : 0}%`;
    return make("span", { class: "part" }, make("span", { class: "percent" }, percent), make("span", { class: "share" }, bar));
  }
}

/** Before, after and the difference. @param {Figure} figure @param {boolean} always also on a narrow screen @returns {Column[]} */
function columnsOf(figure, always) {
  const textOf = (/** @type {Row | null} */ row) => (row ? `${boundOf(figure, row)}${figure.text(figure.value(row), row)}` : "");
  const label = figure.label[0].toUpperCase() + figure.label.slice(1);
  const common = { isNumber: true, always };
  return [
    { ...common, always: false, key: `${figure.key}-before`, label: `${label} before`, of: (row) => valueOf(figure, row, 0), text: (row) => textOf(row.one) },
    { ...common, key: `${figure.key}-after`, label: "after", title: `${label} after`, of: (row) => valueOf(figure, row, 1), text: (row) => textOf(row.other) },
    { ...common, key: `${figure.key}-difference`, label: "difference", title: `${label}: difference`, of: (row) => differenceOf(figure, row), text: (row) => differenceText(figure, row) },
  ];
}

/** @param {Figure} figure @param {Row} row */
function boundOf(figure, row) { return !row.complete && (figure.key === "macs" || figure.key === "flops") ? "≥ " : ""; }

/** @param {Figure} figure @param {Row} row of both sides @returns {number} */
export function differenceOf(figure, row) { return valueOf(figure, row, 1) - valueOf(figure, row, 0); }

/** The value on one side. What a wrapper contains is there without it. @param {Figure} figure @param {Row} row of both sides @param {number} side @returns {number} */
function valueOf(figure, row, side) {
  const own = side ? row.other : row.one;
  if (own) return figure.value(own);
  const parts = row.inside.map((/** @type {Row} */ each) => valueOf(figure, each, side));
  return figure.adds ? parts.reduce((/** @type {number} */ sum, /** @type {number} */ each) => sum + each, 0) : most(parts, 0);
}

/** Of lower bounds, the difference is unknown. A time that may have changed by chance stands in brackets. @param {Figure} figure @param {Row} row @returns {string} */
export function differenceText(figure, row) {
  if ([row.one, row.other].some((each) => each && boundOf(figure, each))) return "?";
  const difference = differenceOf(figure, row);
  if (!Number.isFinite(difference)) return "?";
  if (!difference) return "";
  const text = signed(difference, (value) => figure.text(value, { [figure.key]: value }));
  return row.unclear?.includes(figure.key) && row.one && row.other ? `(${text})` : text;
}

/** @param {number} percent of a change, above zero */
function percentText(percent) { return percent < 0.005 ? "<0.01 %" : `${percent.toFixed(percent < 0.995 ? 2 : percent < 9.95 ? 1 : 0)} %`; }

/** @param {number} value @param {(value: number) => string} text of a positive one */
function signed(value, text) { return `${value > 0 ? "+" : "−"}${text(Math.abs(value))}`; }

/** The differences in words, and the old name if the layer has moved. @param {Row} row */
export function wordsOf(row) {
  const words = row.what.length ? row.what : [WORDS[row.kind] ?? ""];
  return [...words, row.was ? `was ${row.was}` : ""].filter(Boolean).join("; ");
}
