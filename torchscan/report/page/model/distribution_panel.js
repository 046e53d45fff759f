// How the values of a tensor were distributed over the steps: three bands, the zero band and the median outside it.

import { make } from "./elements.js";
import { QUANTILES, runsOf } from "./histories.js";
import { numberText, scaleOf, SymlogScale } from "./scales.js";
import { PLOT_HEIGHT, TimePanel } from "./time_panel.js";

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

/** @param {Points} points */
function pathOf(points) {
  return points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
}

export class DistributionPanel extends TimePanel {
  /** @param {History} history @param {string} title @param {string} run @param {(step: number | null) => void} pointed */
  constructor(history, title, run, pointed) {
    super(history, title, run, pointed);
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
    const runs = runsOf(this.history, (at) => median[at] !== null);
    return [...runs.flatMap((run) => this.bands(run)), ...this.zeroBand(), ...this.medians()];
  }

  /** A quantile over columns without a gap, from the left edge of the first to the right edge of the last. @param {number[]} run @param {number} row @returns {Points} */
  line(run, row) {
    const { first, until, quantiles } = this.history;
    const y = (/** @type {number} */ at) => this.y(quantiles[row][at]);
    const middles = run.map((at) => /** @type {[number, number]} */ ([this.x((first[at] + until[at]) / 2), y(at)]));
    const begin = run[0], end = run[run.length - 1];
    return [[this.x(first[begin]), y(begin)], ...middles, [this.x(until[end]), y(end)]];
  }

  /** @param {number[]} run */
  bands(run) {
    return BANDS.map(([low, high, opacity]) => {
      const outline = [...this.line(run, high), ...this.line(run, low).reverse()];
      return make("path", { class: this.color, d: `M${pathOf(outline)}Z`, opacity });
    });
  }

  /** Of fixed height; its tint is the share of the values in it. */
  zeroBand() {
    if (!(this.scale instanceof SymlogScale)) return [];
    const [top, bottom] = this.scale.band, { first, until } = this.history;
    /** @type {{from: number, until: number, tint: number}[]} */
    const parts = [];
    for (let at = 0; at < first.length; at += 1) {
      const share = this.scale.shareNear(this.history, at);
      if (share === null) continue;
      const tint = share ? Math.max(TINT_STEP, TINT_STEP * Math.round(share / TINT_STEP)) : 0;
      const part = parts.at(-1);
      if (part && part.tint === tint && part.until === first[at]) part.until = until[at];
      else parts.push({ from: first[at], until: until[at], tint });
    }
    return parts.flatMap((part) => {
      const place = { x: this.x(part.from), width: this.x(part.until) - this.x(part.from), y: top, height: bottom - top, "shape-rendering": "crispEdges" };
      const opacity = part.tint ? 0.15 + 0.85 * part.tint : 0;
      return [make("rect", { class: "ground", ...place }), make("rect", { class: `zero ${this.color}`, ...place, opacity: opacity.toFixed(2) })];
    });
  }

  /** Drawn outside the zero band only: within it, it would show noise. */
  medians() {
    const values = this.history.quantiles[QUANTILES.median];
    const runs = runsOf(this.history, (at) => this.isMedianShown(values[at]));
    return runs.map((run) => make("path", { class: "median", d: `M${pathOf(this.line(run, QUANTILES.median))}` }));
  }

  /** @param {number | null} median */
  isMedianShown(median) {
    return median !== null && Math.abs(median) > this.scale.zero;
  }

  /** @param {number} at */
  values(at) {
    const { min, max, quantiles, update } = this.history, { digits } = this.scale;
    if (min[at] === null) return "no finite values";
    const median = quantiles[QUANTILES.median][at], share = this.scale.shareNear(this.history, at);
    const parts = [`${numberText(min[at], digits)} … ${numberText(max[at], digits)}`];
    if (this.isMedianShown(median)) parts.push(`median ${numberText(median, digits)}`);
    if (share !== null) parts.push(`${Math.round(100 * share)} % in the zero band`);
    if (update?.[at] !== undefined && update[at] !== null) parts.push(`update ÷ weight ${numberText(update[at])}`);
    return parts.join(" · ");
  }
}
