// A chart over the steps: its axes, its notes, the crosshair, and a line of text below with the values at one step.

import { roundUp } from "./axis.js";
import { make } from "./elements.js";
import { columnOf, lastColumnIn, nonfiniteText, stepsText } from "./histories.js";
import { whole } from "./numbers.js";

/** @typedef {import("./histories.js").History} History */
/** @typedef {[number, number]} Range the first and the last step */
/** @typedef {{value: number, text: string}} Tick */
/** @typedef {{range: Range, notes: number[]}} Axis */

/** pixels: the height of a chart, and its edges */
const TALL = 150, LEFT = 42, RIGHT = 4, TOP = 5, BOTTOM = 17;
/** pixels: between two labels of steps at least, and the mark of values that are not finite */
const MIN_DISTANCE = 64, MARK = 4;
/** pixels of a letter in a label */
const LETTER = 6.4;
/** the height of what is drawn */
export const PLOT_HEIGHT = TALL - TOP - BOTTOM;

/** A line through points, without its begin. @param {[number, number][]} points */
export function joinPoints(points) {
  return points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
}

export class TimePanel {
  /** @param {History} history @param {string} title @param {string} run whose name is shown; "": none @param {(step: number | null) => void} pointed at a step, or no longer */
  constructor(history, title, run, pointed) {
    this.history = history;
    this.title = title;
    this.isOfSeveral = Boolean(run);
    this.pointed = pointed;
    /** @type {Axis} */
    this.axis = { range: [0, 0], notes: [] };
    /** @type {number | null} */
    this.step = null;
    this.wide = 300;
    this.scaleName = make("span", { class: "type" });
    this.svg = make("svg", { class: "over-steps", height: TALL, role: "slider", tabindex: 0 });
    this.text = make("figcaption", {});
    const name = make("b", {}, title);
    const heading = make("div", { class: "heading" }, name, ...(run ? [make("span", { class: "type run" }, run)] : []), this.scaleName);
    this.figure = make("figure", { class: "distribution" }, heading, this.svg, this.text);
    this.crosshair = make("line", { class: "crosshair", y1: TOP, y2: TALL - BOTTOM });
    this.listen();
  }

