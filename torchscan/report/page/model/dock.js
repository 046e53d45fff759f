// Distributions of the chosen layer and of those that are kept, with one range of steps and one crosshair.

import { make } from "./elements.js";
import { columnOf, lastColumnIn, stepsText } from "./histories.js";
import { Kept, keepTag } from "./keep.js";
import { commonScales } from "./common_scales.js";
import { TensorsView } from "./tensors_view.js";

/** @typedef {import("./histories.js").Source} Source */
/** @typedef {{name: string, type: string, sources: string[], takes?: [string, string][], gives?: [string, string][]}} CallText what a call is called, its type and shapes, whose output it takes, and its inputs and outputs by name */
/** @typedef {{element: HTMLElement, head: HTMLElement, view: TensorsView, calls: HTMLSelectElement, keys: string[], isKept: boolean}} Card */

export class Dock {
  /** @param {HTMLElement} host @param {Source} source @param {(key: string) => CallText} textOf @param {{gone?: string, kept?: Kept}} [options] */
  constructor(host, source, textOf, { gone, kept = new Kept() } = {}) {
    this.host = host;
    this.source = source;
    this.textOf = textOf;
    this.gone = gone;
    this.kept = kept;
    /** called with the step under the pointer, or null @type {(step: number | null) => void} */
    this.onStep = () => {};
    /** @type {[number, number] | null} the first and the last step; null: all */
    this.range = null;
    /** @type {number | null} */
    this.step = null;
    /** @type {number[]} steps with a note */
    this.notes = [];
    this.heading = make("span", { class: "type", role: "status" });
    /** @type {Card[]} the first follows what is chosen */
    this.cards = [];
    this.isWaiting = false;
    this.put([""], "", false);
    new ResizeObserver(() => this.redrawSoon()).observe(host);
  }

  // -- what is shown -------------------------------------------------------------------------------------------------

  /** The chosen layer. @param {string[]} keys of its calls @param {string} chosen one of them */
  show(keys, chosen) {
    const card = this.cards[0];
    if (card.keys.join() === keys.join() && card.view.key === chosen) return;
    this.offer(card, keys, chosen);
    card.view.show(chosen);
    this.hideChosenIfKept();
  }

  /** A layer that stays in view until it is closed. @param {string[]} keys @param {string} chosen */
  pin(keys, chosen) {
    if (this.cards.some((card) => card.isKept && card.keys.join() === keys.join())) return;
    const card = this.put(keys, chosen, true);
    card.view.show(chosen);
    this.hideChosenIfKept();
  }

  /** Steps that are shown; null: all. @param {number | null} first @param {number | null} last */
  setRange(first, last) {
    this.range = first === null || last === null ? null : [first, last];
    this.redrawSoon();
  }

  /** The step of the crosshair; null: the last one. @param {number | null} step */
  setStep(step) {
    this.step = step;
    for (const { view } of this.cards) for (const panel of view.panels) panel.point(step);
    this.tell();
  }

  /** Steps with a note, which are marked. @param {number[]} steps */
  setNotes(steps) {
    this.notes = steps;
    this.redrawSoon();
  }

  /** There is something new. */
  refresh() {
    for (const { view } of this.cards) if (view.key !== null) view.show(view.key);
  }

  // -- cards ---------------------------------------------------------------------------------------------------------

