// The drawing of a plan: boxes, what stands in them, and the lines between them.

import { make } from "./elements.js";
import { hasReceived, isKnown } from "./figures.js";
import { drawnTag } from "./keep.js";
import { callsOf } from "./measured.js";
import { BAR, CHIP, HEAD, OPENER, PADDING, PORT_SIZE, STRIP, badgeOf, short } from "./plan.js";
import { drawStrip, toneIn } from "./tones.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {import("./plan.js").Box} Box */
/** @typedef {import("./plan.js").Plan} Plan */
/** @typedef {import("./plan.js").Port} Port */
/** @typedef {import("./tones.js").Scale} Scale */
/** @typedef {import("./keep.js").Kept} Kept */
/** @typedef {import("./layout.js").Point} Point */

const STRIP_TALL = 6;

export class BoxDrawing {
  /**
   * @param {any} data of the page @param {Figure} figure that colors the boxes @param {Scale} scale of its tones
   * @param {Kept | null} kept layers @param {(element: any, box: Box, plan: Plan, at: number) => void} listenTo
   * @param {(box: Box) => void} toggle
   */
  constructor(data, figure, scale, kept, listenTo, toggle) {
    this.data = data;
    this.figure = figure;
    this.scale = scale;
    this.kept = kept;
    this.listenTo = listenTo;
    this.toggle = toggle;
  }

  /** @param {Plan} plan @returns {any} */
  plan(plan) {
    const largest = Math.max(this.largestIn(plan), plan.beside ? this.largestIn(plan.beside) : 0);
    const ways = plan.layout.ways.map((way, at) => this.wayOf(plan, way, at));
    const lines = ways.map((way, at) => this.line(plan.edges[at], way));
    const names = ways.flatMap((way, at) => this.portName(plan, way, at));
    const boxes = plan.boxes.map((box, at) => this.box(plan, at, largest));
    return make("g", {}, ...lines, ...names, ...boxes);
  }

  /** @param {Plan} plan */
  largestIn(plan) { return plan.boxes.reduce((most, box) => Math.max(most, this.finite(box)), 1e-300); }

  /** @param {Box} box */
  finite(box) {
    const value = box.figures ? this.figure.value(box.figures) : 0;
    return Number.isFinite(value) ? value : 0;
  }

  /** @param {Plan} plan @param {number} at @param {number} largest value in the plan */
  box(plan, at, largest) {
    const box = plan.boxes[at];
    const [middle, center] = plan.layout.places[at];
    const { wide, tall } = box.size;
    const { figures } = box;
    const isEnd = box.kind === "input" || box.kind === "output";
    const made = make("g", {
      class: `node ${box.kind} ${this.stateOf(box)}`.trim(),
      transform: `translate(${(middle - wide / 2).toFixed(1)} ${(center - tall / 2).toFixed(1)})`, tabindex: 0, role: figures ? "button" : "img",
      "data-node": box.id, "data-row": box.row, "data-name": box.range ? box.name : this.nameIn(box),
      "aria-label": this.labelOf(box),
    }, make("rect", { class: "frame", width: wide.toFixed(1), height: tall.toFixed(1), rx: isEnd ? Math.min(tall / 2, 18) : 5 }));
    if (figures && hasReceived(figures)) made.append(make("rect", { class: "hatch", width: wide.toFixed(1), height: tall.toFixed(1), rx: 5 }));
    const isTinted = figures && !this.figure.scale && (this.figure.key !== "nonfinite" || figures.producer !== undefined);
    if (isTinted && this.finite(box)) {
      const opacity = 0.03 + 0.15 * Math.min(1, this.finite(box) / largest);
      made.append(make("rect", { class: `on-${this.figure.colour(figures)}`, width: wide.toFixed(1), height: tall.toFixed(1), rx: 5, opacity: opacity.toFixed(3) }));
    }
    if (figures) this.chip(made, box, plan.isLine, largest);
    else if (!isEnd) made.append(make("rect", { class: `on-${box.kind === "tensor" ? "parameters" : "launch"}`, width: 3.5, height: tall.toFixed(1), rx: 1 }));
    if (plan.isLine || box.inside) this.textInLine(made, box);
    else this.textOnCard(made, box, largest);
    if (box.cells) this.strip(made, box, plan.isLine);
    if (box.opens !== null) made.append(this.opener(box));
    if (box.inside) {
      const inside = this.plan(box.inside);
      const top = HEAD + (box.cells ? STRIP : 0) + PADDING;
      inside.setAttribute("transform", `translate(${((wide - box.inside.size.wide) / 2).toFixed(1)} ${top})`);
      made.append(inside);
    }
    this.tag(made, box);
    this.listenTo(made, box, plan, at);
    return made;
  }

