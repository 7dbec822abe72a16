// A pane: one text, its pass through the model, and the drawings of that pass.

import { editLine } from "tercet/compare.js";
import { element } from "tercet/element.js";
import { labelOf } from "tercet/model.js";
import { percent } from "tercet/numbers.js";
import { probabilityPanel } from "tercet/probabilities.js";
import { continued, promptBox } from "tercet/prompt.js";
import { same } from "tercet/state.js";
import { views } from "tercet/views.js";

/** @typedef {import("tercet/model.js").Ask} Ask */
/** @typedef {import("tercet/main.js").Page} Page */
/** @typedef {import("tercet/source.js").Source} Source */
/** @typedef {import("tercet/state.js").State} State */
/** texts: the text of every id received so far.
 * @typedef {import("tercet/model.js").Pane & {source: Source, texts: Map<number, string>}} Loaded */
/** @typedef {{index: number, loaded: Loaded | null, ask: Ask | null, error: string | null, asked: number,
 *             element: HTMLElement, prompt: ReturnType<typeof promptBox>, edits: ReturnType<typeof editLine>,
 *             view: HTMLElement, probabilities: ReturnType<typeof probabilityPanel>, alert: HTMLElement}} Shown */

/** @param {Page} page @param {number} index @returns {Shown} */
export function paneBox(page, index) {
  const { model, change, say } = page;
  const prompt = promptBox(model, { change, append: (at, kind) => append(page, at, kind), index });
  const edits = editLine(change);
  const probabilities = probabilityPanel(model, change, say);
  const alert = element("p", { class: "problem", role: "alert", hidden: true });
  const view = element("div", { class: "view" });
  const name = index === 0 ? "A" : "B";
  const close = { type: "button", class: "quiet", "data-key": "close", onclick: () => compare(page) };
  const label = element(
    "header",
    { class: "pane-name" },
    element("b", {}, name),
    index === 0 ? null : element("button", close, "close"),
  );
  const body = element("div", { class: "body" }, view, probabilities.element);
  const box = element(
    "section",
    { class: "pane", "data-pane": index, "aria-label": `Text ${name}` },
    label,
    prompt.element,
    alert,
    edits.element,
    body,
  );
  return {
    index,
    loaded: null,
    ask: null,
    error: null,
    asked: 0,
    element: box,
    prompt,
    edits,
    view,
    probabilities,
    alert,
  };
}

/** Load the pass of the pane's text. @param {Page} page @param {Shown} box */
export async function load(page, box) {
  const { source, texts } = page;
  const ask = page.state.panes[box.index];
  if (ask === undefined || (box.ask !== null && same(box.ask, ask) && box.error === null)) return;
  const request = ++box.asked;
  box.ask = ask;
  box.element.setAttribute("aria-busy", "true");
  if (box.loaded === null) box.prompt.update(null, page.state);
  try {
    const look = await source.look(ask);
    const base = look.ask.edits.length === 0 ? null : await source.look({ ...look.ask, edits: [] });
    if (request !== box.asked) return; // a newer request was sent in the meantime
    for (const [id, text] of Object.entries(look.texts)) texts.set(Number(id), text);
    for (const side of look.sides) for (const token of side.tokens) texts.set(token.id, token.text);
    box.loaded = { index: box.index, ask: look.ask, look, base, source, texts };
    fail(box, null);
    page.say(summary(box.loaded));
    page.redraw(new Set(["pass"]));
  } catch (error) {
    if (request !== box.asked) return;
    box.prompt.update(null, page.state);
    fail(box, /** @type {Error} */ (error).message);
  }
  box.element.removeAttribute("aria-busy");
}

/** Show an error above the last pass. @param {Shown} box @param {string | null} error */
function fail(box, error) {
  box.error = error;
  box.alert.hidden = error === null;
  box.alert.textContent = error ?? "";
}

