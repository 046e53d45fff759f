// Scales that several charts share: of a tensor in several runs, and of an output, what reads it and what comes of it.

import { DeadUnitsPanel } from "./dead_units.js";
import { scaleOf } from "./scales.js";
import { PLOT_HEIGHT } from "./time_panel.js";
import { UpdatePanel } from "./update_panel.js";

/** @typedef {import("./distribution_panel.js").DistributionPanel} DistributionPanel */
/** @typedef {import("./tensors_view.js").TensorsView} TensorsView */
/** @typedef {{view: TensorsView, key: string, name: string, sources: string[]}} Shown charts of a call, and the calls whose output it takes */

/** Series of a call that have one scale with the output that the call reads. */
const COMPARED = ["output", "input"];

/** Give all charts their scales. @param {Shown[]} cards @returns {string[]} for each card, what shares its scale, in words */
export function commonScales(cards) {
  const pairs = cards.map((card) => ({ card, source: cards.find((other) => other !== card && card.sources.includes(other.key)) }));
  const groups = joined(cards, pairs);
  for (const group of groups) share(group);
  return pairs.map(({ card, source }) => {
    if (!source) return "";
    const size = groups.find((group) => group.includes(card))?.length ?? 2;
    return `reads the output of ${source.name}: ${size > 2 ? `${size} outputs` : "both outputs"} on one scale`;
  });
}

/** Cards that belong together, directly or by way of others. @param {Shown[]} cards @param {{card: Shown, source: Shown | undefined}[]} pairs @returns {Shown[][]} */
function joined(cards, pairs) {
  let groups = cards.map((card) => [card]);
  for (const { card, source } of pairs) {
    const one = groups.find((group) => group.includes(card)), other = source && groups.find((group) => group.includes(source));
    if (one && other && one !== other) groups = [...groups.filter((group) => group !== one && group !== other), [...other, ...one]];
  }
  return groups;
}

/** @param {Shown[]} cards */
function share(cards) {
  const groups = cards.flatMap(({ view }) => view.groups);
  const isCompared = (/** @type {string} */ name) => cards.length > 1 && COMPARED.includes(name);
  const outputs = groups.filter(({ name }) => isCompared(name)), others = groups.filter(({ name }) => !isCompared(name));
  for (const panels of [outputs.flatMap((group) => group.panels), ...others.map((group) => group.panels)]) scaleTogether(panels);
}

/** @param {import("./tensors_view.js").Panel[]} panels */
function scaleTogether(panels) {
  const histories = panels.map((panel) => panel.history);
  const scale = scaleOf(histories, PLOT_HEIGHT);
  for (const panel of panels) {
    if (panel instanceof DeadUnitsPanel || panel instanceof UpdatePanel) panel.beside = histories;
    else panel.scale = scale;
  }
}
