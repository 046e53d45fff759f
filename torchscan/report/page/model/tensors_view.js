// The charts of one call: its output, the gradient there and how its weights change or its dead units first, the others on request.

import { make } from "./elements.js";
import { DeadUnitsPanel } from "./dead_units.js";
import { DistributionPanel } from "./distribution_panel.js";
import { UpdatePanel } from "./update_panel.js";

/** @typedef {import("./histories.js").Found} Found */
/** @typedef {import("./histories.js").History} History */
/** @typedef {import("./histories.js").Source} Source */
/** @typedef {import("./time_panel.js").Axis} Axis */
/** @typedef {DistributionPanel | DeadUnitsPanel | UpdatePanel} Panel */
/** @typedef {{name: string, title: string, panels: Panel[]}} Group charts of one tensor: one of each run */
/** @typedef {{pointed: (step: number | null) => void, changed: () => void}} On */

const DEAD_UNITS = "dead units";
/** in front of the name of a weight */
const UPDATE = "update ÷ ";
/** Kinds of series from the first to the last. Weights without a gradient's name come before their gradients. */
const ORDER = ["output", "output_grad", "attached", "attached_grad", "param", "param_grad", "input", "input_grad"];
/** charts that are shown at once */
const NUM_FIRST = 3;

/** @param {History} one @param {History} other */
function compare(one, other) {
  const isNumbered = (/** @type {History} */ { kind, name }) => Number(/(output|input).*\d$/.test(name) && !kind.startsWith("param"));
  return isNumbered(one) - isNumbered(other) || ORDER.indexOf(one.kind) - ORDER.indexOf(other.kind);
}

export class TensorsView {
  /** @param {HTMLElement} host @param {Source} source @param {On} on */
  constructor(host, source, on) {
    this.host = host;
    this.source = source;
    this.on = on;
    /** @type {string | null} the call that is asked for */
    this.key = null;
    /** @type {string | null} the call whose charts are there */
    this.shown = null;
    /** @type {Group[]} */
    this.groups = [];
    this.turn = 0;
    /** whether an answer is awaited, and whether there is something new meanwhile */
    this.isAsking = this.isNew = false;
    /** what to say if no answer comes */
    this.gone = "The distributions could not be loaded.";
    /** what the tensor of a series is called @type {(history: History) => string} */
    this.titleOf = (history) => history.name;
    this.isOpen = false;
    this.more = make("button", { type: "button", class: "more", onclick: () => { this.isOpen = !this.isOpen; this.arrange(); this.on.changed(); } });
  }

  /** @param {string} key of a call */
  async show(key) {
    if (key === this.key && this.isAsking) { this.isNew = true; return; }
    if (key !== this.key) this.clear();
    this.key = key;
    const turn = this.turn += 1;
    this.isAsking = true;
    this.isNew = false;
    /** @type {Found | null} */
    let found = null;
    try { found = await this.source(key); } catch { found = null; }
    if (turn !== this.turn) return;
    this.isAsking = false;
    if (found) {
      this.put(found.histories);
      if (this.isNew || !found.isWhole) this.show(key);
    } else if (!this.groups.length) this.say(this.gone); // what was drawn of this call stays
  }

  /** Charts of one layer never stand under the name of another. The page keeps its height until the others are there. */
  clear() {
    this.groups = [];
    this.shown = null;
    this.host.style.minHeight = `${this.host.offsetHeight}px`;
    this.host.replaceChildren();
  }

  /** @param {string} text */
  say(text) {
    this.host.style.minHeight = "";
    this.host.replaceChildren(make("p", { class: "said" }, text));
  }

