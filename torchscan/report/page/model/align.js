// Two plans of the same level, moved so that what is the same in both stands at the same height.

/** @typedef {import("./plan.js").Box} Box */
/** @typedef {import("./plan.js").Plan} Plan */
/** @typedef {(box: Box) => number[]} Joints the numbers of the layers in a box, which both sides share */
/** Boxes beside each other. @typedef {{middle: number, tall: number, boxes: number[]}} Band */

/** pixels between two bands, if a plan has one only */
const GAP = 20;

/**
 * Move the boxes and lines of both plans, and of what is open in them, and make the plans equally tall. Both have one
 * scale of colors.
 * @param {Plan} one @param {Plan} other @param {[Joints, Joints]} joints of each side
 */
export function alignPlans(one, other, joints) {
  const plans = [one, other];
  one.beside = other;
  other.beside = one;
  const pairs = pairsOf(one, other, joints);
  const bands = plans.map(bandsOf);
  const old = bands.map((each) => each.map((band) => ({ ...band })));
  const gap = Math.max(...bands.map(gapOf));
  for (const [first, second] of pairs) alignInside(one.boxes[first], other.boxes[second], joints);
  plans.forEach((plan, side) => {
    for (const band of bands[side]) band.tall = Math.max(...band.boxes.map((at) => plan.boxes[at].size.tall));
  });
  const tall = place(bands, chainOf(pairs, bands), gap);
  plans.forEach((plan, side) => move(plan, old[side], bands[side], tall));
}

/** Make both plans equally large: the narrower one stands in the middle. @param {Plan[]} plans */
export function center(plans) {
  const wide = Math.max(...plans.map((plan) => plan.size.wide));
  const tall = Math.max(...plans.map((plan) => plan.size.tall));
  for (const plan of plans) {
    const shift = (wide - plan.size.wide) / 2;
    for (const point of [...plan.layout.places, ...plan.layout.ways.flat()]) point[0] += shift;
    resize(plan, wide, tall);
  }
}

/** @param {Plan} plan @param {number} wide @param {number} tall */
function resize(plan, wide, tall) { plan.size = plan.layout.size = { wide, tall }; }

/** Boxes that grow with what is open in them. @param {Box} one @param {Box} other @param {[Joints, Joints]} joints */
function alignInside(one, other, joints) {
  if (!one.inside || !other.inside) return;
  const before = [one, other].map((box) => box.inside?.size.tall ?? 0);
  alignPlans(one.inside, other.inside, joints);
  [one, other].forEach((box, side) => { box.size.tall += (box.inside?.size.tall ?? 0) - before[side]; });
}

/** Boxes of the same layers, and others of the same kind and name. @param {Plan} one @param {Plan} other @param {[Joints, Joints]} joints @returns {[number, number][]} */
function pairsOf(one, other, joints) {
  /** @type {Map<string, number>} */
  const known = new Map();
  one.boxes.forEach((box, at) => { for (const key of keysOf(one, at, joints[0](box))) known.set(key, at); });
  const taken = new Set();
  return other.boxes.flatMap((box, at) => {
    const found = keysOf(other, at, joints[1](box)).map((key) => known.get(key)).find((each) => each !== undefined && !taken.has(each));
    if (found === undefined) return [];
    taken.add(found);
    return [/** @type {[number, number]} */ ([found, at])];
  });
}

/** @param {Plan} plan @param {number} at @param {number[]} joints */
function keysOf({ boxes }, at, joints) {
  if (joints.length) return joints.map(String);
  const { kind, name } = boxes[at];
  const before = boxes.slice(0, at).filter((box) => box.kind === kind && box.name === name).length;
  const only = boxes.filter((box) => box.kind === kind).length === 1;
  return [...(only ? [kind] : []), `${kind} ${name} ${before}`];
}

