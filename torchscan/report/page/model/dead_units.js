// The share of a ReLU's units that are zero in the complete batch, over the steps.

import { make } from "./elements.js";
import { most } from "./format.js";
import { runsOf } from "./histories.js";
import { numberText, roundStep } from "./scales.js";
import { PLOT_HEIGHT, TimePanel } from "./time_panel.js";

/** @typedef {import("./histories.js").History} History */

/** the least that the axis goes up to, in percent */
const MIN_TOP = 1;

export class DeadUnitsPanel extends TimePanel {
  /** @param {History} history */
  static isIn(history) { return history.dead !== undefined; }

  nameOfScale() { return "% of the units"; }

  /** In percent, of this panel and those that it is compared with. */
  get top() {
    const shares = [this.history, ...this.beside].flatMap((each) => each.dead ?? []);
    return Math.max(MIN_TOP, 108 * most(shares, 0));
  }

  /** @type {History[]} of other runs */
  beside = [];

  ticks() {
    const step = roundStep(this.top / 3);
    return Array.from({ length: Math.floor(this.top / step) + 1 }, (_, at) => {
      const value = Number((at * step).toPrecision(6));
      return { value, text: String(value) };
    });
  }

  /** @param {number} value in percent */
  y(value) { return PLOT_HEIGHT * (1 - value / this.top); }

  contents() {
    const { dead, first, until } = this.history;
    return runsOf(this.history, (at) => dead[at] !== null).flatMap((run) => {
      const begin = run[0], end = run[run.length - 1];
      const point = (/** @type {number} */ step, /** @type {number} */ at) => `${this.x(step).toFixed(1)} ${this.y(100 * dead[at]).toFixed(1)}`;
      const middles = run.map((at) => point((first[at] + until[at]) / 2, at));
      const line = [point(first[begin], begin), ...middles, point(until[end], end)].join("L");
      const base = `L${this.x(until[end]).toFixed(1)} ${PLOT_HEIGHT}L${this.x(first[begin]).toFixed(1)} ${PLOT_HEIGHT}Z`;
      return [
        make("path", { class: "on-activations", d: `M${line}${base}`, opacity: 0.35 }),
        make("path", { class: "outline", d: `M${line}` }),
      ];
    });
  }

  /** @param {number} at */
  values(at) {
    const share = this.history.dead[at];
    return share === null ? "not computed" : `${numberText(100 * share)} % of the units were zero in the whole batch`;
  }
}
