// Ranges of a level's nodes that stand in one box each, so that a level of thousands can be drawn and read.

/** @typedef {{first: number, last: number}} Range positions of nodes, both included */
/** @typedef {{kind: string, name: string}} LevelNode */

/** nodes of an opened range that are shown one by one, at most */
const ONE_BY_ONE = 50;
/** ranges that a range opens into, at most */
const NUM_PARTS = 12;
/** nodes in a range, at least: two boxes say more than a range of two */
const SHORTEST = 3;

/** @typedef {{nodes: any[], edges: [number, number, ...any[]][]}} Level */

/** @type {WeakMap<Level, Level>} */
const sorted = new WeakMap();

/**
 * Return a level whose nodes come after all that they read: boxes of several operators may not. So ranges of nodes
 * have no cycles between them. Elsewhere the order stays.
 * @param {Level} level @returns {Level}
 */
export function inOrder(level) {
  const known = sorted.get(level);
  if (known) return known;
  const order = orderOf(level);
  const places = new Map(order.map((node, place) => [node, place]));
  const placeOf = (/** @type {number} */ node) => places.get(node) ?? 0;
  const isSorted = order.every((node, place) => node === place);
  const found = isSorted ? level : {
    nodes: order.map((node) => level.nodes[node]),
    edges: level.edges.map(([source, target, ...rest]) => /** @type {[number, number, ...any[]]} */ ([placeOf(source), placeOf(target), ...rest])),
  };
  sorted.set(level, found);
  return found;
}

/** @param {Level} level */
function orderOf({ nodes, edges }) {
  const sources = nodes.map(() => /** @type {number[]} */ ([]));
  for (const [source, target] of edges) sources[target].push(source);
  /** @type {number[]} */
  const order = [];
  const begun = new Set();
  const done = new Set();
  for (let first = 0; first < nodes.length; first += 1) {
    const waiting = [first];
    while (waiting.length) {
      const node = waiting[waiting.length - 1];
      const missing = begun.has(node) ? [] : sources[node].filter((source) => !begun.has(source));
      begun.add(node);
      waiting.push(...missing.reverse());
      if (missing.length) continue;
      waiting.pop();
      if (!done.has(node)) order.push(node);
      done.add(node);
    }
  }
  return order;
}

/**
 * Return what is drawn of the nodes from `first` to `last`: in order, a single node being a range of one.
 * @param {LevelNode[]} nodes @param {Range} whole @param {number} limit of boxes @returns {Range[]}
 */
export function foldRange(nodes, whole, limit) {
  const singles = singlesOf(whole);
  if (singles.length <= limit) return singles;
  const runs = runsOf(nodes, whole).filter((run) => lengthOf(run) >= SHORTEST);
  runs.sort((one, other) => lengthOf(other) - lengthOf(one));
  /** @type {Range[]} */
  const folded = [];
  let number = singles.length;
  for (const run of runs) {
    if (number <= limit) break;
    const room = limit - (number - lengthOf(run));
    const parts = room > 1 ? partsOf(nodes, run, room) : [run];
    folded.push(...parts);
    number += parts.length - lengthOf(run);
  }
  const found = withSingles(whole, folded);
  return found.length <= limit ? found : chunked(nodes, found, limit);
}

/** Return what an opened range shows. @param {LevelNode[]} nodes @param {Range} range @returns {Range[]} */
export function openRange(nodes, range) {
  return lengthOf(range) <= ONE_BY_ONE ? singlesOf(range) : partsOf(nodes, range, NUM_PARTS);
}

/** @param {Range} range */
export function lengthOf(range) { return range.last - range.first + 1; }

/** `layers.12 … 2399` of the first and the last name. @param {string} first @param {string} last */
export function fromTo(first, last) {
  const inFront = last.slice(0, last.lastIndexOf(".") + 1);
  const isShared = inFront && first.startsWith(inFront);
  return `${first} … ${isShared ? last.slice(inFront.length) : last}`;
}

/** Positions of modules, or of all nodes if there are none. @param {LevelNode[]} nodes @param {Range} range */
export function modulesIn(nodes, range) {
  const all = singlesOf(range).map((each) => each.first);
  const modules = all.filter((at) => nodes[at].kind === "module");
  return modules.length ? modules : all;
}

