// What is drawn of a level of the graph, and how large it is, before anything is drawn.

import { joinedRow } from "./figures.js";
import { foldRange, fromTo, inOrder, lengthOf, modulesIn, openRange } from "./fold.js";
import { count } from "./format.js";
import { arranged } from "./layout.js";
import { cellsOf, cellsOfRows } from "./tones.js";

/** @typedef {import("./figures.js").Figure} Figure */
/** @typedef {import("./fold.js").Range} Range */
/** @typedef {import("./layout.js").Size} Size */
/** @typedef {import("./layout.js").Point} Point */
/** @typedef {import("./tones.js").Cell} Cell */
/** @typedef {Record<string, any>} Row */

/**
 * A node, or a range of nodes. `id` is where it stands, `opens` what it is opened by, `figures` the row with its
 * figures, `row` the number of that row unless it is joined from several.
 * @typedef {{
 *   id: string, kind: string, name: string, below: string, row: number | undefined, figures: Row | null, numbers: number[],
 *   cells: Cell[] | null, range: Range | null, opens: number | string | null, inside: Plan | null, size: Size, ports: Port[],
 * }} Box
 */
/** Where an edge ends on its box, and the name of what it carries. @typedef {{edge: number, name: string, shift: number}} Port */
/** @typedef {{source: number, target: number, carried: string[], names: string[]}} Edge */
/** `beside`: the same level of another model, which has the same scale. @typedef {{boxes: Box[], edges: Edge[], layout: {places: Point[], ways: Point[][], size: Size}, size: Size, isLine: boolean, beside?: Plan}} Plan */
/** `isLine`: a box is one line of text, and not two. @typedef {{isLine: boolean, limit: number, room: number}} Settings */

export const PADDING = 12;
export const BAR = 40;
export const CHIP = 14;
export const STRIP = 11;
export const HEAD = 32;
export const OPENER = 18;
const NARROWEST = 84, WIDEST_STRIP = 150, LONGEST = 34, LONGEST_IN_LINE = 26;
const LINE_TALL = 27, CARD_TALL = 40, SMALL_TALL = 22;
const LINE_GAP = 15, CARD_GAP = 28, PORT_GAP = 26;
/** size of the letters of a port's name */
export const PORT_SIZE = 10;
/** boxes of a module that is opened in place, at most */
const LIMIT_INSIDE = 40;

/** @param {string} text @param {number} longest */
export function short(text, longest = LONGEST) {
  return text.length <= longest ? text : `${text.slice(0, longest / 2)}…${text.slice(-longest / 2)}`;
}

/** Plans levels for one figure and one set of open boxes. */
export class Planner {
  /**
   * @param {any} data of the page @param {Figure} figure @param {Set<number | string>} opened rows and ranges that are open
   * @param {Settings} settings
   */
  constructor(data, figure, opened, settings) {
    this.data = data;
    this.figure = figure;
    this.opened = opened;
    this.settings = settings;
  }

  /** All of a level. @param {number} number @param {string} where @param {number} limit of boxes @returns {Plan} */
  level(number, where, limit = this.settings.limit) {
    const level = inOrder(this.data.levels[number]);
    const whole = { first: 0, last: level.nodes.length - 1 };
    return this.ranges(level, foldRange(level.nodes, whole, limit), where);
  }

  /** @param {any} level @param {Range[]} ranges @param {string} where @returns {Plan} */
  ranges(level, ranges, where) {
    const { isLine } = this.settings;
    const boxes = ranges.map((range) => this.box(level, range, where));
    const edges = edgesBetween(level, ranges);
    const hasPorts = namePorts(boxes, edges);
    for (const box of boxes) box.size = this.sizeOf(box);
    if (isLine) evenOut(boxes);
    const gap = hasPorts ? Math.max(PORT_GAP, isLine ? LINE_GAP : CARD_GAP) : isLine ? LINE_GAP : CARD_GAP;
    const ends = edges.map((edge) => /** @type {[number, number]} */ ([edge.source, edge.target]));
    const layout = arranged(boxes.map((box) => box.size), ends, { gap, room: this.settings.room });
    for (const box of boxes) spread(box, layout.ways);
    return { boxes, edges, layout, size: layout.size, isLine };
  }

