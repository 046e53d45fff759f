// Layers over the steps: a heat map with a row for each block, in the model's order. Only rows in view are elements.

import { frameOf } from "./axis.js";
import { place } from "./brush.js";
import { make } from "./elements.js";
import { HeatColumns } from "./heat_columns.js";
import { HeatFrame } from "./heat_frame.js";
import { HeatPainter } from "./heat_paint.js";
import { HeatProfile } from "./heat_profile.js";
import { HeatRows } from "./heat_rows.js";
import { whole } from "./numbers.js";
import { decadesOf, QUANTITIES, textOf } from "./quantities.js";

/** @typedef {import("./training.js").TrainingView} TrainingView */
/** @typedef {import("./brush.js").Range} Range */
/** @typedef {{from: number, to: number, title: string, text: string, isBad: boolean}} Group places of neighboring rows, and what they have in common */
/** @typedef {{range?: () => Range, groups?: (seen: number[]) => Group[]}} Options of another range than the page's, and of brackets instead of the profile */

const TALL = 17, NARROW_TALL = 20;
/** rows in view, at most */
const MAX_SEEN = 38;
/** pixels of a cell */
const CELL = 3;

export class LayersHeat {
  /** @param {HTMLElement} host @param {TrainingView} view @param {Options} [options] */
  constructor(host, view, options = {}) {
    this.host = host;
    this.view = view;
    this.options = options;
    this.quantity = QUANTITIES[0];
    this.rows = new HeatRows(view.arrays.rows);
    this.columns = new HeatColumns(view.arrays);
    this.frame = { ...frameOf(0), width: 0 };
    this.tall = TALL;
    this.pixel = CELL;
    /** @type {[number, number]} logarithms of the lowest and the highest tone */
    this.decades = [0, 1];
    /** @type {import("./axis.js").Scale} */
    this.scale = view.axis.scale(0, 1, 0, 1);
    /** @type {import("./heat_paint.js").Strip[]} */
    this.strips = [];
    this.around = new HeatFrame(this);
    this.profile = new HeatProfile(this);
    this.cells = make("canvas");
    this.painter = new HeatPainter(this.cells);
    this.sticky = make("div", { class: "heat-view", "aria-hidden": "true" }, this.cells, this.profile.canvas);
    this.cursor = make("div", { class: "heat-cursor" });
    this.ring = make("div", { class: "heat-ring" });
    this.list = make("div", { class: "heat-list", role: "tree", "aria-label": "layers" });
    this.scroll = make("div", { class: "heat-scroll", onscroll: () => this.paint() }, make("div", { class: "heat-rows" }, this.sticky, this.list, this.ring, this.around.side), this.cursor);
    host.append(this.around.head, this.scroll, this.around.foot, this.around.key);
    /** @type {Map<number, any>} */
    this.elements = new Map();
    this.focused = this.rows.seen[0] ?? 0;
    this.list.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.move(event));
    this.list.addEventListener("click", (/** @type {MouseEvent} */ event) => this.click(event));
    this.list.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.press(event));
  }

  /** Other arrays of the same run; what is open stays open if the rows are the same. */
  refresh() {
    const { rows } = this.view.arrays;
    const isSame = rows.length === this.rows.rows.length && rows.every((row, at) => row.key === this.rows.rows[at].key);
    if (!isSame) {
      this.rows = new HeatRows(rows);
      this.focused = this.rows.seen[0] ?? 0;
      this.clear();
    } else this.rows.rows = rows;
    this.columns = new HeatColumns(this.view.arrays);
  }

  clear() {
    for (const element of this.elements.values()) element.remove();
    this.elements.clear();
  }

  get range() { return this.options.range?.() ?? this.view.range; }

  get values() { return this.view.arrays.quantities.get(this.quantity.name)?.rows; }

  /** A value of a row in a column; null: there is none. @param {number} row @param {number} column */
  valueAt(row, column) { return column < 0 ? null : this.values?.get(row)?.[column] ?? null; }

  /** @param {number} row @param {number} column */
  textAt(row, column) {
    if (this.quantity.name === "nan") return this.view.arrays.wrong.get(row)?.[column] ? "NaN" : "0";
    return textOf(this.quantity, this.valueAt(row, column));
  }

  get lastColumn() { return this.columns.before(this.range[1]); }

  // -- drawing -----------------------------------------------------------------------------------

  draw() {
    const width = Math.max(280, this.host.clientWidth);
    const frame = frameOf(width);
    this.frame = { ...frame, width };
    this.tall = frame.isNarrow ? NARROW_TALL : TALL;
    const [from, to] = this.range;
    const number = Math.max(20, Math.floor((frame.right - frame.left) / CELL));
    this.pixel = (frame.right - frame.left) / number;
    // the last step has a width, too
    this.scale = this.view.axis.scale(from, to + Math.min(1, (to - from) / 8 || 1), frame.left, frame.right);
    this.columns.spread(this.scale, frame.left, number, this.pixel);
    this.decades = decadesOf(this.view.arrays, this.quantity.name);
    const { seen } = this.rows;
    const height = this.tall * seen.length;
    const visible = Math.min(height, this.tall * MAX_SEEN);
    this.scroll.style.height = `${visible}px`;
    this.scroll.firstChild.style.height = `${height}px`;
    this.sticky.style.height = `${visible}px`;
    this.painter.readColors();
    this.profile.painter.readColors();
    this.around.draw();
    this.paint();
  }

  paint() {
    const { seen } = this.rows;
    const height = this.scroll.clientHeight;
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / this.tall));
    const last = Math.min(seen.length, Math.ceil((this.scroll.scrollTop + height) / this.tall));
    this.strips = seen.slice(first, last).map((row, at) => ({ row, y: (first + at) * this.tall - this.scroll.scrollTop }));
    this.put(first, last);
    this.painter.begin(this.frame.width, height);
    const [low, high] = this.decades;
    const { wrong } = this.view.arrays;
    const { values } = this;
    this.painter.paint(this.strips, this.columns, { left: this.frame.left, right: this.frame.right, height: this.tall, pixel: this.pixel }, {
      values: (row) => values?.get(row), wrong: (row) => wrong.get(row), low, high, isLargest: this.quantity.pick === "largest", isPlain: this.quantity.name === "nan",
    });
    this.paintProducer();
    this.point();
  }

  /** A solid mark in the row that produced the first value that is not finite. */
  paintProducer() {
    const { producer } = this.view;
    if (producer === null) return;
    const { step, row } = producer;
    const column = this.columns.at(step);
    const strip = this.strips.find((each) => each.row === this.rows.visible(row));
    if (column < 0 || !strip) return;
    const { first } = this.view.arrays;
    const start = Math.max(this.frame.left, this.scale(first[column]));
    const end = Math.min(this.frame.right, this.scale(this.columns.ends[column]));
    if (end <= this.frame.left || start >= this.frame.right) return;
    if (this.options.groups) this.painter.lead((start + end) / 2, strip.y);
    this.painter.solid(start - 1, strip.y, Math.max(7, end - start + 1), this.tall);
  }

  /** Elements of the rows from one to another. @param {number} first @param {number} last */
  put(first, last) {
    const wanted = new Set(this.rows.seen.slice(first, last));
    wanted.add(this.focused);
    for (const [row, element] of this.elements) {
      if (wanted.has(row) && this.rows.seen.includes(row)) continue;
      element.remove();
      this.elements.delete(row);
    }
    const places = new Map(this.rows.seen.map((row, at) => [row, at]));
    for (const row of wanted) {
      const at = places.get(row);
      if (at !== undefined) this.line(row, at);
    }
  }

  /** @param {number} row @param {number} at */
  line(row, at) {
    const { name, type, hasInner, key } = this.view.arrays.rows[row];
    let element = this.elements.get(row);
    if (!element) {
      element = make("div", { class: "heat-row", role: "treeitem", "data-row": row, "data-key": key }, make("span", { class: "twisty" }), make("b"), make("span", { class: "kind" }), make("span", { class: "why" }), make("span", { class: "value" }));
      this.elements.set(row, element);
      this.list.append(element);
    }
    const isOpen = this.rows.opened.has(row);
    const text = this.textAt(row, this.lastColumn);
    const [twisty, title, kind, why, last] = element.children;
    twisty.textContent = hasInner ? (isOpen ? "▾" : "▸") : "";
    title.textContent = name;
    kind.textContent = type;
    const has = this.values?.has(row) || this.quantity.name === "nan" || this.view.arrays.wrong.has(row);
    why.textContent = has ? "" : this.values ? this.quantity.none : "";
    last.textContent = this.options.groups ? "" : text;
    element.style.top = `${at * this.tall}px`;
    element.style.height = `${this.tall}px`;
    element.style.setProperty("--level", String(this.rows.level(row)));
    element.style.setProperty("--left", `${this.frame.left}px`);
    element.classList.toggle("open", isOpen);
    element.classList.toggle("selected", row === this.view.selected);
    element.classList.toggle("producer", row === this.view.producer?.row);
    place(element, { tabindex: row === this.focused ? 0 : -1, "aria-level": this.rows.level(row) + 1, "aria-selected": String(row === this.view.selected), "aria-label": `${name}, ${type}, ${this.quantity.label} ${text}` });
    if (hasInner) place(element, { "aria-expanded": String(isOpen) });
  }

  // -- pointer and keyboard ----------------------------------------------------------------------

  /** Show the crosshair, and the profile of its step. */
  point() {
    const { frame, scale, view } = this;
    const [from, to] = this.range;
    // the middle of the step, which has a width
    const x = Math.min(frame.right, scale(view.cross + 0.5));
    const isInside = view.cross >= from && view.cross <= to;
    this.cursor.style.transform = `translateX(${x}px)`;
    this.cursor.hidden = !isInside;
    const at = this.rows.seen.indexOf(view.pointed);
    this.ring.hidden = !isInside || at < 0;
    this.ring.style.transform = `translate(${x - 4}px, ${at * this.tall}px)`;
    this.ring.style.height = `${this.tall}px`;
    for (const [row, element] of this.elements) element.classList.toggle("pointed", row === view.pointed);
    if (this.options.groups || frame.isNarrow) return;
    const column = isInside ? this.columns.at(view.cross) : -1;
    this.around.now.textContent = column < 0 ? "" : `step ${whole(view.cross)}`;
    this.profile.draw(column);
  }

  /** @param {MouseEvent} event */
  rowAt(event) {
    const element = /** @type {Element} */ (event.target).closest("[data-row]");
    return element ? Number(element.getAttribute("data-row")) : null;
  }

  /** @param {PointerEvent} event */
  move(event) {
    const row = this.rowAt(event);
    if (row === null) return;
    const [from, to] = this.range;
    const x = event.clientX - this.host.getBoundingClientRect().left;
    this.view.pointed = row;
    const isOnCells = x >= this.frame.left && x <= this.frame.right;
    this.view.point(isOnCells ? Math.min(to, Math.max(from, Math.floor(this.scale.step(x)))) : this.view.cross);
  }

  /** @param {MouseEvent} event */
  click(event) {
    const row = this.rowAt(event);
    if (row === null) return;
    this.focus(row);
    this.choose(row);
  }

  /** Select a module, and open or close what is inside. @param {number} row */
  choose(row) {
    const { hasInner, folded } = this.view.arrays.rows[row];
    if (hasInner) this.rows.toggle(row);
    if (!folded) this.view.choose(row);
    this.view.drawHeats();
  }

  /** @param {number} row */
  focus(row) {
    this.focused = row;
    this.view.pointed = row;
    const at = this.rows.seen.indexOf(row);
    const [top, bottom] = [at * this.tall, (at + 1) * this.tall];
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    else if (bottom > this.scroll.scrollTop + this.scroll.clientHeight) this.scroll.scrollTop = bottom - this.scroll.clientHeight;
    this.paint();
    this.elements.get(row)?.focus({ preventScroll: true });
    this.view.point(this.view.cross);
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const row = this.rowAt(/** @type {any} */ (event));
    if (row === null) return;
    const { hasInner, parent } = this.view.arrays.rows[row];
    const isOpen = this.rows.opened.has(row);
    const next = this.rows.neighbor(row, event.key);
    if (event.shiftKey && event.key.startsWith("Arrow")) { this.view.pressArrow(event); return; }
    if (next !== undefined) this.focus(next);
    else if (event.key === "ArrowRight" && hasInner && !isOpen) this.toggle(row);
    else if (event.key === "ArrowLeft" && hasInner && isOpen) this.toggle(row);
    else if (event.key === "ArrowLeft" && parent !== null && this.rows.seen.includes(parent)) this.focus(parent);
    else if (event.key === "Enter" || event.key === " ") this.choose(row);
    else return;
    event.preventDefault();
  }

  /** @param {number} row */
  toggle(row) {
    this.rows.toggle(row);
    this.draw();
  }
}
