// The share of a ReLU's units that are zero in the complete batch, over the steps.

import { roundUp } from "./axis.js";
import { make } from "./elements.js";
import { most } from "./format.js";
import { stepsText } from "./histories.js";
import { numberText } from "./scales.js";
import { joinPoints, PLOT_HEIGHT, TimePanel } from "./time_panel.js";

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
    const step = roundUp(this.top / 4);
    return Array.from({ length: Math.floor(this.top / step) + 1 }, (_, at) => {
      const value = Number((at * step).toPrecision(6));
      return { value, text: String(value) };
    });
  }

  /** @param {number} value in percent */
  y(value) { return PLOT_HEIGHT * (1 - value / this.top); }

  /** Columns in which they were counted, which takes the complete batch. @returns {number[]} */
  get counted() { return this.columns.filter((at) => this.history.dead[at] !== null); }

  contents() {
    const { counted } = this, { dead } = this.history;
    if (!counted.length) return [];
    const points = this.through(counted, (at) => this.y(100 * dead[at]));
    const line = joinPoints(points);
    const right = points[points.length - 1][0].toFixed(1), left = points[0][0].toFixed(1);
    return [
      make("path", { class: "on-activations", d: `M${line}L${right} ${PLOT_HEIGHT}L${left} ${PLOT_HEIGHT}Z`, opacity: 0.35 }),
      make("path", { class: "outline", d: `M${line}` }),
    ];
  }

  /** @param {number} at */
  values(at) {
    const before = this.history.dead.slice(0, at + 1).reduce((/** @type {number} */ found, /** @type {number | null} */ share, /** @type {number} */ place) => (share === null ? found : place), -1);
    if (before < 0) return "not counted yet";
    const { dead, first, last } = this.history, text = `${numberText(100 * dead[before])} % of the units are 0 in the whole batch`;
    return before === at ? text : `${text}, ${stepsText(this.history, first[before], last[before])}`;
  }
}
