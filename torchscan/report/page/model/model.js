// The page of a model: verdicts, the graph and the table in step, memory and time.

import { memoryChart, rooflineChart } from "./charts.js";
import { bar, make } from "./elements.js";
import { figuresOf, saidOf } from "./figures.js";
import { Dock } from "./dock.js";
import { GraphView } from "./graph.js";
import { help, legend } from "./help.js";
import { sourceOf } from "./histories.js";
import { Kept } from "./keep.js";
import { LayersView } from "./layers.js";
import { follow, fromServer, listen } from "./live.js";
import { apply, callsOf, labelsOf } from "./measured.js";
import { Reading } from "./reading.js";
import { save } from "./save.js";
import { headerOfRun, refreshHeader } from "./run_header.js";
import { SeesView } from "./sees.js";
import { TrainingView } from "./training.js";

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
    this.host = host;
    this.data = data;
    if (data.measured) apply(data.rows, data.measured);
    this.figures = figuresOf(data.rows);
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
    this.figure = this.foremost(); this.isFigureChosen = false;
    /** @type {number | null} */
    this.carried = null;
    this.late = make("p", { class: "remark", hidden: "" }, "New layers were called: ", make("a", { href: "", onclick: (/** @type {Event} */ event) => { event.preventDefault(); location.reload(); } }, "show them"));
    this.shown = 0; this.selected = -1; this.missing = "";
    /** that the address asks for */
    this.call = "";
    /** whether a button is held down, and what is heard meanwhile, since what is drawn anew does not hear of a click */
    this.isHeld = false;
    /** @type {any} */
    this.waiting = null;
    /** whether something is pointed at, whose values stay in the line while others are drawn anew */
    this.isPointing = false;
    this.selectedBefore = -1;
    this.kept = new Kept(() => this.markKept());
    const point = (/** @type {Event | null} */ event, /** @type {[string, string][]} */ said) => this.point(event, said);
    this.crumbs = make("nav", { class: "crumbs", "aria-label": "path" });
    const graph = make("div", { class: "canvas" }), table = make("div", { class: "scroll" });
    this.training = this.trained();
    host.replaceChildren(this.header(), this.late, ...(data.error ? [make("p", { class: "error" }, data.error)] : []), ...(this.training ? [this.training.element] : []), this.told = this.verdicts(), make("main", {},
      this.panel("Graph", "graph", graph, this.colouring(), make("div", { class: "place" }, this.crumbs, this.zooming())),
      this.panel("Layers", "layers", table, this.searching()),
      ...this.distributions(), make("div", { class: "charts" }, ...this.charts(), ...this.seeing())), ...data.remarks.map((/** @type {string} */ each) => make("p", { class: "remark" }, each)));
    const carrying = this.dock ? { pin: (/** @type {number} */ row) => this.pin(row), carry: (/** @type {number} */ row, /** @type {PointerEvent | null} */ place, /** @type {boolean} */ isDropped) => this.carry(row, place, isDropped) } : {};
    this.graph = new GraphView(graph, data, { select: (row, key) => this.select(row, key), enter: (row) => this.enter(row), leave: () => this.leave(), point, ...carrying }, this.kept);
    this.graph.said = (row) => this.saidOf(row);
    this.layers = new LayersView(table, data.rows, { ...carrying, select: (row) => this.select(row), enter: (row) => this.enter(row), point: (event, row) => this.pointRow(event, row) }, this.kept);
    addEventListener("hashchange", () => this.follow());
    let wide = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== wide) this.graph.adapt(); wide = innerWidth; });
    addEventListener("keydown", (event) => { if (event.key === "/" && !(event.target instanceof HTMLInputElement)) { event.preventDefault(); this.search.focus(); } });
    addEventListener("pointerdown", () => { this.isHeld = true; }, true);
    for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, () => setTimeout(() => { this.isHeld = false; if (this.waiting) this.hear(this.waiting); }), true);
    this.follow();
    if (this.training) this.takeTraining(data.training);
    if (this.training && data.live) follow("training", 1, ({ training }) => { if (training && !this.isHeld) this.takeTraining(training); });
    if (data.live) listen((figures) => this.hear(figures), (isThere) => { this.state.textContent = isThere ? "live" : this.gone(); });
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
    while (!isInside && this.graph.opened.has(shown) && rows[shown].in !== null) shown = rows[shown].in; // seen where it is
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
    const isSeen = !isInside && (this.data.rows[row].in === this.shown || this.graph.opened.has(this.data.rows[row].in));
    if (isSeen) { // a selection is no place to go back to
      try { history.replaceState(null, "", hash); } catch { location.hash = hash; return; } // in a notebook's frame, whose address is the notebook's
    }
    if (isSeen || location.hash === hash || (hash === "#" && !location.hash)) this.follow();
    else location.hash = hash; // hashchange follows
  }

  draw() {
    if (!this.isPointing || this.selected !== this.selectedBefore) this.rest();
    this.selectedBefore = this.selected;
    this.graph.show(this.shown, this.selected, this.figure);
    this.layers.show(this.selected, this.figure);
    this.sees?.show(Math.max(this.selected, 0));
    this.training?.select(this.keyOfSelected());
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

  gone() { return `Not connected: the server may have stopped. To open the run again: torchscan runs open ${this.data.live.join(" ")}`; }

  /** The key of the selected layer: of equal calls, the one that was asked for. */
  keyOfSelected() {
    const keys = callsOf(this.data.rows[Math.max(this.selected, 0)]);
    return [this.call, this.training?.selectedKey ?? "", keys[0]].find((key) => keys.includes(key)) ?? "";
  }

  /** The training of a run, if the page has it. */
  trained() {
    if (!this.data.training) return null;
    return new TrainingView({
      modelName: this.data.title,
      link: (key, text) => this.link(key, text),
      select: (key) => this.choose(key),
      point: (step) => this.dock?.setStep(step),
      show: ([first, last], isWhole) => (isWhole ? this.dock?.setRange(null, null) : this.dock?.setRange(first, last)),
    });
  }

  /** New data of the training; the distributions show the same step and the same notes. @param {any} training */
  async takeTraining(training) {
    this.data.training = training;
    const line = this.told.ownerDocument.querySelector("header .question");
    if (line instanceof HTMLElement) refreshHeader(line, this.data, this.state);
    await this.training?.take(training);
    this.dock?.setNotes(training.marks.map((/** @type {any} */ mark) => mark.step));
    this.dock?.setStep(this.training?.cross ?? null);
  }

  /** Select a call by its key; of equal calls in one row, this one. @param {string} key */
  choose(key) {
    const row = this.rowOf(key);
    if (row === null) return;
    this.select(row, key);
  }

  header() {
    this.source = make("span", {}, this.data.question[0] ?? "");
    this.state = make("span", { class: "state", role: "status" });
    if (this.training) return headerOfRun(this.data, this.state);
    return make("header", {}, make("h1", {}, this.data.title), make("span", { class: "question" }, this.source, this.data.question.slice(1).map((/** @type {string} */ each) => ` · ${each}`).join("")), ...(this.data.live ? [this.state] : []));
  }

  /** To a call. @param {string} key @param {string} text */
  link(key, text) {
    const follow = (/** @type {Event} */ event) => { event.preventDefault(); const row = this.rowOf(key); if (row !== null) this.select(row); };
    return make("a", { href: `#${encodeURIComponent(key)}`, onclick: follow }, text);
  }

  /** Whether a verdict is shown: with its training, a run shows what it lacks, and no costs of its model. @param {any} verdict */
  isShown({ isWrong, path }) {
    if (!this.data.training) return true;
    return isWrong !== undefined && !(path !== undefined && this.data.training.nan);
  }

  verdicts() {
    return make("div", { class: "verdicts" }, ...this.data.verdicts.filter((/** @type {any} */ each) => this.isShown(each)).map((/** @type {any} */ each) =>
      make("section", { class: "verdict" }, make("span", { class: "label" }, each.label), make("b", {}, each.path ? this.link(each.path, each.value) : each.value), make("span", {}, each.said), ...(each.bar ? [bar(each.bar)] : []))));
  }

  /** @param {string} title @param {string} name @param {HTMLElement} content @param {...Node} tools */
  panel(title, name, content, ...tools) {
    const read = name === "graph" ? [make("p", { class: "read" })] : [];
    return make("section", { class: `panel ${name}`, "aria-label": title }, make("h2", {}, make("span", {}, title), ...tools.slice(0, 1)), ...read, ...tools.slice(1), content);
  }

  colouring() {
    const chosen = this.chosen = make("select", { "aria-label": "color by", onchange: () => { this.isFigureChosen = true; this.figure = this.figures[chosen.selectedIndex]; this.draw(); } }, ...this.options());
    return make("label", {}, "color by ", chosen);
  }

  /** What a page is coloured by until something else is chosen: what was measured, rather than what was worked out. */
  foremost() { return ["nonfinite", "latency", "gradient", "time", "macs"].flatMap((key) => this.figures.filter((each) => each.key === key && this.hasAny(each)))[0] ?? this.figures.find((each) => this.hasAny(each)) ?? this.figures[0]; }

  /** Whether a figure is worth being shown first: counts of NaN only where there are any. @param {import("./figures.js").Figure} figure */
  hasAny(figure) { return figure.key !== "nonfinite" || this.data.rows.some((/** @type {any} */ row) => figure.value(row)); }

  options() { return this.figures.map((figure) => make("option", { value: figure.key, selected: figure.key === this.figure.key ? "" : undefined }, figure.label)); }

  zooming() {
    const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ press) => make("button", { type: "button", "aria-label": label, title: label, onclick: press }, text);
    return make("div", { class: "tools" }, button("−", "zoom out", () => this.graph.zoom(1 / 1.3)), button("+", "zoom in", () => this.graph.zoom(1.3)), button("fit", "fit to view", () => this.graph.fit()), ...this.saving(() => this.graph.svg, "graph"));
  }

  /** @param {() => SVGSVGElement} drawn @param {string} name */
  saving(drawn, name) {
    return ["svg", "png"].map((kind) => make("button", { type: "button", title: `save as ${kind.toUpperCase()}`, onclick: () => save(drawn(), kind, `${this.data.title}-${name}`) }, kind.toUpperCase()));
  }

  /** What a run has recorded of the tensors of the chosen layer, and of those that were put beside it. */
  distributions() {
    const packed = this.data.measured?.histories;
    if (!packed && !this.data.live) return [];
    const inside = make("div", { class: "cards" }), reading = new Reading(this.data, this.rowsByKey);
    const textOf = (/** @type {string} */ key) => {
      const row = this.data.rows[this.rowsByKey.get(key) ?? 0];
      const shapes = [row.input[0], row.output[0]].filter(Boolean).join(" → ");
      return { name: this.labelsByKey.get(key) || this.data.rows[0].name, type: [row.type, shapes].filter(Boolean).join(" · "), sources: reading.sourcesOf(key) };
    };
    this.dock = new Dock(inside, this.data.live ? fromServer : sourceOf(packed), textOf, { gone: this.data.live && this.gone(), kept: this.kept });
    this.dock.onStep = (step) => { if (step !== null) this.training?.point(step, false); };
    this.target = make("div", { class: "target", hidden: "", ondragover: (/** @type {Event} */ event) => event.preventDefault(), ondrop: (/** @type {DragEvent} */ event) => { event.preventDefault(); this.target.hidden = true; if (this.carried !== null) this.pin(this.carried); } }, "drop the layer here to keep its distributions in view");
    const hint = make("p", { class: "type keeping" }, "To keep a layer here, drag it down, press Enter on it, or press “keep”.");
    return [this.panel("Distributions", "distributions", make("div", {}, inside, hint, help()), make("span", { class: "over" }, this.dock.heading, legend())), this.target];
  }

  /** The distributions of the chosen layer: of several equal ones, of the first, or of another that is chosen. */
  tell() {
    const keys = callsOf(this.data.rows[Math.max(this.selected, 0)]), now = this.dock?.cards[0].view.key ?? "";
    this.dock?.show(keys, [this.call, now, keys[0]].find((each) => keys.includes(each)) ?? "");
    this.call = ""; // from now on, what is chosen
  }

  /** Keep a layer's distributions in view. @param {number} row */
  pin(row) { const keys = callsOf(this.data.rows[row]); this.dock?.pin(keys, keys[0]); }

  /** A layer is carried over the page, or let go of. @param {number} row @param {PointerEvent | null} place where; null: something else shows it @param {boolean} isDropped */
  carry(row, place, isDropped) {
    this.carried = row;
    if (isDropped) this.carried = null;
    this.target.hidden = isDropped;
    this.target.textContent = `drop ${this.data.rows[row].path || this.data.rows[row].name} here to keep its distributions in view`;
    if (!place || !isDropped) return;
    this.target.hidden = false; // to be found where it is
    const under = document.elementFromPoint(place.clientX, place.clientY);
    this.target.hidden = true;
    if (under?.closest(".target, .distributions")) this.pin(row);
  }

  /** There is something new. @param {any} figures */
  hear(figures) {
    this.waiting = this.isHeld ? figures : null;
    if (this.isHeld) return;
    if ((figures.isDrawn && !this.data.isDrawn) || (this.data.rows.length === 1 && Object.keys(figures.figures).length > 1)) { location.reload(); return; } // it was opened before there was anything to see
    this.refreshVerdicts(figures.wrong);
    apply(this.data.rows, figures);
    this.figures = figuresOf(this.data.rows);
    if (!this.isFigureChosen || !this.figures.some((each) => each.key === this.figure.key)) this.figure = this.foremost();
    if (this.chosen.options.length !== this.figures.length || this.chosen.value !== this.figure.key) this.chosen.replaceChildren(...this.options());
    this.source.textContent = figures.source;
    this.late.hidden = Object.keys(figures.figures).every((key) => this.rowsByKey.has(key));
    this.graph.drawn = `${this.graph.drawn} before`;
    this.layers.refresh();
    this.draw();
    this.dock?.refresh();
  }

  /** Replaces the verdicts about what went wrong, if they have changed. @param {any[]} wrong */
  refreshVerdicts(wrong) {
    const isWrong = (/** @type {any} */ each) => each.isWrong, before = this.data.verdicts.filter(isWrong);
    if (JSON.stringify(before) === JSON.stringify(wrong)) return;
    this.data.verdicts = [...wrong, ...this.data.verdicts.filter((/** @type {any} */ each) => !isWrong(each))];
    const now = this.verdicts();
    this.told.replaceWith(now);
    this.told = now;
  }

  /** What a unit sees, where any layer sees a part of a picture. */
  seeing() {
    if (!this.data.rows.some((/** @type {any} */ row) => row.sees)) return [];
    const inside = make("div");
    const sees = this.sees = new SeesView(inside, this.data.rows);
    return [this.panel("Receptive field", "sight", inside, make("div", { class: "tools" }, ...this.saving(() => sees.svg, "sees")))];
  }

  searching() {
    this.search = make("input", { type: "search", placeholder: "search: path or type", "aria-label": "search layers by path or type", oninput: () => { this.layers.look(this.search.value); }, onkeydown: (/** @type {KeyboardEvent} */ event) => { const first = this.layers.seen()[0]; if (event.key === "Enter" && this.search.value && first !== undefined) this.select(first); } });
    return this.search;
  }

  charts() {
    const on = { select: (/** @type {string} */ path) => { const row = this.rowOf(path); if (row) this.select(row); }, point: (/** @type {Event | null} */ event, /** @type {[string, string][]} */ said) => this.point(event, said) };
    const drawn = [
      ...(this.data.memory ? [{ title: "Memory over the pass", name: "memory", ...memoryChart(this.data.memory, on) }] : []),
      ...(this.data.roofline?.points.length ? [{ title: "Roofline", name: "roofline", ...rooflineChart(this.data.roofline, on) }] : []),
    ];
    return drawn.map((each) => make("section", { class: `panel ${each.name}`, "aria-label": each.title }, make("h2", {}, make("span", {}, each.title), make("span", {}, each.unit)), make("p", { class: "read" }), each.svg,
      make("div", { class: "key" }, ...each.key.map((/** @type {[string, string]} */ [kind, text]) => make("span", {}, make("i", { class: `on-${kind}` }), text))),
      make("div", { class: "tools" }, ...this.saving(() => each.svg, each.name))));
  }

  // -- what is pointed at --------------------------------------------------------------------------------------------

  /** @param {any} row */
  saidOf(row) { return saidOf(row, this.figures, this.figure); }

  /**
   * Write what is pointed at in the line of its panel, which covers nothing.
   * @param {Event | null} event @param {[string, string][]} said the first is the title
   */
  point(event, said) {
    if (!event || !said.length) {
      this.rest();
      return;
    }
    this.isPointing = true;
    const target = /** @type {Element} */ (event.currentTarget ?? event.target);
    const line = target.closest(".panel")?.querySelector(".read");
    if (line) write(line, said);
  }

  /** What stands in these lines where nothing is pointed at: the chosen layer. */
  rest() {
    for (const line of this.host.querySelectorAll(".panel > .read")) {
      const isOfLayers = line.parentElement?.matches(".graph");
      write(line, isOfLayers ? this.saidOf(this.data.rows[Math.max(this.selected, 0)]) : []);
    }
    this.graph?.pointAt(-1);
    this.isPointing = false;
  }

  /** A row of the table is pointed at: the line of the graph has room for all that is known of it. @param {Event | null} event @param {any} row */
  pointRow(event, row) {
    const line = this.host.querySelector(".panel.graph > .read");
    if (!event || !row || !line) {
      this.rest();
      return;
    }
    this.isPointing = true;
    write(line, this.saidOf(row));
    this.graph.pointAt(this.data.rows.indexOf(row));
  }

  /** A layer was kept, or is no longer. */
  markKept() {
    this.graph?.markKept();
    this.layers?.markKept();
  }
}

/** @param {Element} line @param {[string, string][]} said the first is the title */
function write(line, said) {
  if (!said.length) {
    line.replaceChildren(make("span", {}, "point at the chart to read its values"));
    return;
  }
  const [[, title], ...rest] = said;
  const parts = rest.flatMap(([name, value]) => [" · ", ...(name === "type" ? [value] : [`${name} `, make("b", {}, value)])]);
  line.replaceChildren(make("b", {}, title), ...parts);
}
