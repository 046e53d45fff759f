// The line of each panel that says what is pointed at, which covers nothing.

import { make } from "./elements.js";

export class Pointing {
  /** @param {HTMLElement} host of the page @param {() => [string, string][]} chosen what is said of the chosen layer */
  constructor(host, chosen) {
    this.host = host;
    this.chosen = chosen;
    /** whether something is pointed at, whose values stay in the line while others are drawn anew */
    this.isActive = false;
  }

  /** Write what is pointed at in the line of its panel. @param {Event | null} event null: nothing is pointed at @param {[string, string][]} said the first is the title */
  show(event, said) {
    if (!event || !said.length) {
      this.rest();
      return;
    }
    const target = /** @type {Element} */ (event.currentTarget ?? event.target);
    this.write(target.closest(".panel")?.querySelector(".read"), said);
  }

  /** Write it in the line of the graph, which has room for all that is known of a layer. @param {[string, string][]} said */
  showInGraph(said) { this.write(this.host.querySelector(".panel.graph > .read"), said); }

  /** @param {Element | null | undefined} line @param {[string, string][]} said */
  write(line, said) {
    this.isActive = true;
    if (line) write(line, said);
  }

  /** What stands in the lines where nothing is pointed at: the chosen layer. */
  rest() {
    this.isActive = false;
    for (const line of this.host.querySelectorAll(".panel > .read")) {
      write(line, line.parentElement?.matches(".graph") ? this.chosen() : []);
    }
  }
}

/** @param {Element} line @param {[string, string][]} said the first is the title */
function write(line, said) {
  if (!said.length) {
    line.replaceChildren(make("span", {}, "point at the chart to read its values"));
    return;
  }
  const [[, title], ...rest] = said;
  const parts = rest.flatMap(([name, value]) => [" · ", ...(name === "type" ? [value] : [`${name} `, make("b", {}, value)])]);
  line.replaceChildren(make("b", {}, title), ...parts);
  line.scrollTop = 0;
  showMore(line);
}

/** Whether there are words below the last line that is seen. @param {Element} line */
export function showMore(line) {
  line.classList.toggle("goes-on", line.scrollTop + line.clientHeight < line.scrollHeight - 1);
}
