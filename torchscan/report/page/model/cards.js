// Five cards above all: loss, gradient norm, slowest layers, dead units, the first value that is not finite.

import { pathOf } from "./line_paths.js";
import { make } from "./elements.js";
import { counted, digits, percent, tick, whole } from "./numbers.js";
import { largestLayer, learningLayers, nowByLayer, risenSince, sinceText, SLOW } from "./summary.js";
import { valueScale } from "./values_axis.js";

/** @typedef {import("./training.js").TrainingView} TrainingView */
/** @typedef {{title: string, value: string, small?: string, text: string, isBad?: boolean, key?: string, mini?: (width: number) => any}} Card */

const TALL = 24;
/** points of a small curve */
const POINTS = 240;
/** layers that are named */
const NAMED = 3;

export class Cards {
  /** @param {TrainingView} view */
  constructor(view) {
    this.view = view;
    this.element = make("div", { class: "facts" });
    /** @type {any[]} */
    this.cards = [];
  }

  draw() {
    const all = [this.loss(), this.norm(), this.slowest(), this.dead(), this.nan()];
    if (!this.cards.length) {
      this.cards = all.map(() => make("section", { class: "fact" }, make("span", { class: "label" }), make("b"), make("span", { class: "text" }), make("div", { class: "mini", "aria-hidden": "true" })));
      this.element.replaceChildren(...this.cards);
    }
    all.forEach((card, at) => this.fill(this.cards[at], card));
  }

  /** @param {any} element @param {Card} card */
  fill(element, card) {
    const [label, value, text, mini] = element.children;
    element.classList.toggle("bad", Boolean(card.isBad));
    label.textContent = card.title;
    const written = card.key === undefined ? card.value : this.view.link(card.key, card.value);
    value.replaceChildren(written, ...(card.small ? [" ", make("small", {}, card.small)] : []));
    text.textContent = card.text;
    const width = Math.floor(element.clientWidth - 28);
    const drawn = card.mini && width > 20 ? [make("svg", { width, height: TALL }, card.mini(width))] : [];
    mini.replaceChildren(...drawn);
  }

  /** @param {number[]} steps @param {(number | null)[]} values @param {number} width @param {string} color */
  curve(steps, values, width, color) {
    const x = this.scale(width);
    const spacing = Math.max(1, Math.floor(values.length / POINTS));
    const kept = values.map((_, at) => at).filter((at) => values[at] !== null && (at % spacing === 0 || isPeak(values, at, spacing)));
    const { y } = valueScale(values, 3, TALL - 2);
    return make("path", { class: "curve", d: pathOf(kept.map((at) => steps[at]), kept.map((at) => values[at]), x, y), stroke: color, "stroke-width": 1.2 });
  }

  /** @param {number} width */
  scale(width) {
    const [first, last] = this.view.whole;
    return this.view.axis.scale(first, last, 1, width - 5);
  }

  /** @returns {Card} */
  loss() {
    const { facts, data, arrays } = this.view;
    const { steps, losses } = arrays.curve;
    const title = "Loss";
    if (facts.lastLoss === null) return { title, value: "–", text: "no loss was recorded" };
    const mini = (/** @type {number} */ width) => {
      const { y } = valueScale([...losses, ...data.evaluations.map((/** @type {any} */ each) => each.loss)], 3, TALL - 2);
      const x = this.scale(width);
      const dots = data.evaluations.filter((/** @type {any} */ each) => Number.isFinite(each.loss)).map((/** @type {any} */ each) => make("circle", { class: "evaluation", cx: x(each.step), cy: y(each.loss), r: 2.2 }));
      return make("g", {}, this.curve(steps, losses, width, "var(--ink)"), ...dots);
    };
    if (facts.wrongLossStep !== null) {
      return { title, value: digits(facts.wrongLoss), text: sinceText(facts), isBad: true, mini };
    }
    const mean = facts.lossOf > 1 ? `mean of ${facts.lossOf} steps` : "last step";
    const { best } = facts;
    const about = !best ? "" : best.step === facts.evaluationStep ? `; the evaluation at step ${whole(best.step)} is the best so far` : `; best evaluation ${digits(best.loss)} at step ${whole(best.step)}`;
    return { title, value: digits(facts.loss), small: facts.evaluation === null ? "" : `eval ${digits(facts.evaluation)}`, text: `${mean}${about}`, mini };
  }

  /** @returns {Card} */
  norm() {
    const { facts, arrays } = this.view;
    const { steps, norms } = arrays.curve;
    const title = "Gradient norm";
    if (facts.largestNorm === null) return { title, value: "–", text: "no gradients were recorded" };
    const column = this.view.columnOf(facts.largestNormStep);
    const layer = largestLayer(arrays, "gradient", column);
    const where = layer ? `, largest in ${this.view.nameOf(layer.row)}` : "";
    return {
      title,
      value: digits(facts.norm),
      small: facts.normOf,
      text: `maximum ${digits(facts.largestNorm)} in step ${whole(facts.largestNormStep)}${where}`,
      mini: (width) => this.curve(steps, norms, width, "var(--gradients)"),
    };
  }

  /** @returns {Card} */
  slowest() {
    const { arrays } = this.view;
    const title = "Slowest to learn";
    const { layers, num } = learningLayers(arrays);
    const left = num ? `; ${counted(num, "layer")} without gradients` : "";
    if (!layers.length) return { title, value: "–", text: num ? `no layer has gradients${left}` : "changes of weights were not recorded" };
    const slow = layers.filter(({ value }) => value < SLOW);
    const names = slow.slice(0, NAMED).map(({ row }) => this.view.nameOf(row)).join(", ");
    const more = slow.length > NAMED ? ` and ${whole(slow.length - NAMED)} more` : "";
    const least = layers.reduce((found, each) => (each.value < found.value ? each : found));
    const text = slow.length ? `update ÷ weight below ${tick(SLOW)}: ${names}${more}` : `update ÷ weight is at least ${digits(least.value)} (${this.view.nameOf(least.row)}); below ${tick(SLOW)} is slow`;
    return { title, value: slow.length ? counted(slow.length, "layer") : "none", text: `${text}${left}${this.when()}`, mini: (width) => this.rug(layers, width) };
  }

