// The heat map on its canvas: a strip a row, hatched where values are not finite, and the profile over the depth.

import { colorOf, tonesOf } from "./oklab.js";

/** @typedef {import("./heat_columns.js").HeatColumns} HeatColumns */
/** @typedef {import("./unpack.js").Arrays} Arrays */
/** @typedef {{row: number, y: number}} Strip */
/** @typedef {{left: number, right: number, height: number, pixel: number}} Frame */

export class HeatPainter {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.strips = document.createElement("canvas");
    /** @type {[number, number, number][]} */
    this.tones = [];
    /** @type {Record<string, string>} */
    this.colors = {};
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  }

  /** Colors are those of the theme, which may change. */
  readColors() {
    this.tones = tonesOf(this.canvas);
    this.colors = Object.fromEntries(["ink", "soft", "line", "hair", "panel", "accent", "bad", "badtone"].map((name) => [name, colorOf(this.canvas, `--${name}`)]));
  }

  /** @param {number} width @param {number} height */
  begin(width, height) {
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    return this.context;
  }

  /**
   * @param {Strip[]} strips @param {HeatColumns} columns @param {Frame} frame
   * @param {{values: (row: number) => Float32Array | undefined, wrong: (row: number) => Uint8Array | undefined, low: number, high: number, isLargest: boolean, isPlain: boolean}} shown
   */
  paint(strips, columns, frame, shown) {
    const context = this.context;
    const number = columns.from.length;
    if (!context || !strips.length || !number) return;
    this.strips.width = number;
    this.strips.height = strips.length;
    const inner = /** @type {CanvasRenderingContext2D} */ (this.strips.getContext("2d"));
    const image = inner.createImageData(number, strips.length);
    strips.forEach(({ row }, at) => this.fill(image, at, shown.values(row), columns, shown));
    inner.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    const width = frame.right - frame.left;
    strips.forEach(({ row, y }, at) => {
      if (shown.values(row) || shown.isPlain) context.drawImage(this.strips, 0, at, number, 1, frame.left, y + 0.5, width, frame.height - 1);
      else this.dots(frame, y);
      const wrong = shown.wrong(row);
      if (wrong) this.hatch(wrong, columns, frame, y);
    });
  }

  /** @param {ImageData} image @param {number} line @param {Float32Array | undefined} values @param {HeatColumns} columns @param {{low: number, high: number, isLargest: boolean, isPlain: boolean}} shown */
  fill(image, line, values, columns, { low, high, isLargest, isPlain }) {
    const { tones } = this;
    const number = image.width;
    for (let pixel = 0; pixel < number; pixel += 1) {
      const isSeen = columns.to[pixel] > columns.from[pixel];
      const value = values ? columns.value(values, pixel, isLargest) : NaN;
      if (!isSeen || (Number.isNaN(value) && !isPlain)) continue;
      const place = value > 0 ? (Math.log10(value) - low) / (high - low) : 0;
      const tone = tones[Math.round(255 * Math.min(1, Math.max(0, isPlain ? 0 : place)))];
      image.data.set([...tone, 255], 4 * (line * number + pixel));
    }
  }

  /** A row without a value. @param {Frame} frame @param {number} y */
  dots(frame, y) {
    const { context } = this;
    context.strokeStyle = this.colors.line;
    context.setLineDash([1, 4]);
    context.beginPath();
    context.moveTo(frame.left, y + frame.height / 2);
    context.lineTo(frame.right, y + frame.height / 2);
    context.stroke();
    context.setLineDash([]);
  }

  /** Light hatching where a row received values that are not finite. @param {Uint8Array} wrong @param {HeatColumns} columns @param {Frame} frame @param {number} y */
  hatch(wrong, columns, frame, y) {
    const number = columns.from.length;
    let start = -1;
    for (let pixel = 0; pixel <= number; pixel += 1) {
      const isWrong = pixel < number && columns.bits(wrong, pixel) > 0;
      if (isWrong && start < 0) start = pixel;
      if (isWrong || start < 0) continue;
      const x = frame.left + start * frame.pixel;
      this.hatched(x, y + 0.5, Math.min(frame.right, frame.left + pixel * frame.pixel) - x, frame.height - 1);
      start = -1;
    }
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  hatched(x, y, width, height) {
    const { context } = this;
    const { bad, badtone } = this.colors;
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.fillStyle = badtone;
    context.fillRect(x, y, width, height);
    context.strokeStyle = bad;
    context.globalAlpha = 0.42;
    context.beginPath();
    // the lines of neighboring rows meet
    const shift = (x + y) % 7;
    for (let at = x - height - shift; at < x + width + height; at += 7) {
      context.moveTo(at, y + height + 1);
      context.lineTo(at + height + 1, y);
    }
    context.stroke();
    context.restore();
  }

  /** A line from the top to the producer. @param {number} x @param {number} y */
  lead(x, y) {
    const { context } = this;
    context.strokeStyle = this.colors.bad;
    context.lineWidth = 1.2;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, y);
    context.stroke();
  }

  /** The module that produced the first value that is not finite. @param {number} x @param {number} y @param {number} width @param {number} height */
  solid(x, y, width, height) {
    const { context } = this;
    context.fillStyle = this.colors.bad;
    context.strokeStyle = this.colors.panel;
    context.lineWidth = 1.2;
    context.fillRect(x, y, width, height);
    context.strokeRect(x, y, width, height);
  }

  /** A line through rows; where a row has no value, it goes on. @param {{x: number, y: number}[]} points @param {string} color @param {number} width @param {boolean} hasDots */
  profile(points, color, width, hasDots) {
    const { context } = this;
    context.strokeStyle = context.fillStyle = this.colors[color];
    context.lineWidth = width;
    context.beginPath();
    points.forEach(({ x, y }, at) => (at ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.stroke();
    if (!hasDots) return;
    for (const { x, y } of points) {
      context.beginPath();
      context.arc(x, y, 2, 0, 2 * Math.PI);
      context.fill();
    }
  }
}
