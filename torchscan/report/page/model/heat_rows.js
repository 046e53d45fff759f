// The rows of the heat map that are seen: blocks, and what is inside the open ones.

/** @typedef {import("./unpack.js").LayerRow} LayerRow */

/** rows that are shown folded, at most, if the model has several levels */
const MAX_ROWS = 30;

export class HeatRows {
  /** @param {LayerRow[]} rows */
  constructor(rows) {
    this.rows = rows;
    /** @type {Set<number>} */
    this.opened = new Set();
    /** @type {number[]} */
    this.seen = [];
    this.openBlocks();
  }

  /** The model itself is the section, unless nothing is inside it. */
  get top() { return this.rows.length > 1 ? 1 : 0; }

  /** Open as many levels as make few rows. */
  openBlocks() {
    this.opened.clear();
    this.update();
    for (let depth = this.top; ; depth += 1) {
      const level = this.seen.filter((row) => this.rows[row].depth === depth && this.rows[row].hasInner && !this.rows[row].folded);
      if (!level.length) return;
      for (const row of level) this.opened.add(row);
      this.update();
      if (this.seen.length <= MAX_ROWS) continue;
      for (const row of level) this.opened.delete(row);
      this.update();
      return;
    }
  }

  openAll() {
    this.rows.forEach((row, at) => { if (row.hasInner) this.opened.add(at); });
    this.update();
  }

  get isAllOpen() { return this.rows.every((row, at) => !row.hasInner || at < this.top || this.opened.has(at)); }

  /** @param {number} row */
  toggle(row) {
    if (!this.opened.delete(row)) this.opened.add(row);
    this.update();
  }

  /** Open what a row is in. @param {number} row */
  reveal(row) {
    for (let at = this.rows[row].parent; at !== null; at = this.rows[at].parent) this.opened.add(at);
    this.update();
  }

  /** A row, or else the closed one that it is in. @param {number} row */
  visible(row) {
    let found = row;
    for (let at = this.rows[row].parent; at !== null && at >= this.top; at = this.rows[at].parent) if (!this.opened.has(at)) found = at;
    return found;
  }

  /** Work out which rows are seen. */
  update() {
    this.seen = [];
    let closedAbove = Infinity;
    for (let at = this.top; at < this.rows.length; at += 1) {
      const row = this.rows[at];
      if (row.depth > closedAbove) continue;
      closedAbove = row.hasInner && !this.opened.has(at) ? row.depth : Infinity;
      this.seen.push(at);
    }
  }

  /** How far a row is indented. @param {number} row */
  level(row) { return this.rows[row].depth - (this.top ? 1 : 0); }

  /** The next row inside or around; undefined: there is none. @param {number} row @param {string} key @returns {number | undefined} */
  neighbor(row, key) {
    const place = this.seen.indexOf(row);
    const page = 12;
    const last = this.seen.length - 1;
    const moves = /** @type {Record<string, number>} */ ({ ArrowDown: place + 1, ArrowUp: place - 1, PageDown: Math.min(last, place + page), PageUp: Math.max(0, place - page), Home: 0, End: last });
    return this.seen[moves[key] ?? -1];
  }
}
