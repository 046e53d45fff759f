// The graphs of two models side by side: the same level, the same rows, the same view.

import { alignPlans, center } from "./align.js";
import { make } from "./elements.js";
import { GraphView, tallestAt } from "./graph.js";
import { SIGNS, WORDS } from "./pair_marks.js";
import { Planner } from "./plan.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {import("./plan.js").Box} Box */
/** @typedef {import("./plan.js").Plan} Plan */
/** @typedef {import("./plan.js").Settings} Settings */
/** @typedef {import("./graph.js").Handlers} Handlers */

/** One of the two graphs. */
class SideView extends GraphView {
  /** @param {HTMLElement} host @param {any} data of this side @param {Handlers} on @param {GraphPair} pair @param {number} side */
  constructor(host, data, on, pair, side) {
    super(host, data, on, /** @type {any} */ ({ markOf: (/** @type {string} */ key) => pair.markOf(side, key) }));
    this.pair = pair;
    this.side = side;
    /** the row whose inside is shown, before it is drawn */
    this.wanted = 0;
    this.isFollowing = false;
  }

  get other() { return this.pair.views[1 - this.side]; }

  /** What is open on this side, on which the heights of the other one depend. */
  get openedHere() { return `${this.wanted} ${[...this.opened].join()}`; }

  /** The heights of one side depend on what is open on the other. */
  state() { return `${super.state()} ${this.openedHere} ${this.other.openedHere}`; }

  /** @param {boolean} isElsewhere */
  redraw(isElsewhere) {
    super.redraw(isElsewhere);
    for (const node of this.inner.querySelectorAll(".node[data-row]")) {
      const { kind } = this.pair.jointOf(this.side, Number(node.getAttribute("data-row")));
      if (kind !== "same") node.setAttribute("aria-label", `${node.getAttribute("aria-label")}, ${WORDS[kind]}`);
    }
  }

  /** @param {Settings} settings @returns {Plan} */
  planned(settings) {
    return this.pair.planned(settings)[this.side];
  }

  /** The plan of this side alone. @param {Settings} settings @returns {Plan} */
  alone(settings) {
    const planner = new Planner(this.data, /** @type {Figure} */ (this.figure), this.opened, settings);
    return planner.level(this.data.rows[this.wanted].level, String(this.wanted));
  }

  chooseSettings() {
    if (this.side) this.settings = /** @type {GraphView} */ (this.other).settings;
    else super.chooseSettings();
  }

  /** The same for both sides, also where one stands below the other. */
  tallest() {
    const [top, other] = this.pair.views.map((view) => view.top);
    return tallestAt(top, top > innerHeight || other > top + 1);
  }

  /** Both sides have one zoom: that at which the larger drawing is seen. @param {number} limit of the height */
  fitting(limit) { return Math.min(...this.pair.planned(this.settings).map((plan) => this.zoomOf(plan, limit))); }

  numNodes() { return Math.max(...this.pair.views.map((view) => view.data.levels[view.data.rows[view.wanted].level].nodes.length)); }

  explain() {
    super.explain();
    for (const kind of Object.keys(SIGNS)) {
      if (this.inner.querySelector(`.keep-${kind}`)) this.key.append(make("span", {}, make("i", { class: `sign keep-${kind}` }, SIGNS[kind]), WORDS[kind]));
    }
  }

  /** What is opened on one side is opened on the other. @param {Box} box */
  toggle(box) {
    if (box.opens === null || !this.figure) return;
    const before = this.placeOf(box);
    const isOpen = !this.opened.delete(box.opens);
    if (isOpen) this.opened.add(box.opens);
    if (typeof box.opens === "number") this.pair.openBeside(this.side, box.opens, isOpen);
    this.pair.redraw();
    const after = this.placeOf(box);
    if (!before || !after) return;
    this.view.x += before.x - after.x;
    this.view.y += before.y - after.y;
    this.move();
  }

  move() {
    super.move();
    const { other } = this;
    if (!other || other.isFollowing || this.isFollowing) return;
    other.isFollowing = true;
    other.view = { ...this.view };
    other.isMoved = this.isMoved;
    other.move();
    other.isFollowing = false;
  }
}

