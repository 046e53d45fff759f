// The range of steps that all charts below show: two handles, by pointer and by keyboard.

import { make, place } from "./elements.js";
import { whole } from "./numbers.js";

/** @typedef {[number, number]} Range the first and the last step */
/** @typedef {import("./axis.js").Scale} Scale */

const HANDLE = 7;
const TALL = 9;

export class Brush {
  /** @param {(range: Range) => void} change is called while the range changes */
  constructor(change) {
    this.change = change;
    /** @type {Range} */
    this.range = [0, 1];
    /** @type {Range} */
    this.whole = [0, 1];
    /** @type {Scale | null} */
    this.scale = null;
    this.groove = make("rect", { class: "groove", rx: 2, height: TALL });
    this.bar = make("rect", { class: "chosen-range", rx: 2, height: TALL });
    this.handles = [0, 1].map((end) => this.handle(end));
    this.element = make("g", { class: "brush" }, this.groove, this.bar, ...this.handles);
    this.drag(this.groove, (step, start) => this.set([start, step]));
    let before = this.range;
    this.bar.addEventListener("pointerdown", () => { before = this.range; });
    this.drag(this.bar, (step, start) => this.move(before, step - start));
  }

  /** @param {number} end 0 for the first step, 1 for the last */
  handle(end) {
    const made = make("rect", { class: "handle", rx: 2, width: HANDLE, height: TALL + 4, tabindex: 0, role: "slider", "aria-label": end ? "last step shown" : "first step shown" });
    made.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.press(event, end));
    this.drag(made, (step) => this.set(end ? [this.range[0], step] : [step, this.range[1]], end));
    return made;
  }

  /** @param {any} element @param {(step: number, start: number) => void} move */
  drag(element, move) {
    element.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
      event.preventDefault();
      event.stopPropagation();
      element.focus?.({ preventScroll: true });
      element.setPointerCapture(event.pointerId);
      const start = this.stepAt(event);
      const moved = (/** @type {PointerEvent} */ next) => { if (next.buttons) move(this.stepAt(next), start); };
      element.addEventListener("pointermove", moved);
      element.addEventListener("lostpointercapture", () => element.removeEventListener("pointermove", moved), { once: true });
    });
  }

  /** @param {PointerEvent} event */
  stepAt(event) {
    const box = /** @type {SVGElement} */ (this.element.ownerSVGElement).getBoundingClientRect();
    return this.scale ? Math.round(this.scale.step(event.clientX - box.left)) : 0;
  }

  /** At least two steps are shown. @param {Range} range @param {number} [end] the end that moves */
  set(range, end) {
    const [first, last] = this.whole;
    const clamp = (/** @type {number} */ step) => Math.min(last, Math.max(first, step));
    let [from, to] = range.map(clamp);
    if (end === undefined && from > to) [from, to] = [to, from];
    const least = Math.min(2, last - first);
    if (to - from < least && end === 0) from = Math.max(first, to - least);
    else if (to - from < least) to = Math.min(last, from + least);
    if (to - from < least) from = to - least;
    if (from !== this.range[0] || to !== this.range[1]) this.change([from, to]);
  }

  /** @param {Range} range @param {number} distance */
  move(range, distance) {
    const [first, last] = this.whole;
    const steps = Math.min(last - range[1], Math.max(first - range[0], distance));
    this.set([range[0] + steps, range[1] + steps]);
  }

  /** @param {KeyboardEvent} event @param {number} end */
  press(event, end) {
    const [first, last] = this.whole;
    const size = Math.max(1, Math.round((last - first) / 100)) * (event.shiftKey ? 10 : 1);
    const moves = /** @type {Record<string, number>} */ ({
      ArrowLeft: this.range[end] - size,
      ArrowRight: this.range[end] + size,
      PageDown: this.range[end] - 10 * size,
      PageUp: this.range[end] + 10 * size,
      Home: end ? this.range[0] : first,
      End: end ? last : this.range[1],
    });
    const step = moves[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.set(end ? [this.range[0], step] : [step, this.range[1]], end);
  }

  /** @param {Scale} scale @param {number} y @param {Range} range @param {Range} all */
  draw(scale, y, range, all) {
    this.scale = scale;
    this.range = range;
    this.whole = all;
    const [left, right] = [scale(all[0]), scale(all[1])];
    const [from, to] = [scale(range[0]), scale(range[1])];
    place(this.groove, { x: left, y, width: Math.max(1, right - left) });
    place(this.bar, { x: from, y, width: Math.max(1, to - from) });
    this.handles.forEach((handle, end) => {
      place(handle, { x: (end ? to : from) - HANDLE / 2, y: y - 2 });
      place(handle, { "aria-valuemin": all[0], "aria-valuemax": all[1], "aria-valuenow": range[end], "aria-valuetext": `step ${whole(range[end])}` });
    });
  }
}