  /** @param {Box} box */
  stateOf({ figures }) {
    if (!figures) return "";
    const nan = figures.producer !== undefined ? "producer" : figures.holds ? "holds" : hasReceived(figures) ? "received" : "";
    return `${figures.failed ? "failed " : ""}${nan}`;
  }

  /** @param {Box} box */
  nameIn(box) { return box.row === undefined ? box.name : this.data.rows[box.row].name; }

  /** @param {Box} box */
  labelOf(box) {
    const { figures } = box;
    const value = figures ? `${this.figure.label} ${this.figure.text(this.figure.value(figures), figures)}` : "";
    return [box.name, box.below, value, badgeOf(box)].filter(Boolean).join(", ");
  }

  /** A mark in the tone or the color of the figure. @param {any} made @param {Box} box @param {boolean} isLine @param {number} largest */
  chip(made, box, isLine, largest) {
    const figures = /** @type {Record<string, any>} */ (box.figures);
    const tall = isLine || box.inside ? 15 : 28;
    const place = { x: 6, y: 6, width: 9, height: tall, rx: 2 };
    const value = this.finite(box);
    if (figures.producer !== undefined || figures.failed) made.append(make("rect", { class: "on-wrong", ...place }));
    else if (figures.holds) made.append(make("rect", { class: "chip inside", ...place }));
    else if (this.figure.ends) this.rangeChip(made, place, this.figure.ends(figures));
    else if (this.figure.isMeasured && !isKnown(this.figure, figures)) made.append(make("rect", { class: "chip absent", ...place }));
    else if (this.figure.scale) {
      const chip = make("rect", { class: "chip", ...place });
      chip.style.fill = toneIn(this.scale, value);
      made.append(chip);
    } else {
      const opacity = value ? 0.25 + 0.75 * Math.min(1, value / largest) : 0.12;
      made.append(make("rect", { class: `on-${this.figure.colour(figures)}`, opacity: opacity.toFixed(2), ...place }));
    }
  }

  /** The tones of the lowest and the highest value; dashed without any. @param {any} made @param {{y: number, height: number}} place @param {number[]} ends */
  rangeChip(made, place, ends) {
    if (!ends.length) made.append(make("rect", { class: "chip absent", ...place }));
    const height = place.height / ends.length;
    ends.forEach((value, at) => {
      const chip = make("rect", { class: "chip", ...place, y: place.y + at * height, height });
      chip.style.fill = toneIn(this.scale, value);
      made.append(chip);
    });
  }

  /** @param {any} made @param {Box} box */
  textInLine(made, box) {
    const x = PADDING + (box.figures ? CHIP - 6 : 0);
    const badge = badgeOf(box);
    const text = make("text", { x, y: box.figures ? 18 : 15.5 }, box.name);
    if (box.below && !badge) text.append(make("tspan", { class: "soft", dx: 8 }, short(box.below, 26)));
    if (badge) text.append(make("tspan", { class: "badge", dx: 8 }, badge));
    made.append(text);
    if (box.figures) this.value(made, box, 18);
  }

  /** @param {any} made @param {Box} box @param {number} largest */
  textOnCard(made, box, largest) {
    const x = PADDING + (box.figures ? CHIP - 6 : 0);
    const badge = badgeOf(box);
    made.append(make("text", { x, y: 16 }, box.name));
    if (badge) made.append(make("text", { class: "badge", x, y: 31 }, badge));
    else if (box.below) made.append(make("text", { class: "soft", x, y: 31 }, short(box.below)));
    if (!box.figures) return;
    this.value(made, box, 16);
    const part = Math.min(1, this.finite(box) / largest);
    if (!part || this.figure.scale || badge) return;
    const left = this.endOf(box) - BAR;
    const colour = this.figure.colour(box.figures);
    made.append(make("rect", { class: "groove", x: left.toFixed(1), y: 25, width: BAR, height: 4, rx: 2 }));
    made.append(make("rect", { class: `on-${colour}`, x: left.toFixed(1), y: 25, width: Math.max(1.5, BAR * part).toFixed(1), height: 4, rx: 2 }));
  }

  /** @param {Box} box */
  endOf(box) { return box.size.wide - PADDING + 3 - (box.opens === null ? 0 : OPENER); }

