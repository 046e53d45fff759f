// The page of a watched run: its training, the graph and the table of its model, distributions of its tensors.

import { Dock } from "./dock.js";
import { make } from "./elements.js";
import { help, legend } from "./help.js";
import { sourceOf } from "./histories.js";
import { follow, fromServer, listen } from "./live.js";
import { callsOf } from "./measured.js";
import { ModelPage } from "./model.js";
import { panel, verdictsOf } from "./panels.js";
import { Reading } from "./reading.js";
import { headerOfRun, refreshHeader } from "./run_header.js";
import { TrainingView } from "./training.js";

/** @param {HTMLElement} host @param {any} data */
export function showPage(host, data) { new RunPage(host, data).start(); }

class RunPage extends ModelPage {
  /** @param {HTMLElement} host @param {any} data */
  constructor(host, data) {
    super(host, data);
    /** @type {number | null} the row that is carried over the page */
    this.carried = null;
    /** whether a button is held down, and what is heard meanwhile, since what is drawn anew does not hear of a click */
    this.isHeld = false;
    /** @type {any} */
    this.waiting = null;
    this.state = make("span", { class: "state", role: "status" });
    this.late = make("p", { class: "remark", hidden: "" }, "New layers were called: ", make("a", { href: "", onclick: (/** @type {Event} */ event) => { event.preventDefault(); location.reload(); } }, "show them"));
    this.training = data.training ? this.trained() : null;
  }

  start() {
    super.start();
    const { data } = this;
    if (this.training) this.takeTraining(data.training);
    if (!data.live) return;
    follow("training", 1, ({ training }) => {
      if (!training || this.isHeld) return;
      if (this.training) this.takeTraining(training);
      else location.reload(); // it was opened before the first step
    });
    listen((figures) => this.hear(figures), (isThere) => { this.state.textContent = isThere ? "live" : this.gone(); });
  }

