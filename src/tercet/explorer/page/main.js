// The page: one state, from which everything is drawn.
//
//     address -> state -> pass of the model (source.js) -> prompt | view | probabilities | tour
//
// A sampling setting only updates the probabilities, a new text queries the model, and other changes redraw the view.

import { differences } from "tercet/compare.js";
import { element } from "tercet/element.js";
import { focused, refocus } from "tercet/focus.js";
import { header } from "tercet/header.js";
import { helpBox, listen } from "tercet/keys.js";
import { draw, load, paneBox, seenBy } from "tercet/pane.js";
import { open, SAVED } from "tercet/source.js";
import { changedKeys, readUrl, fitToModel, writeUrl } from "tercet/state.js";
import { tabRow } from "tercet/tabs.js";
import { tourPanel } from "tercet/tour.js";

/** @typedef {import("tercet/pane.js").Shown} Shown */
/** @typedef {import("tercet/source.js").Model} Model */
/** @typedef {import("tercet/source.js").Source} Source */
/** @typedef {import("tercet/state.js").State} State */
/** The values that the parts of the page share. change: update the state and redraw; redraw: draw changed keys;
 * say: announce a line to screen readers; texts: the text of every id received so far.
 * @typedef {{source: Source, model: Model, state: State, panes: Shown[], texts: Map<number, string>,
 *            change: (patch: Record<string, unknown>) => void, redraw: (moved: Set<string>) => void,
 *            say: (text: string) => void}} Page */

/** Keys of the state that only change the probabilities. */
const SETTINGS = ["temperature", "top_k", "top_p", "min_p", "seed"];
/** Keys of the state whose changes the browser's back button undoes. */
const STEPS = ["panes", "view", "stack", "layer", "part", "head"];

/** @param {Source} source */
function start(source) {
  const { model } = source;
  const live = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const columns = workspace();
  /** @type {Page} */
  const page = {
    source,
    model,
    state: fitToModel(readUrl(), model),
    panes: [],
    texts: new Map(),
    change,
    redraw,
    say: (text) => (live.textContent = text),
  };
  const between = differences();
  const tour = tourPanel(change);
  const help = helpBox();
  const tabs = tabRow(page);
  const top = header(page, help);
  const main = element("main", {}, between.element, columns);
  document.body.append(skipLink(columns), top.element, tabs.element, main, tour.element, help, live);
  document.title = `${model.name}: look inside`;

  /** @param {Record<string, unknown>} patch */
  function change(patch) {
    if ("panes" in patch && !source.live) return page.say(SAVED); // other texts and edits need the model
    const previous = page.state;
    page.state = fitToModel({ ...previous, ...patch }, model);
    const moved = changedKeys(page.state, previous);
    const isStep = moved.some((key) => STEPS.includes(key));
    writeUrl(page.state, model.start, isStep);
    schedule("panes" in patch ? [...moved, "panes"] : moved);
  }

  /** @type {Set<string>} */
  let waiting = new Set();
  let scheduled = false;
  /** Redraw the changed parts in the next frame. @param {string[]} moved keys of the state */
  function schedule(moved) {
    for (const key of moved) waiting.add(key);
    if (scheduled || waiting.size === 0) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      const all = waiting;
      waiting = new Set();
      redraw(all);
    });
  }

  /** @param {Set<string>} moved keys of the state */
  function redraw(moved) {
    const { state, panes } = page;
    top.update();
    tabs.update();
    if (moved.has("panes")) gather(page, columns);
    const focus = focused();
    const drawsAll = [...moved].some((key) => !SETTINGS.includes(key) && key !== "theme" && key !== "tour");
    for (const pane of panes) {
      if (pane.loaded !== null && drawsAll) draw(page, pane);
      else if (pane.loaded !== null) void pane.probabilities.update(pane.loaded, seenBy(state, pane.loaded));
    }
    refocus(focus);
    const loaded = panes.flatMap((pane) => pane.loaded ?? []);
    void between.update(loaded, state);
    tour.update(panes[0]?.loaded ?? null, state);
  }

  listen(page, help);
  addEventListener("popstate", () => {
    const previous = page.state;
    page.state = fitToModel(readUrl(), model);
    schedule(changedKeys(page.state, previous));
  });
  redraw(new Set(["panes"]));
}

/** Add or remove panes to match the state, and load their passes. @param {Page} page @param {HTMLElement} columns */
function gather(page, columns) {
  const { panes } = page;
  while (panes.length > page.state.panes.length) panes.pop()?.element.remove();
  while (panes.length < page.state.panes.length) {
    const pane = paneBox(page, panes.length);
    panes.push(pane);
    columns.append(pane.element);
  }
  columns.classList.toggle("two", panes.length > 1);
  for (const pane of panes) void load(page, pane);
}

/** The container of the panes. */
const workspace = () =>
  element("div", {
    class: "panes",
    id: "workspace",
    role: "tabpanel",
    tabindex: -1,
    "aria-label": "Model view",
  });

/** @param {HTMLElement} columns */
function skipLink(columns) {
  const onclick = (/** @type {Event} */ event) => {
    event.preventDefault();
    columns.focus();
  };
  return element("a", { class: "skip", href: "#workspace", onclick }, "Skip to the model");
}

try {
  start(await open());
} catch (error) {
  document.body.append(element("p", { class: "problem", role: "alert" }, /** @type {Error} */ (error).message));
  throw error;
}
