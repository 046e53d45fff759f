// Where the boxes of a graph stand: in layers, each below all that it reads. The same as in Python, since boxes open in place.

const GAP = 22, LINE_GAP = 14, LAYER_GAP = 28, SWEEPS = 12;
/** pixels of a row of boxes without lines, at most */
const WIDEST = 900;

import { least, most } from "./format.js";

/** @typedef {{wide: number, tall: number}} Size */
/** @typedef {[number, number]} Point */

/**
 * @param {Size[]} sizes
 * @param {[number, number][]} edges from earlier boxes to later ones
 * @param {number} [layerGap] pixels between two layers
 * @returns {{places: Point[], ways: Point[][], size: Size, ranks: number[]}}
 */
export function laidOut(sizes, edges, layerGap = LAYER_GAP) {
  const ranks = ranksOf(sizes.length, edges);
  const { chains, layers, below } = withBends(ranks, edges);
  order(layers, below);
  const wide = [...sizes.map((size) => size.wide), ...Array(layers.flat().length - sizes.length).fill(0)];
  const gap = (/** @type {number} */ one, /** @type {number} */ other) => (wide[one] + wide[other]) / 2 + (wide[one] || wide[other] ? GAP : LINE_GAP);
  const x = across(layers, turned(below), below, gap, sizes.length);
  const left = least(x.map((place, at) => place - wide[at] / 2));
  const moved = x.map((place) => place - left);
  const tall = layers.map((layer) => most(layer.filter((at) => at < sizes.length).map((at) => sizes[at].tall), 0));
  /** @type {number[]} */
  const y = [];
  let down = 0;
  for (const each of tall) { y.push(down + each / 2); down += each + layerGap; }
  const rankOf = new Map(layers.flatMap((layer, rank) => layer.map((node) => /** @type {[number, number]} */ ([node, rank]))));
  const at = (/** @type {number} */ node) => y[rankOf.get(node) ?? 0];
  const half = (/** @type {number} */ node) => tall[rankOf.get(node) ?? 0] / 2;
  const ways = chains.map((chain) => wayOf(chain.map((node) => [moved[node], at(node), half(node)]), sizes[chain[0]].tall / 2, sizes[chain[chain.length - 1]].tall / 2));
  const right = most(moved.map((place, node) => place + wide[node] / 2), 0);
  return {
    places: sizes.map((_, node) => /** @type {Point} */ ([moved[node], at(node)])),
    ways, ranks, size: { wide: right, tall: Math.max(0, down - layerGap) },
  };
}

/**
 * The same, but boxes without lines stand in rows below the others once they are too many for one row.
 * @param {Size[]} sizes @param {[number, number][]} edges from earlier boxes to later ones
 * @param {{gap?: number, room?: number}} [pixels] between two layers, and of a row of boxes without lines
 * @returns {{places: Point[], ways: Point[][], size: Size}}
 */
export function arranged(sizes, edges, { gap = LAYER_GAP, room = WIDEST } = {}) {
  const linked = new Set(edges.flat());
  const all = sizes.map((_, node) => node);
  const alone = all.filter((node) => !linked.has(node));
  const others = all.filter((node) => linked.has(node));
  const rowWidth = alone.reduce((sum, node) => sum + sizes[node].wide + GAP, 0);
  if (rowWidth <= room) return laidOut(sizes, edges, gap);

  const numbers = new Map(others.map((node, at) => [node, at]));
  const numberOf = (/** @type {number} */ node) => numbers.get(node) ?? 0;
  const inner = edges.map(([source, target]) => /** @type {[number, number]} */ ([numberOf(source), numberOf(target)]));
  const above = laidOut(others.map((node) => sizes[node]), inner, gap);
  const widest = Math.max(room, above.size.wide);
  const places = /** @type {Point[]} */ (Array(sizes.length));
  others.forEach((node, at) => { places[node] = above.places[at]; });
  let right = 0;
  let x = 0;
  let y = others.length ? above.size.tall + gap : 0;
  let tall = 0;
  for (const node of alone) {
    const size = sizes[node];
    if (x && x + size.wide > widest) {
      x = 0;
      y += tall + Math.min(gap, GAP);
      tall = 0;
    }
    places[node] = [x + size.wide / 2, y + size.tall / 2];
    x += size.wide + GAP;
    tall = Math.max(tall, size.tall);
    right = Math.max(right, x - GAP);
  }
  return { places, ways: above.ways, size: { wide: Math.max(right, above.size.wide), tall: y + tall } };
}

/**
 * Straight down through each layer, so that lines bend between the boxes alone.
 * @param {number[][]} chain the place of each node, and half the height of its layer @param {number} first half of the box @param {number} last
 * @returns {Point[]}
 */
function wayOf(chain, first, last) {
  const points = chain.flatMap(([x, y, half], at) => /** @type {Point[]} */ ([[x, at === 0 ? y + first : y - half], [x, at === chain.length - 1 ? y - last : y + half]]));
  return points.filter(([x, y], at) => at === points.length - 1 || x !== points[at + 1][0] || y !== points[at + 1][1]);
}

