// A run with a value that is not finite: which module produced it, and how it was carried on.

import { make } from "./elements.js";
import { LayersHeat } from "./layers_heat.js";
import { counted, digits, whole } from "./numbers.js";
import { QUANTITIES } from "./quantities.js";
import { sinceText } from "./summary.js";

/** @typedef {import("./training.js").TrainingView} TrainingView */
/** @typedef {import("./layers_heat.js").Group} Group */

/** steps that are shown before the first one, and after it */
const BEFORE = 20, AFTER = 8;
const IN_OUTPUTS = 1, IN_GRADIENTS = 2;

export class BrokenView {
  /** @param {TrainingView} view */
  constructor(view) {
    this.view = view;
    this.cards = make("div", { class: "broken-facts" });
    const host = make("div", { class: "layers-heat" });
    this.title = make("span");
    const heading = view.data.nan.isSource ? "Source of the first NaN or Inf" : "First recorded NaN or Inf";
    this.element = make("section", { class: "panel broken", "aria-label": heading }, make("h2", {}, make("span", {}, heading), this.title), make("div", { class: "broken-parts" }, this.cards, host));
    this.heat = new LayersHeat(host, view, { range: () => this.range, groups: (seen) => this.groups(seen) });
    this.heat.quantity = QUANTITIES.find(({ name }) => name === "std" && view.arrays.quantities.get(name)?.rows.size) ?? QUANTITIES[0];
    const seen = view.rowOf(view.data.nan.key);
    if (seen >= 0) this.heat.rows.reveal(seen);
  }

  /** @returns {[number, number]} */
  get range() {
    const { step } = this.view.data.nan;
    const [first, last] = this.view.whole;
    return [Math.max(first, step - BEFORE), Math.min(last, step + AFTER)];
  }

  draw() {
    const { nan } = this.view.data;
    const { facts } = this.view;
    const card = (/** @type {string} */ title, /** @type {string | Node} */ value, /** @type {string} */ text, isFirst = false) => make("section", { class: `fact${isFirst ? " bad first" : ""}` }, make("span", { class: "label" }, title), make("b", {}, value), make("span", { class: "text" }, text));
    const size = nan.count === null ? "" : `: ${whole(nan.count)} of ${whole(nan.numel)} values are NaN or Inf`;
    const tensor = nan.series.startsWith(nan.path) ? nan.series.slice(nan.path.length).replace(/^\./, "").trim() : nan.series;
    const growth = nan.inputLargest > 2 * (nan.inputBefore ?? Infinity) ? `, ×${digits(nan.inputLargest / nan.inputBefore)} since step ${whole(nan.beforeStep)}` : "";
    const inputs = {
      true: ["finite", `largest ${digits(nan.inputLargest)}${growth}${conclusionOf(nan)}`],
      false: ["not finite", "so the value was produced before this module"],
      null: ["unknown", "the input was not recorded in this step"],
    };
    const [input, about] = inputs[/** @type {"true" | "false" | "null"} */ (String(nan.isInputFinite))];
    const loss = facts.wrongLossStep === null ? [digits(facts.lastLoss), "stays finite"] : [digits(facts.wrongLoss), sinceText(facts)];
    const lossCard = card("Loss", loss[0], loss[1], nan.lossStep !== null);
    const later = nan.modules - nan.atOnce;
    const carried = later ? `${whole(nan.atOnce)} in step ${whole(nan.step)}, the others from step ${whole(nan.later)} on` : `all in step ${whole(nan.step)}`;
    this.cards.replaceChildren(
      ...(nan.lossStep === null ? [] : [lossCard]),
      card(nan.isProducer ? "Produced by" : "First seen in", this.view.link(nan.key, nan.path || this.view.modelName), `step ${whole(nan.step)}, ${tensor}${size}`, nan.isSource),
      card("Input of this module", input, about),
      ...(nan.lossStep === null ? [lossCard] : []),
      card("Reached", counted(nan.modules, "module"), carried),
    );
    this.title.textContent = `steps ${whole(this.range[0])} … ${whole(this.range[1])} · color: ${this.heat.quantity.label}`;
    this.heat.draw();
  }

  /** Neighboring rows that were reached in the same step and the same way. @param {number[]} seen @returns {Group[]} */
  groups(seen) {
    const { producer, arrays } = this.view;
    /** @type {Group[]} */
    const found = [];
    seen.forEach((row, at) => {
      const isProducer = producer !== null && row === this.heat.rows.visible(producer.row);
      if (isProducer) {
        found.push({ from: at, to: at, title: this.heat.frame.isNarrow ? "first" : `${this.view.data.nan.isProducer ? "produced it" : "seen first"}, step ${whole(producer.step)}`, text: "", isBad: true });
        return;
      }
      if (producer !== null && this.isAround(row, producer.row)) return;
      const wrong = arrays.wrong.get(row);
      const column = wrong ? wrong.findIndex((bits) => bits > 0) : -1;
      if (!wrong || column < 0) return;
      const title = `from ${this.heat.frame.isNarrow ? "" : "step "}${whole(arrays.first[column])}`;
      const text = this.way(row, wrong[column], arrays.first[column]);
      const before = found.at(-1);
      if (before && before.to === at - 1 && before.title === title && before.text === text) before.to = at;
      else found.push({ from: at, to: at, title, text, isBad: false });
    });
    return found;
  }

  /** @param {number} outer @param {number} row */
  isAround(outer, row) {
    for (let at = this.view.arrays.rows[row].parent; at !== null; at = this.view.arrays.rows[at].parent) if (at === outer) return this.heat.rows.opened.has(outer);
    return false;
  }

  /** How a value came to a row. @param {number} row @param {number} bits @param {number} step */
  way(row, bits, step) {
    const { producer, data } = this.view;
    if (bits & IN_OUTPUTS) return step > data.nan.step ? "through the weights" : !data.nan.isSource || (producer !== null && row < producer.row) ? "in its outputs" : "through the input";
    return bits & IN_GRADIENTS ? "through the gradient" : "in its weights";
  }
}

/** What a finite input means. @param {any} nan */
function conclusionOf(nan) {
  if (nan.isProducer) return ", so this module produced the value";
  if (nan.lossStep !== null) return `; the loss of step ${whole(nan.lossStep)} was not finite, so the weights may not be either`;
  return nan.wereWeightsFinite === false ? "; its weights were not finite before this step" : "; whether its weights were finite before this step was not recorded";
}
