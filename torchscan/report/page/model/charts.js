// Memory over a pass, and what limits operators: pictures that say which layer it is where one points.

import { make } from "./elements.js";
import { bytes, count, most, share } from "./format.js";

/** @typedef {{select: (path: string) => void, point: (event: Event | null, said: [string, string][]) => void}} On */

const TALL = 240, LEFT = 46, BOTTOM = 26, TOP = 18;

/** As wide as there is room, since what is drawn smaller cannot be read. @param {number} most */
function room(most) { return Math.max(300, Math.min(most, innerWidth - 60)); }

/** Round numbers up to the top. @param {number} top @param {number} number @returns {number[]} */
function ticks(top, number) {
  const step = 10 ** Math.floor(Math.log10(top / number || 1)), nice = [1, 2, 2.5, 5, 10].find((each) => top / (each * step) <= number) ?? 10;
  return Array.from({ length: Math.floor(top / (nice * step) + 1e-9) + 1 }, (_, at) => at * nice * step);
}

/** The kinds of memory that are held at an operator, and their bytes. @param {any} memory @param {number} at @returns {[string, number][]} */
function held(memory, at) {
  const sizes = memory.kinds.map((/** @type {string} */ kind, /** @type {number} */ place) => [kind, memory.sizes[place][at]]);
  return sizes.filter((/** @type {[string, number]} */ [, size]) => size);
}

/** What each color stands for, with the bytes at the peak; a kind that it lacks has its largest size. @param {any} memory @param {number} peak @returns {[string, string][]} */
function memoryKey(memory, peak) {
  const atPeak = held(memory, peak);
  const others = memory.kinds.flatMap((/** @type {string} */ kind, /** @type {number} */ place) => {
    const largest = most(memory.sizes[place], 0);
    return largest && !memory.sizes[place][peak] ? [[kind, largest]] : [];
  });
  return [...atPeak.map(([kind, size]) => /** @type {[string, string]} */ ([kind, `${kind} ${bytes(size)}`])),
    ...others.map((/** @type {[string, number]} */ [kind, size]) => /** @type {[string, string]} */ ([kind, `${kind} up to ${bytes(size)}, none at the peak`]))];
}

