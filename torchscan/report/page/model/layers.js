// The table of layers: a tree that opens, or a list in the order of a column.

import { make } from "./elements.js";
import { fieldOf, hasReceived } from "./figures.js";
import { count, most, share } from "./format.js";
import { keepTag } from "./keep.js";
import { callsOf } from "./measured.js";
import { cellsOf, cellsOfRows, drawStrip, scaleOf } from "./tones.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {import("./keep.js").Kept} Kept */
/** @typedef {Record<string, any>} Row */

/** rows of the first level that begin open, at most */
const MOST_OPEN = 60;
const STRIP_WIDE = 84, STRIP_TALL = 8;

export class LayersView {
  /**
   * @param {HTMLElement} host @param {Row[]} rows
   * @param {{select: (row: number) => void, enter: (row: number) => void, point: (event: Event | null, row: Row | null) => void, pin?: (row: number) => void, carry?: (row: number, place: PointerEvent | null, isDropped: boolean) => void}} on
   * @param {Kept | null} [kept] layers whose letters are shown
   */
  constructor(host, rows, on, kept = null) {
    this.host = host;
    this.rows = rows;
    this.on = on;
    this.kept = kept;
    const innerLevels = rows.flatMap((row, at) => (row.depth >= 2 && this.hasInner(at) ? [at] : []));
    this.closed = new Set([...innerLevels, ...this.crowded()]);
    /** @type {{key: string, isDown: boolean} | null} */
    this.sorted = null;
    this.selected = -1;
    this.drawn = "";
    this.drawnFigure = "";
    this.whole = 0;
    this.scale = { low: 0, high: 0, isLog: false };
    /** @type {Figure | null} */
    this.figure = null;
    this.wanted = "";
  }

  /** Rows of the first level that are closed, since there are too many to be read opened. */
  crowded() {
    const first = this.rows.flatMap((row, at) => (row.depth === 1 && this.hasInner(at) ? [at] : []));
    return first.length > MOST_OPEN ? first : [];
  }

  /** @param {number} at */
  hasInner(at) { return this.rows[at + 1]?.depth > this.rows[at].depth; }

  /** @param {number} selected @param {Figure} figure */
  show(selected, figure) {
    if (selected !== this.selected) for (let at = this.rows[selected]?.in; at !== null && at !== undefined; at = this.rows[at].in) this.closed.delete(at);
    const isNew = selected !== this.selected;
    this.selected = selected; this.figure = figure;
    const drawnBefore = this.drawn;
    this.drawn = `${figure.key} ${this.sorted?.key} ${this.sorted?.isDown} ${this.wanted} ${[...this.closed].join()}`;
    this.drawnFigure = figure.key;
    if (this.drawn !== drawnBefore) this.redraw(figure);
    else this.mark();
    if (isNew) this.bring();
  }

  /** Other figures in the same rows. Rows stay, so that one can go on dragging one; but their order may be another. */
  refresh() {
    const { figure } = this;
    if (!figure || !this.drawn) return;
    if (this.drawnFigure !== figure.key || this.sorted?.key === figure.key) { this.drawn = ""; return; }
    this.measure(figure);
    const column = this.columns(figure).at(-1);
    for (const each of this.host.querySelectorAll("tr[data-at]")) {
      const row = this.rows[Number(each.getAttribute("data-at"))];
      each.lastElementChild?.replaceChildren(column?.text(row) ?? "", this.part(row));
      each.classList.toggle("producer", row.producer !== undefined);
      each.classList.toggle("received", hasReceived(row));
    }
    this.markKept();
  }

  /** @param {Figure} figure */
  measure(figure) {
    this.scale = scaleOf(figure, this.rows);
    this.whole = figure.adds ? figure.value(this.rows[0]) : most(this.rows.map(figure.value).filter(Number.isFinite), 0);
  }

  /** For a path or a type: what is found is seen from its beginning. @param {string} wanted */
  look(wanted) {
    this.wanted = wanted;
    if (this.figure) this.show(this.selected, this.figure);
    this.host.scrollTop = 0;
  }

  /** Thousands of rows are drawn once; what is selected changes a class. */
  mark() {
    for (const each of this.host.querySelectorAll("tr.selected")) { each.classList.remove("selected"); each.removeAttribute("aria-selected"); each.setAttribute("tabindex", "-1"); }
    const marked = this.host.querySelector(`[data-at="${this.selected}"]`);
    marked?.classList.add("selected");
    marked?.setAttribute("aria-selected", "true");
    marked?.setAttribute("tabindex", "0");
  }

  /** Scroll the table, not the page, to what is selected. */
  bring() {
    const marked = this.host.querySelector("tr.selected"), head = this.host.querySelector("thead");
    if (!marked || !head) return;
    const row = marked.getBoundingClientRect(), seen = this.host.getBoundingClientRect(), top = seen.top + head.getBoundingClientRect().height;
    if (row.top < top) this.host.scrollTop += row.top - top;
    else if (row.bottom > seen.bottom) this.host.scrollTop += row.bottom - seen.bottom;
  }

