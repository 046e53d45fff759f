// Tones of a measured figure: of boxes, and of strips with a cell for each of several modules.

import { make } from "./elements.js";
import { hasReceived } from "./figures.js";
import { least, most } from "./format.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {Record<string, any>} Row */
/** `place` of a value from 0 to 1, and `tones` "d", which go both ways from the middle: of overlays @typedef {{low: number, high: number, isLog: boolean, place?: (value: number) => number, tones?: "d"}} Scale */
/** @typedef {{value: number | undefined, state: "" | "source" | "received", key: string, row?: number, label?: string}} Cell `value`: undefined if there is none */

/** decades that the tones distinguish, and tones from `--h0` to `--h4` */
const DECADES = 8;
const NUM_STEPS = 4;
/** cells of a strip, at most: then each is the largest of several modules */
export const MOST_CELLS = 60;

/**
 * Return the range of a figure over all rows and the calls that they stand for: of a sum, over the calls alone,
 * since what is in something is less than that.
 * @param {Figure} figure @param {Row[]} rows @returns {Scale}
 */
export function scaleOf(figure, rows) {
  if (figure.range) return figure.range;
  const isLog = figure.scale === "log";
  const all = rows.flatMap((row) => row.blocks?.[figure.key] ?? (figure.scale ? [row[figure.key]] : []));
  const values = all.filter((value) => Number.isFinite(value) && (value > 0 || !isLog));
  const high = most(values, 0);
  if (!isLog || !high) return { low: 0, high, isLog: false };
  const low = Math.max(least(values), high * 10 ** -DECADES);
  return { low: 10 ** Math.floor(Math.log10(low)), high: 10 ** Math.ceil(Math.log10(high) + 1e-9), isLog };
}

/** Return a scale from zero to the largest value of strips. @param {(Cell[] | null)[]} strips @returns {Scale} */
export function scaleOfCells(strips) {
  const values = strips.flatMap((cells) => cells ?? []).map((cell) => cell.value ?? 0);
  return { low: 0, high: most(values.filter(Number.isFinite), 0), isLog: false };
}

/** Return where a value stands in a scale, from 0 to 1. @param {Scale} scale @param {number} value */
function placeIn({ low, high, isLog }, value) {
  if (!high || value <= 0) return 0;
  const part = isLog ? Math.log(value / low) / Math.log(high / low) : value / high;
  return Math.min(1, Math.max(0, part));
}

/** Return the color of a value. @param {Scale} scale @param {number} value */
export function toneIn(scale, value) {
  return scale.place ? toneOf(scale.place(value), scale.tones) : toneOf(placeIn(scale, value));
}

/** Return the color of a place in a scale, mixed by the browser as its theme has it. @param {number} place @param {"h" | "d"} [tones] */
export function toneOf(place, tones = "h") {
  const step = Math.min(NUM_STEPS - 1, Math.floor(place * NUM_STEPS));
  const share = Math.round(100 * (place * NUM_STEPS - step));
  return `color-mix(in oklab, var(--${tones}${step + 1}) ${share}%, var(--${tones}${step}))`;
}

/** Return what each call of a row has measured, or null if the row stands for one call. @param {Figure} figure @param {Row} row @returns {Cell[] | null} */
export function cellsOf(figure, row) {
  if (figure.cells) {
    const cells = figure.cells(row);
    return cells.length > 1 || cells.some((cell) => cell.row !== undefined) ? cells : null;
  }
  const values = figure.isMeasured ? row.blocks?.[figure.key] : undefined;
  if (!values) return null;
  const spoilt = row.blocks.nonfinite ?? [];
  return values.map((/** @type {number | undefined} */ value, /** @type {number} */ at) => ({
    value, key: row.calls[at], state: at === row.source ? "source" : spoilt[at] > 0 ? "received" : "",
  }));
}

/** Return a cell for each of several rows. @param {Figure} figure @param {Row[]} rows @param {number[]} numbers of these rows @returns {Cell[]} */
export function cellsOfRows(figure, rows, numbers) {
  const { cells } = figure;
  if (cells) return rows.flatMap((row, at) => cells(row).map((cell) => ({ row: numbers[at], ...cell })));
  return rows.map((row, at) => ({
    value: figure.isMeasured && row[figure.key] === undefined ? undefined : figure.value(row),
    key: row.key, row: numbers[at],
    state: row.producer !== undefined || row.holds ? "source" : hasReceived(row) ? "received" : "",
  }));
}

/**
 * Draw a strip: a cell for each module, or for several neighbors if there are too many.
 * @param {Cell[]} cells @param {Scale} scale @param {number} wide @param {number} tall
 */
export function drawStrip(cells, scale, wide, tall) {
  const number = Math.min(cells.length, MOST_CELLS);
  const strip = make("g", { class: "strip" }, make("rect", { class: "groove", width: wide.toFixed(1), height: tall }));
  const each = wide / number;
  const gap = each > 5 ? 1 : 0;
  for (let at = 0; at < number; at += 1) {
    const cell = strongest(cells.slice(Math.floor(at * cells.length / number), Math.floor((at + 1) * cells.length / number)));
    if (cell.value === undefined && !cell.state) continue;
    const made = make("rect", { class: `cell ${cell.state}`, x: (at * each).toFixed(2), width: (each - gap + (gap ? 0 : 0.3)).toFixed(2), height: tall });
    if (!cell.state) made.style.fill = toneIn(scale, cell.value ?? 0);
    strip.append(made);
  }
  return strip;
}

/** Return the cell at a place from 0 to 1, and how many stand there with it. @param {Cell[]} cells @param {number} part @returns {{cell: Cell, number: number}} */
export function cellAt(cells, part) {
  const number = Math.min(cells.length, MOST_CELLS);
  const at = Math.min(number - 1, Math.max(0, Math.floor(part * number)));
  const near = cells.slice(Math.floor(at * cells.length / number), Math.floor((at + 1) * cells.length / number));
  return { cell: strongest(near), number: near.length };
}

/** A source is never hidden by its neighbors. @param {Cell[]} cells @returns {Cell} */
function strongest(cells) {
  const rank = (/** @type {Cell} */ cell) => (cell.state === "source" ? 2 : cell.state ? 1 : 0);
  return cells.reduce((best, cell) => {
    if (rank(cell) !== rank(best)) return rank(cell) > rank(best) ? cell : best;
    return strength(cell) > strength(best) ? cell : best;
  });
}

/** @param {Cell} cell */
function strength({ value }) { return value === undefined ? -1 : Math.abs(value); }