/** @param {any} memory @param {On} on */
export function memoryChart(memory, on) {
  const WIDE = room(660), number = memory.layers.length, unitOf = 1024 ** Math.max(0, Math.floor(Math.log(memory.peakBytes) / Math.log(1024)));
  const isShown = memory.capacity !== null && memory.capacity <= 2.5 * memory.peakBytes;
  const top = 1.12 * Math.max(memory.peakBytes, isShown ? memory.capacity : 0);
  const x = (/** @type {number} */ at) => LEFT + (WIDE - LEFT - 8) * at / number, y = (/** @type {number} */ size) => TALL - BOTTOM - (TALL - BOTTOM - TOP) * size / top;
  const svg = make("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, class: "chart", role: "img", "aria-label": `memory over the pass: peak ${bytes(memory.peakBytes)} in ${memory.peakLayer || "the model itself"}` });
  for (const tick of ticks(top / unitOf, 4)) {
    svg.append(make("line", { class: "grid", x1: LEFT, x2: WIDE - 8, y1: y(tick * unitOf), y2: y(tick * unitOf) }), make("text", { class: "soft", x: LEFT - 6, y: y(tick * unitOf) + 4, "text-anchor": "end" }, String(Number(tick.toPrecision(3)))));
  }
  const below = Array(number).fill(0);
  memory.kinds.forEach((/** @type {string} */ kind, /** @type {number} */ place) => {
    const from = [...below];
    memory.sizes[place].forEach((/** @type {number} */ size, /** @type {number} */ at) => { below[at] += size; });
    const upper = below.map((size, at) => `${x(at).toFixed(1)} ${y(size).toFixed(1)}L${x(at + 1).toFixed(1)} ${y(size).toFixed(1)}`);
    const lower = from.map((size, at) => `${x(at + 1).toFixed(1)} ${y(size).toFixed(1)}L${x(at).toFixed(1)} ${y(size).toFixed(1)}`).reverse();
    svg.append(make("path", { class: `on-${kind}`, d: `M${upper.join("L")}L${lower.join("L")}Z` }));
  });
  const operators = memory.phases.reduce((/** @type {number} */ sum, /** @type {[string, number]} */ [, length]) => sum + length, 0);
  let start = 0;
  for (const [name, length] of memory.phases) {
    const place = x(number * start / operators);
    if (start) svg.append(make("line", { class: "phase", x1: place, x2: place, y1: TOP, y2: TALL - BOTTOM }));
    svg.append(make("text", { class: "soft", x: place + (start ? 2 : 0), y: TALL - 8 }, name));
    start += length;
  }
  if (isShown) svg.append(make("line", { class: "limit", x1: LEFT, x2: WIDE - 8, y1: y(memory.capacity), y2: y(memory.capacity) }), make("text", { x: LEFT + 4, y: y(memory.capacity) - 4 }, `${bytes(memory.capacity)} for tensors on ${memory.device}`));
  const peak = memory.peak, named = `peak ${bytes(memory.peakBytes)}, ${memory.peakLayer || "the model itself"}`, most = Math.floor((WIDE - LEFT - 24) / 6.4);
  const said = named.length <= most ? named : `${named.slice(0, 20)}…${named.slice(21 - most)}`, isLate = x(peak + 0.5) + 7 + 6.4 * said.length > WIDE;
  svg.append(make("circle", { class: "peak", cx: x(peak + 0.5), cy: y(memory.peakBytes), r: 3.5 }),
    make("text", { x: isLate ? Math.max(x(peak + 0.5) - 7, LEFT + 6.4 * said.length) : x(peak + 0.5) + 7, y: y(memory.peakBytes) - 6, "text-anchor": isLate ? "end" : "start" }, said));
  const cursor = make("line", { class: "cursor", y1: TOP, y2: TALL - BOTTOM, visibility: "hidden" });
  svg.append(cursor);
  pointed(svg, WIDE, number, (at, event) => {
    cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at === null) { on.point(null, []); return; }
    cursor.setAttribute("x1", String(x(at + 0.5)));
    cursor.setAttribute("x2", String(x(at + 0.5)));
    const total = memory.kinds.reduce((/** @type {number} */ sum, /** @type {string} */ _, /** @type {number} */ place) => sum + memory.sizes[place][at], 0);
    on.point(event, [["", bytes(total)], ["layer", memory.layers[at] || "the model itself"], ["operator", memory.operators[at]],
      ...held(memory, at).map(([kind, size]) => /** @type {[string, string]} */ ([kind, bytes(size)]))]);
  }, (at) => on.select(memory.layers[at]));
  return { svg, unit: ["B", "KiB", "MiB", "GiB", "TiB"][Math.round(Math.log(unitOf) / Math.log(1024))], key: memoryKey(memory, peak) };
}

/** @param {any} svg @param {number} wide @param {number} number @param {(at: number | null, event: Event | null) => void} over @param {(at: number) => void} click */
function pointed(svg, wide, number, over, click) {
  const placeOf = (/** @type {PointerEvent} */ event) => {
    const box = svg.getBoundingClientRect(), inside = (event.clientX - box.x) / box.width * wide;
    const at = Math.floor((inside - LEFT) / (wide - LEFT - 8) * number);
    return at >= 0 && at < number ? at : null;
  };
  svg.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => over(placeOf(event), event));
  svg.addEventListener("pointerleave", () => over(null, null));
  svg.addEventListener("click", (/** @type {PointerEvent} */ event) => { const at = placeOf(event); if (at !== null) click(at); });
}

