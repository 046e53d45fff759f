// How tensors of a call were distributed over the steps: a picture for each, steps to the right and values upwards.

import { bar, make } from "./elements.js";

/** @typedef {Record<string, any>} History */
/** @typedef {{histories: History[], isWhole: boolean}} Found what is known of a call; it is asked for again until that is all */
/** @typedef {(key: string) => Promise<Found>} Source */

const WIDE = 320, TALL = 132, MARK = 6, SHADES = "0123456789ABCDEF";
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

/** Two rows for each octave, from a value up. @param {number} value */
function rowOf(value) {
  const exponent = Math.floor(Math.log2(value));
  return 2 * (exponent + 127) + 2 * (value / 2 ** exponent - 1);
}

/** @param {number | null} value */
function written(value) { return value === null ? "–" : value === 0 ? "0" : Math.abs(value) >= 1e4 || Math.abs(value) < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3))); }

/** The column of a step; -1: nothing was recorded there. @param {History} history @param {number} step */
function columnOf(history, step) {
  const after = history.first.findIndex((/** @type {number} */ first) => first > step), at = (after < 0 ? history.first.length : after) - 1;
  return at >= 0 && step < history.until[at] ? at : -1;
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
    /** @type {{canvas: HTMLCanvasElement, history: History, said: HTMLElement}[]} */
    this.drawn = [];
    /** whether an answer is awaited, and whether there is something new meanwhile */
    this.isAsking = this.isNew = false;
    /** @type {string | null} the call whose pictures are there */
    this.shown = null;
    const scheme = matchMedia("(prefers-color-scheme: dark)"), redraw = () => { if (host.isConnected) this.redraw(); else scheme.removeEventListener("change", redraw); };
    scheme.addEventListener("change", redraw);
  }

  /** @param {string} key of a call */
  async show(key) {
    if (key === this.key && this.isAsking) { this.isNew = true; return; }
    if (key !== this.key) this.step = null;
    this.key = key;
    const turn = this.turn += 1;
    this.isAsking = true; this.isNew = false;
    /** @type {Found | null} */
    let found = null;
    try { found = await this.source(key); } catch { if (!this.drawn.length) found = { histories: [], isWhole: true }; } // what was drawn stays
    if (turn !== this.turn) return;
    this.isAsking = false;
    if (!found) return;
    this.put(found.histories);
    if (this.isNew || !found.isWhole) this.show(key);
  }

  /** The same pictures with more in them, or others. @param {History[]} histories */
  put(histories) {
    this.span = [Math.min(...histories.map((each) => each.first[0])), Math.max(...histories.map((each) => each.until.at(-1)))];
    const names = (/** @type {History[]} */ all) => all.map((each) => `${each.call}\n${each.name}\n${each.run ?? ""}`).join("\n\n");
    const isSame = this.shown === this.key;
    this.shown = this.key;
    if (isSame && histories.length && names(histories) === names(this.drawn.map((each) => each.history))) this.drawn.forEach((each, at) => { each.history = histories[at]; });
    else {
      this.drawn = histories.map((history) => this.panel(history, new Set(histories.map((each) => each.run)).size > 1));
      if (histories.length) this.host.replaceChildren(...this.drawn.map((each) => /** @type {Node} */ (each.canvas.parentNode)));
      else this.host.replaceChildren(make("p", { class: "said" }, "Nothing was recorded of this call. Choose another layer."));
    }
    this.redraw();
  }

  redraw() { this.point(this.step); }

  /** @param {History} history @param {boolean} isOfSeveral runs */
  panel(history, isOfSeveral) {
    const canvas = make("canvas", { role: "img", tabindex: 0 }), said = make("figcaption", {});
    canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => { const box = canvas.getBoundingClientRect(), [from, until] = this.span; this.pointed(Math.min(until - 1, Math.max(from, Math.floor(from + (until - from) * (event.clientX - box.x) / box.width)))); });
    canvas.addEventListener("pointerleave", () => this.pointed(null));
    make("figure", { class: "heat" }, make("b", {}, history.name), ...(isOfSeveral ? [make("span", { class: "type" }, history.run)] : []), canvas, said);
    const drawn = { canvas, history, said };
    return drawn;
  }

  /** What a picture shows, in words. @param {History} history */
  nameOf(history) {
    const last = history.last.length - 1;
    return `${history.name}, steps ${history.first[0]} to ${history.last[last]}; at last from ${written(history.least[last])} to ${written(history.most[last])}, mean ${written(history.mean[last])}`;
  }

  /** @param {History} history @param {number} at */
  saidOf(history, at) {
    const steps = history.first[at] === history.last[at] ? `step ${history.first[at]}` : `steps ${history.first[at]}–${history.last[at]}`;
    const wrong = [[history.nan[at], "NaN"], [history.inf[at], "Inf"]].filter(([count]) => count).map(([count, name]) => `, ${count} ${name}`).join("");
    const values = history.least[at] === null ? "nothing finite" : `${written(history.least[at])} … ${written(history.most[at])}, median ${written(history.quantiles[at][1])}`;
    return `${steps}: ${values}${wrong}`;
  }

  /** The same step in all pictures. @param {number | null} step */
  point(step) {
    this.step = step;
    for (const { canvas, history, said } of this.drawn) {
      const at = step === null ? history.first.length - 1 : columnOf(history, step);
      canvas.setAttribute("aria-label", this.nameOf(history));
      said.textContent = at < 0 ? `step ${step}: nothing was recorded` : this.saidOf(history, at);
      this.draw(canvas, history);
      const context = canvas.getContext("2d");
      if (step === null || !context) continue;
      context.fillStyle = getComputedStyle(canvas).color;
      context.fillRect(at < 0 ? this.x(step + 0.5) : this.x((history.first[at] + history.until[at]) / 2), 0, 1, TALL);
    }
  }

  /** Where a step begins. @param {number} step */
  x(step) { const [from, until] = this.span; return WIDE * (step - from) / (until - from); }

  /** @param {HTMLCanvasElement} canvas @param {History} history */
  draw(canvas, history) {
    const scale = devicePixelRatio || 1, context = canvas.getContext("2d");
    if (!context) return;
    canvas.width = WIDE * scale; canvas.height = TALL * scale;
    context.scale(scale, scale);
    const number = history.first.length, y = this.axis(history), colour = this.colourOf(history.kind);
    const begin = history.first.map((/** @type {number} */ step) => this.x(step)), end = history.until.map((/** @type {number} */ step) => this.x(step));
    context.fillStyle = colour;
    history.rows.forEach((/** @type {string} */ row, /** @type {number} */ at) => {
      const [above, below] = y.ofRow(at);
      for (let column = 0; column < number; column += 1) {
        const shade = SHADES.indexOf(row[column]);
        if (!shade) continue;
        context.globalAlpha = 0.1 + 0.9 * shade / 15;
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
    context.fillStyle = ink;
    context.font = "10px system-ui, sans-serif";
    context.fillText(written(y.top), 3, MARK + 9); context.fillText(written(y.bottom), 3, TALL - 3);
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

  /** Where values are drawn: in rows of half an octave, or by their size. @param {History} history */
  axis(history) {
    const { nearest, up, down } = history, number = up + 1 + down, tall = (TALL - MARK) / number;
    const edge = (/** @type {number} */ row) => { const exponent = Math.floor(row / 2) - 127; return 2 ** exponent * (row % 2 ? 1.5 : 1); };
    const top = up ? edge(nearest + up) : edge(nearest), bottom = down ? -edge(nearest + down) : -edge(nearest);
    if (this.isLinear) {
      const of = (/** @type {number} */ value) => MARK + (TALL - MARK) * (top - value) / (top - bottom);
      const valueOf = (/** @type {number} */ at) => (at <= up ? (at === up + 1 ? -edge(nearest) : edge(nearest + up - at)) : -edge(nearest + at - up - 1));
      return { top, bottom, of, ofRow: (/** @type {number} */ at) => [of(at === 0 ? top : valueOf(at)), of(at + 1 === number ? bottom : valueOf(at + 1))] };
    }
    const of = (/** @type {number} */ value) => {
      const place = Math.abs(value) < edge(nearest) ? up + 0.5 - 0.5 * value / edge(nearest) : value > 0 ? up + nearest - rowOf(value) : up + 1 + rowOf(-value) - nearest;
      return MARK + tall * Math.min(number, Math.max(0, place));
    };
    return { top, bottom, of, ofRow: (/** @type {number} */ at) => [MARK + tall * at, MARK + tall * (at + 1)] };
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
