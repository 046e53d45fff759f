// Histories of tensors over the steps: what the page has brought with it, and how columns of steps are named.

import { whole } from "./numbers.js";

/** @typedef {Record<string, any>} History a series: a value per column, and the steps of each column */
/** @typedef {{histories: History[], isWhole: boolean}} Found what is known of a call; it is asked for again until that is all */
/** @typedef {(key: string) => Promise<Found>} Source */

/** Rows of the quantiles of a history. */
export const QUANTILES = { p1: 0, p5: 1, p25: 2, median: 3, p75: 4, p95: 5, p99: 6 };

/** @param {string} packed @returns {Promise<History[]>} */
async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

/** @typedef {{calls: string[], data: string}} Group some histories, compressed, and their calls */

/** Histories that the page has brought with it. @param {Group[]} groups @returns {Source} */
export function sourceOf(groups) {
  /** @type {Map<Group, Promise<History[]>>} */
  const opened = new Map();
  const open = (/** @type {Group} */ group) => {
    const histories = opened.get(group) ?? unpacked(group.data);
    opened.set(group, histories);
    return histories;
  };
  return async (key) => {
    const found = await Promise.all(groups.filter(({ calls }) => calls.includes(key)).map(open));
    return { histories: found.flat().filter((each) => each.call === key), isWhole: true };
  };
}

/** The column of a step; -1: nothing was recorded there. @param {History} history @param {number} step */
export function columnOf(history, step) {
  const after = history.first.findIndex((/** @type {number} */ first) => first > step);
  const at = (after < 0 ? history.first.length : after) - 1;
  return at >= 0 && step < history.until[at] ? at : -1;
}

/** The last column that begins within the range; -1: none. @param {History} history @param {[number, number]} range */
export function lastColumnIn(history, [, last]) {
  return history.first.filter((/** @type {number} */ first) => first <= last).length - 1;
}

/** Columns that follow each other without a gap, and of which `isKnown` is true. @param {History} history @param {number[]} columns @param {(at: number) => boolean} isKnown @returns {number[][]} */
export function runsOf(history, columns, isKnown) {
  /** @type {number[][]} */
  const runs = [];
  for (const at of columns) {
    if (!isKnown(at)) continue;
    const run = runs.at(-1);
    const isNext = run?.at(-1) === at - 1 && history.until[at - 1] === history.first[at];
    if (run && isNext) run.push(at);
    else runs.push([at]);
  }
  return runs;
}

/** One or several passes, in words: "step 5", "steps 5 … 9". @param {History | undefined} history that says of which phase @param {number} first @param {number} last */
export function stepsText(history, first, last) {
  const noun = history?.phase === "eval" ? "evaluation pass" : "step";
  if (first === last) return `${noun} ${whole(first)}`;
  return `${noun}${noun === "step" ? "s" : "es"} ${whole(first)} … ${whole(last)}`;
}

/** Values that are not finite in a column, in words; "": there are none. @param {History} history @param {number} at */
export function nonfiniteText(history, at) {
  const counts = [[history.nan[at], "NaN"], [history.inf[at], "Inf"]];
  return counts.filter(([count]) => count).map(([count, name]) => `${whole(count)} ${name}`).join(", ");
}
