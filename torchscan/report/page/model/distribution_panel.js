// How the values of a tensor were distributed over the steps: three bands, the zero band and the median outside it.

import { make } from "./elements.js";
import { QUANTILES, runsOf } from "./histories.js";
import { numberText, scaleOf, SymlogScale } from "./scales.js";
import { joinPoints, PLOT_HEIGHT, TimePanel } from "./time_panel.js";

/** @typedef {import("./histories.js").History} History */
/** @typedef {import("./scales.js").Scale} Scale */
/** @typedef {[number, number][]} Points */

/** The lower and the upper edge of each band, and how opaque it is. @type {[number, number, number][]} */
const BANDS = [[QUANTILES.p1, QUANTILES.p99, 0.24], [QUANTILES.p5, QUANTILES.p95, 0.32], [QUANTILES.p25, QUANTILES.p75, 0.5]];
const COLORS = /** @type {Record<string, string>} */ ({
  input: "inputs", output: "activations", input_grad: "gradients", output_grad: "gradients",
  param: "parameters", param_grad: "gradients", attached: "buffers", attached_grad: "gradients",
});
/** shares of values in the zero band that are drawn in the same tint */
const TINT_STEP = 0.04;
/** the least median that is drawn, in parts of how far 9 values in 10 reach: a smaller one jumps around zero */
const LEAST_MEDIAN = 0.1;
/** columns in which a median has the same sign before it is drawn: a part of all, and a number that suffices */
const STEADY_PART = 0.1, STEADY = 5;

export class DistributionPanel extends TimePanel {
  /** @param {History} history @param {string} title @param {string} run @param {(step: number | null) => void} pointed */
  constructor(history, title, run, pointed) {
    super(history, title, run, pointed);
    if (history.update) this.text.classList.add("long");
    /** @type {Scale} */
    this.scale = scaleOf([history], PLOT_HEIGHT);
  }

  get color() { return `on-${COLORS[this.history.kind] ?? this.history.kind}`; }

  nameOfScale() {
    const isZero = this.history.max.every((/** @type {number | null} */ value, /** @type {number} */ at) => !value && !this.history.min[at]);
    return isZero ? "all values are 0" : this.scale.name;
  }

  ticks() { return this.scale.ticks; }

  /** @param {number} value */
  y(value) { return this.scale.y(value); }

  contents() {
    const median = this.history.quantiles[QUANTILES.median];
    const runs = runsOf(this.history, this.columns, (at) => median[at] !== null);
    return [...runs.flatMap((run) => this.bands(run)), ...this.zeroBand(), ...this.medians()];
  }

  /** A quantile over columns without a gap, from the left edge of the first to the right edge of the last. @param {number[]} run @param {number} row @returns {Points} */
  line(run, row) {
    return this.through(run, (at) => this.y(this.history.quantiles[row][at]));
  }

  /** @param {number[]} run */
  bands(run) {
    return BANDS.map(([low, high, opacity]) => {
      const outline = [...this.line(run, high), ...this.line(run, low).reverse()];
      return make("path", { class: this.color, d: `M${joinPoints(outline)}Z`, opacity });
    });
  }

  /** Of fixed height; its tint is the share of the values in it. */
  zeroBand() {
    if (!(this.scale instanceof SymlogScale)) return [];
    const [top, bottom] = this.scale.band;
    /** @type {{left: number, right: number, tint: number}[]} */
    const parts = [];
    for (const at of this.columns) {
      const share = this.scale.shareNear(this.history, at);
      if (share === null) continue;
      const [left, right] = this.edges(at), part = parts.at(-1);
      const tint = share ? Math.max(TINT_STEP, TINT_STEP * Math.round(share / TINT_STEP)) : 0;
      if (part && part.tint === tint && part.right === left) part.right = right;
      else parts.push({ left, right, tint });
    }
    return parts.flatMap(({ left, right, tint }) => {
      const place = { x: left, width: right - left, y: top, height: bottom - top, "shape-rendering": "crispEdges" };
      const opacity = tint ? 0.15 + 0.85 * tint : 0;
      return [make("rect", { class: "ground", ...place }), make("rect", { class: `zero ${this.color}`, ...place, opacity: opacity.toFixed(2) })];
    });
  }

  /** Drawn outside the zero band only, and not where it jumps around zero. */
  medians() {
    const { quantiles } = this.history, { p5, median, p95 } = QUANTILES, values = quantiles[median];
    const isLarge = (/** @type {number} */ at) => {
      const reach = Math.max(Math.abs(quantiles[p5][at]), Math.abs(quantiles[p95][at]));
      return this.isOutside(values[at]) && Math.abs(values[at]) >= LEAST_MEDIAN * reach;
    };
    const positive = runsOf(this.history, this.columns, (at) => isLarge(at) && values[at] > 0);
    const negative = runsOf(this.history, this.columns, (at) => isLarge(at) && values[at] < 0);
    const steady = Math.min(STEADY, Math.ceil(STEADY_PART * values.length));
    const runs = [...positive, ...negative].filter((run) => run.length >= Math.min(steady, this.columns.length));
    return runs.map((run) => make("path", { class: "median", d: `M${joinPoints(this.line(run, median))}` }));
  }

  /** Whether a median is outside the zero band. @param {number | null} median */
  isOutside(median) {
    return median !== null && Math.abs(median) > this.scale.zero;
  }

  /** @param {number} at */
  values(at) {
    const { min, max, quantiles, update } = this.history, { digits } = this.scale;
    if (min[at] === null) return "no finite values";
    const median = quantiles[QUANTILES.median][at], share = this.scale.shareNear(this.history, at);
    const parts = [`${numberText(min[at], digits)} … ${numberText(max[at], digits)}`];
    if (this.isOutside(median)) parts.push(`median ${numberText(median, digits)}`);
    if (share !== null) parts.push(`${Math.round(100 * share)} % in the zero band`);
    const change = update?.[at] ?? null;
    return parts.join(" · ") + (change === null ? "" : `\nupdate ÷ weight ${numberText(change)}`);
  }
}