  /** @param {Figure} figure */
  redraw(figure) {
    this.measure(figure);
    const active = document.activeElement, focused = active?.closest("[data-at]")?.getAttribute("data-at"), heading = active?.getAttribute("data-key");
    const columns = this.columns(figure);
    const head = make("tr", {}, ...columns.map((column) => this.heading(column)));
    const body = make("tbody", {}, ...this.seen().map((at) => this.line(at, columns)));
    if (!body.firstChild) body.append(make("tr", {}, make("td", { colspan: columns.length }, `no layer matches “${this.wanted}”`)));
    this.host.replaceChildren(make("table", { role: this.sorted ? "table" : "treegrid", "aria-label": "layers" }, make("thead", {}, head), body));
    const back = focused ? `[data-at="${focused}"]` : heading ? `[data-key="${heading}"]` : null;
    if (back) /** @type {HTMLElement | null} */ (this.host.querySelector(back))?.focus({ preventScroll: true });
  }

  /** @param {Figure} figure @returns {{key: string, label: string, isNumber: boolean, always?: boolean, of: (row: Row) => any, text: (row: Row) => string}[]} */
  columns(figure) {
    const text = (/** @type {string} */ key, /** @type {string} */ label) => ({ key, label, isNumber: true, of: (/** @type {Row} */ row) => row[key], text: (/** @type {Row} */ row) => count(row[key]) });
    const rest = [text("params", "Params"), text("macs", "MACs"), { key: "rf", label: "RF", isNumber: true, of: (/** @type {Row} */ row) => fieldOf(row), text: (/** @type {Row} */ row) => row.rf || "–" }]
      .filter((column) => column.key !== figure.key && this.rows.some((row) => row[column.key]));
    return [
      { key: "name", label: "Layer", isNumber: false, always: true, of: (row) => row.name, text: (row) => row.name },
      { key: "output", label: "Output", isNumber: true, of: (row) => row.output[0] ?? "", text: (row) => (row.output[0] ?? "–") + (row.output.length > 1 ? ` +${row.output.length - 1}` : "") },
      ...rest,
      { key: figure.key, label: figure.label[0].toUpperCase() + figure.label.slice(1), isNumber: true, always: true, of: figure.value, text: (row) => figure.text(figure.value(row), row) },
    ];
  }

  /** A folded row has the paths of all that it stands for. @param {number} at @param {string} wanted */
  isMeant(at, wanted) {
    const { path, name, type, calls } = this.rows[at];
    return `${path} ${name} ${type}`.toLowerCase().includes(wanted) || (calls ?? []).some((/** @type {string} */ key) => key.toLowerCase().includes(wanted));
  }

  /** Rows that are seen, in their order. */
  seen() {
    const wanted = this.wanted.toLowerCase();
    const all = this.rows.map((_, at) => at).filter((at) => !wanted || this.isMeant(at, wanted));
    if (this.sorted) {
      const column = this.columns(/** @type {Figure} */ (this.figure)).find((each) => each.key === this.sorted?.key), way = this.sorted.isDown ? -1 : 1;
      return all.sort((one, other) => { const a = column?.of(this.rows[one]), b = column?.of(this.rows[other]); return way * (a < b ? -1 : a > b ? 1 : 0); });
    }
    if (wanted) return all;
    const hidden = new Set();
    return all.filter((at) => { const above = this.rows[at].in; if (above !== null && (hidden.has(above) || this.closed.has(above))) { hidden.add(at); return false; } return true; });
  }

  /** @param {ReturnType<LayersView["columns"]>[number]} column */
  heading(column) {
    const order = this.sorted?.key === column.key ? (this.sorted.isDown ? "descending" : "ascending") : undefined;
    const press = () => {
      this.sorted = this.sorted?.key !== column.key ? { key: column.key, isDown: column.key !== "name" } : this.sorted.isDown === (column.key !== "name") ? { key: column.key, isDown: !this.sorted.isDown } : null;
      if (this.figure) this.show(this.selected, this.figure);
    };
    return make("th", { scope: "col", class: `${column.isNumber ? "number" : ""}${column.always ? "" : " extra"}`, "aria-sort": order }, make("button", { type: "button", "data-key": column.key, onclick: press }, column.label));
  }

