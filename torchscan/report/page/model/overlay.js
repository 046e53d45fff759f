// Overlays: the user's own values by path, which color the graph and have a column each.

import { make } from "./elements.js";
import { figuresOf } from "./figures.js";
import { least, most } from "./format.js";
import { placeGiven, valuesAt } from "./given.js";
import { callsOf } from "./measured.js";
import { digits, whole } from "./numbers.js";
import { short } from "./plan.js";
import { toneIn } from "./tones.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {import("./given.js").Given} Given */
/** @typedef {import("./given.js").GivenValues} GivenValues */
/** @typedef {import("./plan.js").Box} Box */
/** @typedef {import("./tones.js").Cell} Cell */
/** @typedef {import("./tones.js").Scale} Scale */
/** @typedef {Record<string, any>} Row */
/** @typedef {{name: string, values: GivenValues}} Overlay */

/** headings of columns that have no figure of that name */
const HEADINGS = ["Layer", "Output", "Params", "RF"];
/** characters of a name */
const LONGEST = 32;
/** the largest value over the smallest from which tones are logarithmic */
const LOG_RATIO = 1000;
/** where the value that is nearest to zero stands: it must be seen */
const FAINTEST = 0.15;
/** integers up to this are written in full */
const LONG = 1e6;

/** Put overlays on the rows. @param {Row[]} rows @param {Overlay[]} [overlays] @returns {Figure[]} */
export function overlayFigures(rows, overlays = []) {
  const places = new Map(rows.map((row, at) => [row, at]));
  const own = figuresOf(rows).map((figure) => figure.label);
  const taken = new Set([...HEADINGS, ...own].map((label) => label.toLowerCase()));
  return overlays.map(({ name, values }, number) => {
    const key = `overlay${number}`;
    placeGiven(rows, key, values);
    const label = distinct(short(name, LONGEST), taken);
    taken.add(label.toLowerCase());
    return figureOf(key, name, label, rows, places, values);
  });
}

/** A name that no other column has. @param {string} name @param {Set<string>} taken in lower case @returns {string} */
function distinct(name, taken) { return taken.has(name.trim().toLowerCase()) ? distinct(`${name} (overlay)`, taken) : name; }

/** @param {string} key @param {string} name @param {string} label @param {Row[]} rows @param {Map<Row, number>} places @param {GivenValues} values @returns {Figure} */
function figureOf(key, name, label, rows, places, values) {
  const givenOf = (/** @type {Row} */ row) => /** @type {Given | undefined} */ (row.given?.[key]);
  const range = rangeOf(values);
  return {
    key, label, fullName: name, adds: false, scale: range.isLog ? "log" : "linear", range,
    colour: () => "launch",
    value: (row, isLowest = false) => {
      const given = givenOf(row);
      if (!given?.isOwn) return NaN;
      return isLowest ? given.low : given.high;
    },
    text: (value, row) => (key in row ? valueText(value) : textOf(givenOf(row))),
    ends: (row) => {
      const given = givenOf(row);
      if (!given?.isOwn) return [];
      return given.low === given.high ? [given.low] : [given.low, given.high];
    },
    cells: (row) => (givenOf(row)?.isOwn ? ownCells(row, values) : cellsInside(rows, places.get(row) ?? rows.length, values)),
    legend: (boxes) => legendOf(label, range, boxes.flatMap((box) => (box.figures ? [givenOf(box.figures) ?? null] : []))),
  };
}

/** @param {number} value */
export function valueText(value) {
  if (!Number.isInteger(value) || Math.abs(value) >= LONG) return digits(value);
  return whole(value).replace("-", "−");
}

/** @param {Given | undefined} given */
function textOf(given) {
  if (!given) return "–";
  const [low, high] = [valueText(given.low), valueText(given.high)];
  const range = low === high ? low : `${low} … ${high}`;
  if (!given.isOwn) return `${range} inside`;
  return given.number < given.of ? `${range} (${whole(given.number)} of ${whole(given.of)})` : range;
}

/** A cell for each value of a row, and an empty one for each call without any. @param {Row} row @param {GivenValues} values @returns {Cell[]} */
function ownCells(row, values) {
  return callsOf(row).flatMap(/** @param {string} key @returns {Cell[]} */ (key) => {
    const found = valuesAt(values, key);
    if (!found.length) return [{ value: undefined, key, state: "" }];
    return found.map(([name, value]) => ({ value, key, state: "", label: name ? `${key}${key && "."}${name}` : key }));
  });
}

/** @param {Row[]} rows @param {number} place of the row @param {GivenValues} values @returns {Cell[]} */
function cellsInside(rows, place, values) {
  const found = [];
  for (let at = place + 1; at < rows.length && rows[at].depth > rows[place].depth; at += 1) {
    for (const cell of ownCells(rows[at], values)) if (cell.value !== undefined) found.push({ ...cell, row: at });
  }
  return found;
}

// -- tones -----------------------------------------------------------------------------------------------------------

/** From one color to another by size, or in two colors from zero if values have both signs. @param {GivenValues} values @returns {Scale} */
function rangeOf(values) {
  const all = Object.keys(values).flatMap((key) => valuesAt(values, key).map(([, value]) => value));
  const low = least(all), high = most(all);
  const sizes = all.map(Math.abs);
  const smallest = least(sizes), largest = most(sizes);
  if (low < 0 && high > 0) return { low, high, isLog: false, tones: "d", place: (value) => (value / largest + 1) / 2 };
  const isLog = smallest > 0 && largest / smallest >= LOG_RATIO;
  const stretched = (/** @type {number} */ size) => (isLog ? Math.log(size) : size);
  const length = stretched(largest) - stretched(smallest);
  const place = (/** @type {number} */ value) => {
    const part = length ? (stretched(Math.abs(value)) - stretched(smallest)) / length : Number(largest > 0);
    return FAINTEST + (1 - FAINTEST) * part;
  };
  return { low, high, isLog, place };
}

/** What tones, ranges and dashes mean. @param {string} label @param {Scale} range @param {(Given | null)[]} shown of the modules in the graph @returns {HTMLElement[]} */
function legendOf(label, range, shown) {
  const ramp = make("i", { class: "ramp" });
  const stops = [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1].map((part) => toneIn(range, valueAt(range, part)));
  ramp.style.background = `linear-gradient(90deg in oklab, ${stops.join(", ")})`;
  const isOne = range.low === range.high;
  const kind = range.tones === "d" ? ", two colors from 0" : range.isLog ? ", logarithmic" : "";
  const parts = [make("span", {}, `${label} ${isOne ? "" : `${valueText(range.low)} `}`, ramp, ` ${valueText(range.high)}${kind}`)];
  if (shown.some((given) => given?.isOwn && given.low !== given.high)) parts.push(make("span", {}, "a … b: lowest and highest of a box's modules or parameters, a cell of its strip for each"));
  if (shown.some((given) => given && !given.isOwn)) parts.push(make("span", {}, "inside: lowest and highest of the modules in a box that has no value itself"));
  if (shown.some((given) => given === null)) parts.push(make("span", {}, "–: no value given"));
  return parts;
}

/** @param {Scale} range @param {number} part from the lowest to the highest value */
function valueAt({ low, high, isLog }, part) {
  return isLog ? low * (high / low) ** part : low + part * (high - low);
}
