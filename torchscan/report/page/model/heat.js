// How tensors of a call were distributed over the steps: a picture for each, steps to the right and values upwards.

import { bar, make } from "./elements.js";
import { least, most } from "./format.js";

/** @typedef {Record<string, any>} History */
/** @typedef {{histories: History[], isWhole: boolean}} Found what is known of a call; it is asked for again until that is all */
/** @typedef {(key: string) => Promise<Found>} Source */

const WIDE = 320, TALL = 132, MARK = 6, SHADES = "0123456789ABCDEF";
/** pixels between two labels of a scale, at least */
const APART = 17, RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const KINDS = /** @type {Record<string, string>} */ ({ input: "inputs", output: "activations", input_grad: "gradients", output_grad: "gradients", param: "parameters", param_grad: "optimizer", attached: "buffers", attached_grad: "gradients" });

/** @param {string} packed @returns {Promise<History[]>} */
async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

/** Histories that the page has brought with it. @param {string} packed @returns {Source} */
export function sourceOf(packed) {
  const all = unpacked(packed);
  return async (key) => ({ histories: (await all).filter((each) => each.call === key), isWhole: true });
}

/** Where a row begins, of those that are half an octave each. @param {number} row */
function edge(row) { return 2 ** (Math.floor(row / 2) - 127) * (row % 2 ? 1.5 : 1); }

/** Two rows for each octave, from a value up. @param {number} value */
function rowOf(value) {
  const exponent = Math.floor(Math.log2(value));
  return 2 * (exponent + 127) + 2 * (value / 2 ** exponent - 1);
}

/** @param {number | null} value */
function written(value) {
  if (value === null) return "–";
  const size = Math.abs(value);
  return (value === 0 ? "0" : size >= 1e4 || size < 1e-3 ? value.toExponential(1) : value.toPrecision(size < 1000 ? 3 : 4)).replaceAll("-", "−");
}

/** A round number beside a picture: a power of ten, or a multiple of one. @param {number} value */
function rounded(value) {
  const power = value ? Math.round(Math.log10(Math.abs(value))) : 0, isPower = value && Math.abs(Math.abs(value) / 10 ** power - 1) < 1e-9;
  const digits = [...String(Math.abs(power))].map((digit) => RAISED[Number(digit)]).join("");
  const said = isPower && Math.abs(power) > 2 ? `${value < 0 ? "-" : ""}10${power < 0 ? "⁻" : ""}${digits}` : String(Number(value.toPrecision(6)));
  return said.replaceAll("-", "−");
}

/** Greatest first. @param {number} top @param {number} bottom of a scale that is even */
function evenTicks(top, bottom) {
  const rough = (top - bottom) / 4, ten = 10 ** Math.floor(Math.log10(rough)), step = ten * ([1, 2, 5].find((each) => each * ten >= rough) ?? 10);
  return Array.from({ length: Math.floor(top / step) - Math.ceil(bottom / step) + 1 }, (_, at) => step * (Math.floor(top / step) - at));
}

/** Zero, then powers of ten, the greatest first. @param {number} top @param {number} bottom @param {number} nearest value that has a place of its own */
function powerTicks(top, bottom, nearest) {
  const powers = (/** @type {number} */ most) => (most < nearest ? [] : Array.from({ length: 40 }, (_, at) => 10 ** (Math.floor(Math.log10(most)) - at)).filter((each) => each >= nearest));
  return [0, ...powers(top), ...powers(-bottom).map((each) => -each)];
}

/** What is counted along a picture, in the singular. @param {History | undefined} history */
function nounOf(history) { return history?.phase === "eval" ? "evaluation pass" : "step"; }

/** @param {History} history */
function nounsOf(history) { return history.phase === "eval" ? "evaluation passes" : "steps"; }

/** The column of a step; -1: nothing was recorded there. @param {History} history @param {number} step */
function columnOf(history, step) {
  const after = history.first.findIndex((/** @type {number} */ first) => first > step), at = (after < 0 ? history.first.length : after) - 1;
  return at >= 0 && step < history.until[at] ? at : -1;
}

