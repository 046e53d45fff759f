// Parts of a page: verdicts, panels with their tools, charts of a pass.

import { memoryChart, rooflineChart } from "./charts.js";
import { bar, make } from "./elements.js";
import { showMore } from "./pointing.js";
import { save } from "./save.js";

/** @typedef {{select: (path: string) => void, point: (event: Event | null, said: [string, string][]) => void}} On */

/** names of the path that are shown, at most */
const MOST_CRUMBS = 8;

/** The path to a row: what is around it can be entered. @param {any[]} rows @param {number} shown @param {(row: number) => void} enter @returns {(string | Node)[]} */
export function crumbsOf(rows, shown, enter) {
  const way = [];
  for (let at = shown; at !== null; at = rows[at].in) way.unshift(at);
  if (way.length > MOST_CRUMBS) way.splice(2, way.length - MOST_CRUMBS, -1);
  return way.flatMap((at, place) => {
    if (at < 0) return [" › …"];
    const { name, repeats } = rows[at];
    const text = `${name}${repeats > 1 ? ` ×${repeats}` : ""}`;
    const isLast = place === way.length - 1;
    const press = (/** @type {Event} */ event) => {
      event.preventDefault();
      enter(at);
    };
    return [...(place ? [" › "] : []), isLast ? make("b", {}, text) : make("a", { href: "#", onclick: press }, text)];
  });
}

/** @param {any[]} verdicts @param {(key: string, text: string) => Node} link to a call */
export function verdictsOf(verdicts, link) {
  const sections = verdicts.map(({ label, value, said, path, bar: parts }) => {
    const shown = path ? link(path, value) : value;
    return make("section", { class: "verdict" }, make("span", { class: "label" }, label), make("b", {}, shown), make("span", {}, said), ...(parts ? [bar(parts)] : []));
  });
  return make("div", { class: "verdicts" }, ...sections);
}

/** A panel; the first of its tools stands in the heading. @param {string} title @param {string} name @param {HTMLElement} content @param {...Node} tools */
export function panel(title, name, content, ...tools) {
  const read = name === "graph" ? [reading()] : [];
  const heading = make("h2", {}, make("span", {}, title), ...tools.slice(0, 1));
  return make("section", { class: `panel ${name}`, "aria-label": title }, heading, ...read, ...tools.slice(1), content);
}

/** The line of a graph, which says if it goes on below. */
function reading() {
  const line = make("p", { class: "read", onscroll: () => showMore(line) });
  new ResizeObserver(() => showMore(line)).observe(line);
  return line;
}

/** @param {string} text @param {string} label @param {() => void} press */
export function toolButton(text, label, press) {
  return make("button", { type: "button", "aria-label": label, title: label, onclick: press }, text);
}

/** Buttons that save a drawing. @param {() => SVGSVGElement} drawn @param {string} name of the file */
export function saving(drawn, name) {
  return ["svg", "png"].map((kind) => toolButton(kind.toUpperCase(), `save as ${kind.toUpperCase()}`, () => save(drawn(), kind, name)));
}

/** Memory over the pass and the roofline, as far as the page has them. @param {any} data @param {On} on @returns {HTMLElement[]} */
export function chartPanels(data, on) {
  const drawn = [
    ...(data.memory ? [{ title: "Memory over the pass", name: "memory", ...memoryChart(data.memory, on) }] : []),
    ...(data.roofline?.points.length ? [{ title: "Roofline", name: "roofline", ...rooflineChart(data.roofline, on) }] : []),
  ];
  return drawn.map(({ title, name, unit, svg, key }) => {
    const legend = key.map((/** @type {[string, string]} */ [kind, text]) => make("span", {}, make("i", { class: `on-${kind}` }), text));
    return make("section", { class: `panel ${name}`, "aria-label": title },
      make("h2", {}, make("span", {}, title), make("span", {}, unit)), make("p", { class: "read" }), svg,
      make("div", { class: "key" }, ...legend), make("div", { class: "tools" }, ...saving(() => svg, `${data.title}-${name}`)));
  });
}
