// How much a step changes a weight, relative to its size, over the steps.

import { make } from "./elements.js";
import { least, most } from "./format.js";
import { runsOf, stepsText } from "./histories.js";
import { tick } from "./numbers.js";
import { numberText } from "./scales.js";
import { SLOW } from "./summary.js";
import { joinPoints, PLOT_HEIGHT, TimePanel } from "./time_panel.js";

/** @typedef {import("./histories.js").History} History */

/** decades of the axis, at least and at most */
const MIN_DECADES = 2, MAX_DECADES = 8;
/** ticks, at most */
const NUM_TICKS = 4;

export class UpdatePanel extends TimePanel {
  /** @type {History[]} of other runs */
  beside = [];

  /** @param {History} history */
  static isIn(history) { return history.kind === "param" && history.update !== undefined; }

  nameOfScale() { return "log, ratio of norms"; }

  /** Logarithms of the lowest and the highest value, in whole decades. @returns {[number, number]} */
  get decades() {
    const all = [this.history, ...this.beside].flatMap((each) => each.update ?? []);
    const logs = all.filter((value) => value > 0).map(Math.log10);
    if (!logs.length) return [-MIN_DECADES, 0];
    const high = Math.ceil(most(logs) + 1e-9);
    const low = Math.floor(least(logs));
    return [Math.max(high - MAX_DECADES, Math.min(low, high - MIN_DECADES)), high];
  }

  ticks() {
    const [low, high] = this.decades;
    const every = Math.ceil((high - low) / NUM_TICKS);
    const powers = Array.from({ length: Math.floor((high - low) / every) + 1 }, (_, at) => high - every * at);
    return powers.map((power) => ({ value: 10 ** power, text: tick(Number((10 ** power).toPrecision(1))) }));
  }

  /** A change of zero is drawn at the lower edge. @param {number} value */
  y(value) {
    const [low, high] = this.decades;
    const part = value > 0 ? (Math.log10(value) - low) / (high - low) : 0;
    return PLOT_HEIGHT * (1 - Math.min(1, Math.max(0, part)));
  }

  contents() {
    const { update } = this.history;
    const runs = runsOf(this.history, this.columns, (at) => update[at] !== null);
    const lines = runs.map((run) => {
      const points = this.through(run, (at) => this.y(update[at]));
      return make("path", { class: "change", d: `M${joinPoints(points)}` });
    });
    return [...this.limit(), ...lines];
  }

  /** Below this line, a weight hardly learns. */
  limit() {
    const [low, high] = this.decades;
    if (Math.log10(SLOW) < low || Math.log10(SLOW) > high) return [];
    const y = this.y(SLOW);
    return [make("line", { class: "slow-below", x1: 0, x2: this.wide, y1: y, y2: y })];
  }

  /** @param {number} at */
  values(at) {
    const { update, first, last } = this.history;
    if (update[at] === null) return "no change was recorded";
    const mean = first[at] === last[at] ? "" : `, mean of ${stepsText(this.history, first[at], last[at])}`;
    return `a step changes it by ${numberText(update[at])} of its size${mean}`;
  }
}
