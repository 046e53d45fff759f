// The graph of one level: boxes that open in place or are walked into, lines between them, to be moved and zoomed.

import { BoxDrawing, definitions } from "./boxes.js";
import { make } from "./elements.js";
import { foldingOf, saidOf } from "./figures.js";
import { GraphInput } from "./graph_input.js";
import { Planner } from "./plan.js";
import { MOST_CELLS, scaleOf, scaleOfCells, toneOf } from "./tones.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {import("./plan.js").Box} Box */
/** @typedef {import("./plan.js").Plan} Plan */
/** @typedef {import("./plan.js").Settings} Settings */
/** @typedef {import("./keep.js").Kept} Kept */
/**
 * @typedef {{
 *   select: (row: number, key?: string) => void, enter: (row: number) => void, leave: () => void,
 *   point: (event: Event | null, said: [string, string][]) => void, pin?: (row: number) => void,
 *   carry?: (row: number, place: PointerEvent | null, isDropped: boolean) => void,
 * }} Handlers
 */

/** zoom below which boxes are folded, few ones later, and the smallest that "fit" chooses */
const READABLE = 0.72, READABLE_FEW = 0.55, SMALLEST = 0.1;
/** boxes that are few: what a fold would hide says more than larger letters */
const FEW = 18;
/** numbers of boxes that are tried until they fit */
const LIMITS = [40, 32, 26, 20, 16, 13, 11, 9, 7, 5];
/** pixels around the graph, and of its panel at least and at most */
const MARGIN = 24, LOWEST = 240, TALLEST = 640;

export class GraphView {
  /** @param {HTMLElement} host @param {any} data of the page @param {Handlers} on @param {Kept | null} [kept] */
  constructor(host, data, on, kept = null) {
    this.host = host;
    this.data = data;
    this.on = on;
    this.kept = kept;
    /** @type {Set<number | string>} rows and ranges that are open in place */
    this.opened = new Set();
    this.row = 0;
    this.selected = -1;
    this.drawn = "";
    /** whether what is selected comes into view: not while one looks elsewhere and figures change */
    this.brings = false;
    /** where the focus goes when another level is shown: to a box of it */
    this.keepsFocus = false;
    this.rowBefore = -1;
    this.isMoved = false;
    /** @type {Figure | null} */
    this.figure = null;
    /** @type {Settings} */
    this.settings = { isLine: true, limit: LIMITS[0], room: 900 };
    /** @type {Plan | null} */
    this.plan = null;
    this.plannedState = "";
    /** @type {BoxDrawing | null} */
    this.drawing = null;
    this.view = { x: 0, y: 0, zoom: 1 };
    /** @type {(row: any) => [string, string][]} */
    this.said = (row) => saidOf(row, []);
    this.svg = make("svg", { class: "graph", role: "group", "aria-label": "graph of the module" });
    this.inner = make("g");
    this.svg.append(definitions(), this.inner);
    this.key = make("div", { class: "key" });
    host.append(this.svg);
    host.after(this.key);
    this.input = new GraphInput(this);
  }

  /** @param {number} row whose inside is shown @param {number} selected @param {Figure} figure that colours the boxes */
  show(row, selected, figure) {
    const drawnBefore = this.drawn;
    const isElsewhere = row !== this.row || !drawnBefore;
    this.brings = isElsewhere || selected !== this.selected;
    if (isElsewhere || !this.isDrawn()) this.plan = null;
    this.row = row;
    this.selected = selected;
    this.figure = figure;
    if (isElsewhere) this.chooseSettings();
    if (this.brings) this.reveal(selected);
    this.drawn = this.state();
    if (this.drawn === drawnBefore) {
      this.mark();
      return;
    }
    this.redraw(isElsewhere);
  }

