// Keyboard shortcuts, and the dialog that lists them.

import { element } from "tercet/element.js";
import { labelOf, toggled } from "tercet/model.js";
import { append, compare } from "tercet/pane.js";
import { maskToggled } from "tercet/prompt.js";
import { nextTheme } from "tercet/theme.js";
import { viewsOf } from "tercet/views.js";

/** @typedef {import("tercet/main.js").Page} Page */

const KEYS = [
  ["j  k", "next, previous token"],
  ["[  ]", "previous, next block"],
  [",  .", "previous, next head"],
  ["1 … 5", "views, from left to right"],
  ["a", "set the chosen head to zero, or restore it"],
  ["m", "mask the chosen token, or restore it"],
  ["n  s", "append the most likely token, or a sampled one"],
  ["c", "compare two texts"],
  ["g", "guided tour"],
  ["t", "theme: light, dark or system"],
  ["/", "go to the text"],
  ["Esc", "close the open part"],
  ["arrows", "move among tokens, tabs and the cells of a picture"],
];

export function helpBox() {
  const rows = KEYS.map(([keys = "", action = ""]) => [
    element("dt", {}, element("kbd", {}, keys)),
    element("dd", {}, action),
  ]);
  const close = element("form", { method: "dialog" }, element("button", { class: "primary" }, "Close"));
  return element(
    "dialog",
    { class: "help", "aria-label": "Keyboard" },
    element("h2", {}, "Keyboard"),
    element("dl", {}, ...rows.flat()),
    element(
      "p",
      { class: "note" },
      "Every number on this page was computed by your model, for this text unless noted. Blocks, heads and rows are " +
        "counted from 0. The address of this page restores the current view.",
    ),
    close,
  );
}

/** Handle the shortcuts, unless an input field has the focus. @param {Page} page @param {HTMLDialogElement} help */
export function listen(page, help) {
  /** @type {Record<string, () => void>} */
  const actions = {
    j: () => moveRow(page, 1),
    k: () => moveRow(page, -1),
    "[": () => moveLayer(page, -1),
    "]": () => moveLayer(page, 1),
    ",": () => moveHead(page, -1),
    ".": () => moveHead(page, 1),
    a: () => ablate(page),
    m: () => mask(page),
    n: () => void append(page, 0, "likely"),
    s: () => void append(page, 0, "sample"),
    c: () => compare(page),
    g: () => page.change({ tour: page.state.tour === null ? 0 : null }),
    t: () => page.change({ theme: nextTheme(page.state.theme) }),
    "/": () => page.panes[0]?.prompt.focus(),
    "?": () => help.showModal(),
  };
  viewsOf(page.model).forEach((view, i) => (actions[i + 1] = () => page.change({ view })));
  document.addEventListener("keydown", (event) => {
    const on = /** @type {Element} */ (event.target);
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") return escape(page, on);
    if (on.matches("textarea, select, input:not([type=range]), [contenteditable]")) return;
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]?.();
  });
}

/** @param {Page} page @param {number} by */
function moveRow(page, by) {
  const look = page.panes[0]?.loaded?.look;
  const tokens = look?.sides.at(-1)?.tokens;
  if (look === undefined || tokens === undefined) return;
  const at = Math.min(Math.max((page.state.at ?? look.at) + by, 0), tokens.length - 1);
  page.change({ at });
  page.say(`row ${at}, ${labelOf(tokens[at]?.text ?? "")}`);
}

/** @param {Page} page @param {number} by */
function moveLayer({ model, state, change, say }, by) {
  const stack = model.stacks.find((candidate) => candidate.name === state.stack);
  if (stack === undefined) return;
  const layer = Math.min(Math.max((state.layer ?? (by > 0 ? -1 : stack.n_layers)) + by, 0), stack.n_layers - 1);
  change({ layer });
  say(`${stack.name === "stack" ? "" : `${stack.name}, `}block ${layer}`);
}

/** @param {Page} page @param {number} by */
function moveHead({ model, state, change, say }, by) {
  const stack = model.stacks.find((candidate) => candidate.name === state.stack);
  if (stack === undefined) return;
  const head = (state.head + by + stack.n_heads) % stack.n_heads;
  change({ head });
  say(`head ${head}`);
}

/** @param {Page} page */
function ablate({ panes, state, change }) {
  const pane = panes[0]?.loaded;
  if (pane === undefined || pane === null) return;
  const part = state.part === "cross" ? "cross_attention" : "self_attention";
  change(toggled(pane, state, `${state.stack}.blocks.${state.layer ?? 0}.${part}.heads`, "heads", state.head));
}

/** @param {Page} page */
function mask({ panes, source, state, change }) {
  const pane = panes[0]?.loaded;
  if (pane !== undefined && pane !== null && source.live) change(maskToggled(pane, state, state.at ?? pane.look.at));
}

/** @param {Page} page @param {Element} on */
function escape(page, on) {
  const { state, change } = page;
  if (on.matches("textarea, input")) return /** @type {HTMLElement} */ (on).blur();
  if (state.tour !== null) change({ tour: null });
  else if (state.layer !== null || state.part !== null) change({ layer: null, part: null });
  else if (state.panes.length > 1) compare(page);
}