  /** @param {number} at @param {ReturnType<LayersView["columns"]>} columns */
  line(at, columns) {
    const row = this.rows[at], isTree = !this.sorted && !this.wanted;
    const made = make("tr", {
      "data-at": at, tabindex: at === Math.max(this.selected, 0) ? 0 : -1, class: `${at === this.selected ? "selected" : ""}${row.failed ? " failed" : ""}${row.producer !== undefined ? " producer" : hasReceived(row) ? " received" : ""}`,
      "aria-level": isTree ? row.depth + 1 : undefined, "aria-expanded": isTree && this.hasInner(at) ? String(!this.closed.has(at)) : undefined, "aria-selected": at === this.selected ? "true" : undefined,
      draggable: this.on.carry ? "true" : undefined, ondragstart: () => this.on.carry?.(at, null, false), ondragend: () => this.on.carry?.(at, null, true),
      onclick: () => this.on.select(at), ondblclick: () => row.level !== undefined && this.on.enter(at),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event, at),
      onpointerenter: (/** @type {Event} */ event) => this.on.point(event, row), onpointerleave: () => this.on.point(null, null),
    }, this.nameCell(at, isTree), ...columns.slice(1).map((column) => make("td", { class: `number${column.always ? "" : " extra"}` }, `${column.key === "macs" && !row.complete ? "≥ " : ""}${column.text(row)}`)));
    if (this.figure) made.lastChild.append(this.part(row));
    return made;
  }

  /** A bar beside a figure, and its share of the whole; of several modules, what each has measured. @param {Row} row */
  part(row) {
    const figure = /** @type {Figure} */ (this.figure);
    const cells = cellsOf(figure, row) ?? (figure.scale ? cellsOfRows(figure, [row], [0]) : null);
    if (cells) {
      const drawn = make("svg", { class: "cells", width: STRIP_WIDE, height: STRIP_TALL, "aria-hidden": "true" }, drawStrip(cells, this.scale, STRIP_WIDE, STRIP_TALL));
      return make("span", { class: "part" }, drawn);
    }
    const part = this.whole ? Math.min(1, figure.value(row) / this.whole) : 0;
    const drawn = make("span", { class: "share" }, make("i", { class: `on-${figure.colour(row)}` }));
    drawn.firstChild.style.width = `${100 * part}%`;
    return make("span", { class: "part" }, figure.adds ? make("span", { class: "percent" }, share(part)) : "", drawn);
  }

  /** @param {number} at @param {boolean} isTree */
  nameCell(at, isTree) {
    const row = this.rows[at];
    const isOpen = !this.closed.has(at);
    const press = (/** @type {Event} */ event) => {
      event.stopPropagation();
      this.toggle(at);
    };
    const fold = isTree && this.hasInner(at)
      ? make("button", { type: "button", class: "fold", tabindex: -1, "aria-label": isOpen ? "close" : "open", onclick: press }, isOpen ? "▾" : "▸")
      : make("span", { class: "fold" });
    const name = `${isTree ? row.name : row.path || row.name}${row.failed ? " failed" : ""}`;
    const type = make("span", { class: "type" }, `${row.type}${row.repeats > 1 ? ` ×${row.repeats}` : ""}`);
    const cell = make("td", { class: "name" }, fold, make("span", {}, name), type, ...this.marksOf(row));
    if (isTree) cell.style.paddingLeft = `${6 + 15 * Math.min(row.depth, 12)}px`;
    return cell;
  }

  /** The letter of a kept layer, and a word where NaN or Inf came from. @param {Row} row */
  marksOf(row) {
    const mark = this.kept?.markOf(callsOf(row)[0]);
    const source = row.producer === undefined ? [] : [make("span", { class: "badge", title: row.producer }, "first NaN or Inf")];
    const inside = row.holds && row.producer === undefined ? [make("span", { class: "badge inside", title: `first NaN or Inf: ${row.holds}` })] : [];
    return [...(mark ? [keepTag(mark)] : []), ...source, ...inside];
  }

  /** Show the letters of kept layers anew. */
  markKept() {
    for (const each of this.host.querySelectorAll("tr[data-at]")) {
      const cell = each.querySelector("td.name");
      for (const old of cell?.querySelectorAll(".tag, .badge") ?? []) old.remove();
      cell?.append(...this.marksOf(this.rows[Number(each.getAttribute("data-at"))]));
    }
  }

  /** @param {number} at */
  toggle(at) {
    if (!this.closed.delete(at)) this.closed.add(at);
    if (this.figure) this.show(this.selected, this.figure);
  }

  /** @param {KeyboardEvent} event @param {number} at */
  key(event, at) {
    const seen = this.seen(), place = seen.indexOf(at), isTree = !this.sorted && !this.wanted;
    const go = (/** @type {number | undefined} */ to) => { if (to === undefined) return; this.on.select(to); /** @type {HTMLElement | null} */ (this.host.querySelector(`[data-at="${to}"]`))?.focus(); };
    if (event.key === "ArrowDown") go(seen[place + 1]);
    else if (event.key === "ArrowUp") go(seen[place - 1]);
    else if (event.key === "ArrowRight" && isTree && this.hasInner(at)) { if (this.closed.has(at)) this.toggle(at); else go(seen[place + 1]); }
    else if (event.key === "ArrowLeft" && isTree) { if (this.hasInner(at) && !this.closed.has(at)) this.toggle(at); else if (this.rows[at].in !== null) go(this.rows[at].in); }
    else if (event.key === "Enter" && this.on.pin && !event.shiftKey) this.on.pin(at);
    else if (event.key === "Enter" && this.rows[at].level !== undefined) this.on.enter(at);
    else return;
    event.preventDefault();
  }
}
