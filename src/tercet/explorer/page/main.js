// The page: one state, from which everything is drawn; what changes it, and what is drawn again when it changes.
//
//     address -> state -> pass of the model (source.js) -> prompt | view | probabilities | tour
//
// A setting of the sampler moves the probabilities alone; another text asks the model; all else draws the view again.

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
/** What the parts of the page share. change: the state, and draw what that moves; redraw: by the keys that moved;
 * say: a line for who does not see the page; texts: of every id that has been seen.
 * @typedef {{source: Source, model: Model, state: State, panes: Shown[], texts: Map<number, string>,
 *            change: (patch: Record<string, unknown>) => void, redraw: (moved: Set<string>) => void,
 *            say: (text: string) => void}} Page */

/** What moves nothing but the probabilities. */
const SETTINGS = ["temperature", "top_k", "top_p", "min_p", "seed"];
/** What the browser's way back undoes. */
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
    if ("panes" in patch && !source.live) return page.say(SAVED); // no other text, and nothing set to zero
    const before = page.state;
    page.state = fitToModel({ ...before, ...patch }, model);
    const moved = changedKeys(page.state, before);
    const isStep = moved.some((key) => STEPS.includes(key));
    writeUrl(page.state, model.start, isStep);
    schedule("panes" in patch ? [...moved, "panes"] : moved);
  }

  /** @type {Set<string>} */
  let waiting = new Set();
  let scheduled = false;
  /** Draw what moved in the next frame. @param {string[]} moved keys of the state */
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
    const before = page.state;
    page.state = fitToModel(readUrl(), model);
    schedule(changedKeys(page.state, before));
  });
  redraw(new Set(["panes"]));
}

/** As many panes as the state has, each with the pass that it asks for. @param {Page} page @param {HTMLElement} columns */
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

/** Where the panes stand. */
const workspace = () =>
  element("div", {
    class: "panes",
    id: "workspace",
    role: "tabpanel",
    tabindex: -1,
    "aria-label": "The model at work",
  });

/** @param {HTMLElement} columns */
function skipLink(columns) {
  const onclick = (/** @type {Event} */ event) => {
    event.preventDefault();
    columns.focus();
  };
  return element("a", { class: "skip", href: "#workspace", onclick }, "To the model");
}

try {
  start(await open());
} catch (error) {
  document.body.append(element("p", { class: "problem", role: "alert" }, /** @type {Error} */ (error).message));
  throw error;
}
