// Layers over the steps: a heat map with a row for each block, in the model's order. Only rows in view are elements.

import { frameOf } from "./axis.js";
import { make } from "./elements.js";
import { HeatColumns } from "./heat_columns.js";
import { HeatFrame } from "./heat_frame.js";
import { listenToHeat } from "./heat_input.js";
import { HeatLines } from "./heat_lines.js";
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
    this.lines = new HeatLines(this);
    this.focused = this.rows.seen[0] ?? 0;
    listenToHeat(this);
  }

  /** Other arrays of the same run; what is open stays open if the rows are the same. */
  refresh() {
    const { rows } = this.view.arrays;
    const isSame = rows.length === this.rows.rows.length && rows.every((row, at) => row.key === this.rows.rows[at].key);
    if (!isSame) {
      this.rows = new HeatRows(rows);
      this.focused = this.rows.seen[0] ?? 0;
      this.lines.clear();
    } else this.rows.rows = rows;
    this.columns = new HeatColumns(this.view.arrays);
  }

  get range() { return this.options.range?.() ?? this.view.range; }

  get values() { return this.view.arrays.quantities.get(this.quantity.name)?.rows; }

  /** A value of a row in a column; null: there is none. @param {number} row @param {number} column */
  valueAt(row, column) { return column < 0 ? null : this.values?.get(row)?.[column] ?? null; }

  /** @param {number} row @param {number} column */
  textAt(row, column) {
    if (this.isWrong(row, column)) return "NaN";
    if (this.quantity.name === "nan") return column < 0 ? "–" : "finite";
    return textOf(this.quantity, this.valueAt(row, column));
  }

  /** Whether NaN or Inf made the value of a row unknown in a column. @param {number} row @param {number} column */
  isWrong(row, column) { return ((this.view.arrays.wrong.get(row)?.[column] ?? 0) & this.quantity.bits) > 0; }

  /** The column in which the value of a row was counted; -1: none. @param {number} row @param {number} column */
  countedIn(row, column) {
    const values = this.view.arrays.quantities.get(this.quantity.name)?.counted.get(row);
    for (let at = column; values && at >= 0; at -= 1) if (!Number.isNaN(values[at])) return at;
    return -1;
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
    this.lines.put(first, last);
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

  /** Select a module, and open or close what is inside. @param {number} row */
  choose(row) {
    const { hasInner, folded } = this.view.arrays.rows[row];
    if (hasInner) this.rows.toggle(row);
    if (!folded) this.view.choose(row);
    this.view.drawHeats();
  }

  /** @param {number} row */
  toggle(row) {
    this.rows.toggle(row);
    this.draw();
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
    this.lines.elements.get(row)?.focus({ preventScroll: true });
    this.view.point(this.view.cross);
  }

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
    this.lines.point();
    if (this.options.groups || frame.isNarrow) return;
    const column = isInside ? this.columns.at(view.cross) : -1;
    this.around.now.textContent = column < 0 ? "" : `step ${whole(view.cross)}`;
    this.profile.draw(column);
  }
}