/** @param {number} number @param {[number, number][]} edges */
function ranksOf(number, edges) {
  const into = Array.from({ length: number }, () => /** @type {number[]} */ ([]));
  const out = Array.from({ length: number }, () => /** @type {number[]} */ ([]));
  for (const [source, target] of edges) { into[target].push(source); out[source].push(target); }
  const ranks = Array(number).fill(0), waiting = into.map((each) => each.length);
  const ready = waiting.flatMap((each, at) => (each ? [] : [at]));
  for (const at of ready) {
    ranks[at] = most(into[at].map((source) => ranks[source] + 1), 0);
    for (const target of out[at]) if (!(waiting[target] -= 1)) ready.push(target);
  }
  for (let at = 0; at < number; at += 1) {
    if (!into[at].length && out[at].length) ranks[at] = least(out[at].map((target) => ranks[target])) - 1;
  }
  return ranks;
}

/** @param {number[]} ranks @param {[number, number][]} edges */
function withBends(ranks, edges) {
  const layers = Array.from({ length: most(ranks, -1) + 1 }, () => /** @type {number[]} */ ([]));
  ranks.forEach((rank, at) => layers[rank].push(at));
  /** @type {Map<number, number[]>} */
  const below = new Map();
  let number = ranks.length;
  const chains = edges.map(([source, target]) => {
    const chain = [source];
    for (let rank = ranks[source] + 1; rank < ranks[target]; rank += 1) { layers[rank].push(number); chain.push(number); number += 1; }
    chain.push(target);
    chain.slice(1).forEach((other, at) => below.set(chain[at], [...(below.get(chain[at]) ?? []), other]));
    return chain;
  });
  return { chains, layers, below };
}

/** @param {Map<number, number[]>} below */
function turned(below) {
  /** @type {Map<number, number[]>} */
  const above = new Map();
  for (const [one, others] of below) for (const other of others) above.set(other, [...(above.get(other) ?? []), one]);
  return above;
}

/** @param {number[][]} layers @param {Map<number, number[]>} below */
function order(layers, below) {
  const above = turned(below);
  let best = layers.map((layer) => [...layer]), fewest = crossings(layers, below);
  for (let sweep = 0; sweep < SWEEPS && fewest; sweep += 1) {
    const isDown = sweep % 2 === 0, last = layers.length - 1;
    for (let step = 1; step <= last; step += 1) {
      const rank = isDown ? step : last - step;
      sort(layers[rank], layers[isDown ? rank - 1 : rank + 1], isDown ? above : below);
    }
    const found = crossings(layers, below);
    if (found < fewest) { best = layers.map((layer) => [...layer]); fewest = found; }
  }
  best.forEach((layer, rank) => { layers[rank] = layer; });
}

/** @param {number[]} layer @param {number[]} fixed @param {Map<number, number[]>} neighbours */
function sort(layer, fixed, neighbours) {
  const at = new Map(fixed.map((node, place) => [node, place]));
  const means = new Map(layer.map((node, place) => {
    const near = (neighbours.get(node) ?? []).flatMap((each) => at.get(each) ?? []);
    return [node, near.length ? near.reduce((sum, each) => sum + each, 0) / near.length : place * fixed.length / layer.length];
  }));
  layer.sort((one, other) => (means.get(one) ?? 0) - (means.get(other) ?? 0));
}

/** @param {number[][]} layers @param {Map<number, number[]>} below */
function crossings(layers, below) {
  let found = 0;
  for (let rank = 0; rank + 1 < layers.length; rank += 1) {
    const lower = layers[rank + 1], at = new Map(lower.map((node, place) => [node, place])), sums = Array(lower.length + 1).fill(0);
    const ends = layers[rank].flatMap((node) => (below.get(node) ?? []).flatMap((each) => at.get(each) ?? []).sort((a, b) => a - b));
    ends.forEach((end, number) => {
      let smaller = 0;
      for (let place = end + 1; place; place -= place & -place) smaller += sums[place];
      found += number - smaller;
      for (let place = end + 1; place < sums.length; place += place & -place) sums[place] += 1;
    });
  }
  return found;
}

// After Brandes and Köpf, "Fast and simple horizontal coordinate assignment" (2001).

/**
 * @param {number[][]} layers @param {Map<number, number[]>} above @param {Map<number, number[]>} below
 * @param {(one: number, other: number) => number} gap @param {number} bends nodes from this number on are bends
 */
function across(layers, above, below, gap, bends) {
  const crossed = crossedBy(layers, above, bends);
  /** @type {Map<number, number>[]} */
  const found = [];
  for (const [ordered, neighbours] of /** @type {[number[][], Map<number, number[]>][]} */ ([[layers, above], [[...layers].reverse(), below]])) {
    for (const isLeft of [true, false]) {
      const turnedLayers = isLeft ? ordered : ordered.map((layer) => [...layer].reverse());
      const x = compacted(turnedLayers, aligned(turnedLayers, neighbours, crossed), gap);
      found.push(isLeft ? x : new Map([...x].map(([node, place]) => [node, -place])));
    }
  }
  return balanced(found, layers.flat().length);
}