  /** @param {string[]} keys @param {string} chosen @param {boolean} isKept */
  put(keys, chosen, isKept) {
    const inside = make("div", { class: "tensors" });
    const head = make("div", { class: "which" });
    const calls = make("select", { "aria-label": "call", onchange: () => this.choose(card) });
    const element = make("section", { class: `card${isKept ? " pinned" : ""}`, tabindex: -1, onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Delete" && isKept) this.close(card); } }, head, inside);
    const view = new TensorsView(inside, this.source, {
      pointed: (step) => { this.setStep(step); this.onStep(step); },
      changed: () => this.redrawSoon(),
    });
    view.gone = this.gone ?? view.gone;
    view.titleOf = (history) => titleOf(history, this.textOf(history.call));
    /** @type {Card} */
    const card = { element, head, calls, keys, view, isKept };
    if (isKept) this.kept.keep(keys[0], chosen);
    this.offer(card, keys, chosen);
    this.cards.push(card);
    this.host.append(element);
    return card;
  }

  /** @param {Card} card @param {string[]} keys @param {string} chosen */
  offer(card, keys, chosen) {
    card.keys = keys;
    const options = keys.map((key) => make("option", { value: key, selected: key === chosen ? "" : undefined }, this.textOf(key).name));
    card.calls.replaceChildren(...options);
    card.calls.disabled = keys.length < 2;
  }

  /** Another of the equal calls. @param {Card} card */
  choose(card) {
    card.view.show(card.calls.value);
    if (card.isKept) this.kept.show(card.keys[0], card.calls.value);
    this.redrawSoon();
  }

  /** What stands above the charts of a card. @param {Card} card @param {string} compared what shares its scale, in words */
  label(card, compared) {
    const { name, type } = this.textOf(card.calls.value), mark = card.isKept ? this.kept.markOf(card.keys[0]) : null;
    const title = card.keys.length > 1 ? card.calls : make("b", {}, name);
    const press = card.isKept
      ? make("button", { type: "button", class: "close", "aria-label": "close", title: "no longer keep this layer", onclick: () => this.close(card) }, "×")
      : make("button", { type: "button", class: "keep", title: "keep these charts in view", onclick: () => this.pin(card.keys, card.calls.value) }, "keep");
    const text = `${name} ${type} ${compared} ${mark?.letter ?? ""}`;
    if (card.head.dataset.text === text) return; // a focused button stays
    card.head.dataset.text = text;
    card.head.replaceChildren(...(mark ? [keepTag(mark)] : []), title, make("span", { class: "type" }, type), make("span", { class: "type compared" }, compared), press);
    card.element.setAttribute("aria-label", `distributions of ${name}`);
  }

  /** @param {Card} card */
  close(card) {
    this.cards.splice(this.cards.indexOf(card), 1);
    this.kept.release(card.keys[0]);
    card.element.remove();
    this.hideChosenIfKept();
    this.cards.find(({ element }) => !element.hidden)?.element.focus({ preventScroll: true });
    this.redrawSoon();
  }

  /** The same charts are not shown twice. */
  hideChosenIfKept() {
    const [chosen, ...others] = this.cards, key = chosen.calls.value;
    chosen.element.hidden = others.some((card) => card.calls.value === key);
  }

  // -- drawing -------------------------------------------------------------------------------------------------------

  /** The steps of all charts together. @returns {[number, number]} */
  get span() {
    const histories = this.cards.flatMap(({ view }) => view.histories).filter((each) => each.first.length);
    if (!histories.length) return [0, 0];
    const firsts = histories.map((each) => each.first[0]), lasts = histories.map((each) => each.last.at(-1));
    return [Math.min(...firsts), Math.max(...lasts)];
  }

  /** Once before the page is painted, however much has changed. */
  redrawSoon() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      this.redraw();
    });
  }

  redraw() {
    const cards = this.cards.filter(({ element }) => !element.hidden), axis = { range: this.range ?? this.span, notes: this.notes };
    const compared = commonScales(cards.map((card) => ({ view: card.view, ...this.nameOf(card) })));
    cards.forEach((card, at) => this.label(card, compared[at]));
    const panels = cards.flatMap(({ view }) => view.panels);
    for (const panel of panels) panel.measure();
    for (const panel of panels) { panel.step = this.step; panel.draw(axis); }
    this.tell();
  }

  /** @param {Card} card */
  nameOf(card) {
    const { name, sources } = this.textOf(card.calls.value), mark = card.isKept ? this.kept.markOf(card.keys[0]) : null;
    return { key: card.calls.value, name: mark?.letter ?? name, sources };
  }

  /** The range and the step, in the heading. */
  tell() {
    const [history] = this.cards.flatMap(({ view }) => view.histories);
    if (!history) { this.heading.textContent = ""; return; }
    const range = this.range ?? this.span, step = this.step ?? range[1];
    const column = this.step === null ? lastColumnIn(history, range) : columnOf(history, step);
    const shown = column < 0 ? stepsText(history, step, step) : stepsText(history, history.first[column], history.last[column]);
    this.heading.textContent = `${stepsText(history, ...range)} · values of ${shown}`;
  }
}

/** What a tensor is called: an input or an output by the name that the graph has for it. @param {import("./histories.js").History} history @param {CallText} text */
function titleOf({ kind, name }, { takes, gives }) {
  const named = kind.startsWith("input") ? takes : kind.startsWith("output") ? gives : undefined;
  const place = /^(.*?)(?: (\d+))?$/.exec(name);
  const known = named?.[Number(place?.[2] ?? 0)]?.[0];
  return known && !/^\d+$/.test(known) ? `${place?.[1]} ${known}` : name;
}
