// The page of a comparison: two graphs and one table in step.

import { make } from "./elements.js";
import { saidOf } from "./figures.js";
import { GraphPair } from "./graph_pair.js";
import { ModelPage, typeBeside } from "./model.js";
import { PairTable, differenceOf, differenceText, wordsOf } from "./pair_table.js";
import { crumbsOf, panel, saving, toolButton } from "./panels.js";
import { Pointing } from "./pointing.js";

/** names of the sides */
const SIDES = ["before", "after"];
/** figures that come first if they differ */
const FOREMOST = ["forward", "time", "macs", "flops", "params"];

/** @param {HTMLElement} host @param {any} data */
export function showPage(host, data) {
  for (const row of data.rows) joinSides(data, row);
  host.classList.add("pair");
  new PairPage(host, data).start();
}

/** Give a row what it shows of both sides, and values of one for what is chosen by them. @param {any} data @param {any} row */
function joinSides(data, row) {
  const [one, other] = row.sides.map((/** @type {number | null} */ at, /** @type {number} */ side) => (at === null ? null : data.sides[side].rows[at]));
  Object.assign(row, { one, other, inside: [], rf: "", rfSides: [], input: [], output: [] });
  for (const side of [one, other]) {
    for (const [key, value] of Object.entries(side ?? {})) {
      if (typeof value === "number" && !["in", "depth", "repeats", "level"].includes(key)) row[key] = Math.max(row[key] ?? 0, value);
    }
    if (side?.level !== undefined) row.level = 0;
  }
  if (row.in !== null) data.rows[row.in].inside.push(row);
}

class PairPage extends ModelPage {
  /** the path on each side @type {HTMLElement[]} */
  sideCrumbs = SIDES.map((side) => make("nav", { class: "crumbs", "aria-label": `path ${side}` }));

  start() {
    const { data } = this;
    this.hasGraphs = data.sides.every((/** @type {any} */ side) => side.levels.length);
    this.chooseDifferent();
    if (!this.hasGraphs) this.choice.element.firstChild.textContent = "show ";
    const canvases = SIDES.map(() => make("div", { class: "canvas" }));
    const table = make("div", { class: "scroll" });
    const graphs = this.hasGraphs ? SIDES.map((_, side) => make("div", { class: "side" }, this.sidePanel(side, canvases[side]))) : [];
    const remarks = data.remarks.map((/** @type {string} */ each) => make("p", { class: "remark" }, each));
    const questions = data.question.length ? [] : data.sides.flatMap((/** @type {any} */ side, /** @type {number} */ at) => (side.question.length ? [make("p", { class: "remark" }, `${SIDES[at]}: ${side.question.join(" · ")}`)] : []));
    this.told = this.verdicts();
    const layers = panel("Layers", "layers", table, make("span", { class: "choices" }, ...(this.hasGraphs ? [] : [this.choice.element]), this.filtering(), this.searching()));
    this.host.replaceChildren(this.header(), ...questions, ...remarks, this.told, make("main", {}, ...graphs, layers));

    this.pointings = graphs.map((host, side) => new Pointing(host, () => this.saidOfSide(side, Math.max(this.selected, 0))));
    if (this.hasGraphs) this.graph = /** @type {any} */ (new GraphPair(canvases, data, (side) => this.handlers(side)));
    this.layers = new PairTable(table, data.rows, { select: (row) => this.select(row), enter: (row) => this.enter(row), point: (event, row) => this.pointRow(event, row) });
    this.listen();
    this.follow();
  }

  /** Begin with a figure that differs, if there is one. */
  chooseDifferent() {
    const [model] = this.data.rows;
    const different = this.choice.figures.filter((figure) => differenceOf(figure, model));
    if (!different.length || different.includes(this.choice.figure)) return;
    const [first] = [...FOREMOST.flatMap((key) => different.filter((each) => each.key === key)), ...different];
    this.choice.figure = first;
    this.choice.select.value = first.key;
  }

