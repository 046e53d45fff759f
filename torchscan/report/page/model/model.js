// The page of a model: verdicts, the graph and the table in step, memory and time.

import { memoryChart, rooflineChart } from "./charts.js";
import { bar, make } from "./elements.js";
import { figuresOf, saidOf, sightIn } from "./figures.js";
import { GraphView } from "./graph.js";
import { HeatView } from "./heat.js";
import { LayersView } from "./layers.js";
import { apply, callsOf } from "./measured.js";
import { save } from "./save.js";
import { SeesView } from "./sees.js";

const MOST_CRUMBS = 8;

/** What stands after the hash of the address; "" where nobody can tell. */
function asked() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}

/** @param {HTMLElement} host @param {any} data */
export function showModel(host, data) { return new ModelPage(host, data); }

class ModelPage {
  /** @param {HTMLElement} host @param {any} data */
  constructor(host, data) {
    this.data = data;
    if (data.measured) apply(data.rows, data.measured);
    this.figures = figuresOf(data.rows);
    /** @type {Map<string, number>} */
    this.rowsByKey = new Map();
    data.rows.forEach((/** @type {any} */ row, /** @type {number} */ at) => { for (const key of callsOf(row)) if (!this.rowsByKey.has(key)) this.rowsByKey.set(key, at); });
    this.figure = ["nonfinite", "latency", "time", "macs"].flatMap((key) => this.figures.filter((each) => each.key === key))[0] ?? this.figures[0];
    this.shown = 0; this.selected = -1; this.missing = "";
    this.tip = make("div", { class: "tip", role: "tooltip", hidden: "" });
    const point = (/** @type {Event | null} */ event, /** @type {[string, string][]} */ said) => this.point(event, said);
    this.crumbs = make("nav", { class: "crumbs", "aria-label": "where this is" });
    const graph = make("div", { class: "canvas" }), table = make("div", { class: "scroll" });
    host.replaceChildren(this.header(), ...(data.error ? [make("p", { class: "error" }, data.error)] : []), this.verdicts(), make("main", {},
      this.panel("Graph", "graph", graph, this.colouring(), this.crumbs, this.zooming()),
      this.panel("Layers", "layers", table, this.searching()),
      make("div", { class: "charts" }, ...this.charts(), ...this.seeing()), ...this.distributions()), ...data.remarks.map((/** @type {string} */ each) => make("p", { class: "remark" }, each)), this.tip);
    this.graph = new GraphView(graph, data, { select: (row) => this.select(row), enter: (row) => this.enter(row), leave: () => this.leave(), point });
    this.graph.said = (row) => this.saidOf(row);
    this.layers = new LayersView(table, data.rows, { select: (row) => this.select(row), enter: (row) => this.enter(row), point: (event, row) => this.point(event, row ? this.saidOf(row) : []) });
    addEventListener("hashchange", () => this.follow());
    let wide = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== wide && !this.graph.isMoved) this.graph.fit(); wide = innerWidth; });
    addEventListener("keydown", (event) => { if (event.key === "/" && !(event.target instanceof HTMLInputElement)) { event.preventDefault(); this.search.focus(); } });
    this.follow();
  }

  // -- where one is --------------------------------------------------------------------------------------------------

  /** Show what the address says: the model, or `#layer3.0.conv2`. */
  follow() {
    const path = asked(), found = path ? this.rowOf(path) : 0, rows = this.data.rows;
    const at = found ?? 0, isInside = location.hash.endsWith("/") || at === 0;
    this.missing = found === null ? path : "";
    this.selected = at || -1;
    let shown = isInside && rows[at].level !== undefined ? at : rows[at].in ?? 0;
    while (!isInside && this.graph.opened.has(shown) && rows[shown].in !== null) shown = rows[shown].in; // seen where it is
    this.shown = shown;
    this.draw();
  }

  /** Of a call, by its key; equal calls have a row together. @param {string} key @returns {number | null} */
  rowOf(key) { return this.rowsByKey.get(key.replace(/\/$/, "")) ?? null; }

  /** @param {number} row */
  select(row) { this.go(row, false); }

  /** @param {number} row */
  enter(row) { this.go(row, true); }

  leave() { const above = this.data.rows[this.shown].in; if (above !== null) this.go(this.shown, false); }

  /** @param {number} row @param {boolean} isInside */
  go(row, isInside) {
    const { key } = this.data.rows[row], hash = key ? `#${encodeURIComponent(key)}${isInside ? "/" : ""}` : "#";
    const isSeen = !isInside && (this.data.rows[row].in === this.shown || this.graph.opened.has(this.data.rows[row].in));
    if (isSeen) { // a selection is no place to go back to
      try { history.replaceState(null, "", hash); } catch { location.hash = hash; return; } // in a notebook's frame, whose address is the notebook's
    }
    if (isSeen || location.hash === hash || (hash === "#" && !location.hash)) this.follow();
    else location.hash = hash; // hashchange follows
  }

  draw() {
    this.graph.show(this.shown, this.selected, this.figure);
    this.layers.show(this.selected, this.figure);
    this.sees?.show(Math.max(this.selected, 0));
    this.tell();
    const way = [];
    for (let at = this.shown; at !== null; at = this.data.rows[at].in) way.unshift(at);
    if (way.length > MOST_CRUMBS) way.splice(2, way.length - MOST_CRUMBS, -1);
    this.crumbs.replaceChildren(...way.flatMap((at, place) => {
      if (at < 0) return [" › …"];
      const row = this.data.rows[at], isLast = place === way.length - 1;
      const name = `${row.name}${row.repeats > 1 ? ` ×${row.repeats}` : ""}`;
      return [...(place ? [" › "] : []), isLast ? make("b", {}, name) : make("a", { href: "#", onclick: (/** @type {Event} */ event) => { event.preventDefault(); this.graph.keepsFocus = true; this.enter(at); } }, name)];
    }), make("span", { class: "type" }, this.missing ? `there is no layer ${this.missing}` : this.data.rows[this.shown].type));
  }

  // -- parts ---------------------------------------------------------------------------------------------------------

  header() {
    return make("header", {}, make("h1", {}, this.data.title), make("span", { class: "question" }, this.data.question.join(" · ")));
  }

  /** To a call. @param {string} key @param {string} text */
  link(key, text) {
    const follow = (/** @type {Event} */ event) => { event.preventDefault(); const row = this.rowOf(key); if (row !== null) this.select(row); };
    return make("a", { href: `#${encodeURIComponent(key)}`, onclick: follow }, text);
  }

  verdicts() {
    return make("div", { class: "verdicts" }, ...this.data.verdicts.map((/** @type {any} */ each) =>
      make("section", { class: "verdict" }, make("span", { class: "label" }, each.label), make("b", {}, each.path ? this.link(each.path, each.value) : each.value), make("span", {}, each.said), ...(each.bar ? [bar(each.bar)] : []))));
  }

  /** @param {string} title @param {string} name @param {HTMLElement} content @param {...Node} tools */
  panel(title, name, content, ...tools) {
    return make("section", { class: `panel ${name}`, "aria-label": title }, make("h2", {}, make("span", {}, title), ...tools.slice(0, 1)), ...tools.slice(1), content);
  }

  colouring() {
    const chosen = make("select", { "aria-label": "colour by", onchange: () => { this.figure = this.figures[chosen.selectedIndex]; this.draw(); } },
      ...this.figures.map((figure) => make("option", { value: figure.key, selected: figure === this.figure ? "" : undefined }, figure.label)));
    return make("label", {}, "colour by ", chosen);
  }

  zooming() {
    const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ press) => make("button", { type: "button", "aria-label": label, title: label, onclick: press }, text);
    return make("div", { class: "tools" }, button("−", "smaller", () => this.graph.zoom(1 / 1.3)), button("+", "larger", () => this.graph.zoom(1.3)), button("fit", "all of it", () => this.graph.fit()), ...this.saving(() => this.graph.svg, "graph"));
  }

  /** @param {() => SVGSVGElement} drawn @param {string} name */
  saving(drawn, name) {
    return ["svg", "png"].map((kind) => make("button", { type: "button", title: `save as ${kind.toUpperCase()}`, onclick: () => save(drawn(), kind, `${this.data.title}-${name}`) }, kind.toUpperCase()));
  }

  /** What a run has recorded of the tensors of the chosen layer. */
  distributions() {
    const packed = this.data.measured?.histories;
    if (!packed) return [];
    const inside = make("div", { class: "heats" }), heat = this.heat = new HeatView(inside, packed);
    this.calls = make("select", { "aria-label": "which call", onchange: () => heat.show(this.calls.value) });
    const scale = make("select", { "aria-label": "scale", onchange: () => { heat.isLinear = scale.value === "linear"; heat.show(heat.key); } }, make("option", { value: "log" }, "logarithmic"), make("option", { value: "linear" }, "linear"));
    return [this.panel("Distributions over the steps", "distributions", inside, make("span", {}, this.calls, " ", scale))];
  }

  /** The distributions of the chosen layer: of several equal ones, of the first, or of another that is chosen. */
  tell() {
    if (!this.heat) return;
    const keys = callsOf(this.data.rows[Math.max(this.selected, 0)]), chosen = keys.includes(asked()) ? asked() : keys[0];
    if (keys.includes(this.heat.key) && this.heat.key !== "" && this.calls.options.length === keys.length) return;
    this.calls.replaceChildren(...keys.map((key) => make("option", { value: key, selected: key === chosen ? "" : undefined }, key || this.data.rows[0].name)));
    this.heat.show(chosen);
  }

  /** What a unit sees, where any layer sees a part of a picture. */
  seeing() {
    if (!this.data.rows.some((/** @type {any} */ row) => row.sees)) return [];
    const inside = make("div");
    const sees = this.sees = new SeesView(inside, this.data.rows);
    return [this.panel("What a unit sees", "sight", inside, make("div", { class: "tools" }, ...this.saving(() => sees.svg, "sees")))];
  }

  searching() {
    this.search = make("input", { type: "search", placeholder: "search: path or type", "aria-label": "search layers by path or type", oninput: () => { this.layers.look(this.search.value); }, onkeydown: (/** @type {KeyboardEvent} */ event) => { const first = this.layers.seen()[0]; if (event.key === "Enter" && this.search.value && first !== undefined) this.select(first); } });
    return this.search;
  }

  charts() {
    const on = { select: (/** @type {string} */ path) => { const row = this.rowOf(path); if (row) this.select(row); }, point: (/** @type {Event | null} */ event, /** @type {[string, string][]} */ said) => this.point(event, said) };
    const drawn = [
      ...(this.data.memory ? [{ title: "Memory over the pass", name: "memory", ...memoryChart(this.data.memory, on) }] : []),
      ...(this.data.roofline?.points.length ? [{ title: "What limits it", name: "roofline", ...rooflineChart(this.data.roofline, on) }] : []),
    ];
    return drawn.map((each) => make("section", { class: `panel ${each.name}`, "aria-label": each.title }, make("h2", {}, make("span", {}, each.title), make("span", {}, each.unit)), each.svg,
      make("div", { class: "key" }, ...each.key.map((/** @type {[string, string]} */ [kind, text]) => make("span", {}, make("i", { class: `on-${kind}` }), text))),
      make("div", { class: "tools" }, ...this.saving(() => each.svg, each.name))));
  }

  // -- what is pointed at --------------------------------------------------------------------------------------------

  /** @param {any} row */
  saidOf(row) {
    this.pointed = row;
    return saidOf(row, this.figures);
  }

  /** @param {Event | null} event @param {[string, string][]} said the first is the title */
  point(event, said) {
    this.tip.hidden = !event || !said.length;
    if (this.tip.hidden || !event) return;
    const [[, title], ...rest] = said, seen = sightIn(this.pointed);
    this.pointed = undefined;
    this.tip.replaceChildren(make("b", {}, title), make("dl", {}, ...rest.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])), ...(seen ? [seen] : []));
    const box = /** @type {Element} */ (event.currentTarget ?? event.target).getBoundingClientRect(), isPointer = event instanceof PointerEvent;
    const x = isPointer ? event.clientX + 14 : box.right + 8, y = isPointer ? event.clientY + 14 : box.top;
    const size = this.tip.getBoundingClientRect();
    this.tip.style.left = `${Math.max(4, x + size.width > innerWidth - 8 ? x - size.width - 28 : x)}px`;
    this.tip.style.top = `${Math.max(4, Math.min(y, innerHeight - size.height - 8))}px`;
  }
}