/** @param {any} roofline @param {On} on */
export function rooflineChart(roofline, on) {
  const wide = room(460), points = roofline.points, peaks = roofline.peaks.map((/** @type {[string, number]} */ [, peak]) => peak);
  const highest = Math.max(...peaks, ...points.map((/** @type {any} */ point) => point.y));
  const xs = [...points.map((/** @type {any} */ point) => point.x), ...peaks.map((/** @type {number} */ peak) => peak / roofline.bandwidth)];
  const [left, right] = [Math.min(...xs) / 2.5, 3 * Math.max(...xs)], low = Math.max(Math.min(...points.map((/** @type {any} */ point) => point.y)) / 2, highest / 1e6), high = 2.5 * highest;
  const x = (/** @type {number} */ value) => LEFT + (wide - LEFT - 8) * Math.log(value / left) / Math.log(right / left);
  const y = (/** @type {number} */ value) => TALL - BOTTOM - (TALL - BOTTOM - TOP) * Math.log(Math.max(value, low) / low) / Math.log(high / low);
  const svg = make("svg", { viewBox: `0 0 ${wide} ${TALL}`, class: "chart", role: "img", "aria-label": `roofline on ${roofline.device}: ${roofline.limits.map((/** @type {[string, number]} */ [name, part]) => `${name} ${share(part)}`).join(", ")} of the time` });
  for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high; power += 1) svg.append(make("line", { class: "grid", x1: LEFT, x2: wide - 8, y1: y(10 ** power), y2: y(10 ** power) }), make("text", { class: "soft", x: LEFT - 6, y: y(10 ** power) + 4, "text-anchor": "end" }, count(10 ** power).replace(/\.0+/, "")));
  for (let power = Math.ceil(Math.log10(left)); 10 ** power <= right; power += 1) svg.append(make("text", { class: "soft", x: x(10 ** power), y: TALL - 8, "text-anchor": "middle" }, String(Number((10 ** power).toPrecision(3)))));
  svg.append(make("path", { class: "roof", d: `M${x(Math.max(left, low / roofline.bandwidth)).toFixed(1)} ${y(Math.max(low, left * roofline.bandwidth)).toFixed(1)}L${x(highest / roofline.bandwidth).toFixed(1)} ${y(highest).toFixed(1)}` }));
  /** @type {Map<number, string[]>} */
  const names = new Map();
  for (const [name, peak] of roofline.peaks) names.set(peak, [...(names.get(peak) ?? []), name]);
  for (const [peak, forms] of names) svg.append(make("path", { class: "roof", d: `M${x(peak / roofline.bandwidth).toFixed(1)} ${y(peak).toFixed(1)}H${wide - 8}` }), make("text", { x: wide - 10, y: y(peak) - 5, "text-anchor": "end" }, `${count(peak)}FLOP/s ${forms.join(", ")}`));
  for (const point of points) {
    const said = /** @type {[string, string][]} */ ([["", point.layer || "the model itself"], ["operator", point.operator + (point.calls > 1 ? ` ×${point.calls}` : "")], ["of the time", share(point.share)], ["limited by", point.limiter], ["FLOPs per byte", point.x.toPrecision(3)], ["attained", `${count(point.y)}FLOP/s`]]);
    const drawn = make("circle", { class: `point on-${point.limiter}`, cx: x(point.x).toFixed(1), cy: y(point.y).toFixed(1), r: Math.max(2, 24 * Math.sqrt(point.share)).toFixed(1), tabindex: point.share > 0.01 ? 0 : -1, role: "button", "aria-label": `${point.layer} ${point.operator}: ${share(point.share)} of the time, limited by ${point.limiter}` });
    for (const over of ["pointerenter", "focus"]) drawn.addEventListener(over, (/** @type {Event} */ event) => on.point(event, said));
    for (const out of ["pointerleave", "blur"]) drawn.addEventListener(out, () => on.point(null, []));
    drawn.addEventListener("click", () => on.select(point.layer));
    drawn.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter") on.select(point.layer); });
    svg.append(drawn);
  }
  return { svg, unit: "FLOP/s over FLOPs per byte", key: roofline.limits.map((/** @type {[string, number]} */ [name, part]) => [name, `${name} ${share(part)} of the time`]) };
}