  /** @param {number} side @param {HTMLElement} canvas */
  sidePanel(side, canvas) {
    const { title } = this.data.sides[side];
    const save = saving(() => this.pair.views[side].svg, `${title}-${SIDES[side]}`);
    const zoom = [toolButton("−", "zoom out", () => this.pair.zoom(side, 1 / 1.3)), toolButton("+", "zoom in", () => this.pair.zoom(side, 1.3)), toolButton("fit", "fit to view", () => this.pair.fit())];
    const tools = make("div", { class: "tools" }, ...zoom, ...save);
    const heading = side ? make("span") : this.choice.element;
    const made = panel(`${SIDES[side]}: ${title}`, "graph", canvas, heading, make("div", { class: "place" }, this.sideCrumbs[side], tools));
    return made;
  }

  /** Each side has the names of its own layers. */
  drawCrumbs() {
    if (!this.hasGraphs) return;
    const shown = this.data.rows[this.shown];
    this.sideCrumbs.forEach((/** @type {HTMLElement} */ crumbs, /** @type {number} */ side) => {
      const { rows } = this.data.sides[side];
      const at = this.pair.levelOf(side, this.shown);
      const enter = (/** @type {number} */ row) => {
        this.pair.keepsFocus = true;
        this.enter(this.pair.joints[side][row]);
      };
      const without = shown.sides[side] === null ? `without ${shown.name}` : "";
      const said = this.missing ? `there is no layer ${this.missing}` : [typeBeside(rows[at]), without].filter(Boolean).join(" ");
      crumbs.replaceChildren(...crumbsOf(rows, at, enter), make("span", { class: "type" }, said));
    });
  }

  filtering() {
    const numDifferent = this.data.rows.filter((/** @type {any} */ row) => row.kind !== "same").length;
    const box = make("input", { type: "checkbox", disabled: numDifferent ? undefined : "", onchange: () => this.table.filter(box.checked) });
    return make("label", {}, box, numDifferent ? " only differences" : " no differences");
  }

  /** @returns {GraphPair} */
  get pair() { return /** @type {any} */ (this.graph); }

  /** @returns {PairTable} */
  get table() { return /** @type {any} */ (this.layers); }

  /** What happens in the graph of a side. @param {number} side @returns {import("./graph.js").Handlers} */
  handlers(side) {
    const jointOf = (/** @type {number} */ row) => this.pair.joints[side][row];
    return {
      select: (row) => this.select(jointOf(row)),
      enter: (row) => this.enter(jointOf(row)),
      leave: () => this.leave(),
      point: (event, said) => this.pointSide(side, event, said),
    };
  }

  // -- what is pointed at --------------------------------------------------------------------------------------------

  /** A box of one side: the same layer is marked on the other. @param {number} side @param {Event | null} event @param {[string, string][]} said */
  pointSide(side, event, said) {
    const target = /** @type {Element | null} */ (event?.currentTarget ?? event?.target ?? null);
    const row = target?.closest(".node")?.getAttribute("data-row");
    if (!event || !target) this.rest();
    else if (!row) this.pointings?.[side].show(event, said);
    else this.pointJoint(this.pair.joints[side][Number(row)]);
  }

  /** @param {Event | null} event @param {any} row */
  pointRow(event, row) {
    if (event && row) this.pointJoint(this.data.rows.indexOf(row));
    else this.rest();
  }

  /** @param {number} joint */
  pointJoint(joint) {
    this.pointing.isActive = true;
    this.pointings?.forEach((pointing, side) => pointing.showInGraph(this.saidOfSide(side, joint)));
    this.graph?.pointAt(joint);
  }

  rest() {
    this.pointing.isActive = false;
    for (const pointing of this.pointings ?? []) pointing.rest();
    this.graph?.pointAt(-1);
  }

  /** What is said of a row on one side. @param {number} side @param {number} joint @returns {[string, string][]} */
  saidOfSide(side, joint) {
    const row = this.data.rows[joint], own = side ? row.other : row.one;
    if (!own) return [["", row.path || row.name], ["type", row.type], ["here", side ? "removed" : "missing"]];
    const said = saidOf(own, this.choice.figures, this.choice.figure);
    const { figure } = this.choice;
    const difference = row.one && row.other ? differenceText(figure, row) : "";
    const value = difference ? `${figure.label} ${difference}` : "";
    const changes = row.kind === "same" ? [] : [["difference", [wordsOf(row), value].filter(Boolean).join(", ")]];
    return /** @type {[string, string][]} */ ([...said.slice(0, 1), ...changes, ...said.slice(1)]);
  }
}