  /** @param {boolean} isElsewhere */
  redraw(isElsewhere) {
    const figure = /** @type {Figure} */ (this.figure);
    const focused = document.activeElement?.closest("[data-node]")?.getAttribute("data-node");
    const left = this.rowBefore;
    this.rowBefore = this.row;
    this.plan = this.currentPlan();
    this.scale = figure.scale ? scaleOf(figure, this.data.rows) : scaleOfCells(boxesIn(this.plan).map((box) => box.cells));
    this.drawing = new BoxDrawing(this.data, figure, this.scale, this.kept, (...given) => this.input.listenTo(...given), (box) => this.toggle(box));
    this.inner.replaceChildren(this.drawing.plan(this.plan));
    this.explain();
    if (isElsewhere) this.fit();
    else this.move();
    if (isElsewhere && this.keepsFocus) {
      const target = this.inner.querySelector(`.node[data-row="${left}"]`) ?? this.inner.querySelector(".node");
      /** @type {any} */ (target)?.focus({ preventScroll: true });
    }
    this.keepsFocus = false;
    this.mark();
    if (focused) this.inner.querySelector(`[data-node="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  /** Thousands of boxes are drawn once; what is selected changes a class. */
  mark() {
    for (const each of this.inner.querySelectorAll(".node.selected")) each.classList.remove("selected");
    for (const each of this.inner.querySelectorAll(`.node[data-row="${this.selected}"]`)) {
      each.classList.add("selected");
      if (this.brings) this.bring(each);
    }
  }

  /** Draw the letters of kept layers anew. */
  markKept() {
    for (const box of this.plan ? boxesIn(this.plan) : []) {
      const element = this.inner.querySelector(`[data-node="${CSS.escape(box.id)}"]`);
      if (element) this.drawing?.tag(element, box);
    }
  }

  // -- what is drawn -------------------------------------------------------------------------------------------------

  /** @param {Settings} settings @returns {Plan} */
  planned(settings) {
    const planner = new Planner(this.data, /** @type {Figure} */ (this.figure), this.opened, settings);
    return planner.level(this.data.rows[this.row].level, String(this.row));
  }

  /** The plan of what is shown, made once until something that it depends on has changed. @returns {Plan} */
  currentPlan() {
    const state = this.state();
    if (!this.plan || this.plannedState !== state) this.plan = this.planned(this.settings);
    this.plannedState = state;
    return this.plan;
  }

  /** What the plan depends on, apart from values. */
  state() { return `${this.row} ${this.figure?.key} ${[...this.opened].join()}`; }

  /** Whether what is drawn is up to date. */
  isDrawn() { return this.drawn === this.state(); }

  /** Nodes of the level that is shown. */
  numNodes() { return this.data.levels[this.data.rows[this.row].level].nodes.length; }

  /** As many boxes as can be read at once, each on a line or as a card, whichever is larger. */
  chooseSettings() {
    const wide = this.host.clientWidth - MARGIN;
    const tall = this.tallest() - MARGIN;
    const number = this.numNodes();
    const above = LIMITS.filter((limit) => limit >= number).length;
    let best = 0;
    for (const limit of LIMITS.slice(Math.max(0, above - 1))) {
      for (const isLine of [true, false]) {
        const settings = { isLine, limit, room: Math.max(wide, 200) };
        const { size } = this.planned(settings);
        const zoom = Math.min(1, wide / size.wide, tall / size.tall);
        if (zoom <= best + 0.02) continue;
        best = zoom;
        this.settings = settings;
      }
      if (best >= (number <= FEW ? READABLE_FEW : READABLE)) return;
    }
  }

  /** Open the ranges that a row is folded in. @param {number} row */
  reveal(row) {
    for (let found = this.rangeOf(row); found; found = this.rangeOf(row)) this.opened.add(found);
  }

  /** Return the closed range that a row stands in, if there is one. @param {number} row @returns {string | null} */
  rangeOf(row) {
    if (row < 0) return null;
    const plan = this.currentPlan();
    const folded = boxesIn(plan).find((box) => box.range && !box.inside && box.numbers.includes(row));
    return folded ? folded.id : null;
  }

  /** Say what tones, folded boxes and hatching stand for. */
  explain() {
    const figure = /** @type {Figure} */ (this.figure);
    const boxes = this.plan ? boxesIn(this.plan) : [];
    const parts = figure.legend?.(boxes) ?? [];
    if (figure.scale && !figure.legend && this.scale?.high) {
      const ramp = make("i", { class: "ramp" });
      ramp.style.background = `linear-gradient(90deg in oklab, ${[0, 0.25, 0.5, 0.75, 1].map((place) => toneOf(place)).join(", ")})`;
      parts.push(make("span", {}, `${figure.label} ${this.scaleText(this.scale.low)} `, ramp, ` ${this.scaleText(this.scale.high)}`));
    }
    if (figure.byLimiter) {
      const limiters = new Set(boxes.flatMap((box) => (box.figures?.limiter && figure.value(box.figures) ? [box.figures.limiter] : [])));
      for (const limiter of [...limiters].sort()) parts.push(make("span", {}, make("i", { class: `on-${limiter}` }), `limited by ${limiter}`));
    }
    const isFolded = boxes.some((box) => box.range || box.cells || (box.figures?.repeats ?? 1) > 1);
    if (isFolded && !figure.legend && figure.key !== "rf") {
      const longest = boxes.reduce((most, box) => Math.max(most, box.cells?.length ?? 0), 0);
      const cell = !longest ? "" : longest > MOST_CELLS ? "; a cell of its strip: the largest of a few modules" : "; a cell of its strip: one module";
      parts.push(make("span", {}, `a folded box: the ${foldingOf(figure)} of its modules${cell}`));
    }
    if (boxes.some((box) => box.figures?.producer !== undefined || box.figures?.holds)) {
      parts.push(make("span", {}, make("i", { class: "on-wrong" }), "first NaN or Inf"));
      parts.push(make("span", {}, make("i", { class: "hatched" }), "received it"));
    }
    this.key.replaceChildren(...parts);
  }

  /** @param {number} value */
  scaleText(value) {
    const figure = /** @type {Figure} */ (this.figure);
    if (figure.scale !== "log") return figure.text(value, { [figure.key]: value });
    const power = Math.round(Math.log10(value));
    return power > -3 && power < 4 ? String(Number(value.toPrecision(1))) : `1e${power < 0 ? "−" : ""}${Math.abs(power)}`;
  }

  /** @param {Box} box */
  toggle(box) {
    if (box.opens === null || !this.figure) return;
    const before = this.placeOf(box);
    if (!this.opened.delete(box.opens)) this.opened.add(box.opens);
    this.show(this.row, this.selected, this.figure);
    const after = this.placeOf(box);
    if (!before || !after) return;
    this.view.x += before.x - after.x;
    this.view.y += before.y - after.y;
    this.move();
  }

  /** Where a box is on the screen: it stays there when it opens. @param {Box} box */
  placeOf(box) {
    const place = this.inner.querySelector(`[data-node="${CSS.escape(box.id)}"] > .frame`)?.getBoundingClientRect();
    return place && { x: place.x + place.width / 2, y: place.y };
  }

  /** Mark the box of a row that is pointed at elsewhere. @param {number} row */
  pointAt(row) {
    for (const each of this.inner.querySelectorAll(".node.pointed")) each.classList.remove("pointed");
    if (row >= 0) this.inner.querySelector(`.node[data-row="${row}"]`)?.classList.add("pointed");
  }

  // -- where one looks -----------------------------------------------------------------------------------------------

  /** Move the view so that a box is seen. @param {Element} element */
  bring(element) {
    const box = element.getBoundingClientRect();
    const host = this.svg.getBoundingClientRect();
    if (box.top < host.top) this.view.y += host.top - box.top + 16;
    if (box.bottom > host.bottom) this.view.y += Math.max(host.bottom - box.bottom - 16, host.top - box.top + 16);
    if (box.left < host.left) this.view.x += host.left - box.left + 16;
    if (box.right > host.right) this.view.x += Math.max(host.right - box.right - 16, host.left - box.left + 16);
    this.host.scrollTo(0, 0);
    this.move();
  }

  /** @param {number} factor @param {number} [x] that stays where it is @param {number} [y] */
  zoom(factor, x = this.svg.clientWidth / 2, y = this.svg.clientHeight / 2) {
    this.isMoved = true;
    const zoom = Math.min(4, Math.max(0.05, this.view.zoom * factor));
    const real = zoom / this.view.zoom;
    this.view = { zoom, x: x - (x - this.view.x) * real, y: y - (y - this.view.y) * real };
    this.move();
  }

  /** The height that the graph may take: what is left of the window, or most of one further down the page. */
  tallest() {
    const { top } = this;
    return tallestAt(top, top > innerHeight);
  }

  /** Where the graph begins on the page. */
  get top() { return this.host.getBoundingClientRect().top + scrollY; }

  /** The window has another size. */
  adapt() {
    if (this.isMoved || !this.figure) return;
    this.plan = null;
    this.chooseSettings();
    this.redraw(true);
  }

  /** All of it, as large as it can be read and not larger; if it is larger than that, from its beginning. */
  fit() {
    const { wide, tall } = this.plan?.size ?? { wide: 1, tall: 1 };
    this.isMoved = false;
    const limit = this.tallest();
    const zoom = this.fitting(limit);
    const height = Math.min(limit, Math.max(120, zoom * tall + MARGIN));
    this.host.style.height = `${height.toFixed(0)}px`;
    this.view = { zoom, x: (this.svg.clientWidth - zoom * wide) / 2, y: MARGIN / 2 };
    this.move();
  }

  /** The zoom at which all of it is seen. @param {number} limit of the height */
  fitting(limit) { return this.plan ? this.zoomOf(this.plan, limit) : 1; }

  /** @param {Plan} plan @param {number} limit of the height */
  zoomOf({ size }, limit) { return Math.max(SMALLEST, Math.min(1, (this.svg.clientWidth - MARGIN) / size.wide, (limit - MARGIN) / size.tall)); }

  move() { this.inner.setAttribute("transform", `translate(${this.view.x.toFixed(1)} ${this.view.y.toFixed(1)}) scale(${this.view.zoom.toFixed(4)})`); }
}

/** The height that a graph may take. @param {number} top where it begins on the page @param {boolean} isBelow whether one scrolls to see it */
export function tallestAt(top, isBelow) {
  const left = innerHeight - top - 2 * MARGIN;
  const share = (isBelow ? 0.62 : 0.5) * innerHeight;
  return Math.min(TALLEST, Math.max(LOWEST, Math.min(left, 0.66 * innerHeight), share));
}

/** All boxes of a plan, with those in open ones. @param {Plan} plan @returns {Box[]} */
function boxesIn(plan) {
  return plan.boxes.flatMap((box) => (box.inside ? [box, ...boxesIn(box.inside)] : [box]));
}
