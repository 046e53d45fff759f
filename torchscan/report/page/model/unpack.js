// The training part of a run's page as it comes: compressed arrays, and what they are here.

/** @typedef {{steps: number[], times: number[], losses: (number | null)[], rates: (number | null)[], norms: (number | null)[]}} Curve */
/** @typedef {{name: string, key: string, type: string, parent: number | null, depth: number, folded: number, hasInner: boolean}} LayerRow */
/**
 * @typedef {object} Quantity
 * @property {Map<number, Float32Array>} rows values by column; what is counted only now and then holds until it is counted again
 * @property {Map<number, Float32Array>} counted the same, NaN where it was not counted
 * @property {number} every it is counted in one of so many columns
 */
/**
 * @typedef {object} Arrays
 * @property {Curve} curve
 * @property {LayerRow[]} rows
 * @property {number[]} first the first step of each column
 * @property {number[]} last
 * @property {number[]} until the step that each column reaches
 * @property {Map<string, Quantity>} quantities
 * @property {Map<number, Uint8Array>} wrong rows with values that are not finite: 1 in outputs, 2 in gradients, 4 in weights
 */

/** @type {Arrays} before there are any */
export const NO_ARRAYS = { curve: { steps: [], times: [], losses: [], rates: [], norms: [] }, rows: [], first: [], last: [], until: [], quantities: new Map(), wrong: new Map() };

const FIRST_CODE = 2;
const LAST_CODE = 65535;

/** @param {string} packed @returns {Promise<Arrays>} */
export async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = new DataView(data.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + size)));
  const width = header.first.length;
  let at = 4 + size;
  /** @type {Map<string, Quantity>} */
  const quantities = new Map();
  for (const { name, rows, low, high } of header.quantities) {
    /** @type {Map<number, Float32Array>} */
    const counted = new Map();
    for (const row of rows) {
      counted.set(row, decode(data.subarray(at, at + 2 * width), low, high));
      at += 2 * width;
    }
    quantities.set(name, held(counted));
  }
  const wrong = new Map();
  for (const row of header.wrong) {
    wrong.set(row, data.slice(at, at + width));
    at += width;
  }
  const { curve } = header;
  return {
    curve: {
      steps: addUp(curve.steps),
      times: curve.times,
      losses: curve.losses.map(toNumber),
      rates: curve.rates.map(toNumber),
      norms: curve.norms.map(toNumber),
    },
    rows: readRows(header.rows),
    first: addUp(header.first),
    last: addUp(header.last),
    until: addUp(header.until),
    quantities,
    wrong,
  };
}

/** Values whose logarithms are evenly spaced; NaN where there is none. @param {Uint8Array} codes @param {number} low @param {number} high */
function decode(codes, low, high) {
  const width = codes.length / 2;
  const values = new Float32Array(width);
  const scale = (high - low) / (LAST_CODE - FIRST_CODE);
  for (let at = 0; at < width; at += 1) {
    const code = codes[at] + 256 * codes[width + at];
    if (code >= FIRST_CODE) values[at] = 10 ** (low + scale * (code - FIRST_CODE));
    else values[at] = code ? 0 : NaN;
  }
  return values;
}

/** A value that is counted in every sixteenth step, for example, holds until the next one. @param {Map<number, Float32Array>} counted @returns {Quantity} */
function held(counted) {
  /** @type {Map<number, Float32Array>} */
  const rows = new Map();
  let every = 1;
  for (const [row, values] of counted) {
    const known = [...values.keys()].filter((at) => !Number.isNaN(values[at]));
    const gaps = known.slice(1).map((at, place) => at - known[place]).sort((one, other) => one - other);
    const usual = gaps[gaps.length >> 1] ?? 1;
    const found = usual > 1 ? values.slice() : values;
    if (usual > 1) known.forEach((at, place) => found.fill(values[at], at, Math.min(known[place + 1] ?? values.length, at + 2 * usual)));
    rows.set(row, found);
    every = Math.max(every, usual);
  }
  return { rows, counted, every };
}

/** @param {number | string | null} value */
export function toNumber(value) {
  if (typeof value !== "string") return value;
  return value === "NaN" ? NaN : value === "Inf" ? Infinity : -Infinity;
}

/** @param {number[]} differences */
export function addUp(differences) {
  let sum = 0;
  return differences.map((each) => (sum += each));
}

/** @param {[string, string, string, number | null, number][]} rows @returns {LayerRow[]} */
function readRows(rows) {
  /** @type {LayerRow[]} */
  const found = [];
  for (const [name, key, type, parent, folded] of rows) {
    const depth = parent === null ? 0 : found[parent].depth + 1;
    if (parent !== null) found[parent].hasInner = true;
    found.push({ name, key, type, parent, depth, folded, hasInner: false });
  }
  return found;
}