/** @param {Plan} plan @returns {Band[]} from the top down */
function bandsOf({ boxes, layout }) {
  /** @type {Band[]} */
  const bands = [];
  const order = boxes.map((_, at) => at).sort((a, b) => layout.places[a][1] - layout.places[b][1]);
  for (const at of order) {
    const middle = layout.places[at][1], { tall } = boxes[at].size, last = bands[bands.length - 1];
    if (last && Math.abs(last.middle - middle) < 0.5) {
      last.boxes.push(at);
      last.tall = Math.max(last.tall, tall);
    } else bands.push({ middle, tall, boxes: [at] });
  }
  return bands;
}

/** @param {Band[]} bands */
function gapOf(bands) {
  const [first, second] = bands;
  return second ? Math.max(0, second.middle - second.tall / 2 - first.middle - first.tall / 2) : GAP;
}

/** The longest sequence of bands that are the same on both sides, in the order of both. @param {[number, number][]} pairs @param {Band[][]} bands */
function chainOf(pairs, bands) {
  const bandOf = bands.map((each) => new Map(each.flatMap((band, number) => band.boxes.map((at) => /** @type {[number, number]} */ ([at, number])))));
  const found = pairs.map(([one, other]) => [bandOf[0].get(one) ?? 0, bandOf[1].get(other) ?? 0]);
  found.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  /** @type {{length: number, before: number}[]} */
  const best = [];
  found.forEach(([one, other], at) => {
    best.push({ length: 1, before: -1 });
    for (let before = 0; before < at; before += 1) {
      const isAbove = found[before][0] < one && found[before][1] < other;
      if (isAbove && best[before].length + 1 > best[at].length) best[at] = { length: best[before].length + 1, before };
    }
  });
  let last = best.reduce((most, each, at) => (most < 0 || each.length > best[most].length ? at : most), -1);
  const chain = [];
  for (; last >= 0; last = best[last].before) chain.unshift(found[last]);
  return chain;
}

/** Set where each band is, and how tall. @param {Band[][]} bands @param {number[][]} chain @param {number} gap @returns {number} the height of all */
function place(bands, chain, gap) {
  const down = [0, 0];
  const reached = [0, 0];
  const put = (/** @type {number} */ side, /** @type {number} */ until) => {
    for (; reached[side] < until; reached[side] += 1) {
      const band = bands[side][reached[side]];
      band.middle = down[side] + band.tall / 2;
      down[side] += band.tall + gap;
    }
  };
  for (const both of chain) {
    both.forEach((until, side) => put(side, until));
    const top = Math.max(...down);
    const tall = Math.max(...both.map((number, side) => bands[side][number].tall));
    both.forEach((number, side) => {
      Object.assign(bands[side][number], { middle: top + tall / 2, tall });
      down[side] = top + tall + gap;
      reached[side] = number + 1;
    });
  }
  bands.forEach((each, side) => put(side, each.length));
  return Math.max(0, Math.max(...down) - gap);
}

/** Move boxes with their bands, and the bends of lines with the borders of bands. @param {Plan} plan @param {Band[]} old @param {Band[]} bands @param {number} tall */
function move(plan, old, bands, tall) {
  const { places, ways } = plan.layout;
  const moved = (/** @type {number} */ y) => {
    const at = old.findIndex((band) => Math.abs(y - band.middle) <= band.tall / 2 + 0.5);
    if (at < 0) return y;
    return bands[at].middle + Math.sign(y - old[at].middle) * bands[at].tall / 2;
  };
  for (const way of ways) for (const point of way.slice(1, -1)) point[1] = moved(point[1]);
  for (const band of bands) for (const at of band.boxes) places[at][1] = band.middle;
  plan.edges.forEach(({ source, target }, at) => {
    const way = ways[at];
    way[0][1] = places[source][1] + plan.boxes[source].size.tall / 2;
    way[way.length - 1][1] = places[target][1] - plan.boxes[target].size.tall / 2;
  });
  resize(plan, plan.size.wide, tall);
}