/** The values of a row: from, and down to. @param {History} history @param {number} at @returns {[number, number]} */
function valuesOf({ nearest, up }, at) {
  if (at === up) return [edge(nearest), -edge(nearest)];
  return at < up ? [edge(nearest + up - at), edge(nearest + up - at - 1)] : [-edge(nearest + at - up - 1), -edge(nearest + at - up)];
}

/** @param {(value: number) => number} place of a value, however long the scale is @param {number} top @param {number} bottom @param {number[]} values that are marked, if there is room */
function scale(place, top, bottom, values) {
  const from = place(top), long = from - place(bottom) || 1, of = (/** @type {number} */ value) => MARK + (TALL - MARK) * Math.min(1, Math.max(0, (from - place(value)) / long));
  /** @type {[number, number][]} */
  const ticks = [];
  for (const value of values) if (value <= top && value >= bottom && ticks.every(([, y]) => Math.abs(y - of(value)) >= APART)) ticks.push([value, of(value)]);
  return { of, ticks };
}

/** Evenly. @param {number} top @param {number} bottom */
function even(top, bottom) { return scale((value) => value, top, bottom, evenTicks(top, bottom)); }

/** With zero in the middle of a row of its own. @param {number} top @param {number} bottom @param {number} nearest row */
function byOctaves(top, bottom, nearest) {
  const begin = edge(nearest), size = (/** @type {number} */ value) => (value < begin ? 0.5 * value / begin : rowOf(value) - nearest + 0.5);
  return scale((value) => (value < 0 ? -size(-value) : size(value)), top, bottom, powerTicks(top, bottom, begin));
}

export class HeatView {
  /** @param {HTMLElement} host @param {Source} source @param {(step: number | null) => void} pointed at a step, or no longer */
  constructor(host, source, pointed) {
    this.host = host; this.source = source; this.pointed = pointed; this.isLinear = false; this.turn = 0;
    /** @type {string | null} */
    this.key = null;
    /** @type {number | null} */
    this.step = null;
    /** @type {[number, number]} the steps from the left of all pictures to the right */
    this.span = [0, 1];
    /** @type {{figure: HTMLElement, canvas: HTMLCanvasElement, history: History, said: HTMLElement, ticks: HTMLElement, steps: HTMLElement}[]} */
    this.drawn = [];
    /** whether an answer is awaited, and whether there is something new meanwhile */
    this.isAsking = this.isNew = false;
    /** @type {string | null} the call whose pictures are there */
    this.shown = null;
    /** what to say if nobody answers */
    this.gone = "The distributions could not be loaded.";
    const scheme = matchMedia("(prefers-color-scheme: dark)"), redraw = () => { if (host.isConnected) this.redraw(); else scheme.removeEventListener("change", redraw); };
    scheme.addEventListener("change", redraw);
  }

  /** @param {string} key of a call */
  async show(key) {
    if (key === this.key && this.isAsking) { this.isNew = true; return; }
    if (key !== this.key) this.clear();
    this.key = key;
    const turn = this.turn += 1;
    this.isAsking = true; this.isNew = false;
    /** @type {Found | null} */
    let found = null;
    try { found = await this.source(key); } catch { found = null; }
    if (turn !== this.turn) return;
    this.isAsking = false;
    if (!found) { if (!this.drawn.length) this.say(this.gone); return; } // what was drawn of this call stays
    this.put(found.histories);
    if (this.isNew || !found.isWhole) this.show(key);
  }

  /** Pictures of one layer never stand under the name of another. The page keeps its height until the others are there. */
  clear() {
    this.step = null; this.drawn = []; this.shown = null;
    this.host.style.minHeight = `${this.host.offsetHeight}px`;
    this.host.replaceChildren();
  }

  /** @param {string} text */
  say(text) { this.host.style.minHeight = ""; this.host.replaceChildren(make("p", { class: "said" }, text)); }