/** @param {Range} range @returns {Range[]} */
function singlesOf({ first, last }) {
  return Array.from({ length: last - first + 1 }, (_, at) => ({ first: first + at, last: first + at }));
}

/** @param {Range} whole @param {Range[]} folded @returns {Range[]} */
function withSingles(whole, folded) {
  const starts = new Map(folded.map((range) => [range.first, range]));
  const found = [];
  for (let at = whole.first; at <= whole.last;) {
    const range = starts.get(at) ?? { first: at, last: at };
    found.push(range);
    at = range.last + 1;
  }
  return found;
}

/**
 * Members of one list that follow each other, with the operators between them.
 * @param {LevelNode[]} nodes @param {Range} whole @returns {Range[]}
 */
function runsOf(nodes, whole) {
  /** @type {Range[]} */
  const runs = [];
  let stem = "";
  for (let at = whole.first; at <= whole.last; at += 1) {
    if (nodes[at].kind !== "module") {
      if (nodes[at].kind === "output" || nodes[at].kind === "input") stem = "";
      continue;
    }
    const own = nodes[at].name.replace(/\d+/g, "#");
    if (own === stem) runs[runs.length - 1].last = at;
    else runs.push({ first: at, last: at });
    stem = own;
  }
  return runs;
}

/**
 * A long run in equal ranges; of one that nearly fits, only the middle.
 * @param {LevelNode[]} nodes @param {Range} run @param {number} room @returns {Range[]}
 */
function partsOf(nodes, run, room) {
  const modules = modulesIn(nodes, run);
  const length = lengthOf(run);
  if (length <= 3 * room && room >= SHORTEST) return middleFolded(run, room);
  const size = roundSize(modules.length, Math.min(room, NUM_PARTS));
  /** @type {Range[]} */
  const parts = [];
  for (let at = 0; at < modules.length; at += size) {
    const next = modules[at + size];
    parts.push({ first: at === 0 ? run.first : modules[at], last: next === undefined ? run.last : next - 1 });
  }
  return parts;
}

/** @param {Range} run @param {number} room @returns {Range[]} */
function middleFolded(run, room) {
  const ahead = Math.ceil((room - 1) / 2);
  const behind = room - 1 - ahead;
  const middle = { first: run.first + ahead, last: run.last - behind };
  return withSingles(run, [middle]);
}

/** 1, 2 or 5 times a power of ten, so that ranges begin at round numbers. @param {number} number @param {number} limit */
function roundSize(number, limit) {
  for (let power = 1; ; power *= 10) {
    for (const digit of [1, 2, 5]) if (Math.ceil(number / (digit * power)) <= limit) return digit * power;
  }
}

/**
 * Neighbors together, whatever they are; what goes in and out stays.
 * @param {LevelNode[]} nodes @param {Range[]} items @param {number} limit @returns {Range[]}
 */
function chunked(nodes, items, limit) {
  const isEnd = (/** @type {Range} */ item) => nodes[item.first].kind === "input" || nodes[item.last].kind === "output";
  let from = 0;
  let to = items.length;
  while (from < to && isEnd(items[from])) from += 1;
  while (to > from && isEnd(items[to - 1])) to -= 1;
  if (from > limit || items.length - to > limit) { from = 0; to = items.length; }
  const between = items.slice(from, to);
  const room = Math.max(1, limit - from - (items.length - to));
  const whole = { first: between[0].first, last: between[between.length - 1].last };
  if (between.length <= 3 * room && room >= SHORTEST) {
    const ahead = Math.ceil((room - 1) / 2);
    const behind = room - 1 - ahead;
    const middle = { first: between[ahead].first, last: between[between.length - 1 - behind].last };
    const kept = between.filter((item) => item.last < middle.first || item.first > middle.last);
    return withSingles({ first: items[0].first, last: items[items.length - 1].last }, [...items.slice(0, from), middle, ...kept, ...items.slice(to)]);
  }
  const parts = partsOf(nodes, whole, Math.min(room, NUM_PARTS));
  return [...items.slice(0, from), ...parts, ...items.slice(to)];
}