  /** @param {any} level @param {Range} range @param {string} where @returns {Box} */
  box(level, range, where) {
    if (lengthOf(range) > 1) return this.folded(level, range, where);
    const node = level.nodes[range.first];
    const row = node.row === undefined ? null : this.data.rows[node.row];
    const id = `${where}.${range.first}`;
    const opens = row?.level === undefined ? null : node.row;
    const inside = opens !== null && this.opened.has(opens) ? this.level(row.level, id, LIMIT_INSIDE) : null;
    return {
      id, kind: node.kind, name: this.nameOf(node.name, row), row: node.row, figures: row, numbers: row ? [node.row] : [],
      below: [row?.type, node.shape].filter(Boolean).join(" · "), range: null, opens, inside,
      cells: row ? cellsOf(this.figure, row) : null, size: { wide: 0, tall: 0 }, ports: [],
    };
  }

  /** Nodes that follow each other, in one box. @param {any} level @param {Range} range @param {string} where @returns {Box} */
  folded(level, range, where) {
    const positions = modulesIn(level.nodes, range);
    const [first, last] = [positions[0], positions[positions.length - 1]].map((at) => level.nodes[at].name);
    const numbers = positions.map((at) => level.nodes[at].row).filter((row) => row !== undefined);
    const rows = numbers.map((row) => this.data.rows[row]);
    const name = fromTo(first, last);
    const id = `${where}.${range.first}-${range.last}`;
    const figures = rows.length ? joinedRow(rows, name) : null;
    const noun = rows.length ? "modules" : "operators";
    const isOpen = this.opened.has(id);
    return {
      id, kind: "module range", name: this.nameOf(name, figures && { ...figures, repeats: 1 }), row: undefined, figures, numbers,
      below: `${count(positions.length)} ${noun}${figures ? ` · ${figures.type}` : ""}`, range, opens: id,
      inside: isOpen ? this.ranges(level, openRange(level.nodes, range), id) : null,
      cells: rows.length && this.figure.key !== "rf" ? cellsOfRows(this.figure, rows, numbers) : null, size: { wide: 0, tall: 0 }, ports: [],
    };
  }

  /** @param {string} name @param {Row | null} row */
  nameOf(name, row) {
    return `${short(name)}${row && row.repeats > 1 ? ` ×${row.repeats}` : ""}${row?.failed ? " failed" : ""}`;
  }

  /** @param {Box} box @returns {Size} */
  sizeOf(box) {
    const { isLine } = this.settings;
    const own = isLine ? this.lineSize(box) : this.cardSize(box);
    if (box.cells) own.wide = Math.max(own.wide, Math.min(WIDEST_STRIP, 6 * box.cells.length) + 2 * PADDING);
    own.wide = Math.max(own.wide, portsWidth(box) + 2 * PADDING);
    if (!box.inside) return { wide: own.wide, tall: own.tall + (box.cells ? STRIP : 0) };
    const { wide, tall } = box.inside.size;
    return { wide: Math.max(own.wide, wide + 2 * PADDING), tall: HEAD + (box.cells ? STRIP : 0) + tall + 2 * PADDING };
  }

  /** @param {Box} box */
  lineSize(box) {
    const value = this.valueOf(box);
    const second = badgeOf(box) || short(box.below, LONGEST_IN_LINE);
    const texts = widthOf(box.name, 13) + (second ? 8 + widthOf(second, 11) : 0);
    const figure = value ? 14 + widthOf(value, 11) : 0;
    const wide = texts + figure + (box.figures ? CHIP : 0) + 2 * PADDING + (box.opens === null ? 0 : OPENER);
    return { wide: Math.max(NARROWEST, wide), tall: box.figures ? LINE_TALL : SMALL_TALL };
  }

