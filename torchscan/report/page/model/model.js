// The page of a model: verdicts, the graph and the table in step, memory and time.

import { make } from "./elements.js";
import { FigureChoice } from "./figure_choice.js";
import { saidOf } from "./figures.js";
import { GraphView } from "./graph.js";
import { Kept } from "./keep.js";
import { LayersView } from "./layers.js";
import { apply, callsOf, labelsOf } from "./measured.js";
import { overlayFigures } from "./overlay.js";
import { chartPanels, crumbsOf, panel, saving, toolButton, verdictsOf } from "./panels.js";
import { Pointing } from "./pointing.js";
import { SeesView } from "./sees.js";

/** What stands after the hash of the address; "" where nobody can tell. */
function asked() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}

/** @param {HTMLElement} host @param {any} data */
export function showPage(host, data) { new ModelPage(host, data).start(); }

/** The class of a row, unless its name says it. @param {any} row */
export function typeBeside({ name, type }) { return name === type ? "" : type; }

export class ModelPage {
  /** @param {HTMLElement} host @param {any} data */
  constructor(host, data) {
    this.host = host;
    this.data = data;
    if (data.measured) apply(data.rows, this.withSource(data.measured));
    this.choice = new FigureChoice(data.rows, () => this.draw(), overlayFigures(data.rows, data.overlays));
    /** @type {Map<string, number>} */
    this.rowsByKey = new Map();
    /** @type {Map<string, string>} */
    this.labelsByKey = new Map();
    data.rows.forEach((/** @type {any} */ row, /** @type {number} */ at) => {
      const labels = labelsOf(row);
      callsOf(row).forEach((key, place) => {
        if (!this.rowsByKey.has(key)) this.rowsByKey.set(key, at);
        this.labelsByKey.set(key, labels[place]);
      });
    });
    this.shown = 0;
    this.selected = -1;
    this.selectedBefore = -1;
    this.missing = "";
    /** that the address asks for @type {string} */
    this.call = "";
    this.kept = new Kept(() => this.markKept());
    this.pointing = new Pointing(host, () => this.saidOf(this.data.rows[Math.max(this.selected, 0)]));
    this.crumbs = make("nav", { class: "crumbs", "aria-label": "path" });
    this.told = verdictsOf([], () => make("b"));
  }

  /** Draw everything for the first time, and listen. */
  start() {
    const { data } = this;
    const graph = make("div", { class: "canvas" });
    const table = make("div", { class: "scroll" });
    const main = make("main", {},
      panel("Graph", "graph", graph, this.choice.element, make("div", { class: "place" }, this.crumbs, this.zooming())),
      panel("Layers", "layers", table, this.searching()),
      ...this.below());
    const error = data.error ? [make("p", { class: "error" }, data.error)] : [];
    const remarks = data.remarks.map((/** @type {string} */ each) => make("p", { class: "remark" }, each));
    this.told = this.verdicts();
    this.host.replaceChildren(this.header(), ...error, ...this.above(), this.told, main, ...remarks);

    const carrying = this.carrying();
    const point = (/** @type {Event | null} */ event, /** @type {[string, string][]} */ said) => this.point(event, said);
    this.graph = new GraphView(graph, data, { select: (row, key) => this.select(row, key), enter: (row) => this.enter(row), leave: () => this.leave(), point, ...carrying }, this.kept);
    this.graph.said = (row) => this.saidOf(row);
    this.layers = new LayersView(table, data.rows, { ...carrying, select: (row) => this.select(row), enter: (row) => this.enter(row), point: (event, row) => this.pointRow(event, row) }, this.kept);
    this.listen();
    this.follow();
  }

