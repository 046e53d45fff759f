// The pointer and the keyboard on the graph: boxes are chosen, opened and carried away, and the view is moved.

import { cellAt } from "./tones.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {import("./plan.js").Box} Box */
/** @typedef {import("./plan.js").Plan} Plan */

export class GraphInput {
  /** @param {import("./graph.js").GraphView} graph */
  constructor(graph) {
    this.graph = graph;
    /** whether the pointer was moved while it was held down: then its release is not a click */
    this.hasMoved = false;
    this.listen();
  }

  /** @param {any} made @param {Box} box @param {Plan} plan @param {number} at */
  listenTo(made, box, plan, at) {
    const { graph } = this;
    const said = () => (box.figures ? graph.said(box.figures) : /** @type {[string, string][]} */ ([["", box.name], ["what", box.kind], ["shape", box.below]]));
    const point = (/** @type {Event} */ event) => graph.on.point(event, said());
    made.addEventListener("pointerenter", point);
    made.addEventListener("pointerleave", () => graph.on.point(null, []));
    made.addEventListener("focus", (/** @type {Event} */ event) => { if (made.matches(":focus-visible")) point(event); });
    made.addEventListener("blur", () => graph.on.point(null, []));
    made.addEventListener("click", (/** @type {Event} */ event) => {
      event.stopPropagation();
      if (this.hasMoved) return;
      if (box.range && !box.inside) graph.toggle(box);
      else if (box.row !== undefined) graph.on.select(box.row);
    });
    made.addEventListener("dblclick", (/** @type {Event} */ event) => {
      event.stopPropagation();
      if (typeof box.opens === "number") graph.on.enter(box.opens);
    });
    made.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.press(event, box, plan, at));
    const strip = made.querySelector(":scope > .strip");
    if (strip) this.listenToStrip(strip, box, point);
  }

  /** Each cell is pointed at and chosen by itself. @param {any} strip @param {Box} box @param {(event: Event) => void} leave */
  listenToStrip(strip, box, leave) {
    const { graph } = this;
    const figure = /** @type {Figure} */ (graph.figure);
    const found = (/** @type {PointerEvent} */ event) => {
      const around = strip.getBoundingClientRect();
      return cellAt(box.cells ?? [], (event.clientX - around.x) / around.width);
    };
    strip.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      const { cell, number } = found(event);
      const text = cell.value === undefined ? (figure.range ? "–" : "not measured") : figure.text(cell.value, { [figure.key]: cell.value });
      const which = number > 1 ? ` (${figure.range ? "the farthest from 0" : "the largest"} of ${number})` : "";
      const state = cell.state === "source" ? "first NaN or Inf" : cell.state ? "received NaN or Inf" : "";
      const said = [["", `${cell.label ?? cell.key}${which}`], [figure.label, text], ["state", state]];
      graph.on.point(event, /** @type {[string, string][]} */ (said.filter(([, value]) => value)));
    });
    strip.addEventListener("pointerleave", leave);
    strip.addEventListener("click", (/** @type {PointerEvent} */ event) => {
      event.stopPropagation();
      if (this.hasMoved) return;
      const { cell } = found(event);
      const row = cell.row ?? box.row;
      if (row !== undefined) graph.on.select(row, cell.key);
    });
  }

  /** @param {KeyboardEvent} event @param {Box} box @param {Plan} plan @param {number} at */
  press(event, box, plan, at) {
    const { graph } = this;
    const to = {
      ArrowDown: () => plan.edges.find((edge) => edge.source === at)?.target,
      ArrowUp: () => plan.edges.find((edge) => edge.target === at)?.source,
      ArrowRight: () => at + 1,
      ArrowLeft: () => at - 1,
    }[event.key];
    if (to) {
      const next = plan.boxes[to() ?? at]?.id;
      if (next) graph.inner.querySelector(`[data-node="${CSS.escape(next)}"]`)?.focus();
    } else if (event.key === "Enter" && box.row !== undefined && graph.on.pin && !event.shiftKey) graph.on.pin(box.row);
    else if (event.key === "Enter" && typeof box.opens === "number") {
      graph.keepsFocus = true;
      graph.on.enter(box.opens);
    } else if ((event.key === " " || event.key === "Enter") && box.opens !== null) graph.toggle(box);
    else if (event.key === "Backspace" || event.key === "Escape") {
      graph.keepsFocus = true;
      graph.on.leave();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  listen() {
    const { graph } = this;
    /** @type {{x: number, y: number} | null} */
    let held = null;
    /** @type {number | null} the row of a box that is carried away */
    let carried = null;
    graph.svg.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
      held = { x: event.clientX - graph.view.x, y: event.clientY - graph.view.y };
      this.hasMoved = false;
      const target = /** @type {Element} */ (event.target);
      const row = graph.on.carry && target.closest(".node[data-row]")?.getAttribute("data-row");
      carried = row ? Number(row) : null;
    });
    graph.svg.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      if (!held || !event.buttons) {
        held = null;
        return;
      }
      const x = event.clientX - held.x;
      const y = event.clientY - held.y;
      if (!this.hasMoved && Math.hypot(x - graph.view.x, y - graph.view.y) < 4) return;
      if (!this.hasMoved) graph.svg.setPointerCapture(event.pointerId);
      this.hasMoved = true;
      if (carried !== null) {
        graph.on.carry?.(carried, event, false);
        return;
      }
      graph.isMoved = true;
      graph.view.x = x;
      graph.view.y = y;
      graph.move();
    });
    graph.svg.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => {
      if (carried !== null && this.hasMoved) graph.on.carry?.(carried, event, true);
      held = carried = null;
    });
    graph.svg.addEventListener("wheel", (/** @type {WheelEvent} */ event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = graph.svg.getBoundingClientRect();
      graph.zoom(Math.exp(-event.deltaY / 300), event.clientX - box.x, event.clientY - box.y);
    }, { passive: false });
    graph.svg.addEventListener("focusin", (/** @type {FocusEvent} */ event) => {
      const target = /** @type {Element} */ (event.target);
      if (target.matches(":focus-visible")) graph.bring(target);
    });
  }
}
