// The first line of a run's page: run, state, step, speed and what trains.

import { make } from "./elements.js";
import { counted, digits, whole } from "./numbers.js";

/** @param {any} data of the page @param {HTMLElement} live what a live page says of its connection */
export function headerOfRun(data, live) {
  const line = make("span", { class: "question" });
  refreshHeader(line, data, live);
  return make("header", {}, make("h1", {}, data.title), line);
}

/** @param {HTMLElement} line @param {any} data @param {HTMLElement} live */
export function refreshHeader(line, data, live) {
  const { facts } = data.training;
  const beside = data.question.filter((/** @type {string} */ each) => each.startsWith("beside "));
  const state = data.live ? live : make("b", {}, facts.state);
  const settings = [facts.optimizer, facts.batch && `batch ${facts.batch}`, facts.precision, facts.device].filter(Boolean);
  /** @type {(string | Node)[][]} */
  const parts = [
    [`run ${facts.run}`],
    [make("i", { class: `dot${facts.state === "stopped" ? " bad" : ""}` }), state],
    ...(facts.step === null ? [] : [["step ", make("b", {}, whole(facts.step))]]),
    ...(facts.speed ? [[`${digits(facts.speed)} steps/s`]] : []),
    ...settings.map((text) => [text]),
    ...(facts.dropped ? [[`${counted(facts.dropped, "step")} dropped`]] : []),
    ...beside.map((/** @type {string} */ text) => [text]),
  ];
  line.replaceChildren(...parts.flatMap((part, at) => [...(at ? [" · "] : []), ...part]));
}