  listen() {
    this.svg.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      const { x, width } = this.svg.getBoundingClientRect();
      this.pointed(this.stepAt((event.clientX - x) * this.wide / (width || 1)));
    });
    this.svg.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const step = this.stepAfter(event.key);
      if (step === undefined) return;
      event.preventDefault();
      this.pointed(step);
    });
  }

  /** Where a key leads to from the crosshair: to the next column, to an end or nowhere. @param {string} key @returns {number | null | undefined} */
  stepAfter(key) {
    const { first } = this.history, [from, last] = this.axis.range;
    if (key === "Escape") return null;
    if (key === "Home") return from;
    if (key === "End") return last;
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (!direction) return undefined;
    const step = this.step ?? last, column = columnOf(this.history, step);
    if (column < 0) return Math.min(last, Math.max(from, step + direction));
    const next = first[column + direction];
    return next === undefined || next > last ? step : Math.max(from, next);
  }

  /** @param {number} step @returns {number} where it begins, in pixels */
  x(step) {
    const [from, last] = this.axis.range;
    return LEFT + (this.wide - LEFT - RIGHT) * (step - from) / (last + 1 - from);
  }

  /** Columns of which a part is in the range. @returns {number[]} */
  get columns() {
    const { first, until } = this.history, [from, last] = this.axis.range;
    return first.flatMap((/** @type {number} */ step, /** @type {number} */ at) => (step <= last && until[at] > from ? [at] : []));
  }

  /** The left and the right edge of what is seen of a column. @param {number} at @returns {[number, number]} */
  edges(at) {
    const [from, last] = this.axis.range;
    return [this.x(Math.max(from, this.history.first[at])), this.x(Math.min(last + 1, this.history.until[at]))];
  }

  /** A line through the middles of columns, from the left edge of the first to the right edge of the last. @param {number[]} run @param {(at: number) => number} y @returns {[number, number][]} */
  through(run, y) {
    const begin = run[0], end = run[run.length - 1];
    const middles = run.map((at) => {
      const [left, right] = this.edges(at);
      return /** @type {[number, number]} */ ([(left + right) / 2, y(at)]);
    });
    return [[this.edges(begin)[0], y(begin)], ...middles, [this.edges(end)[1], y(end)]];
  }

  /** @param {number} x in pixels */
  stepAt(x) {
    const [from, last] = this.axis.range, part = (x - LEFT) / (this.wide - LEFT - RIGHT);
    return Math.min(last, Math.max(from, Math.floor(from + part * (last + 1 - from))));
  }

  /** The width that is there, before anything is drawn. */
  measure() { this.wide = this.svg.parentElement?.clientWidth || 300; }

  /** @param {Axis} axis */
  draw(axis) {
    this.axis = axis;
    this.svg.setAttribute("width", String(this.wide));
    this.scaleName.textContent = this.nameOfScale();
    const inner = make("svg", { x: LEFT, y: TOP, width: this.wide - LEFT - RIGHT, height: PLOT_HEIGHT, viewBox: `${LEFT} 0 ${this.wide - LEFT - RIGHT} ${PLOT_HEIGHT}` });
    inner.append(...this.contents());
    this.svg.replaceChildren(...this.grid(), inner, ...this.notes(), ...this.wrong(), ...this.steps(), this.crosshair);
    this.point(this.step);
  }

  /** What the scale is called, in the heading. */
  nameOfScale() { return ""; }

  /** What is drawn, from the top of the chart at 0. @returns {Element[]} */
  contents() { return []; }

  /** @returns {Tick[]} */
  ticks() { return []; }

  /** @param {number} _value @returns {number} from the top of the chart */
  y(_value) { return 0; }

  /** @param {number} _at a column @returns {string} */
  values(_at) { return ""; }

  grid() {
    return this.ticks().flatMap(({ value, text }) => {
      const y = TOP + this.y(value);
      return [
        make("line", { class: "grid", x1: LEFT, x2: this.wide - RIGHT, y1: y, y2: y }),
        make("text", { class: "soft", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, text),
      ];
    });
  }

  notes() {
    const [from, last] = this.axis.range;
    const seen = this.axis.notes.filter((step) => step >= from && step <= last);
    return seen.map((step) => make("line", { class: "note", x1: this.x(step), x2: this.x(step), y1: TOP, y2: TALL - BOTTOM }));
  }

  /** Columns with NaN or Inf; the first of the history is named. */
  wrong() {
    const { first, last } = this.history;
    const isWrong = (/** @type {number} */ at) => nonfiniteText(this.history, at) !== "";
    const begin = first.findIndex((/** @type {number} */ _, /** @type {number} */ at) => isWrong(at)), seen = this.columns.filter(isWrong);
    const marks = seen.flatMap((at) => {
      const [left, right] = this.edges(at), place = { x: left, width: Math.max(1.5, right - left) };
      return [
        make("rect", { class: "bad-tone", ...place, y: TOP, height: PLOT_HEIGHT }),
        make("rect", { class: "bad", ...place, y: TOP - MARK, height: MARK }),
      ];
    });
    if (!seen.includes(begin)) return marks;
    const [x] = this.edges(begin), isRight = x > this.wide / 2;
    const name = this.history.nan[begin] ? "NaN" : "Inf";
    const text = `first ${name}, ${stepsText(this.history, first[begin], last[begin])}`;
    const label = make("text", { class: "bad", x: isRight ? x - 5 : x + 5, y: TOP + 11, "text-anchor": isRight ? "end" : "start" }, text);
    const wide = LETTER * text.length + 8;
    const ground = make("rect", { class: "ground", x: isRight ? x - wide - 1 : x + 1, y: TOP, width: wide, height: 15 });
    return [...marks, ground, label];
  }

  steps() {
    const [from, last] = this.axis.range, room = this.wide - LEFT - RIGHT;
    const step = Math.max(1, roundUp((last + 1 - from) * MIN_DISTANCE / room));
    const values = [];
    for (let value = Math.ceil(from / step) * step; value <= last; value += step) values.push(value);
    return (values.length ? values : [from]).map((value) => {
      const x = this.x(value) + (last === from ? 0 : 0.5 * room / (last + 1 - from));
      const anchor = x > this.wide - RIGHT - 22 ? "end" : x < LEFT + 8 ? "start" : "middle";
      const place = anchor === "end" ? this.wide : anchor === "start" ? LEFT : x;
      return make("text", { class: "soft", x: place, y: TALL - 3, "text-anchor": anchor }, whole(value));
    });
  }

  /** The crosshair, and the values there; without a step, those of the last one. @param {number | null} step */
  point(step) {
    this.step = step;
    const [from, last] = this.axis.range, { history } = this;
    const column = step === null ? lastColumnIn(history, this.axis.range) : columnOf(history, step);
    const isSeen = step !== null && step >= from && step <= last;
    this.crosshair.setAttribute("visibility", isSeen ? "visible" : "hidden");
    if (isSeen) {
      const [left, right] = column < 0 ? [this.x(step), this.x(step + 1)] : this.edges(column), x = (left + right) / 2;
      this.crosshair.setAttribute("x1", String(x));
      this.crosshair.setAttribute("x2", String(x));
    }
    const wrong = column < 0 ? "" : nonfiniteText(history, column);
    const values = column < 0 ? "nothing was recorded" : this.values(column);
    this.text.replaceChildren(...(wrong ? [make("span", { class: "bad" }, wrong), " · "] : []), values);
    this.describe(step ?? history.last[column] ?? last, wrong ? `${wrong}, ${values}` : values);
  }

  /** For those who hear the page. @param {number} step @param {string} values */
  describe(step, values) {
    const [from, last] = this.axis.range;
    const attributes = {
      "aria-label": this.title, "aria-valuemin": from, "aria-valuemax": last, "aria-valuenow": step,
      "aria-valuetext": `${stepsText(this.history, step, step)}: ${values}`,
    };
    for (const [name, value] of Object.entries(attributes)) this.svg.setAttribute(name, String(value));
  }
}