  /** The same charts with more in them, or others. @param {History[]} histories */
  put(histories) {
    this.host.style.minHeight = "";
    const ordered = [...histories].sort(compare), names = namesOf(ordered);
    const wanted = names.flatMap((name) => historiesOf(ordered, name).map((history) => ({ name, history })));
    const isSame = this.shown === this.key && identity(wanted) === identity(this.drawn());
    this.shown = this.key;
    if (isSame) {
      const panels = this.groups.flatMap((group) => group.panels);
      panels.forEach((panel, at) => { panel.history = wanted[at].history; });
    } else {
      const isOfSeveral = new Set(histories.map((each) => each.run)).size > 1;
      this.groups = names.map((name) => this.group(name, historiesOf(ordered, name), isOfSeveral));
      this.arrange();
    }
    this.on.changed();
  }

  drawn() {
    return this.groups.flatMap(({ name, panels }) => panels.map(({ history }) => ({ name, history })));
  }

  /** @param {string} name @param {History[]} histories of one tensor @param {boolean} isOfSeveral runs @returns {Group} */
  group(name, histories, isOfSeveral) {
    const Kind = name === DEAD_UNITS ? DeadUnitsPanel : name.startsWith(UPDATE) ? UpdatePanel : DistributionPanel;
    const title = Kind === DistributionPanel ? this.titleOf(histories[0]) : name;
    const panels = histories.map((history) => new Kind(history, title, isOfSeveral ? history.run : "", (step) => this.on.pointed(step)));
    return { name, title, panels };
  }

  /** The first charts, and the others if they were asked for. */
  arrange() {
    if (!this.groups.length) { this.say("Nothing was recorded for this layer."); return; }
    const isOfSeveral = this.groups.some(({ panels }) => panels[0].isOfSeveral);
    const elements = this.seen.map(({ panels }) => {
      const figures = panels.map((panel) => panel.figure);
      return isOfSeveral ? make("div", { class: "beside" }, ...figures) : figures[0];
    });
    const rest = this.groups.slice(NUM_FIRST).map((group) => group.title);
    this.more.textContent = this.isOpen ? "fewer" : `${rest.length} more: ${rest.join(", ")}`;
    this.more.setAttribute("aria-expanded", String(this.isOpen));
    const hasFocus = document.activeElement === this.more;
    this.host.replaceChildren(...elements, ...(rest.length ? [this.more] : []));
    if (hasFocus) this.more.focus({ preventScroll: true });
  }

  /** @returns {Group[]} the charts that are seen */
  get seen() { return this.isOpen ? this.groups : this.groups.slice(0, NUM_FIRST); }

  /** @returns {Panel[]} */
  get panels() { return this.seen.flatMap((group) => group.panels); }

  /** @returns {History[]} */
  get histories() { return this.groups.flatMap((group) => group.panels.map((panel) => panel.history)); }
}

/** The charts in their order. Changes of the first weight come before it; without weights, dead units are among the first. @param {History[]} ordered @returns {string[]} */
function namesOf(ordered) {
  const names = [...new Set(ordered.map((each) => each.name))];
  const changed = ordered.find(UpdatePanel.isIn);
  if (changed) names.splice(names.indexOf(changed.name), 0, `${UPDATE}${changed.name}`);
  if (!ordered.some(DeadUnitsPanel.isIn)) return names;
  const isWeight = (/** @type {string} */ name) => ordered.some((each) => each.name === name && each.kind === "param");
  const place = names.findIndex((name) => isWeight(name));
  names.splice(place < 0 ? NUM_FIRST - 1 : place + 1, 0, DEAD_UNITS);
  return names;
}

/** @param {History[]} histories @param {string} name */
function historiesOf(histories, name) {
  if (name === DEAD_UNITS) return histories.filter(DeadUnitsPanel.isIn);
  if (name.startsWith(UPDATE)) return histories.filter((each) => UpdatePanel.isIn(each) && name === `${UPDATE}${each.name}`);
  return histories.filter((each) => each.name === name);
}

/** @param {{name: string, history: History}[]} charts */
function identity(charts) {
  return charts.map(({ name, history }) => `${name}\n${history.call}\n${history.run ?? ""}`).join("\n\n");
}
