// The table of layers: a tree that opens, or a list in the order of a column.

import { make } from "./elements.js";
import { hasReceived } from "./figures.js";
import { most } from "./format.js";
import { RowWindow } from "./row_window.js";
import { columnsOf, isMeant, marksOf, partOf } from "./table_cells.js";
import { scaleOf } from "./tones.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {import("./keep.js").Kept} Kept */
/** @typedef {import("./table_cells.js").Column} Column */
/** @typedef {Record<string, any>} Row */

/** rows of the first level that begin open, at most */
const MOST_OPEN = 60;
/** columns whose values stay while a run goes on */
const STEADY = new Set(["name", "output", "params"]);
/** pixels by which names become narrower before columns are left out, and of names at least */
const SPARE = 40, NARROWEST = 96;
/** letters of an overlay's heading that stay together */
const WORD = 11;

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
    /** @type {Figure[]} */
    this.figures = [];
    this.wanted = "";
    /** @type {Column[]} */
    this.shownColumns = [];
    /** columns that the table has no room for @type {Set<Column>} */
    this.without = new Set();
    this.window = new RowWindow(host, (at) => this.line(at, this.shownColumns));
    this.window.pinned = () => [Math.max(this.selected, 0), this.focused()].filter((at) => at >= 0);
    host.addEventListener("scroll", () => { // rows with longer values may have come into view
      if (this.window.elements.size < this.window.rows.length && this.yielding().length && this.excess() > 0) this.adapt();
    });
    /** rows that are seen, which are found anew when they change @type {number[] | null} */
    this.order = null;
  }

  /** The row that has the focus; -1: none. */
  focused() {
    const row = document.activeElement?.closest("tr[data-at]");
    return row && this.host.contains(row) ? Number(row.getAttribute("data-at")) : -1;
  }

  /** Rows of the first level that are closed, since there are too many to be read opened. */
  crowded() {
    const first = this.rows.flatMap((row, at) => (row.depth === 1 && this.hasInner(at) ? [at] : []));
    return first.length > MOST_OPEN ? first : [];
  }

  /** @param {number} at */
  hasInner(at) { return this.rows[at + 1]?.depth > this.rows[at].depth; }

  /** @param {number} selected @param {Figure} figure @param {Figure[]} [figures] of the page */
  show(selected, figure, figures = this.figures) {
    this.figures = figures;
    if (selected !== this.selected) for (let at = this.rows[selected]?.in; at !== null && at !== undefined; at = this.rows[at].in) this.closed.delete(at);
    const isNew = selected !== this.selected;
    this.selected = selected; this.figure = figure;
    const drawnBefore = this.drawn;
    this.drawn = `${figure.key} ${figures.length} ${this.sorted?.key} ${this.sorted?.isDown} ${this.wanted} ${[...this.closed].join()}`;
    this.drawnFigure = figure.key;
    if (this.drawn !== drawnBefore) this.redraw(figure);
    else this.mark();
    if (isNew) this.bring(selected);
  }

  /** Other figures in the same rows. Rows stay, so that one can go on dragging one; but their order may be another. */
  refresh() {
    const { figure } = this;
    if (!figure || !this.drawn) return;
    if (this.drawnFigure !== figure.key || (this.sorted && !STEADY.has(this.sorted.key))) { this.drawn = ""; return; }
    this.measure(figure);
    const columns = this.shownColumns;
    for (const each of this.host.querySelectorAll("tr[data-at]")) {
      const row = this.rows[Number(each.getAttribute("data-at"))];
      columns.forEach((column, at) => { if (at) each.children[at].textContent = column.text(row); });
      each.lastElementChild?.append(this.part(row));
      each.classList.toggle("producer", row.producer !== undefined);
      each.classList.toggle("received", hasReceived(row));
    }
    this.markKept();
  }

  /** @param {Figure} figure */
  measure(figure) {
    this.scale = scaleOf(figure, this.rows);
    this.whole = figure.adds ? figure.value(this.rows[0]) : most(this.rows.map((row) => figure.value(row)).filter(Number.isFinite), 0);
  }

  /** For a path or a type: what is found is seen from its beginning. @param {string} wanted */
  look(wanted) {
    this.wanted = wanted;
    this.host.scrollTop = 0;
    if (this.figure) this.show(this.selected, this.figure);
    this.host.scrollTop = 0;
  }

  /** What is selected changes a class: the rows stay. */
  mark() {
    for (const each of this.host.querySelectorAll("tr.selected, tr[tabindex='0']")) {
      each.classList.remove("selected");
      each.removeAttribute("aria-selected");
      each.setAttribute("tabindex", "-1");
    }
    this.window.draw();
    const marked = this.window.elementOf(this.selected);
    marked?.classList.add("selected");
    marked?.setAttribute("aria-selected", "true");
    this.window.elementOf(Math.max(this.selected, 0))?.setAttribute("tabindex", "0");
  }

  /** Scroll to a row. @param {number} at */
  bring(at) { this.window.bring(at, this.host.querySelector("thead")?.offsetHeight ?? 0); }

  /** @param {Figure} figure */
  redraw(figure) {
    this.measure(figure);
    const focused = this.focused(), heading = document.activeElement?.getAttribute("data-key");
    const columns = this.shownColumns = this.columns(figure);
    this.without.clear();
    const head = make("tr", {}, ...columns.map((column) => this.heading(column)));
    const rows = this.order = this.found();
    const { body } = this.window;
    body.replaceChildren();
    this.host.replaceChildren(make("table", { role: this.sorted ? "table" : "treegrid", "aria-label": "layers", "aria-rowcount": rows.length + 1 }, make("thead", {}, head), body));
    this.window.show(rows);
    if (!rows.length) body.append(make("tr", {}, make("td", { colspan: columns.length }, `no layer matches “${this.wanted}”`)));
    this.makeRoom();
    this.holdWidths();
    const back = focused >= 0 ? this.window.elementOf(focused) : heading ? this.host.querySelector(`[data-key="${heading}"]`) : null;
    /** @type {HTMLElement | null | undefined} */ (back)?.focus({ preventScroll: true });
  }

  /** @param {Figure} figure @returns {Column[]} */
  columns(figure) { return columnsOf(figure, this.figures, this.rows); }

  /** The page has another width. */
  adapt() {
    for (const each of this.host.querySelectorAll("th")) each.style.minWidth = "";
    this.makeRoom();
    this.holdWidths();
    this.window.draw();
  }

  /** Names become narrower and columns are left out, as far as the last one, which is chosen, needs their room. */
  makeRoom() {
    const yielding = this.yielding();
    if (!yielding.length) return;
    const excess = () => this.excess();
    this.host.style.removeProperty("--name");
    for (const column of yielding) this.leaveOut(column, false);
    for (const column of yielding) {
      if (excess() <= SPARE) break;
      if (column.key !== this.sorted?.key) this.leaveOut(column, true);
    }
    for (const column of yielding.filter((each) => this.without.has(each)).reverse()) { // a wide one may have left room for others
      this.leaveOut(column, false);
      if (excess() > 0) this.leaveOut(column, true);
    }
    const name = this.host.querySelector("td.name");
    if (name && excess() > 0) this.host.style.setProperty("--name", `${Math.max(NARROWEST, name.getBoundingClientRect().width - excess())}px`);
  }

  /** Columns that can be left out, the first one first. */
  yielding() { return this.shownColumns.filter((column) => column.yields !== undefined).sort((one, other) => Number(one.yields) - Number(other.yields)); }

  /** Pixels by which the table is wider than its place. */
  excess() { return this.host.scrollWidth - this.host.clientWidth; }

  /** @param {Column} column @param {boolean} isOut */
  leaveOut(column, isOut) {
    if (isOut) this.without.add(column);
    else this.without.delete(column);
    const at = this.shownColumns.indexOf(column);
    for (const each of this.host.querySelectorAll("tr:not(.space)")) each.children[at]?.classList.toggle("out", isOut);
  }

  /** Columns stay as wide as they are while other rows come into view. */
  holdWidths() {
    if (this.window.elements.size === this.window.rows.length) return;
    for (const each of this.host.querySelectorAll("th")) each.style.minWidth = `${each.offsetWidth}px`;
  }

  /** Rows that are seen, in their order. */
  seen() { return this.order ?? this.found(); }

  /** Find the rows that are seen: not inside closed ones, or those that match, sorted if a column sorts them. */
  found() {
    const wanted = this.wanted.toLowerCase();
    const all = this.rows.map((_, at) => at).filter((at) => !wanted || isMeant(this.rows[at], wanted));
    if (this.sorted) {
      const column = this.shownColumns.find((each) => each.key === this.sorted?.key), way = this.sorted.isDown ? -1 : 1;
      return all.sort((one, other) => { const isUp = way > 0, a = column?.of(this.rows[one], isUp), b = column?.of(this.rows[other], isUp); return compared(a, b, way); });
    }
    if (wanted) return all;
    const hidden = new Set();
    return all.filter((at) => { const above = this.rows[at].in; if (above !== null && (hidden.has(above) || this.closed.has(above))) { hidden.add(at); return false; } return true; });
  }

  /** @param {Column} column */
  heading(column) {
    const order = this.sorted?.key === column.key ? (this.sorted.isDown ? "descending" : "ascending") : undefined;
    const press = () => {
      this.sorted = this.sorted?.key !== column.key ? { key: column.key, isDown: column.key !== "name" } : this.sorted.isDown === (column.key !== "name") ? { key: column.key, isDown: !this.sorted.isDown } : null;
      if (this.figure) this.show(this.selected, this.figure);
    };
    const button = make("button", { type: "button", "data-key": column.key, title: column.title, onclick: press }, column.label);
    if (column.isGiven) button.style.minWidth = `${Math.min(WORD, column.label.length)}ch`;
    return make("th", { scope: "col", class: `${column.isNumber ? "number" : ""}${column.always ? "" : " extra"}${column.isGiven ? " given" : ""}`, "aria-sort": order }, button);
  }

  /** @param {number} at @param {Column[]} columns */
  line(at, columns) {
    const row = this.rows[at], isTree = !this.sorted && !this.wanted;
    const made = make("tr", {
      "data-at": at, "aria-rowindex": (this.window.places.get(at) ?? 0) + 2, tabindex: at === Math.max(this.selected, 0) ? 0 : -1, class: `${at === this.selected ? "selected" : ""}${row.failed ? " failed" : ""}${row.producer !== undefined ? " producer" : hasReceived(row) ? " received" : ""}`,
      "aria-level": isTree ? row.depth + 1 : undefined, "aria-expanded": isTree && this.hasInner(at) ? String(!this.closed.has(at)) : undefined, "aria-selected": at === this.selected ? "true" : undefined,
      draggable: this.on.carry ? "true" : undefined, ondragstart: () => this.on.carry?.(at, null, false), ondragend: () => this.on.carry?.(at, null, true),
      onclick: () => this.on.select(at), ondblclick: () => row.level !== undefined && this.on.enter(at),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event, at),
      onpointerenter: (/** @type {Event} */ event) => this.on.point(event, row), onpointerleave: () => this.on.point(null, null),
    }, this.nameCell(at, isTree), ...columns.slice(1).map((column) => make("td", { class: `number${column.always ? "" : " extra"}${this.without.has(column) ? " out" : ""}` }, column.text(row))));
    if (this.figure) made.lastChild.append(this.part(row));
    return made;
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
    const cell = make("td", { class: "name" }, fold, make("span", {}, name), type, ...marksOf(row, this.kept));
    if (isTree) cell.style.paddingLeft = `${6 + 15 * Math.min(row.depth, 12)}px`;
    return cell;
  }

  /** @param {Row} row */
  part(row) { return partOf(row, /** @type {Figure} */ (this.figure), this.whole, this.scale); }

  /** Show the letters of kept layers anew. */
  markKept() {
    for (const each of this.host.querySelectorAll("tr[data-at]")) {
      const cell = each.querySelector("td.name");
      for (const old of cell?.querySelectorAll(".tag, .badge") ?? []) old.remove();
      cell?.append(...marksOf(this.rows[Number(each.getAttribute("data-at"))], this.kept));
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
    const go = (/** @type {number | undefined} */ to) => { if (to === undefined) return; this.on.select(to); this.bring(to); this.window.elementOf(to)?.focus({ preventScroll: true }); };
    const page = Math.max(1, Math.floor(this.host.clientHeight / this.window.tall) - 2);
    const far = { Home: 0, End: seen.length - 1, PageUp: Math.max(0, place - page), PageDown: Math.min(seen.length - 1, place + page) }[event.key];
    if (far !== undefined) go(seen[far]);
    else if (event.key === "ArrowDown") go(seen[place + 1]);
    else if (event.key === "ArrowUp") go(seen[place - 1]);
    else if (event.key === "ArrowRight" && isTree && this.hasInner(at)) { if (this.closed.has(at)) this.toggle(at); else go(seen[place + 1]); }
    else if (event.key === "ArrowLeft" && isTree) { if (this.hasInner(at) && !this.closed.has(at)) this.toggle(at); else if (this.rows[at].in !== null) go(this.rows[at].in); }
    else if (event.key === "Enter" && this.on.pin && !event.shiftKey) this.on.pin(at);
    else if (event.key === "Enter" && this.rows[at].level !== undefined) this.on.enter(at);
    else return;
    event.preventDefault();
  }
}

/** What has no value comes last in both orders. @param {any} one @param {any} other @param {number} way */
function compared(one, other, way) {
  const isMissing = Number.isNaN(one);
  if (isMissing || Number.isNaN(other)) return isMissing ? (Number.isNaN(other) ? 0 : 1) : -1;
  return way * (one < other ? -1 : one > other ? 1 : 0);
}
