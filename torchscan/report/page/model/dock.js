// Panels of distributions: that of the chosen layer, and those that were put beside it.

import { make } from "./elements.js";
import { HeatView } from "./heat.js";
import { Kept, keepTag } from "./keep.js";

/** @typedef {import("./heat.js").Source} Source */
/** @typedef {{element: HTMLElement, heat: HeatView, calls: HTMLSelectElement, keys: string[]}} Card */

export class Dock {
  /** @param {HTMLElement} host @param {Source} source @param {(key: string) => string} nameOf what a call is called @param {string} [gone] what to say if there is no answer @param {Kept} [kept] */
  constructor(host, source, nameOf, gone, kept = new Kept()) {
    this.kept = kept;
    this.host = host; this.source = source; this.nameOf = nameOf; this.gone = gone; this.isLinear = false;
    /** @type {Card[]} the first follows what is chosen */
    this.cards = [];
    this.put([""], "", false);
  }

  /** The chosen layer. @param {string[]} keys of its calls @param {string} chosen one of them */
  show(keys, chosen) {
    const card = this.cards[0];
    if (card.keys.join() === keys.join() && card.heat.key === chosen) return;
    this.offer(card, keys, chosen);
    card.heat.show(chosen);
  }

  /** A layer that stays in view until it is closed. @param {string[]} keys @param {string} chosen */
  pin(keys, chosen) {
    const there = this.cards.slice(1).find((card) => card.keys.join() === keys.join());
    const card = there ?? this.put(keys, chosen, true);
    if (!there) card.heat.show(chosen);
  }

  /** @param {boolean} isLinear */
  scale(isLinear) {
    this.isLinear = isLinear;
    for (const { heat } of this.cards) { heat.isLinear = isLinear; heat.redraw(); }
  }

  /** There is something new. */
  refresh() { for (const { heat } of this.cards) if (heat.key !== null) heat.show(heat.key); }

  /** @param {string[]} keys @param {string} chosen @param {boolean} isPinned */
  put(keys, chosen, isPinned) {
    const inside = make("div", { class: "heats" }), calls = make("select", { "aria-label": "call", onchange: () => card.heat.show(calls.value) });
    const press = isPinned ? make("button", { type: "button", class: "close", "aria-label": "close", onclick: () => this.close(card) }, "×") : make("button", { type: "button", class: "keep", title: "keep these plots in view", onclick: () => this.pin(card.keys, calls.value) }, "keep");
    const element = make("section", { class: `card${isPinned ? " pinned" : ""}`, tabindex: -1, onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Delete" && isPinned) this.close(card); } }, make("div", { class: "which" }, ...(isPinned ? [keepTag(this.kept.keep(keys[0]))] : []), calls, press), inside);
    /** @type {Card} */
    const card = { element, calls, keys, heat: new HeatView(inside, this.source, (step) => { for (const each of this.cards) each.heat.point(step); }) };
    card.heat.isLinear = this.isLinear;
    card.heat.gone = this.gone ?? card.heat.gone;
    this.offer(card, keys, chosen);
    this.cards.push(card);
    this.host.append(element);
    return card;
  }

  /** @param {Card} card @param {string[]} keys @param {string} chosen */
  offer(card, keys, chosen) {
    card.keys = keys;
    card.calls.replaceChildren(...keys.map((key) => make("option", { value: key, selected: key === chosen ? "" : undefined }, this.nameOf(key))));
    card.calls.disabled = keys.length < 2;
    card.element.setAttribute("aria-label", `distributions of ${this.nameOf(chosen)}`);
  }

  /** @param {Card} card */
  close(card) {
    this.cards.splice(this.cards.indexOf(card), 1);
    card.element.remove();
    this.kept.release(card.keys[0]);
    this.cards[0].element.focus({ preventScroll: true });
  }
}