/** @param {number[][]} layers @param {Map<number, number[]>} above @param {number} bends */
function crossedBy(layers, above, bends) {
  /** @type {Set<string>} */
  const crossed = new Set();
  for (let rank = 0; rank + 1 < layers.length; rank += 1) {
    const upper = layers[rank], lower = layers[rank + 1], at = new Map(upper.map((node, place) => [node, place]));
    let begin = 0, left = 0;
    lower.forEach((node, place) => {
      const inner = (above.get(node) ?? []).find((each) => node >= bends && each >= bends);
      if (inner === undefined && place < lower.length - 1) return;
      const right = inner === undefined ? upper.length : at.get(inner) ?? 0;
      for (const other of lower.slice(begin, place + 1)) {
        for (const source of above.get(other) ?? []) {
          const where = at.get(source) ?? 0;
          if (!(other >= bends && source >= bends) && !(left <= where && where <= right)) crossed.add(`${source} ${other}`);
        }
      }
      begin = place + 1; left = right;
    });
  }
  return crossed;
}

/** @param {number[][]} layers @param {Map<number, number[]>} neighbours @param {Set<string>} crossed */
function aligned(layers, neighbours, crossed) {
  const heads = new Map(layers.flat().map((node) => [node, node])), taken = new Set();
  const places = new Map(layers.flatMap((layer) => layer.map((node, place) => /** @type {[number, number]} */ ([node, place]))));
  const placeOf = (/** @type {number} */ node) => places.get(node) ?? 0;
  for (const layer of layers) {
    let reached = -1;
    for (const node of layer) {
      const near = [...(neighbours.get(node) ?? [])].sort((one, other) => placeOf(one) - placeOf(other));
      for (const median of near.slice((near.length - 1) >> 1, (near.length >> 1) + 1)) {
        const isFree = heads.get(node) === node && !taken.has(median);
        if (isFree && reached < placeOf(median) && !crossed.has(`${median} ${node}`) && !crossed.has(`${node} ${median}`)) {
          heads.set(node, heads.get(median) ?? median);
          taken.add(median);
          reached = placeOf(median);
        }
      }
    }
  }
  return heads;
}

/** @param {number[][]} layers @param {Map<number, number>} heads @param {(one: number, other: number) => number} gap */
function compacted(layers, heads, gap) {
  /** @type {Map<number, Map<number, number>>} */
  const right = new Map(), left = new Map();
  const all = [...new Set(heads.values())];
  for (const head of all) { right.set(head, new Map()); left.set(head, new Map()); }
  const of = (/** @type {Map<number, Map<number, number>>} */ map, /** @type {number} */ head) => map.get(head) ?? new Map();
  for (const layer of layers) {
    for (let at = 0; at + 1 < layer.length; at += 1) {
      const a = heads.get(layer[at]) ?? 0, b = heads.get(layer[at + 1]) ?? 0, far = gap(layer[at], layer[at + 1]);
      of(right, a).set(b, Math.max(of(right, a).get(b) ?? 0, far));
      of(left, b).set(a, of(right, a).get(b));
    }
  }
  const waiting = new Map(all.map((head) => [head, of(left, head).size])), ready = all.filter((head) => !waiting.get(head));
  for (const head of ready) {
    for (const other of of(right, head).keys()) {
      waiting.set(other, (waiting.get(other) ?? 0) - 1);
      if (!waiting.get(other)) ready.push(other);
    }
  }
  /** @type {Map<number, number>} */
  const x = new Map();
  const at = (/** @type {number} */ head) => x.get(head) ?? 0;
  for (const head of ready) x.set(head, most([...of(left, head)].map(([each, far]) => at(each) + far), 0));
  for (const head of [...ready].reverse()) {
    const reach = [...of(right, head)].map(([each, far]) => at(each) - far);
    x.set(head, Math.max(at(head), reach.length ? least(reach) : at(head)));
  }
  return new Map([...heads].map(([node, head]) => [node, at(head)]));
}

/** @param {Map<number, number>[]} found @param {number} number */
function balanced(found, number) {
  const ends = found.map((x) => [least(x.values()), most(x.values())]);
  const [low, high] = ends.reduce((best, each) => (each[1] - each[0] < best[1] - best[0] ? each : best), ends[0]);
  const shifts = ends.map((each, at) => (at % 2 === 0 ? low - each[0] : high - each[1]));
  return Array.from({ length: number }, (_, node) => {
    const places = found.map((x, at) => (x.get(node) ?? 0) + shifts[at]).sort((one, other) => one - other);
    return (places[1] + places[2]) / 2;
  });
}
