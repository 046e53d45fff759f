// Elements are made, never parsed: what a model says is text, whatever it looks like.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "g", "path", "rect", "circle", "line", "text", "tspan", "title", "defs", "marker", "pattern"]);

/**
 * @param {string} tag
 * @param {Record<string, unknown>} [attributes] on… are handlers; others are set as they are
 * @param {...(Node|string)} children
 * @returns {any}
 */
export function make(tag, attributes = {}, ...children) {
  const made = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/** Set attributes. @param {Element} element @param {Record<string, number | string>} attributes */
export function place(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
}

/** A bar of a panel: its parts are coloured by their names. @param {[string, number][]} parts */
export function bar(parts) {
  const made = make("div", { class: "bar" });
  for (const [name, size] of parts) {
    const part = make("i", { class: `on-${name}` });
    part.style.width = `${100 * size}%`;
    made.append(part);
  }
  return made;
}
