// The graph of one level: boxes that open in place or are walked into, lines between them, to be moved and zoomed.

import { make } from "./elements.js";
import { most } from "./format.js";
import { arranged } from "./layout.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {import("./layout.js").Size} Size */

const PADDING = 12, BAR = 40, HEAD = 34, NARROWEST = 84, TALL = 40, SMALL = 24, LONGEST = 34;

/** how small a graph may be drawn to show all of it, and how large one is that is not shown whole */
const SMALLEST = 0.1, READABLE = 0.62;

/** @param {string} text */
function short(text) { return text.length <= LONGEST ? text : `${text.slice(0, LONGEST / 2)}…${text.slice(-LONGEST / 2)}`; }

export class GraphView {
  /**
   * @param {HTMLElement} host
   * @param {any} data of the page
   * @param {{select: (row: number) => void, enter: (row: number) => void, leave: () => void, point: (event: Event | null, said: [string, string][]) => void, pin?: (row: number) => void, carry?: (row: number, place: PointerEvent | null, isDropped: boolean) => void}} on
   */
  constructor(host, data, on) {
    this.host = host; this.data = data; this.on = on;
    /** @type {Set<number>} rows that are open in place */
    this.opened = new Set();
    this.row = 0; this.selected = -1; this.drawn = "";
    /** whether what is selected comes into view: not while one looks elsewhere and figures change */
    this.brings = false;
    /** where the focus goes when another level is shown: to a box of it */
    this.keepsFocus = false; this.rowBefore = -1; this.isMoved = false;
    /** @type {Figure | null} */
    this.figure = null;
    this.view = { x: 0, y: 0, zoom: 1 };
    this.ruler = document.createElement("canvas").getContext("2d");
    this.svg = make("svg", { class: "graph", role: "group", "aria-label": "graph of the module" });
    this.inner = make("g");
    this.svg.append(arrows(), this.inner);
    host.append(this.svg);
    this.listen();
  }

