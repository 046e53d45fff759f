// The elements of the heat map's rows in view: name, letter, type, and the last value.

import { make, place } from "./elements.js";
import { keepTag } from "./keep.js";

/** @typedef {import("./layers_heat.js").LayersHeat} LayersHeat */

export class HeatLines {
  /** @param {LayersHeat} heat */
  constructor(heat) {
    this.heat = heat;
    /** @type {Map<number, any>} */
    this.elements = new Map();
  }

  clear() {
    for (const element of this.elements.values()) element.remove();
    this.elements.clear();
  }

  /** Mark the row that is pointed at. */
  point() {
    for (const [row, element] of this.elements) element.classList.toggle("pointed", row === this.heat.view.pointed);
  }

  /** Elements of the rows from one to another. @param {number} first @param {number} last */
  put(first, last) {
    const { rows, focused } = this.heat;
    const wanted = new Set(rows.seen.slice(first, last));
    wanted.add(focused);
    for (const [row, element] of this.elements) {
      if (wanted.has(row) && rows.seen.includes(row)) continue;
      element.remove();
      this.elements.delete(row);
    }
    const places = new Map(rows.seen.map((row, at) => [row, at]));
    for (const row of wanted) {
      const at = places.get(row);
      if (at !== undefined) this.line(row, at);
    }
  }

  /** @param {number} row @param {number} at */
  line(row, at) {
    const { heat } = this;
    const { view, rows, quantity, frame, tall } = heat;
    const { name, type, hasInner, key } = view.arrays.rows[row];
    let element = this.elements.get(row);
    if (!element) {
      element = make("div", { class: "heat-row", role: "treeitem", "data-row": row, "data-key": key }, make("span", { class: "twisty" }), make("b"), make("span", { class: "kept-as" }), make("span", { class: "kind" }), make("span", { class: "why" }), make("span", { class: "value" }));
      this.elements.set(row, element);
      heat.list.append(element);
    }
    const isOpen = rows.opened.has(row);
    const text = heat.textAt(row, heat.lastColumn);
    const [twisty, title, kept, kind, why, last] = element.children;
    const mark = view.markOf(row);
    kept.replaceChildren(...(mark ? [keepTag(mark)] : []));
    twisty.textContent = hasInner ? (isOpen ? "▾" : "▸") : "";
    title.textContent = name;
    kind.textContent = type;
    const has = heat.values?.has(row) || quantity.name === "nan" || view.arrays.wrong.has(row);
    why.textContent = has ? "" : heat.values ? quantity.none : "";
    last.textContent = heat.options.groups ? "" : text;
    element.style.top = `${at * tall}px`;
    element.style.height = `${tall}px`;
    element.style.setProperty("--level", String(rows.level(row)));
    element.style.setProperty("--left", `${frame.left}px`);
    element.classList.toggle("open", isOpen);
    element.classList.toggle("selected", row === view.selected);
    element.classList.toggle("producer", row === view.producer?.row);
    place(element, { tabindex: row === heat.focused ? 0 : -1, "aria-level": rows.level(row) + 1, "aria-selected": String(row === view.selected), "aria-label": `${name}, ${type}${mark ? `, kept as ${mark.letter}` : ""}, ${quantity.label} ${text}` });
    if (hasInner) place(element, { "aria-expanded": String(isOpen) });
  }
}