/** Both graphs, as one for the page. Rows are those of both sides. */
export class GraphPair {
  /** @param {HTMLElement[]} hosts @param {any} data of the page @param {(side: number) => Handlers} on what happens on a side, in rows of that side */
  constructor(hosts, data, on) {
    this.data = data;
    /** the row of both sides, by the row of each */
    this.joints = data.sides.map((/** @type {any} */ side, /** @type {number} */ at) => {
      const found = Array(side.rows.length).fill(0);
      data.rows.forEach((/** @type {any} */ row, /** @type {number} */ joint) => { if (row.sides[at] !== null) found[row.sides[at]] = joint; });
      return found;
    });
    /** @type {Map<string, number>[]} */
    this.rowsByKey = data.sides.map((/** @type {any} */ side) => new Map(side.rows.map((/** @type {any} */ row, /** @type {number} */ at) => [(row.calls ?? [row.key])[0], at])));
    /** @type {SideView[]} */
    this.views = [];
    hosts.forEach((host, side) => this.views.push(new SideView(host, data.sides[side], on(side), this, side)));
    this.opened = { has: (/** @type {number} */ joint) => this.views.some((view, side) => view.opened.has(data.rows[joint]?.sides[side])) };
    /** @type {[number, number, Figure] | null} */
    this.shown = null;
    /** by settings, for the state below @type {Map<string, Plan[]>} */
    this.plans = new Map();
    this.plannedState = "";
  }

  /** @param {number} row @param {number} selected @param {Figure} figure */
  show(row, selected, figure) {
    this.shown = [row, selected, figure];
    const wanted = this.views.map((_, side) => this.levelOf(side, row));
    const isElsewhere = this.views.some((view, side) => view.row !== wanted[side] || !view.drawn);
    this.views.forEach((view, side) => {
      view.wanted = wanted[side];
      view.figure = figure;
      if (isElsewhere) { view.row = wanted[side]; view.drawn = ""; }
    });
    for (const view of [...this.views, this.views[0]]) { // the first one again: the second may have opened a box
      const selectedThere = selected < 0 ? null : this.data.rows[selected].sides[view.side];
      view.show(view.wanted, selectedThere ?? -1, figure);
    }
  }

  /** Both plans, aligned, which are made once for what is open and how boxes are drawn. @param {Settings} settings @returns {Plan[]} */
  planned(settings) {
    const state = this.views.map((view) => `${view.figure?.key} ${view.openedHere}`).join(" | ");
    if (state !== this.plannedState) this.plans.clear();
    this.plannedState = state;
    const key = `${settings.isLine} ${settings.limit} ${settings.room}`;
    const known = this.plans.get(key);
    if (known) return known;
    const plans = this.views.map((view) => view.alone(settings));
    const [one, other] = this.views.map((view) => this.joints[view.side][view.wanted]);
    if (one === other) alignPlans(plans[0], plans[1], [(box) => this.jointsOf(0, box), (box) => this.jointsOf(1, box)]);
    center(plans);
    this.plans.set(key, plans);
    return plans;
  }

  redraw() { if (this.shown) this.show(...this.shown); }

  /** The row of a side that shows a row of both, or else what is around it. @param {number} side @param {number} joint */
  levelOf(side, joint) {
    for (let at = joint; at !== null; at = this.data.rows[at].in) {
      const row = this.data.rows[at].sides[side];
      if (row !== null && this.data.sides[side].rows[row].level !== undefined) return row;
    }
    return 0;
  }

  /** @param {number} side @param {number} row @returns {any} the row of both sides */
  jointOf(side, row) { return this.data.rows[this.joints[side][row]]; }

  /** The rows of both sides in a box. @param {number} side @param {Box} box */
  jointsOf(side, { numbers }) { return numbers.map((row) => this.joints[side][row]); }

  /** @param {number} side @param {string} key */
  markOf(side, key) {
    const row = this.rowsByKey[side].get(key);
    const kind = row === undefined ? "same" : this.jointOf(side, row).kind;
    return kind === "same" ? null : { letter: SIGNS[kind], color: kind };
  }

  /** @param {number} side where a row was opened or closed @param {number} row @param {boolean} isOpen */
  openBeside(side, row, isOpen) {
    const other = this.jointOf(side, row).sides[1 - side];
    if (other === null || this.data.sides[1 - side].rows[other].level === undefined) return;
    const { opened } = this.views[1 - side];
    if (isOpen) opened.add(other);
    else opened.delete(other);
  }

  /** @param {number} joint */
  pointAt(joint) { this.views.forEach((view, side) => view.pointAt(joint < 0 ? -1 : this.data.rows[joint].sides[side] ?? -1)); }

  /** @param {number} side in the middle of which things stay @param {number} factor */
  zoom(side, factor) { this.views[side].zoom(factor); }

  fit() { for (const view of this.views) view.fit(); }

  adapt() {
    const isMoved = this.views.some((view) => view.isMoved);
    if (isMoved || !this.shown) return;
    for (const view of this.views) view.drawn = "";
    this.redraw();
  }

  /** @param {boolean} isKept */
  set keepsFocus(isKept) { for (const view of this.views) view.keepsFocus = isKept; }

  markKept() {}
}
