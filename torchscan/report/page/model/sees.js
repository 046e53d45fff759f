// What a unit of a layer sees of a picture: both drawn, and the unit can be chosen.

import { make } from "./elements.js";

/** @typedef {{units: number, length: number, starts: (number | null)[], rise: number, sizes: number[], inside: [number, number] | null}} Axis */
/** @typedef {{x: Axis, y: Axis}} Sees */

const SIDE = 120, GAP = 40, TOP = 18;
const WAYS = /** @type {Record<string, [number, number]>} */ ({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] });

/** Sides of a receptive field: numbers, or "global". Graphs of older versions have none. @param {any} row @returns {any[]} */
export function sidesOf(row) { return row.rfSides ?? []; }

/** Whether a unit sees the whole input. @param {any} row */
export function seesAll(row) { return sidesOf(row)[0] === "global"; }

/** From where, and how much; null: it sees nothing. @param {Axis} axis @param {number} unit @returns {[number, number] | null} */
export function spanOf(axis, unit) {
  if (axis.inside && (unit < axis.inside[0] || unit >= axis.inside[1])) return null;
  const phase = unit % axis.starts.length, start = axis.starts[phase];
  return start === null ? null : [start + Math.floor(unit / axis.starts.length) * axis.rise, axis.sizes[phase % axis.sizes.length]];
}

/** @param {Sees} sees @returns {[number, number]} */
export function middleOf(sees) { return [Math.floor(sees.x.units / 2), Math.floor(sees.y.units / 2)]; }

/** @param {Sees} sees @param {[number, number]} unit */
export function sightOf(sees, [column, row]) {
  const across = spanOf(sees.x, column), down = spanOf(sees.y, row);
  if (!across || !down) return `unit (${row}, ${column}) sees nothing`;
  const isOver = [[down, sees.y.length], [across, sees.x.length]].some(([span, length]) => { const [from, size] = /** @type {[number, number]} */ (span); return from < 0 || from + size > Number(length); });
  return `unit (${row}, ${column}) of ${sees.y.units}×${sees.x.units} sees ${down[1]}×${across[1]} of ${sees.y.length}×${sees.x.length}${isOver ? ", and padding" : ""}`;
}

/** The input, and what a unit sees of it, which may reach over its edges. @param {Sees} sees @param {[number, number]} unit @param {number} side */
export function seenBy(sees, [column, row], side) {
  const [left, wide] = spanOf(sees.x, column) ?? [0, 0], [top, tall] = spanOf(sees.y, row) ?? [0, 0];
  const x0 = Math.min(0, left), y0 = Math.min(0, top), x1 = Math.max(sees.x.length, left + wide), y1 = Math.max(sees.y.length, top + tall), scale = side / Math.max(x1 - x0, y1 - y0);
  const rect = (/** @type {string} */ name, /** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ w, /** @type {number} */ h) =>
    make("rect", { class: name, x: ((x - x0) * scale).toFixed(1), y: ((y - y0) * scale).toFixed(1), width: (w * scale).toFixed(1), height: (h * scale).toFixed(1) });
  return { element: make("g", {}, rect("groove", 0, 0, sees.x.length, sees.y.length), rect("seen", left, top, wide, tall)), wide: (x1 - x0) * scale, tall: (y1 - y0) * scale };
}

/** A panel of the chosen layer. */
export class SeesView {
  /** @param {HTMLElement} host @param {any[]} rows */
  constructor(host, rows) {
    this.rows = rows; this.row = -1;
    /** @type {[number, number]} */
    this.unit = [0, 0];
    this.scale = 1;
    this.svg = make("svg", { class: "chart", role: "img", tabindex: 0, onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event), onpointerdown: (/** @type {PointerEvent} */ event) => this.choose(event), onpointermove: (/** @type {PointerEvent} */ event) => this.choose(event) });
    this.said = make("p", { class: "said", "aria-live": "polite" });
    host.replaceChildren(this.svg, this.said);
  }

  /** @param {number} row */
  show(row) {
    if (row === this.row) return;
    this.row = row;
    const { sees } = this.rows[row];
    this.svg.toggleAttribute("hidden", !sees);
    if (sees) { this.unit = middleOf(sees); this.draw(); } else this.said.textContent = this.without();
  }

  without() {
    const row = this.rows[this.row], { name } = row;
    return seesAll(row) ? `Every unit of ${name} sees the whole input.` : `A unit of ${name} does not see a region of an image. Choose another layer.`;
  }

  draw() {
    const { sees, name } = this.rows[this.row], map = this.map(sees), seen = seenBy(sees, this.unit, SIDE), wide = SIDE + GAP + SIDE, tall = TOP + Math.max(map.tall, seen.tall) + 2;
    const at = SIDE + GAP;
    seen.element.setAttribute("transform", `translate(${at} ${TOP})`);
    this.svg.setAttribute("viewBox", `0 0 ${wide} ${tall.toFixed(1)}`);
    this.svg.setAttribute("aria-label", sightOf(sees, this.unit));
    this.svg.replaceChildren(make("text", { class: "soft", x: 0, y: 11 }, "output"), make("text", { class: "soft", x: at, y: 11 }, "input"), map.element,
      make("path", { class: "way", d: `M${map.wide + 8} ${TOP + 24}H${at - 8}m-6 -4l6 4l-6 4` }), seen.element);
    this.said.replaceChildren(`${name}: ${sightOf(sees, this.unit)}`);
  }

  /** The layer's output, with the chosen unit. @param {Sees} sees */
  map(sees) {
    const scale = SIDE / Math.max(sees.x.units, sees.y.units), [column, row] = this.unit;
    this.scale = scale;
    const wide = scale * sees.x.units, tall = scale * sees.y.units, size = Math.max(scale, 3), lines = [];
    if (scale >= 5) {
      for (let x = 1; x < sees.x.units; x += 1) lines.push(`M${(x * scale).toFixed(1)} 0V${tall.toFixed(1)}`);
      for (let y = 1; y < sees.y.units; y += 1) lines.push(`M0 ${(y * scale).toFixed(1)}H${wide.toFixed(1)}`);
    }
    const element = make("g", { class: "map", transform: `translate(0 ${TOP})` }, make("rect", { class: "groove", width: wide, height: tall }), make("path", { class: "grid", d: lines.join("") }),
      make("rect", { class: "seen", x: (column * scale).toFixed(1), y: (row * scale).toFixed(1), width: size.toFixed(1), height: size.toFixed(1) }));
    return { element, wide, tall };
  }

  /** @param {PointerEvent} event */
  choose(event) {
    if (event.type === "pointermove" && !event.buttons) return;
    const box = this.svg.getBoundingClientRect(), scale = this.svg.viewBox.baseVal.width / box.width;
    const column = Math.floor((event.clientX - box.x) * scale / this.scale), row = Math.floor(((event.clientY - box.y) * scale - TOP) / this.scale);
    const { sees } = this.rows[this.row];
    if (column < 0 || row < 0 || column >= sees.x.units || row >= sees.y.units) return;
    this.unit = [column, row];
    this.draw();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const way = WAYS[event.key], { sees } = this.rows[this.row];
    if (!way) return;
    event.preventDefault();
    this.unit = [Math.min(sees.x.units - 1, Math.max(0, this.unit[0] + way[0])), Math.min(sees.y.units - 1, Math.max(0, this.unit[1] + way[1]))];
    this.draw();
  }
}