  /** @param {number} row whose inside is shown @param {number} selected @param {Figure} figure that colours the boxes */
  show(row, selected, figure) {
    const drawnBefore = this.drawn, isElsewhere = row !== this.row || !drawnBefore;
    this.brings = isElsewhere || selected !== this.selected;
    this.row = row; this.selected = selected; this.figure = figure;
    this.drawn = `${row} ${figure.key} ${[...this.opened].join()}`;
    if (this.drawn === drawnBefore) { this.mark(); return; }
    const focused = document.activeElement?.closest("[data-node]")?.getAttribute("data-node"), left = this.rowBefore;
    this.rowBefore = row;
    const drawn = this.level(this.data.rows[row].level, String(row));
    this.inner.replaceChildren(drawn.element);
    this.size = drawn.size; this.first = drawn.first;
    if (isElsewhere) this.fit();
    else this.move();
    if (isElsewhere && this.keepsFocus) /** @type {any} */ (this.inner.querySelector(`.node[data-row="${left}"]`) ?? this.inner.querySelector(".node"))?.focus({ preventScroll: true });
    this.keepsFocus = false;
    const marked = this.inner.querySelector(".node.selected");
    if (marked && this.brings) this.bring(marked);
    if (focused) this.inner.querySelector(`[data-node="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  /** Thousands of boxes are drawn once; what is selected changes a class. */
  mark() {
    for (const each of this.inner.querySelectorAll(".node.selected")) each.classList.remove("selected");
    for (const each of this.inner.querySelectorAll(`.node[data-row="${this.selected}"]`)) { each.classList.add("selected"); if (this.brings) this.bring(each); }
  }

  /** All boxes and lines of a level. @param {number} number @param {string} where @returns {{element: any, size: Size, first: [number, number] | undefined}} */
  level(number, where) {
    const level = this.data.levels[number];
    const insides = level.nodes.map((/** @type {any} */ node, /** @type {number} */ at) => {
      const row = node.row === undefined ? null : this.data.rows[node.row];
      return row && row.level !== undefined && this.opened.has(node.row) ? this.level(row.level, `${where}.${at}`) : null;
    });
    const sizes = level.nodes.map((/** @type {any} */ node, /** @type {number} */ at) => this.sizeOf(node, insides[at]));
    const layout = arranged(sizes, level.edges.map((/** @type {any} */ edge) => [edge[0], edge[1]]));
    const most = this.largest(level);
    const lines = layout.ways.map((way, at) => line(way, level.edges[at][2]));
    const boxes = level.nodes.map((/** @type {any} */ node, /** @type {number} */ at) =>
      this.box(node, layout.places[at], sizes[at], insides[at], `${where}.${at}`, most, level, at));
    return { element: make("g", {}, ...lines, ...boxes), size: layout.size, first: layout.places[0] };
  }

  /** @param {any} level */
  largest(level) {
    const values = level.nodes.map((/** @type {any} */ node) => (node.row === undefined ? 0 : this.figure?.value(this.data.rows[node.row]) ?? 0));
    return most(values.filter(Number.isFinite), 1e-300);
  }

  /** @param {any} node @param {{size: Size} | null} inside @returns {Size} */
  sizeOf(node, inside) {
    const row = node.row === undefined ? null : this.data.rows[node.row];
    const value = row && this.figure ? this.figure.text(this.figure.value(row), row) : "";
    const first = this.wide(this.nameOf(node), 13) + (value ? this.wide(value, 11) + 22 : 0);
    const wide = Math.max(NARROWEST, first + 2 * PADDING + (row?.level === undefined ? 0 : 18), this.wide(this.below(node), 11) + 2 * PADDING + (row ? BAR + 12 + (row.level === undefined ? 0 : 16) : 0));
    const tall = this.below(node) ? TALL : SMALL;
    return inside ? { wide: Math.max(wide, inside.size.wide + 2 * PADDING), tall: HEAD + inside.size.tall + 2 * PADDING } : { wide, tall };
  }

  /** @param {string} text @param {number} size */
  wide(text, size) {
    if (!this.ruler) return 0.6 * size * text.length;
    this.ruler.font = `${size}px system-ui, sans-serif`;
    return 1.04 * this.ruler.measureText(text).width;
  }

  /** @param {any} node */
  nameOf(node) {
    const row = node.row === undefined ? null : this.data.rows[node.row];
    return `${short(node.name)}${row && row.repeats > 1 ? ` ×${row.repeats}` : ""}${row?.failed ? " failed" : ""}`;
  }

  /** @param {any} node */
  below(node) {
    const row = node.row === undefined ? null : this.data.rows[node.row];
    return short([row?.type, node.shape].filter(Boolean).join(" · "));
  }

  /**
   * @param {any} node @param {[number, number]} place @param {Size} size @param {any} inside @param {string} id
   * @param {number} most @param {any} level @param {number} at
   */
  box(node, [middle, centre], size, inside, id, most, level, at) {
    const row = node.row === undefined ? null : this.data.rows[node.row], x = middle - size.wide / 2, y = centre - size.tall / 2;
    const value = row && this.figure ? this.figure.value(row) : 0, isEnd = node.kind === "input" || node.kind === "output";
    const colour = row?.failed ? "wrong" : row ? this.figure?.colour(row) ?? "memory" : node.kind === "tensor" ? "parameters" : "launch";
    const made = make("g", {
      class: `node ${node.kind}${row && node.row === this.selected ? " selected" : ""}${row?.failed ? " failed" : ""}${row?.producer ? " producer" : row?.holds ? " holds" : ""}`,
      transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, tabindex: 0, role: row ? "button" : "img",
      "data-node": id, "data-row": node.row, "data-name": node.name,
      "aria-label": [this.nameOf(node), this.below(node), row && this.figure ? `${this.figure.label} ${this.figure.text(value, row)}` : ""].filter(Boolean).join(", "),
    }, make("rect", { class: "frame", width: size.wide.toFixed(1), height: size.tall.toFixed(1), rx: isEnd ? Math.min(size.tall / 2, 18) : 5 }));
    if (row && value && this.figure) {
      made.append(make("rect", { class: `tint on-${colour}`, width: size.wide.toFixed(1), height: size.tall.toFixed(1), rx: 5, opacity: (0.04 + 0.18 * Math.min(1, value / most)).toFixed(3) }));
    }
    if (!isEnd) made.append(make("rect", { class: `on-${colour}`, width: 3.5, height: size.tall.toFixed(1), rx: 1 }));
    made.append(make("text", { x: PADDING, y: 16 }, this.nameOf(node)));
    if (this.below(node)) made.append(make("text", { class: "soft", x: PADDING, y: 31 }, this.below(node)));
    if (row && this.figure) this.drawFigure(made, row, Math.min(1, value / most), size, colour);
    if (row?.level !== undefined) made.append(this.opener(node.row, size));
    if (inside) {
      inside.element.setAttribute("transform", `translate(${((size.wide - inside.size.wide) / 2).toFixed(1)} ${HEAD + PADDING})`);
      made.append(inside.element);
    }
    this.listenTo(made, node, row, level, at, id);
    return made;
  }

  /** @param {any} made @param {any} row @param {number} part @param {Size} size @param {string} colour */
  drawFigure(made, row, part, size, colour) {
    const end = size.wide - PADDING - (row.level === undefined ? 0 : 16);
    made.append(make("text", { class: "figure", x: end.toFixed(1), y: 15.5, "text-anchor": "end" }, this.figure?.text(this.figure.value(row), row) ?? ""));
    if (!part) return;
    const left = end - BAR;
    made.append(make("rect", { class: "groove", x: left.toFixed(1), y: 25, width: BAR, height: 4, rx: 2 }));
    made.append(make("rect", { class: `on-${colour}`, x: left.toFixed(1), y: 25, width: Math.max(1.5, BAR * part).toFixed(1), height: 4, rx: 2 }));
  }

  /** The sign that opens a box in place. @param {number} row @param {Size} size */
  opener(row, size) {
    const isOpen = this.opened.has(row);
    return make("g", { class: "opener", transform: `translate(${(size.wide - 15).toFixed(1)} 11)`, "data-opens": row, onclick: (/** @type {Event} */ event) => { event.stopPropagation(); this.toggle(row); } },
      make("rect", { x: -9, y: -9, width: 20, height: 20, fill: "transparent" }),
      make("path", { d: isOpen ? "M-3.5 0H3.5" : "M-3.5 0H3.5M0 -3.5V3.5" }), make("title", {}, isOpen ? "close" : "open here"));
  }

  /** @param {number} row */
  toggle(row) {
    if (!this.opened.delete(row)) this.opened.add(row);
    if (this.figure) this.show(this.row, this.selected, this.figure);
  }

  // -- what people do ------------------------------------------------------------------------------------------------

  /** @param {any} made @param {any} node @param {any} row @param {any} level @param {number} at @param {string} id */
  listenTo(made, node, row, level, at, id) {
    const said = () => (row ? this.said(row) : /** @type {[string, string][]} */ ([["", node.name], ["what", node.kind], ["shape", node.shape]]));
    made.addEventListener("pointerenter", (/** @type {Event} */ event) => this.on.point(event, said()));
    made.addEventListener("pointerleave", () => this.on.point(null, []));
    made.addEventListener("focus", (/** @type {Event} */ event) => { if (made.matches(":focus-visible")) this.on.point(event, said()); });
    made.addEventListener("blur", () => this.on.point(null, []));
    made.addEventListener("click", (/** @type {Event} */ event) => { event.stopPropagation(); if (row && !this.hasMoved) this.on.select(node.row); });
    made.addEventListener("dblclick", (/** @type {Event} */ event) => { event.stopPropagation(); if (row?.level !== undefined) this.on.enter(node.row); });
    made.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.key(event, node, row, level, at, id));
  }

  /** @param {any} row @returns {[string, string][]} */
  said(row) { return [["", row.name]]; }

  /** @param {KeyboardEvent} event @param {any} node @param {any} row @param {any} level @param {number} at @param {string} id */
  key(event, node, row, level, at, id) {
    const edges = level.edges, prefix = id.slice(0, id.lastIndexOf("."));
    const to = {
      ArrowDown: () => edges.find((/** @type {any} */ edge) => edge[0] === at)?.[1],
      ArrowUp: () => edges.find((/** @type {any} */ edge) => edge[1] === at)?.[0],
      ArrowRight: () => at + 1, ArrowLeft: () => at - 1,
    }[event.key];
    if (to) this.inner.querySelector(`[data-node="${prefix}.${to() ?? at}"]`)?.focus();
    else if (event.key === "Enter" && row && this.on.pin && !event.shiftKey) this.on.pin(node.row);
    else if (event.key === "Enter" && row?.level !== undefined) { this.keepsFocus = true; this.on.enter(node.row); }
    else if (event.key === " " && row?.level !== undefined) this.toggle(node.row);
    else if (event.key === "Backspace" || event.key === "Escape") { this.keepsFocus = true; this.on.leave(); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  listen() {
    this.hasMoved = false;
    /** @type {{x: number, y: number} | null} */
    let held = null;
    /** @type {number | null} the row of a box that is carried away */
    let carried = null;
    this.svg.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => { held = { x: event.clientX - this.view.x, y: event.clientY - this.view.y }; this.hasMoved = false;
      const row = this.on.carry && /** @type {Element} */ (event.target).closest(".node[data-row]")?.getAttribute("data-row");
      carried = row ? Number(row) : null;
    });
    this.svg.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      if (!held || !event.buttons) { held = null; return; }
      const x = event.clientX - held.x, y = event.clientY - held.y;
      if (!this.hasMoved && Math.hypot(x - this.view.x, y - this.view.y) < 4) return;
      if (!this.hasMoved) this.svg.setPointerCapture(event.pointerId);
      this.hasMoved = true;
      if (carried !== null) { this.on.carry?.(carried, event, false); return; }
      this.isMoved = true;
      this.view.x = x; this.view.y = y;
      this.move();
    });
    this.svg.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => { if (carried !== null && this.hasMoved) this.on.carry?.(carried, event, true); held = carried = null; });
    this.svg.addEventListener("wheel", (/** @type {WheelEvent} */ event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = this.svg.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY / 300), event.clientX - box.x, event.clientY - box.y);
    }, { passive: false });
    this.svg.addEventListener("focusin", (/** @type {FocusEvent} */ event) => {
      const target = /** @type {Element} */ (event.target);
      if (target.matches(":focus-visible")) this.bring(target);
    });
  }

  /** Move the view so that a box is seen. @param {Element} element */
  bring(element) {
    const box = element.getBoundingClientRect(), host = this.svg.getBoundingClientRect();
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
    const zoom = Math.min(4, Math.max(0.05, this.view.zoom * factor)), real = zoom / this.view.zoom;
    this.view = { zoom, x: x - (x - this.view.x) * real, y: y - (y - this.view.y) * real };
    this.move();
  }

  /** All of it, as large as it can be read and not larger; where that is too small to be seen, the first box and what is around it. */
  fit() {
    const { wide, tall } = this.size ?? { wide: 1, tall: 1 }, room = 24, most = this.data.measured ? Math.min(0.46 * innerHeight, 440) : Math.min(0.66 * innerHeight, 620); // distributions are seen below it
    this.isMoved = false;
    const across = (this.svg.clientWidth - room) / wide, isSeen = across >= SMALLEST, scale = isSeen ? Math.min(1, across) : READABLE;
    this.host.style.height = `${Math.min(most, Math.max(120, scale * tall + room)).toFixed(0)}px`;
    const down = (this.svg.clientHeight - room) / tall;
    const zoom = isSeen ? Math.min(1, Math.max(Math.min(across, down), Math.min(READABLE, across))) : READABLE;
    const [firstX, firstY] = this.first ?? [0, 0];
    this.view = isSeen
      ? { zoom, x: (this.svg.clientWidth - zoom * wide) / 2, y: room / 2 }
      : { zoom, x: this.svg.clientWidth / 2 - zoom * firstX, y: room / 2 - Math.max(0, zoom * firstY - this.svg.clientHeight / 2) };
    this.move();
  }

  move() { this.inner.setAttribute("transform", `translate(${this.view.x.toFixed(1)} ${this.view.y.toFixed(1)}) scale(${this.view.zoom.toFixed(4)})`); }
}

function arrows() {
  return make("defs", {}, make("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" }, make("path", { class: "head", d: "M0 0.5L7.5 4L0 7.5z" })));
}

/** @param {[number, number][]} way @param {string} said */
function line(way, said) {
  let [x, y] = way[0], path = `M${x.toFixed(1)} ${y.toFixed(1)}`;
  for (const [toX, toY] of way.slice(1)) {
    const middle = ((y + toY) / 2).toFixed(1);
    path += Math.abs(toX - x) < 0.05 ? `V${toY.toFixed(1)}` : `C${x.toFixed(1)} ${middle} ${toX.toFixed(1)} ${middle} ${toX.toFixed(1)} ${toY.toFixed(1)}`;
    [x, y] = [toX, toY];
  }
  return make("path", { class: "way", d: path, "marker-end": "url(#arrow)" }, make("title", {}, said));
}