/** A summary of a new pass for screen readers. @param {Loaded} pane */
function summary({ look, base }) {
  const tokens = look.sides.map((side) => side.tokens.length).join(" and ");
  const id = look.top?.ids[look.at]?.[0];
  const likely =
    id === undefined || look.top === null
      ? ""
      : `; most likely at row ${look.at}: ${labelOf(look.texts[id] ?? "")}, ` +
        `${percent(look.top.probabilities.get(look.at, 0))}`;
  const cost =
    base?.loss && look.loss ? `; mean loss ${base.loss.mean.toFixed(3)} to ${look.loss.mean.toFixed(3)}` : "";
  return `${tokens} tokens read${likely}${cost}`;
}

/** The state with only rows that this pane has; the other pane may be longer.
 * @param {State} state @param {Loaded} pane @returns {State} */
export function seenBy(state, { look }) {
  const rows = look.sides.at(-1)?.tokens.length ?? 0;
  const keys = Math.max(...look.sides.map((side) => side.tokens.length));
  return {
    ...state,
    at: state.at !== null && state.at >= rows ? null : state.at,
    column: state.column !== null && state.column >= keys ? null : state.column,
  };
}

/** @param {Page} page @param {Shown} box */
export function draw(page, box) {
  const pane = box.loaded;
  if (pane === null) return;
  const visible = seenBy(page.state, pane);
  box.prompt.update(pane, visible);
  void box.edits.update(pane, visible);
  box.view.style.minHeight = `${box.view.offsetHeight}px`; // otherwise the page jumps while the parts are loaded
  try {
    const view = views[/** @type {import("tercet/views.js").View} */ (page.state.view)];
    box.view.replaceChildren(view.draw(pane, visible, page.change));
  } catch (error) {
    console.error(error);
    const text = `this view could not be drawn: ${/** @type {Error} */ (error).message}`;
    box.view.replaceChildren(element("p", { class: "problem", role: "alert" }, text));
  }
  setTimeout(() => (box.view.style.minHeight = ""), 400);
  void box.probabilities.update(pane, visible);
}

/** Append a token. @param {Page} page @param {number} index @param {"likely" | "sample"} kind */
export async function append(page, index, kind) {
  const { source, model } = page;
  const box = page.panes[index];
  const pane = box?.loaded ?? null;
  const side = pane?.look.sides.at(-1);
  if (box === undefined || pane === null || side === undefined) return;
  if (!source.live || box.element.hasAttribute("aria-busy")) return;
  const at = side.tokens.length - 1;
  const request = box.asked;
  box.element.setAttribute("aria-busy", "true");
  try {
    const { temperature, top_k, top_p, min_p, seed } = page.state;
    const token =
      kind === "sample" ? await source.sample(pane.ask, at, { temperature, top_k, top_p, min_p, seed }) : null;
    if (request === box.asked) box.element.removeAttribute("aria-busy");
    const id = token?.id ?? pane.look.top?.ids[at]?.[0];
    if (id === undefined || box.loaded !== pane) return;
    const next = kind === "sample" ? { seed: seed + 1 } : {};
    if (model.can.translate && id === model.eos_id) {
      page.change(next);
      return page.say("the model ends the sentence here");
    }
    page.change({ ...continued(pane, page.state, at, id), ...next });
  } catch (error) {
    if (request === box.asked) box.element.removeAttribute("aria-busy");
    fail(box, /** @type {Error} */ (error).message);
  }
}

/** Open a second pane, or close it. @param {Page} page */
export function compare(page) {
  const { state, panes, change } = page;
  const first = panes[0]?.loaded;
  const copy = state.panes[0];
  if (state.panes.length > 1 || copy === undefined) return change({ panes: state.panes.slice(0, 1) });
  change({ panes: [copy, { ...copy, target_ids: copy.target_ids ?? first?.ask.target_ids ?? null }] });
  requestAnimationFrame(() => requestAnimationFrame(() => panes[1]?.prompt.focus()));
}