  /** The same pictures with more in them, or others. @param {History[]} histories */
  put(histories) {
    this.host.style.minHeight = "";
    this.span = [Math.min(...histories.map((each) => each.first[0])), Math.max(...histories.map((each) => each.until.at(-1)))];
    const names = (/** @type {History[]} */ all) => all.map((each) => `${each.call}\n${each.name}\n${each.run ?? ""}`).join("\n\n");
    const isSame = this.shown === this.key;
    this.shown = this.key;
    const series = [...new Set(histories.map((each) => each.name))].map((name) => histories.filter((each) => each.name === name)), ordered = series.flat();
    if (isSame && histories.length && names(ordered) === names(this.drawn.map((each) => each.history))) this.drawn.forEach((each, at) => { each.history = ordered[at]; });
    else {
      const isOfSeveral = new Set(histories.map((each) => each.run)).size > 1;
      this.drawn = ordered.map((history) => this.panel(history, isOfSeveral));
      const figures = (/** @type {History[]} */ all) => this.drawn.filter((each) => all.includes(each.history)).map((each) => each.figure);
      if (isOfSeveral) this.host.replaceChildren(...series.map((all) => make("div", { class: "beside" }, ...figures(all))));
      else if (histories.length) this.host.replaceChildren(...figures(histories));
      else this.say("Nothing was recorded for this layer.");
    }
    this.redraw();
  }

  redraw() { this.point(this.step); }