  /** @param {any} made @param {Box} box @param {number} y */
  value(made, box, y) {
    const figures = /** @type {Record<string, any>} */ (box.figures);
    const text = this.figure.text(this.figure.value(figures), figures);
    made.append(make("text", { class: "figure", x: this.endOf(box).toFixed(1), y, "text-anchor": "end" }, text));
  }

  /** @param {any} made @param {Box} box @param {boolean} isLine */
  strip(made, box, isLine) {
    const wide = box.size.wide - 2 * PADDING;
    const y = isLine || box.inside ? 26 : 38;
    const strip = drawStrip(box.cells ?? [], this.scale, wide, STRIP_TALL);
    strip.setAttribute("transform", `translate(${PADDING} ${y})`);
    made.append(strip);
  }

  /** The sign that opens a box in place. @param {Box} box */
  opener(box) {
    const press = (/** @type {Event} */ event) => {
      event.stopPropagation();
      this.toggle(box);
    };
    return make("g", { class: "opener", transform: `translate(${(box.size.wide - 14).toFixed(1)} 13.5)`, "data-opens": box.opens, onclick: press },
      make("rect", { x: -9, y: -10, width: 20, height: 20, fill: "transparent" }),
      make("path", { d: box.inside ? "M-3.5 0H3.5" : "M-3.5 0H3.5M0 -3.5V3.5" }),
      make("title", {}, box.inside ? "close" : "open here"));
  }

  /** The letters of kept layers, and the color of the first. @param {any} made @param {Box} box */
  tag(made, box) {
    for (const each of made.querySelectorAll(":scope > g.tag")) each.remove();
    made.classList.remove("kept");
    for (const name of [...made.classList]) if (name.startsWith("keep-")) made.classList.remove(name);
    const keys = box.numbers.map((row) => callsOf(this.data.rows[row])[0]);
    const marks = keys.flatMap((key) => this.kept?.markOf(key) ?? []);
    marks.slice(0, 4).forEach((mark, at) => made.append(drawnTag(mark, box.size.wide - 22 - 16 * at, -7)));
    if (marks.length && !box.range) made.classList.add("kept", `keep-${marks[0].color}`);
  }

  /** The way of an edge to its port. @param {Plan} plan @param {Point[]} way @param {number} at @returns {Point[]} */
  wayOf(plan, way, at) {
    const port = plan.boxes[plan.edges[at].target].ports.find((each) => each.edge === at);
    return port ? shifted(way, port.shift) : way;
  }

  /** @param {import("./plan.js").Edge} edge @param {Point[]} way */
  line(edge, way) {
    const names = edge.names.join(", ");
    const shapes = edge.carried.slice(0, 4).join(", ") + (edge.carried.length > 4 ? ` and ${edge.carried.length - 4} more` : "");
    const title = make("title", {}, names ? `${names}: ${shapes}` : shapes);
    return make("path", { class: "way", d: pathOf(way), "marker-end": "url(#arrow)" }, title);
  }

  /** @param {Plan} plan @param {Point[]} way @param {number} at */
  portName(plan, way, at) {
    const port = plan.boxes[plan.edges[at].target].ports.find((each) => each.edge === at);
    if (!port?.name) return [];
    const [x, y] = way[way.length - 1];
    return [make("text", { class: "port", x: (x + 6).toFixed(1), y: (y - 4).toFixed(1), "font-size": PORT_SIZE }, short(port.name))];
  }
}

/** @param {Point[]} way @param {number} shift of its end @returns {Point[]} */
function shifted(way, shift) {
  const [x, y] = way[way.length - 1];
  return [...way.slice(0, -1), [x + shift, y]];
}

/** @param {Point[]} way */
function pathOf(way) {
  let [x, y] = way[0];
  let path = `M${x.toFixed(1)} ${y.toFixed(1)}`;
  for (const [toX, toY] of way.slice(1)) {
    const middle = ((y + toY) / 2).toFixed(1);
    const isStraight = Math.abs(toX - x) < 0.05;
    path += isStraight ? `V${toY.toFixed(1)}` : `C${x.toFixed(1)} ${middle} ${toX.toFixed(1)} ${middle} ${toX.toFixed(1)} ${toY.toFixed(1)}`;
    [x, y] = [toX, toY];
  }
  return path;
}

/** The arrow head of all lines, and the hatching of what has received NaN or Inf. */
export function definitions() {
  const arrow = make("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" }, make("path", { class: "head", d: "M0 0.5L7.5 4L0 7.5z" }));
  const hatch = make("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    make("rect", { class: "hatch-ground", width: 6, height: 6 }), make("path", { class: "hatch-line", d: "M0 0V6" }));
  return make("defs", {}, arrow, hatch);
}