  listen() {
    super.listen();
    addEventListener("pointerdown", () => { this.isHeld = true; }, true);
    const release = () => {
      this.isHeld = false;
      if (this.waiting) this.hear(this.waiting);
    };
    for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, () => setTimeout(release), true);
  }

  draw() {
    super.draw();
    this.training?.select(this.keyOfSelected());
    this.tell();
  }

  // -- parts ---------------------------------------------------------------------------------------------------------

  header() {
    if (this.training) return headerOfRun(this.data, this.state);
    const made = super.header();
    if (this.data.live) made.append(this.state);
    return made;
  }

  above() { return [this.late, ...(this.training ? [this.training.element] : [])]; }

  /** Memory and time of its model stay on the model's own page. */
  below() { return [...this.distributions(), ...(this.training ? [] : super.below())]; }

  /** With its training, a run shows what it lacks, and no costs of its model. */
  verdicts() {
    const { training, verdicts } = this.data;
    const isShown = (/** @type {any} */ { isWrong, path }) => isWrong !== undefined && !(path !== undefined && training.nan);
    return verdictsOf(training ? verdicts.filter(isShown) : verdicts, (key, text) => this.link(key, text));
  }

  /** A NaN may come of an infinity: the training knows the first of both. @param {any} measured */
  withSource(measured) {
    const nan = this.data.training?.nan;
    return nan ? { ...measured, producers: nan.isSource ? { [nan.key]: `${nan.series}, step ${nan.step}` } : {} } : measured;
  }

  gone() { return `Not connected: the server may have stopped. To open the run again: torchscan runs open ${this.data.live.join(" ")}`; }

  // -- training ------------------------------------------------------------------------------------------------------

  trained() {
    return new TrainingView({
      modelName: this.data.title,
      kept: this.kept,
      link: (key, text) => this.link(key, text),
      select: (key) => this.choose(key),
      point: (step) => this.dock?.setStep(step),
      show: ([first, last], isWhole) => (isWhole ? this.dock?.setRange(null, null) : this.dock?.setRange(first, last)),
    });
  }

  /** New data of the training; the distributions show the same step and the same notes. @param {any} training */
  async takeTraining(training) {
    this.data.training = training;
    const line = this.host.querySelector("header .question");
    if (line instanceof HTMLElement) refreshHeader(line, this.data, this.state);
    await this.training?.take(training);
    this.dock?.setNotes(training.marks.map((/** @type {any} */ mark) => mark.step));
    this.dock?.setStep(this.training?.cross ?? null);
  }

  /** The key of the selected layer: of equal calls, the one that was asked for. */
  keyOfSelected() {
    const keys = callsOf(this.data.rows[Math.max(this.selected, 0)]);
    return [this.call, this.training?.selectedKey ?? "", keys[0]].find((key) => keys.includes(key)) ?? "";
  }

  /** Select a call by its key; of equal calls in one row, this one. @param {string} key */
  choose(key) {
    const row = this.rowOf(key);
    if (row !== null) this.select(row, key);
  }

  // -- distributions -------------------------------------------------------------------------------------------------

  /** What a run has recorded of the tensors of the chosen layer, and of those that were put beside it. */
  distributions() {
    const packed = this.data.measured?.histories;
    if (!packed && !this.data.live) return [];
    const inside = make("div", { class: "cards" }), reading = new Reading(this.data, this.rowsByKey);
    const textOf = (/** @type {string} */ key) => {
      const row = this.data.rows[this.rowsByKey.get(key) ?? 0];
      const shapes = [row.input[0], row.output[0]].filter(Boolean).join(" → ");
      return { name: this.labelsByKey.get(key) || this.data.rows[0].name, type: [row.type, shapes].filter(Boolean).join(" · "), sources: reading.sourcesOf(key), takes: row.takes, gives: row.gives };
    };
    this.dock = new Dock(inside, this.data.live ? fromServer : sourceOf(packed), textOf, { gone: this.data.live && this.gone(), kept: this.kept });
    this.dock.onStep = (step) => { if (step !== null) this.training?.point(step, false); };
    this.target = make("div", { class: "target", hidden: "", ondragover: (/** @type {Event} */ event) => event.preventDefault(), ondrop: (/** @type {DragEvent} */ event) => this.drop(event) });
    const hint = make("p", { class: "type keeping" }, "To keep a layer here, drag it down, press Enter on it, or press “keep”.");
    return [panel("Distributions", "distributions", make("div", {}, inside, hint, help()), make("span", { class: "over" }, this.dock.heading, legend())), this.target];
  }

  carrying() {
    if (!this.dock) return {};
    return {
      pin: (/** @type {number} */ row) => this.pin(row),
      carry: (/** @type {number} */ row, /** @type {PointerEvent | null} */ place, /** @type {boolean} */ isDropped) => this.carry(row, place, isDropped),
    };
  }

  /** The distributions of the chosen layer: of several equal ones, of the first, or of another that is chosen. */
  tell() {
    const keys = callsOf(this.data.rows[Math.max(this.selected, 0)]), now = this.dock?.cards[0].view.key ?? "";
    this.dock?.show(keys, [this.takeCall(), now, keys[0]].find((each) => keys.includes(each)) ?? "");
  }

  /** Keep a layer's distributions in view. @param {number} row */
  pin(row) { const keys = callsOf(this.data.rows[row]); this.dock?.pin(keys, keys[0]); }

  /** A layer is carried over the page, or let go of. @param {number} row @param {PointerEvent | null} place where; null: something else shows it @param {boolean} isDropped */
  carry(row, place, isDropped) {
    this.carried = isDropped ? null : row;
    this.target.hidden = isDropped;
    this.target.textContent = `drop ${this.data.rows[row].path || this.data.rows[row].name} here to keep its distributions in view`;
    if (!place || !isDropped) return;
    this.target.hidden = false; // to be found where it is
    const under = document.elementFromPoint(place.clientX, place.clientY);
    this.target.hidden = true;
    if (under?.closest(".target, .distributions")) this.pin(row);
  }

  /** @param {DragEvent} event */
  drop(event) {
    event.preventDefault();
    this.target.hidden = true;
    if (this.carried !== null) this.pin(this.carried);
  }

  markKept() {
    super.markKept();
    this.training?.drawHeats();
  }

  // -- a live page ---------------------------------------------------------------------------------------------------

  /** There is something new. @param {any} figures */
  hear(figures) {
    this.waiting = this.isHeld ? figures : null;
    if (this.isHeld) return;
    const { data } = this;
    const wasEmpty = data.rows.length === 1 && Object.keys(figures.figures).length > 1;
    if ((figures.isDrawn && !data.isDrawn) || wasEmpty) { location.reload(); return; } // it was opened before there was anything to see
    this.refreshVerdicts(figures.wrong);
    this.measure(figures);
    if (this.source) this.source.textContent = figures.source;
    this.late.hidden = Object.keys(figures.figures).every((key) => this.rowsByKey.has(key));
    if (this.graph) this.graph.drawn = `${this.graph.drawn} before`;
    this.layers?.refresh();
    this.draw();
    this.dock?.refresh();
  }

  /** Replaces the verdicts about what went wrong, if they have changed. @param {any[]} wrong */
  refreshVerdicts(wrong) {
    const isWrong = (/** @type {any} */ each) => each.isWrong, before = this.data.verdicts.filter(isWrong);
    if (JSON.stringify(before) === JSON.stringify(wrong)) return;
    this.data.verdicts = [...wrong, ...this.data.verdicts.filter((/** @type {any} */ each) => !isWrong(each))];
    const now = this.verdicts();
    this.told.replaceWith(now);
    this.told = now;
  }
}
