// The rows of a long table that are elements: those in view and those that keep the focus. Empty rows stand for the others.

import { make } from "./elements.js";

/** rows that are all drawn: more are drawn as far as they are in view */
const MAX_DRAWN = 150;
/** rows above and below the view that are drawn, too, and those from which others are drawn */
const MARGIN = 30, NEAR = 10;
/** pixels of a row before one is measured, and rows in view if the height is not known */
const TALL = 26, NUM_SEEN = 60;

export class RowWindow {
  /** @param {HTMLElement} host that scrolls @param {(at: number) => HTMLElement} line makes a row */
  constructor(host, line) {
    this.host = host;
    this.line = line;
    this.body = make("tbody");
    /** @type {number[]} rows in their order */
    this.rows = [];
    /** @type {Map<number, number>} where each row stands */
    this.places = new Map();
    /** @type {Map<number, HTMLElement>} */
    this.elements = new Map();
    /** rows that are drawn wherever they are @type {() => number[]} */
    this.pinned = () => [];
    this.tall = TALL;
    this.first = this.last = 0;
    host.addEventListener("scroll", () => this.scroll());
    addEventListener("beforeprint", () => this.put(0, this.rows.length));
    addEventListener("afterprint", () => this.draw());
  }

  /** Other rows, or the same ones drawn anew. @param {number[]} rows */
  show(rows) {
    this.rows = rows;
    this.places = new Map(rows.map((at, place) => [at, place]));
    this.elements.clear();
    this.draw();
    const [element] = this.elements.values();
    const tall = element?.getBoundingClientRect().height;
    if (!tall || Math.abs(tall - this.tall) < 0.01) return;
    this.tall = tall;
    this.draw();
  }

  /** Draw what is in view. */
  draw() {
    const number = this.rows.length;
    if (!number) return;
    if (number <= MAX_DRAWN) {
      this.put(0, number);
      return;
    }
    const [first, last] = this.inView();
    this.put(Math.max(0, first - MARGIN), Math.min(number, last + MARGIN));
  }

  /** @returns {[number, number]} places of the rows in view, from and until */
  inView() {
    const { scrollTop, clientHeight } = this.host;
    const first = Math.floor(scrollTop / this.tall);
    return [first, first + (clientHeight ? Math.ceil(clientHeight / this.tall) : NUM_SEEN)];
  }

  scroll() {
    const [first, last] = this.inView();
    const isNear = first - NEAR < this.first || last + NEAR > this.last;
    const hasMore = this.first > 0 || this.last < this.rows.length;
    if (isNear && hasMore) this.draw();
  }

  /** Rows from one place to another are elements, and those that are pinned. @param {number} first @param {number} last */
  put(first, last) {
    this.first = first;
    this.last = last;
    const drawn = new Set(Array.from({ length: last - first }, (_, at) => first + at));
    for (const at of this.pinned()) if (this.places.has(at)) drawn.add(/** @type {number} */ (this.places.get(at)));
    const wanted = [...drawn].sort((one, other) => one - other);
    /** @type {Map<number, HTMLElement>} */
    const elements = new Map();
    const parts = [];
    let next = 0;
    for (const place of wanted) {
      if (place > next) parts.push(this.space(place - next));
      const at = this.rows[place];
      const element = this.elements.get(at) ?? this.line(at);
      elements.set(at, element);
      parts.push(element);
      next = place + 1;
    }
    if (next < this.rows.length) parts.push(this.space(this.rows.length - next));
    this.elements = elements;
    this.replace(parts);
  }

  /** Rows that stay are not moved: a row that is taken out loses the focus. @param {HTMLElement[]} parts */
  replace(parts) {
    const kept = new Set(parts);
    for (const each of [...this.body.children]) if (!kept.has(each)) each.remove();
    let before = this.body.firstChild;
    for (const each of parts) {
      if (each === before) before = before.nextSibling;
      else this.body.insertBefore(each, before);
    }
  }

  /** @param {number} number of rows that are not drawn */
  space(number) {
    const made = make("tr", { class: "space", "aria-hidden": "true" });
    made.style.height = `${number * this.tall}px`;
    return made;
  }

  /** Scroll the table, not the page, to a row. @param {number} at @param {number} head pixels that the heading covers */
  bring(at, head) {
    const place = this.places.get(at);
    if (place === undefined) return;
    const top = place * this.tall, room = this.host.clientHeight - head;
    if (top < this.host.scrollTop) this.host.scrollTop = top;
    else if (top + this.tall > this.host.scrollTop + room) this.host.scrollTop = top + this.tall - room;
    this.draw();
  }

  /** @param {number} at @returns {HTMLElement | undefined} */
  elementOf(at) { return this.elements.get(at); }
}