  /** @param {History} history @param {boolean} isOfSeveral runs */
  panel(history, isOfSeveral) {
    const canvas = make("canvas", { role: "img", tabindex: 0 }), said = make("figcaption", {});
    canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => { const box = canvas.getBoundingClientRect(), [from, until] = this.span; this.pointed(Math.min(until - 1, Math.max(from, Math.floor(from + (until - from) * (event.clientX - box.x) / box.width)))); });
    canvas.addEventListener("pointerleave", () => this.pointed(null));
    const ticks = make("div", { class: "ticks", "aria-hidden": "true" }), steps = make("div", { class: "steps", "aria-hidden": "true" });
    const figure = make("figure", { class: "heat" }, make("b", {}, history.name), ...(isOfSeveral ? [make("span", { class: "type" }, history.run)] : []), make("div", { class: "plot" }, ticks, canvas, steps), said);
    return { figure, canvas, history, said, ticks, steps };
  }

  /** What a picture shows, in words. @param {History} history */
  nameOf(history) {
    const last = history.last.length - 1;
    return `${history.name}, ${nounsOf(history)} ${history.first[0]} to ${history.last[last]}; last values from ${written(history.least[last])} to ${written(history.most[last])}, mean ${written(history.mean[last])}`;
  }

  /** @param {History} history @param {number} at */
  saidOf(history, at) {
    const steps = history.first[at] === history.last[at] ? `${nounOf(history)} ${history.first[at]}` : `${nounsOf(history)} ${history.first[at]}–${history.last[at]}`;
    const wrong = [[history.nan[at], "NaN"], [history.inf[at], "Inf"]].filter(([count]) => count).map(([count, name]) => `, ${count} ${name}`).join("");
    const values = history.least[at] === null ? "no finite values" : `${written(history.least[at])} … ${written(history.most[at])}, median ≈ ${written(history.quantiles[at][1])}`;
    return `${steps}: ${values}${wrong}`;
  }

  /** The same step in all pictures. @param {number | null} step */
  point(step) {
    this.step = step;
    for (const { canvas, history, said, ticks, steps } of this.drawn) {
      const at = step === null ? history.first.length - 1 : columnOf(history, step);
      canvas.setAttribute("aria-label", this.nameOf(history));
      said.textContent = at < 0 ? `${nounOf(history)} ${step}: nothing was recorded` : this.saidOf(history, at);
      const scale = this.scaleOf(history);
      this.draw(canvas, history, scale);
      ticks.replaceChildren(...scale.ticks.map(([value, y]) => { const made = make("span", {}, rounded(value)); made.style.top = `${100 * y / TALL}%`; return made; }));
      steps.replaceChildren(...[this.span[0], this.span[1] - 1].map((each, place) => make("span", {}, `${place ? "" : `${nounOf(history)} `}${each.toLocaleString("en")}`)));
      const context = canvas.getContext("2d");
      if (step === null || !context) continue;
      context.fillStyle = getComputedStyle(canvas).color;
      context.fillRect(at < 0 ? this.x(step + 0.5) : this.x((history.first[at] + history.until[at]) / 2), 0, 1, TALL);
    }
  }

  /** Where a step begins. @param {number} step */
  x(step) { const [from, until] = this.span; return WIDE * (step - from) / (until - from); }

  /** @param {HTMLCanvasElement} canvas @param {History} history @param {ReturnType<HeatView["scaleOf"]>} y */
  draw(canvas, history, y) {
    const scale = devicePixelRatio || 1, context = canvas.getContext("2d");
    if (!context) return;
    canvas.width = WIDE * scale; canvas.height = TALL * scale;
    context.scale(scale, scale);
    const number = history.first.length, colour = this.colourOf(history.kind);
    const begin = history.first.map((/** @type {number} */ step) => this.x(step)), end = history.until.map((/** @type {number} */ step) => this.x(step));
    context.fillStyle = colour;
    history.rows.forEach((/** @type {string} */ row, /** @type {number} */ at) => {
      const [high, low] = valuesOf(history, at);
      for (let column = 0; column < number; column += 1) {
        const shade = SHADES.indexOf(row[column]);
        if (!shade) continue;
        context.globalAlpha = 0.1 + 0.9 * shade / 15;
        const above = y.of(Math.min(high, history.most[column] ?? high)), below = y.of(Math.max(low, history.least[column] ?? low));
        context.fillRect(begin[column], above, Math.ceil((end[column] - begin[column]) * scale) / scale, Math.max(1 / scale, below - above));
      }
    });
    context.globalAlpha = 1;
    const ink = getComputedStyle(canvas).color;
    context.strokeStyle = context.fillStyle = ink;
    context.globalAlpha = 0.5;
    const zero = y.of(0);
    context.setLineDash([2, 3]);
    context.beginPath(); context.moveTo(0, zero); context.lineTo(WIDE, zero); context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 0.85;
    [0, 1, 2].forEach((which) => {
      context.lineWidth = which === 1 ? 1.4 : 0.6;
      context.beginPath();
      this.line(context, history, (at) => { const value = history.quantiles[at][which]; return value === null ? null : y.of(value); });
      context.stroke();
    });
    context.globalAlpha = 1;
    context.fillStyle = this.colourOf("wrong");
    for (let at = 0; at < number; at += 1) if (history.nan[at] + history.inf[at]) context.fillRect(begin[at], 0, Math.max(1, end[at] - begin[at]), MARK);
  }

  /** From column to column, broken where there is none. @param {CanvasRenderingContext2D} context @param {History} history @param {(at: number) => number | null} of */
  line(context, history, of) {
    const { first, until } = history;
    for (let at = 0; at < first.length; at += 1) {
      const y = of(at), isBegun = at > 0 && until[at - 1] === first[at] && of(at - 1) !== null;
      if (y === null) continue;
      if (!isBegun) context.moveTo(this.x(first[at]), y);
      context.lineTo(this.x((first[at] + until[at]) / 2), y);
      if (until[at] !== first[at + 1] || of(at + 1) === null) context.lineTo(this.x(until[at]), y);
    }
  }

  /** Where values are drawn, evenly or in rows of half an octave; of several runs, the same for all. @param {History} history */
  scaleOf(history) {
    const alike = this.drawn.map((each) => each.history).filter((each) => each.name === history.name);
    const finite = (/** @type {(number | null)[]} */ values) => values.filter((each) => each !== null);
    const top = most(alike.flatMap((each) => finite(each.most)), 0), bottom = least([...alike.flatMap((each) => finite(each.least)), top]);
    const nearest = Math.min(...alike.map((each) => each.nearest));
    if (bottom > 0.5 * top) return even(top + 0.1 * (top - bottom || top), bottom - 0.1 * (top - bottom || top)); // close together, and far from zero
    return this.isLinear ? even(top === bottom ? 1 : top, Math.min(bottom, 0)) : byOctaves(Math.max(top, edge(nearest)), Math.min(bottom, 0), nearest);
  }

  /** @param {string} kind */
  colourOf(kind) {
    const sample = bar([[KINDS[kind] ?? kind, 1]]);
    this.host.append(sample);
    const found = getComputedStyle(sample.firstChild).backgroundColor;
    sample.remove();
    return found;
  }
}
