// The profile over the depth, right of the heat map: the last step in ink, the step under the pointer in the accent.

import { HeatPainter } from "./heat_paint.js";
import { make } from "./elements.js";

/** @typedef {import("./layers_heat.js").LayersHeat} LayersHeat */

export class HeatProfile {
  /** @param {LayersHeat} heat */
  constructor(heat) {
    this.heat = heat;
    this.canvas = make("canvas");
    this.painter = new HeatPainter(this.canvas);
  }

  /** Decades with a line, from the top down. */
  ticks() {
    const [low, high] = this.heat.decades;
    const every = Math.max(1, Math.ceil((high - low) / 3));
    const found = [];
    for (let decade = high; decade >= low; decade -= every) found.push(decade);
    return found;
  }

  /** Where a logarithm lies. @param {number} log */
  x(log) {
    const [low, high] = this.heat.decades;
    const { right, width } = this.heat.frame;
    const [from, to] = [right + 28, width - 76];
    return from + Math.min(1, Math.max(0, (log - low) / (high - low))) * (to - from);
  }

  /** @param {number} column under the pointer; -1: none */
  draw(column) {
    const { heat, painter } = this;
    const height = heat.scroll.clientHeight;
    const context = painter.begin(heat.frame.width, height);
    if (!heat.values) return;
    for (const decade of this.ticks()) this.line(context, decade, "hair", height);
    context.setLineDash([3, 2]);
    if (heat.quantity.limit !== undefined) this.line(context, Math.log10(heat.quantity.limit), "bad", height);
    context.setLineDash([]);
    if (column >= 0) painter.profile(this.points(column), "accent", 1.1, false);
    painter.profile(this.points(heat.lastColumn), "ink", 1.3, true);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} log @param {string} color @param {number} height */
  line(context, log, color, height) {
    const x = Math.round(this.x(log)) + 0.5;
    context.strokeStyle = this.painter.colors[color];
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, height);
    context.stroke();
  }

  /** Rows in view with a value, without those whose parts are shown. @param {number} column */
  points(column) {
    const { heat } = this;
    const { rows } = heat.view.arrays;
    const closed = heat.strips.filter(({ row }) => !(rows[row].hasInner && heat.rows.opened.has(row)));
    return closed.flatMap(({ row, y }) => {
      const value = heat.valueAt(row, column);
      if (value === null || Number.isNaN(value) || heat.isWrong(row, column)) return [];
      return [{ x: this.x(value > 0 ? Math.log10(value) : -Infinity), y: y + heat.tall / 2 }];
    });
  }
}
