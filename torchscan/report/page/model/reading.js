// Which calls read the output of which others, as the edges of the graph say.

import { callsOf } from "./measured.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{row: number, at: number}} Call of a row, which may stand for several equal calls */

export class Reading {
  /** @param {any} data of the page @param {Map<string, number>} rowsByKey */
  constructor(data, rowsByKey) {
    this.rows = data.rows;
    this.levels = data.levels;
    this.rowsByKey = rowsByKey;
  }

  /** The calls whose output a call takes as it is, with no operator in between. @param {string} key @returns {string[]} */
  sourcesOf(key) {
    const row = this.rowsByKey.get(key);
    if (row === undefined) return [];
    const at = callsOf(this.rows[row]).indexOf(key);
    return at < 0 ? [] : this.sources({ row, at });
  }

  /** @param {Call} call @returns {string[]} */
  sources({ row, at }) {
    const { in: above, repeats } = this.rows[row];
    if (at % repeats) return this.producers({ row, at: at - 1 }); // equal ones in one box read from each other
    if (above === null) return [];
    const level = this.levels[this.rows[above].level];
    const node = this.nodeOf(level, row), place = Math.floor(at / repeats);
    return this.before(level, node).flatMap((source) => {
      const { kind, row: other } = level.nodes[source];
      if (kind === "input") return this.isOnly(level, "input") ? this.sources({ row: above, at: place }) : [];
      return other === undefined ? [] : this.producers(this.lastOf(other, place));
    });
  }

  /** A call, and those in it whose output it returns. @param {Call} call @returns {string[]} */
  producers({ row, at }) {
    const key = callsOf(this.rows[row])[at], level = this.levels[this.rows[row].level];
    if (key === undefined) return [];
    if (level === undefined || !this.isOnly(level, "output")) return [key];
    const output = level.nodes.findIndex((/** @type {any} */ node) => node.kind === "output");
    const inner = this.before(level, output).flatMap((source) => {
      const { row: other } = level.nodes[source];
      return other === undefined ? [] : this.producers(this.lastOf(other, at));
    });
    return [key, ...inner];
  }

  /** The last of the equal calls that a row has for a call of the row above. @param {number} row @param {number} place @returns {Call} */
  lastOf(row, place) {
    const { repeats } = this.rows[row];
    return { row, at: place * repeats + repeats - 1 };
  }

  /** @param {any} level @param {number} row */
  nodeOf(level, row) { return level?.nodes.findIndex((/** @type {any} */ node) => node.row === row) ?? -1; }

  /** @param {any} level @param {number} node @returns {number[]} */
  before(level, node) {
    const edges = level?.edges.filter((/** @type {any} */ edge) => edge[1] === node) ?? [];
    return edges.map((/** @type {any} */ edge) => edge[0]);
  }

  /** @param {any} level @param {string} kind */
  isOnly(level, kind) {
    return level.nodes.filter((/** @type {any} */ node) => node.kind === kind).length === 1;
  }
}