  /** @param {Box} box */
  cardSize(box) {
    const value = this.valueOf(box);
    const badge = badgeOf(box);
    const first = widthOf(box.name, 13) + (box.figures ? CHIP : 0) + (value ? widthOf(value, 11) + 22 : 0) + (box.opens === null ? 0 : OPENER);
    const second = widthOf(badge || short(box.below), 11) + (box.figures && !badge ? BAR + CHIP : 0) + (box.opens === null ? 0 : OPENER);
    return { wide: Math.max(NARROWEST, Math.max(first, second) + 2 * PADDING), tall: box.below ? CARD_TALL : SMALL_TALL };
  }

  /** What is written of the figure. @param {Box} box */
  valueOf(box) { return box.figures ? this.figure.text(this.figure.value(box.figures), box.figures) : ""; }
}

/** The words on a box that the first value that is not finite came from. @param {Box} box */
export function badgeOf({ figures }) {
  if (figures?.producer !== undefined) return "first NaN or Inf";
  return figures?.holds ? short(`first NaN or Inf: ${figures.holds}`) : "";
}

/** @type {Map<string, number>} */
const widths = new Map();
const ruler = document.createElement("canvas").getContext("2d");

/** @param {string} text @param {number} size */
export function widthOf(text, size) {
  const key = `${size} ${text}`;
  let wide = widths.get(key);
  if (wide === undefined) {
    if (ruler) ruler.font = `${size}px system-ui, sans-serif`;
    wide = ruler ? 1.04 * ruler.measureText(text).width : 0.6 * size * text.length;
    widths.set(key, wide);
  }
  return wide;
}

/** Edges between different ranges; those between the same two are one. @param {any} level @param {Range[]} ranges @returns {Edge[]} */
function edgesBetween(level, ranges) {
  /** @type {Map<number, number>} */
  const boxOf = new Map();
  ranges.forEach((range, box) => { for (let at = range.first; at <= range.last; at += 1) boxOf.set(at, box); });
  /** @type {Map<string, Edge>} */
  const found = new Map();
  for (const [from, to, carried, names] of level.edges) {
    const source = boxOf.get(from);
    const target = boxOf.get(to);
    if (source === undefined || target === undefined || source === target) continue;
    const edge = found.get(`${source} ${target}`) ?? { source, target, carried: [], names: [] };
    edge.carried.push(carried);
    if (names && ranges[target].first === ranges[target].last) edge.names.push(names);
    found.set(`${source} ${target}`, edge);
  }
  return [...found.values()];
}

/** Give a box a port for each edge into it, if one of them has a name. @param {Box[]} boxes @param {Edge[]} edges */
function namePorts(boxes, edges) {
  edges.forEach((edge, at) => boxes[edge.target].ports.push({ edge: at, name: edge.names.join(", "), shift: 0 }));
  for (const box of boxes) if (!box.ports.some((port) => port.name)) box.ports = [];
  return boxes.some((box) => box.ports.length);
}

/** Room for the names of ports beside each other, each as wide as the widest. @param {Box} box */
function portsWidth(box) {
  let widest = 0;
  for (const port of box.ports) widest = Math.max(widest, widthOf(short(port.name), PORT_SIZE));
  return box.ports.length > 1 ? box.ports.length * (widest + 14) : 0;
}

/** Ports beside each other, in the order that their edges come in. @param {Box} box @param {Point[][]} ways */
function spread(box, ways) {
  if (box.ports.length < 2) return;
  const before = (/** @type {Port} */ port) => ways[port.edge][ways[port.edge].length - 2][0];
  box.ports.sort((one, other) => before(one) - before(other));
  const room = (box.size.wide - 2 * PADDING) / box.ports.length;
  box.ports.forEach((port, at) => { port.shift = (at - (box.ports.length - 1) / 2) * room - room / 2 + 8; });
}

/** Boxes under each other read as a list if they are equally wide. @param {Box[]} boxes */
function evenOut(boxes) {
  const modules = boxes.filter((box) => box.figures && !box.inside);
  let wide = 0;
  for (const box of modules) wide = Math.max(wide, box.size.wide);
  for (const box of modules) box.size.wide = wide;
}
