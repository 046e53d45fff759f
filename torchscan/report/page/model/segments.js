// Buttons of which one is pressed: the axis, the scale of the loss, the quantity and the rows of the heat map.

import { hasEpochs } from "./axis.js";
import { make } from "./elements.js";
import { QUANTITIES } from "./quantities.js";

/** @typedef {import("./training.js").TrainingView} TrainingView */
/** @typedef {{name: string, text: string, isOff?: string}} Option why it cannot be chosen */

/** @param {string} label @param {Option[]} options @param {string} chosen @param {(name: string) => void} choose */
function segments(label, options, chosen, choose) {
  const buttons = options.map(({ name, text, isOff }) => make("button", { type: "button", "data-name": name, "aria-pressed": name === chosen, disabled: isOff ? "" : undefined, title: isOff, onclick: () => choose(name) }, text));
  return make("span", { class: "segments", role: "group", "aria-label": label }, ...buttons);
}

/** Replace controls; the focus stays where it is. @param {HTMLElement} host @param {Node[]} parts */
export function putControls(host, parts) {
  const buttons = () => [...host.querySelectorAll("button")];
  const focused = buttons().findIndex((button) => button === document.activeElement);
  host.replaceChildren(...parts);
  if (focused >= 0) buttons()[focused]?.focus({ preventScroll: true });
}

/** @param {TrainingView} view */
export function chooseScale(view) {
  const { curves, data, arrays, others } = view;
  /** @type {Option[]} */
  const units = [{ name: "step", text: "step" }, ...(hasEpochs(data.marks) ? [{ name: "epoch", text: "epoch" }] : []), { name: "time", text: "time", isOff: arrays.curve.steps.length ? "" : "times were not recorded" }];
  const loss = curves?.tracks.find((track) => track.title === "Loss");
  const isLog = loss?.scale.isLog ?? false;
  const isNegative = [arrays.curve, ...others].some(({ losses }) => losses.some((value) => value !== null && value <= 0));
  /** @type {Option[]} */
  const scales = [{ name: "linear", text: "linear" }, { name: "log", text: "log", isOff: isNegative ? "the loss is not positive" : "" }];
  const measure = (/** @type {string} */ name) => view.measure(/** @type {import("./axis.js").Unit} */ (name));
  const scale = (/** @type {string} */ name) => { if (curves) curves.isLog = name === "log"; view.draw(); };
  return [segments("x axis", units, view.unit, measure), ...(loss ? [segments("scale of the loss", scales, isLog ? "log" : "linear", scale)] : [])];
}

/** @param {TrainingView} view */
export function chooseQuantity(view) {
  const { heat, arrays } = view;
  if (!heat) return [];
  const isNarrow = view.element.clientWidth < 700;
  const isOff = (/** @type {string} */ name, /** @type {string} */ missing) => (name === "nan" || arrays.quantities.get(name)?.rows.size ? "" : missing);
  const quantities = QUANTITIES.map(({ name, label, short, missing }) => ({ name, text: isNarrow ? short : label, isOff: isOff(name, missing) }));
  const show = (/** @type {string} */ name) => {
    heat.quantity = QUANTITIES.find((each) => each.name === name) ?? heat.quantity;
    view.drawHeats();
  };
  const open = (/** @type {string} */ name) => {
    if (name === "all") heat.rows.openAll();
    else heat.rows.openBlocks();
    heat.scroll.scrollTop = 0;
    view.drawHeats();
  };
  const rows = [{ name: "blocks", text: "blocks" }, { name: "all", text: isNarrow ? "all" : "all modules" }];
  const isFlat = arrays.rows.every((row, at) => !row.hasInner || at < heat.rows.top);
  return [segments("quantity", quantities, heat.quantity.name, show), ...(isFlat ? [] : [segments("rows", rows, heat.rows.isAllOpen ? "all" : "blocks", open)])];
}