  /** Layers whose values are not finite keep those from before. */
  when() { return this.view.data.nan ? "; of the last step with finite values" : ""; }

  /** A line for each layer, by its update ÷ weight. @param {{value: number}[]} layers @param {number} width */
  rug(layers, width) {
    const logs = layers.map(({ value }) => Math.log10(Math.max(value, 1e-12)));
    const low = Math.min(-6, Math.max(-12, Math.min(...logs)) - 0.2);
    const high = Math.max(-2, Math.max(...logs) + 0.2);
    const x = (/** @type {number} */ log) => 2 + Math.min(1, Math.max(0, (log - low) / (high - low))) * (width - 4);
    const limit = x(Math.log10(SLOW));
    const lines = logs.map((log, at) => make("line", { class: layers[at].value < SLOW ? "slow" : "fast", x1: x(log), x2: x(log), y1: 13, y2: 23 }));
    return make("g", {}, make("line", { class: "hair", x1: 0, x2: width, y1: 23.5, y2: 23.5 }), ...lines, make("line", { class: "bad", x1: limit, x2: limit, y1: 1, y2: 24 }), make("text", { class: "soft tiny", x: limit + 5, y: 9 }, tick(SLOW)));
  }

  /** @returns {Card} */
  dead() {
    const { arrays } = this.view;
    const title = "Dead units";
    const layers = nowByLayer(arrays, "dead");
    if (!layers.length) return { title, value: "–", text: "there is no ReLU whose outputs were recorded" };
    const worst = layers.reduce((found, each) => (each.value > found.value ? each : found));
    const name = this.view.nameOf(worst.row);
    const since = worst.value > 0.05 ? risenSince(arrays, "dead", worst) : null;
    const when = !since ? "" : since.isFirst ? ", from the first count on" : `, since step ${whole(since.step)}`;
    const text = worst.value > 0 ? `of ${name} are zero for all inputs of a step${when}` : `no unit of ${counted(layers.length, "layer")} is zero for all inputs of a step`;
    return { title, value: worst.value > 0 ? percent(worst.value) : "none", text: `${text}${this.when()}`, isBad: worst.value >= 0.95, mini: (width) => this.bars(layers, worst, width) };
  }

  /** A bar for each layer, from 0 to all units. @param {{row: number, value: number}[]} layers @param {{row: number}} worst @param {number} width */
  bars(layers, worst, width) {
    const size = Math.min(24, (width - 1) / layers.length);
    const top = Math.max(0.1, ...layers.map(({ value }) => value));
    const bars = layers.map(({ row, value }, at) => {
      const height = Math.max(1, (value / top) * (TALL - 2));
      return make("rect", { class: row === worst.row ? "worst" : "other", x: at * size, y: TALL - 1 - height, width: Math.max(0.5, size - Math.min(1, 0.2 * size)), height });
    });
    return make("g", {}, ...bars);
  }

  /** @returns {Card} */
  nan() {
    const { facts, data, arrays } = this.view;
    const title = "First NaN or Inf";
    const seen = facts.passes ? `${whole(facts.sampled)} of ${whole(facts.passes)} steps recorded` : `${counted(facts.sampled, "step")} recorded`;
    const mini = (/** @type {number} */ width) => this.seen(width);
    const { nan } = data;
    if (nan && nan.lossStep !== null) return { title, value: `step ${whole(nan.step)}`, text: `first recorded step with one, after the loss of step ${whole(nan.lossStep)}; ${seen}`, isBad: true, mini };
    if (nan) return { title, value: nan.path || this.view.modelName, key: nan.key, text: `step ${whole(nan.step)}, ${nan.series.replace(nan.path, "").trim() || nan.series}; ${seen}`, isBad: true, mini };
    if (arrays.wrong.size) return { title, value: "Inf", text: `in ${counted(arrays.wrong.size, "row")} of the layers below; ${seen}`, isBad: true, mini };
    return { title, value: "none", text: `${seen}: outputs, gradients, weights`, mini };
  }

  /** The steps that were looked at. @param {number} width */
  seen(width) {
    const { arrays, data } = this.view;
    const x = this.scale(width);
    const drawn = [make("rect", { class: "groove", x: 0, y: 10, width, height: 8, rx: 2 })];
    let start = 0;
    arrays.first.forEach((_, at) => {
      const isEnd = at + 1 === arrays.first.length || arrays.first[at + 1] > this.view.endOf(at);
      if (!isEnd) return;
      const left = x(arrays.first[start]);
      drawn.push(make("rect", { class: "looked", x: left, y: 10, width: Math.max(1, Math.min(width, x(this.view.endOf(at))) - left), height: 8 }));
      start = at + 1;
    });
    if (data.nan) drawn.push(make("rect", { class: "worst-step", x: x(data.nan.step) - 1, y: 7, width: 3, height: 14 }));
    return make("g", {}, ...drawn);
  }
}

/** @param {(number | null)[]} values @param {number} at @param {number} spacing */
function isPeak(values, at, spacing) {
  const value = values[at] ?? -Infinity;
  for (let near = Math.max(0, at - spacing); near <= Math.min(values.length - 1, at + spacing); near += 1) if ((values[near] ?? -Infinity) > value) return false;
  return true;
}
