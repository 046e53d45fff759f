// The time axis of a run: by step, by epoch or by time.

import { tick, whole } from "./numbers.js";

/** @typedef {"step" | "epoch" | "time"} Unit */
/** @typedef {{step: number, text: string, kind: string, epoch?: number}} Mark */
/** @typedef {((step: number) => number) & {step: (x: number) => number}} Scale from steps to pixels, and back */

/** names of times, and their seconds */
const TIMES = /** @type {[string, number][]} */ ([["h", 3600], ["min", 60], ["s", 1]]);

export class Axis {
  /** @param {Unit} unit @param {import("./unpack.js").Curve} curve @param {Mark[]} marks */
  constructor(unit, curve, marks) {
    this.unit = unit;
    /** @type {[number, number][]} steps with their places on the axis, in order */
    this.points = [];
    if (unit === "time") this.points = timesOf(curve);
    if (unit === "epoch") this.points = epochsOf(marks);
    const seconds = this.points.length && unit === "time" ? this.points[this.points.length - 1][1] : 0;
    const [name, size] = TIMES.find(([, each]) => seconds >= 2 * each) ?? TIMES[2];
    this.timeName = name;
    this.timeSize = size;
  }

  /** @param {number} step */
  place(step) { return this.points.length < 2 ? step : between(this.points, step, 0, 1); }

  /** @param {number} place */
  step(place) { return this.points.length < 2 ? place : between(this.points, place, 1, 0); }

  get name() { return this.unit === "time" ? this.timeName : this.unit; }

  /** @param {number} from @param {number} to steps @param {number} left @param {number} right pixels @returns {Scale} */
  scale(from, to, left, right) {
    const start = this.place(from);
    const length = this.place(to) - start || 1;
    const scale = (/** @type {number} */ step) => left + ((this.place(step) - start) / length) * (right - left);
    return Object.assign(scale, {
      step: (/** @type {number} */ x) => this.step(start + ((x - left) / (right - left)) * length),
    });
  }

  /** Round places with their labels. @param {number} from @param {number} to steps @param {number} number at most @returns {[number, string][]} */
  ticks(from, to, number) {
    const size = this.unit === "time" ? this.timeSize : 1;
    const start = this.place(from) / size;
    const end = this.place(to) / size;
    const least = this.unit === "step" ? 1 : 0;
    const distance = Math.max(least, roundUp((end - start) / number));
    /** @type {[number, string][]} */
    const found = [];
    for (let at = Math.ceil(start / distance - 1e-9); at * distance <= end + 1e-9 * distance; at += 1) {
      found.push([this.step(at * distance * size), tick(Number((at * distance).toPrecision(6)))]);
    }
    return found;
  }

  /** @param {number} step */
  describe(step) {
    const number = `step ${whole(step)}`;
    if (this.unit === "step") return number;
    if (this.unit === "epoch") return `epoch ${this.place(step).toFixed(2)} (${number})`;
    return `${(this.place(step) / this.timeSize).toPrecision(3)} ${this.timeName} (${number})`;
  }
}

/** The next of 1, 2, 5, 10 and so on. @param {number} value */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5, 10].find((each) => each * power >= value * 0.999) ?? 10);
}

/** Whether a run has the marks of two epochs. @param {Mark[]} marks */
export function hasEpochs(marks) { return epochsOf(marks).length > 1; }

/** @param {import("./unpack.js").Curve} curve @returns {[number, number][]} */
function timesOf(curve) {
  /** @type {[number, number][]} */
  const points = [];
  let [step, time] = [-Infinity, -Infinity];
  curve.steps.forEach((each, at) => {
    if (each <= step || curve.times[at] <= time) return;
    [step, time] = [each, curve.times[at]];
    points.push([step, time]);
  });
  return points;
}

/** @param {Mark[]} marks @returns {[number, number][]} */
function epochsOf(marks) {
  const found = new Map(marks.filter((each) => each.epoch !== undefined).map((each) => [each.step, each.epoch ?? 0]));
  const points = [...found].sort(([one], [other]) => one - other);
  return points.filter(([, epoch], at) => !at || epoch > points[at - 1][1]);
}

/** A value on a line through points, also before the first and after the last. @param {[number, number][]} points @param {number} value @param {0 | 1} from @param {0 | 1} to */
function between(points, value, from, to) {
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][from] <= value) low = middle;
    else high = middle;
  }
  const [start, end] = [points[low], points[high]];
  return start[to] + ((value - start[from]) / (end[from] - start[from])) * (end[to] - start[to]);
}

/** Where the charts of a section begin and end: the same for all of them. @param {number} width */
export function frameOf(width) {
  const isNarrow = width < 700;
  return { isNarrow, left: isNarrow ? 76 : 166, right: width - (isNarrow ? 60 : 222) };
}

/** Marks with the room that their texts need: of two that touch, the epoch goes. @param {Mark[]} marks @param {Scale} scale @param {number} right */
export function labeledMarks(marks, scale, right) {
  const order = ["rate", "note", "pause", "epoch"];
  const sorted = [...marks].sort((one, other) => order.indexOf(one.kind) - order.indexOf(other.kind));
  /** @type {[number, number][]} */
  const taken = [];
  return sorted.filter((mark) => {
    const half = 3.2 * mark.text.length + 4;
    const x = scale(mark.step);
    const isFree = x + half < right && taken.every(([from, to]) => x + half < from || x - half > to);
    if (isFree) taken.push([x - half, x + half]);
    return isFree;
  });
}