  listen() {
    addEventListener("hashchange", () => this.follow());
    let wide = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === wide) return;
      wide = innerWidth;
      this.graph?.adapt();
      this.layers?.adapt();
    });
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target instanceof HTMLInputElement) return;
      event.preventDefault();
      this.search.focus();
    });
  }

  // -- where one is --------------------------------------------------------------------------------------------------

  /** Show what the address says: the model, or `#layer3.0.conv2`. */
  follow() {
    const path = asked(), found = path ? this.rowOf(path) : 0, rows = this.data.rows;
    const at = found ?? 0, isInside = location.hash.endsWith("/") || at === 0;
    this.missing = found === null ? path : "";
    this.call = path.replace(/\/$/, "");
    this.selected = at || -1;
    let shown = isInside && rows[at].level !== undefined ? at : rows[at].in ?? 0;
    while (!isInside && this.graph?.opened.has(shown) && rows[shown].in !== null) shown = rows[shown].in; // seen where it is
    this.shown = shown;
    this.draw();
  }

  /** Of a call, by its key; equal calls have a row together. @param {string} key @returns {number | null} */
  rowOf(key) { return this.rowsByKey.get(key.replace(/\/$/, "")) ?? null; }

  /** @param {number} row @param {string} [key] of one of its calls */
  select(row, key) { this.go(row, false, key); }

  /** @param {number} row */
  enter(row) { this.go(row, true); }

  leave() { const above = this.data.rows[this.shown].in; if (above !== null) this.go(this.shown, false); }

  /** @param {number} row @param {boolean} isInside @param {string} [key] */
  go(row, isInside, key = this.data.rows[row].key) {
    const hash = key ? `#${encodeURIComponent(key)}${isInside ? "/" : ""}` : "#";
    const isSeen = !isInside && (this.data.rows[row].in === this.shown || this.graph?.opened.has(this.data.rows[row].in));
    if (isSeen) { // a selection is no place to go back to
      try { history.replaceState(null, "", hash); } catch { location.hash = hash; return; } // in a notebook's frame, whose address is the notebook's
    }
    if (isSeen || location.hash === hash || (hash === "#" && !location.hash)) this.follow();
    else location.hash = hash; // hashchange follows
  }

  draw() {
    if (!this.pointing.isActive || this.selected !== this.selectedBefore) this.rest();
    this.selectedBefore = this.selected;
    this.graph?.show(this.shown, this.selected, this.choice.figure);
    this.layers?.show(this.selected, this.choice.figure, this.choice.figures);
    this.sees?.show(Math.max(this.selected, 0));
    this.drawCrumbs();
  }

  drawCrumbs() {
    const enter = (/** @type {number} */ at) => {
      if (this.graph) this.graph.keepsFocus = true;
      this.enter(at);
    };
    const type = this.missing ? `there is no layer ${this.missing}` : typeBeside(this.data.rows[this.shown]);
    this.crumbs.replaceChildren(...crumbsOf(this.data.rows, this.shown, enter), make("span", { class: "type" }, type));
  }

  /** The call that the address asks for, once: from then on, what is chosen. */
  takeCall() {
    const { call } = this;
    this.call = "";
    return call;
  }

  /** Show other measured figures. @param {any} measured */
  measure(measured) {
    apply(this.data.rows, this.withSource(measured));
    this.choice.refresh();
  }

  /** What was measured, with the call that the first NaN or Inf came from. @param {any} measured */
  withSource(measured) { return measured; }

  // -- parts ---------------------------------------------------------------------------------------------------------

  header() {
    const [what, ...settings] = this.data.question;
    this.source = make("span", {}, what ?? "");
    const line = make("span", { class: "question" }, this.source, settings.map((/** @type {string} */ each) => ` · ${each}`).join(""));
    return make("header", {}, make("h1", {}, this.data.title), line);
  }

  /** What stands between the header and the verdicts. @returns {HTMLElement[]} */
  above() { return []; }

  /** What stands below the graph and the table. @returns {HTMLElement[]} */
  below() { return [make("div", { class: "charts" }, ...this.charts(), ...this.seeing())]; }

  /** What happens to rows that are kept or carried away. @returns {Record<string, any>} */
  carrying() { return {}; }

  verdicts() { return verdictsOf(this.data.verdicts, (key, text) => this.link(key, text)); }

  /** To a call. @param {string} key @param {string} text */
  link(key, text) {
    const follow = (/** @type {Event} */ event) => {
      event.preventDefault();
      const row = this.rowOf(key);
      if (row !== null) this.select(row);
    };
    return make("a", { href: `#${encodeURIComponent(key)}`, onclick: follow }, text);
  }

  zooming() {
    return make("div", { class: "tools" },
      toolButton("−", "zoom out", () => this.graph?.zoom(1 / 1.3)), toolButton("+", "zoom in", () => this.graph?.zoom(1.3)), toolButton("fit", "fit to view", () => this.graph?.fit()),
      ...saving(() => /** @type {GraphView} */ (this.graph).svg, `${this.data.title}-graph`));
  }

  searching() {
    const look = () => this.layers?.look(this.search.value);
    const choose = (/** @type {KeyboardEvent} */ event) => {
      const first = this.layers?.seen()[0];
      if (event.key === "Enter" && this.search.value && first !== undefined) this.select(first);
    };
    this.search = make("input", { type: "search", placeholder: "search: path or type", "aria-label": "search layers by path or type", oninput: look, onkeydown: choose });
    return this.search;
  }

  charts() {
    const select = (/** @type {string} */ path) => { const row = this.rowOf(path); if (row) this.select(row); };
    return chartPanels(this.data, { select, point: (event, said) => this.point(event, said) });
  }

  /** What a unit sees, where any layer sees a part of a picture. */
  seeing() {
    if (!this.data.rows.some((/** @type {any} */ row) => row.sees)) return [];
    const inside = make("div");
    const sees = this.sees = new SeesView(inside, this.data.rows);
    return [panel("Receptive field", "sight", inside, make("div", { class: "tools" }, ...saving(() => sees.svg, `${this.data.title}-sees`)))];
  }

  // -- what is pointed at --------------------------------------------------------------------------------------------

  /** @param {any} row */
  saidOf(row) { return saidOf(row, this.choice.figures, this.choice.figure); }

  /** @param {Event | null} event null: nothing is pointed at @param {[string, string][]} said the first is the title */
  point(event, said) {
    this.pointing.show(event, said);
    if (!this.pointing.isActive) this.graph?.pointAt(-1);
  }

  rest() {
    this.pointing.rest();
    this.graph?.pointAt(-1);
  }

  /** A row of the table is pointed at: its box is marked. @param {Event | null} event @param {any} row */
  pointRow(event, row) {
    if (!event || !row) {
      this.rest();
      return;
    }
    this.pointing.showInGraph(this.saidOf(row));
    this.graph?.pointAt(this.data.rows.indexOf(row));
  }

  /** A layer was kept, or is no longer. */
  markKept() {
    this.graph?.markKept();
    this.layers?.markKept();
  }
}
