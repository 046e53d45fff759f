// Losses of runs that are compared with the run of the page, on its steps.

import { pathOf, smooth } from "./line_paths.js";
import { make } from "./elements.js";
import { digits, lastUpTo } from "./numbers.js";
import { addUp, toNumber } from "./unpack.js";

/** @typedef {{run: string, steps: number[], losses: (number | null)[], kind: string}} OtherLoss */

/** letters of a name that have room beside the chart */
const LONGEST = 16;
/** ways in which lines are drawn */
const KINDS = 3;

/** @param {{run: string, steps: number[], losses: (number | string | null)[]}[]} [others] differences of steps @returns {OtherLoss[]} */
export function otherLosses(others = []) {
  return others.map(({ run, steps, losses }, at) => ({ run, steps: addUp(steps), losses: losses.map(toNumber), kind: `other-${at % KINDS}` }));
}

/** @param {OtherLoss[]} others @param {import("./axis.js").Scale} x @param {(value: number) => number} y @param {(size: number) => number} spanOf points whose mean is drawn */
export function drawOthers(others, x, y, spanOf) {
  return others.map(({ steps, losses, kind }) => make("path", { class: `curve other ${kind}`, d: pathOf(steps, smooth(losses, spanOf(steps.length)), x, y) }));
}

/** The last losses that are finite, for labels beside the chart. @param {OtherLoss[]} others @returns {[number, string, string][]} */
export function endsOfOthers(others) {
  return others.flatMap(({ run, losses, kind }) => {
    const last = losses.filter((value) => Number.isFinite(value)).at(-1);
    const name = run.length > LONGEST ? `…${run.slice(1 - LONGEST)}` : run;
    return typeof last === "number" ? [/** @type {[number, string, string]} */ ([last, name, kind])] : [];
  });
}

/** A line as it is drawn, the run and its loss, for the line below the heading. @param {OtherLoss[]} others @param {number} step @returns {(string | Node)[]} */
export function describeOthers(others, step) {
  return others.flatMap(({ run, steps, losses, kind }) => {
    const at = lastUpTo(steps, step);
    const loss = at < 0 || step > steps[steps.length - 1] ? null : losses[at];
    const sample = make("svg", { class: "key-line", width: 22, height: 8, "aria-hidden": "true" }, make("line", { class: `other ${kind}`, x1: 0, x2: 22, y1: 4, y2: 4 }));
    return [" · ", sample, ` loss of ${run} `, make("b", {}, loss === null ? "–" : digits(loss))];
  });
}
