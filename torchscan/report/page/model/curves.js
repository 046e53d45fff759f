// Loss, gradient norm and learning rate over the steps, on one time axis with the range below it.

import { frameOf, labeledMarks } from "./axis.js";
import { Brush } from "./brush.js";
import { make, place } from "./elements.js";
import { pathOf, smooth } from "./line_paths.js";
import { digits, tick, whole } from "./numbers.js";
import { drawOthers, endsOfOthers } from "./other_losses.js";
import { valueScale } from "./values_axis.js";

/** @typedef {import("./training.js").TrainingView} TrainingView */
/** @typedef {import("./axis.js").Scale} Scale */
/** @typedef {import("./values_axis.js").ValueScale} ValueScale */
/** @typedef {{title: string, about: string, top: number, height: number, values: (number | null)[], scale: ValueScale, color: string}} Track */

const TOP = 18;
/** pixels between tracks, with room for a name on a narrow screen */
const GAP = 14, NARROW_GAP = 28;
/** heights of the tracks */
const LOSS = 150, NORM = 44, RATE = 26;
/** points whose mean is drawn: a share of all, at most so many */
const SMOOTH_SHARE = 1 / 150, MAX_SMOOTH = 100;

export class CurvesView {
  /** @param {HTMLElement} host @param {TrainingView} view */
  constructor(host, view) {
    this.host = host;
    this.view = view;
    /** @type {boolean | undefined} whether the loss is logarithmic; undefined: where it differs much */
    this.isLog = undefined;
    this.brush = new Brush((range) => view.show(range));
    this.drawn = make("g");
    this.cursor = make("line", { class: "crosshair" });
    this.svg = make("svg", { class: "tracks", tabindex: 0, role: "img", "aria-label": "loss, gradient norm and learning rate over the steps; arrow keys move the crosshair" }, this.drawn, this.cursor, this.brush.element);
    this.table = make("table", { class: "evaluations" });
    host.append(this.svg, this.table);
    this.svg.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.move(event));
    this.svg.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => this.begin(event));
    this.svg.addEventListener("dblclick", () => view.show(null));
    this.svg.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => { if (event.target === this.svg) view.pressArrow(event); });
    /** @type {number | null} where a range was begun */
    this.start = null;
    /** @type {Track[]} */
    this.tracks = [];
  }

  /** @param {PointerEvent} event */
  stepAt(event) {
    const [first, last] = this.view.whole;
    const step = this.scale ? this.scale.step(event.clientX - this.svg.getBoundingClientRect().left) : 0;
    return Math.min(last, Math.max(first, Math.round(step)));
  }

  /** @param {PointerEvent} event */
  begin(event) {
    if (event.pointerType === "touch") return;
    this.start = this.stepAt(event);
    this.svg.setPointerCapture(event.pointerId);
    this.svg.addEventListener("lostpointercapture", () => { this.start = null; }, { once: true });
  }

  /** @param {PointerEvent} event */
  move(event) {
    if (/** @type {Element} */ (event.target).closest(".brush")) return;
    const step = this.stepAt(event);
    this.view.point(step);
    if (this.start === null || !this.scale) return;
    if (Math.abs(this.scale(step) - this.scale(this.start)) > 8) this.brush.set([this.start, step]);
  }

  draw() {
    const { view } = this;
    const width = Math.max(280, this.host.clientWidth);
    const { isNarrow, left, right } = frameOf(width);
    this.tracks = this.layOut(isNarrow ? NARROW_GAP : GAP);
    const last = this.tracks[this.tracks.length - 1];
    const bottom = last ? last.top + last.height : TOP;
    const range = bottom + 28;
    const isWhole = view.range[0] === view.whole[0] && view.range[1] === view.whole[1];
    const height = range + (isNarrow ? 30 : 14) + (isWhole ? 0 : 14);
    const scale = this.scale = view.axis.scale(...view.whole, left, right);
    place(this.svg, { width, height });
    this.drawn.replaceChildren(
      ...this.marks(scale, right, bottom),
      ...this.tracks.flatMap((track) => this.track(track, scale, { left, right, isNarrow })),
      ...this.points(scale, left),
      ...this.outside(scale, left, right, bottom),
      ...this.axis(scale, { left, right, bottom, range, height, isNarrow, isWhole }),
    );
    this.brush.draw(scale, range, view.range, view.whole);
    place(this.cursor, { y1: TOP - 4, y2: bottom });
    this.evaluations(isNarrow);
    this.point();
  }

  /** @param {number} gap between tracks @returns {Track[]} */
  layOut(gap) {
    const { curve } = this.view.arrays;
    const losses = [...curve.losses, ...this.view.others.flatMap((each) => each.losses), ...this.view.data.evaluations.map((/** @type {any} */ each) => each.loss).filter(Number.isFinite)];
    /** @type {Track[]} */
    const found = [];
    let top = TOP;
    const add = (/** @type {Omit<Track, "top" | "scale">} */ track, /** @type {(number | null)[]} */ all, /** @type {object} */ options) => {
      if (!all.some((value) => value !== null)) return;
      const scale = valueScale(all, top, top + track.height, options);
      found.push({ ...track, about: track.about || (scale.isLog ? "log" : ""), top, scale });
      top += track.height + gap;
    };
    add({ title: "Loss", about: "", height: LOSS, values: curve.losses, color: "var(--ink)" }, losses, { isLog: this.isLog });
    add({ title: "Gradient norm", about: "before clipping", height: NORM, values: curve.norms, color: "var(--gradients)" }, curve.norms, { number: 2 });
    add({ title: "Learning rate", about: "", height: RATE, values: curve.rates, color: "var(--optimizer)" }, curve.rates, { number: 1, isLog: false, hasZero: true });
    return found;
  }

  /** @param {Track} track @param {Scale} scale @param {{left: number, right: number, isNarrow: boolean}} frame */
  track(track, scale, { left, right, isNarrow }) {
    const { steps } = this.view.arrays.curve;
    const { y, ticks } = track.scale;
    const isRate = track.title === "Learning rate";
    const spanOf = (/** @type {number} */ size) => Math.min(MAX_SMOOTH, Math.max(1, Math.round(SMOOTH_SHARE * size)));
    const drawn = ticks.flatMap((value) => [
      make("line", { class: "hair", x1: left, x2: right, y1: y(value), y2: y(value) }),
      make("text", { class: "soft", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, tick(value)),
    ]);
    const line = (/** @type {(number | null)[]} */ values, /** @type {object} */ options) => make("path", { class: "curve", d: pathOf(steps, values, scale, y), stroke: track.color, ...options });
    if (!isRate) drawn.push(line(track.values, { "stroke-width": 1, opacity: 0.32 }));
    drawn.push(line(isRate ? track.values : smooth(track.values, spanOf(steps.length)), { "stroke-width": 1.4 }));
    if (track.title === "Loss") drawn.push(...drawOthers(this.view.others, scale, y, spanOf));
    const isNamed = track.top > TOP; // the first one stands below the heading
    if (isNarrow && isNamed) drawn.push(make("text", { class: "soft halo", x: left + 4, y: track.top - 8 }, track.title.toLowerCase()));
    if (!isNarrow) drawn.push(make("text", { class: "bold", x: 0, y: track.top + 11 }, track.title), make("text", { class: "soft", x: 0, y: track.top + 26 }, track.about), ...this.ends(track, right));
    return drawn;
  }

  /** The last values, right of a track. @param {Track} track @param {number} right */
  ends(track, right) {
    const text = (/** @type {number} */ y, /** @type {string} */ value, /** @type {string} */ about) => make("text", { class: "small", x: right + 9, y }, `${value} `, make("tspan", { class: "soft" }, about));
    const { facts } = this.view;
    if (track.title === "Learning rate") return [text(track.top + 17, digits(facts.rate), "now")];
    if (track.title === "Gradient norm") return [text(track.top + 14, digits(facts.norm), facts.normOf), text(track.top + 30, digits(facts.largestNorm), `maximum, step ${whole(facts.largestNormStep)}`)];
    const { y } = track.scale;
    const bottom = track.top + track.height + 4;
    const own = /** @type {[number, string, string][]} */ ([[facts.evaluation, "eval", "accent"], [facts.loss, "train", ""]]);
    const ends = [...own, ...endsOfOthers(this.view.others)].filter(([value]) => Number.isFinite(value));
    const places = ends.map(([value]) => Math.min(bottom, Math.max(track.top + 8, y(value) + 4)));
    const order = [...places.keys()].sort((one, other) => places[other] - places[one]);
    order.slice(1).forEach((at, before) => { places[at] = Math.min(places[at], places[order[before]] - 14); });
    const sign = (/** @type {string} */ name, /** @type {string} */ kind) => (name === "eval" && kind === "accent" ? "○ " : kind ? "┄ " : "— ");
    return ends.map(([value, name, kind], at) => make("text", { class: "small", x: right + 9, y: places[at] }, make("tspan", { class: kind }, sign(name, kind)), `${name} ${digits(value)}`));
  }

  /** Evaluations, the spike and the first loss that is not finite. @param {Scale} scale @param {number} left */
  points(scale, left) {
    const loss = this.tracks.find((track) => track.title === "Loss");
    if (!loss) return [];
    const { y } = loss.scale;
    const { evaluations, spike } = this.view.data;
    const drawn = evaluations.filter((/** @type {any} */ each) => Number.isFinite(each.loss)).map((/** @type {any} */ each) => make("circle", { class: "evaluation", cx: scale(each.step), cy: y(each.loss), r: 3.5 }));
    const middle = Math.min(left + 170, this.host.clientWidth / 2);
    const label = (/** @type {number} */ x, /** @type {number} */ at, /** @type {string} */ text, /** @type {string} */ kind) => make("text", { class: `small halo ${kind}`, x: x > middle ? x - 8 : x + 8, y: at, "text-anchor": x > middle ? "end" : "start" }, text);
    if (spike) drawn.push(make("circle", { class: "peak", cx: scale(spike.step), cy: y(spike.loss), r: 3 }), label(scale(spike.step), Math.max(loss.top + 8, y(spike.loss) + 4), `spike ${digits(spike.loss)}, step ${whole(spike.step)}`, ""));
    const { curve } = this.view.arrays;
    const wrong = curve.losses.findIndex((value) => value !== null && !Number.isFinite(value));
    if (wrong >= 0) {
      const x = scale(curve.steps[wrong]);
      drawn.push(make("line", { class: "bad", x1: x, x2: x, y1: loss.top, y2: loss.top + loss.height }), label(x, loss.top + 10, `loss ${digits(curve.losses[wrong])} from step ${whole(curve.steps[wrong])}`, "bad bold"));
    }
    return drawn;
  }

  /** @param {Scale} scale @param {number} right @param {number} bottom */
  marks(scale, right, bottom) {
    const { marks } = this.view.data;
    const lines = marks.map((/** @type {any} */ mark) => make("line", { class: "mark", x1: scale(mark.step), x2: scale(mark.step), y1: TOP - 3, y2: bottom }));
    const labels = labeledMarks(marks, scale, right + 20).map((mark) => make("text", { class: "soft", x: scale(mark.step), y: TOP - 7, "text-anchor": "middle" }, mark.text));
    return [...lines, ...labels];
  }

  /** What the range leaves out is faint. @param {Scale} scale @param {number} left @param {number} right @param {number} bottom */
  outside(scale, left, right, bottom) {
    const [from, to] = this.view.range.map(scale);
    const spans = /** @type {[number, number][]} */ ([[left, from], [to, right]]).filter(([start, end]) => end - start > 0.5);
    return spans.map(([start, end]) => make("rect", { class: "outside", x: start, y: TOP, width: end - start, height: bottom - TOP + 1 }));
  }

  /** @param {Scale} scale @param {{left: number, right: number, bottom: number, range: number, height: number, isNarrow: boolean, isWhole: boolean}} frame */
  axis(scale, { left, right, bottom, range, height, isNarrow, isWhole }) {
    const { view } = this;
    const drawn = view.tickMarks(scale, view.whole, bottom, isNarrow ? 4 : 8);
    const said = `steps ${whole(view.range[0])} … ${whole(view.range[1])}`;
    const text = isWhole ? (isNarrow ? "drag the ends to choose steps" : "whole run; drag to choose steps") : isNarrow ? said : `${said}, Esc: whole run`;
    if (!isNarrow) drawn.push(make("text", { class: "soft", x: 0, y: bottom + 16 }, view.axis.name), make("text", { class: "bold", x: 0, y: range + 9 }, "Range"));
    drawn.push(make("text", { class: "soft", x: isNarrow ? left : right + 9, y: range + (isNarrow ? 25 : 9) }, text));
    if (!isWhole) {
      const [from, to] = view.range.map(scale);
      drawn.push(make("path", { class: "lead", d: `M${from} ${range + 11}L${left} ${height + 12}M${to} ${range + 11}L${right} ${height + 12}` }));
    }
    return drawn;
  }

  /** @param {boolean} isNarrow */
  evaluations(isNarrow) {
    const all = this.view.data.evaluations;
    const shown = all.slice(isNarrow ? -4 : -8);
    this.table.hidden = !all.length;
    const rows = shown.map((/** @type {any} */ each, /** @type {number} */ at) => {
      const before = all[all.length - shown.length + at - 1];
      const change = before ? each.loss - before.loss : NaN;
      const text = Number.isFinite(change) ? `${change > 0 ? "+" : change < 0 ? "−" : ""}${digits(Math.abs(change))}` : "–";
      return make("tr", {}, make("td", {}, whole(each.step)), make("td", {}, digits(each.loss)), make("td", { class: change > 0 ? "worse" : "soft" }, text));
    });
    this.table.replaceChildren(make("thead", {}, make("tr", {}, ...["step", "eval", "change"].map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, ...rows));
  }

  point() {
    if (!this.scale) return;
    const x = this.scale(this.view.cross);
    place(this.cursor, { x1: x, x2: x });
  }
}
