// The bar at the top: a description of the model, and the buttons for the whole page.

import { element } from "tercet/element.js";
import { counted } from "tercet/numbers.js";
import { compare } from "tercet/pane.js";
import { save } from "tercet/save.js";
import { applyTheme, nextTheme } from "tercet/theme.js";

/** @typedef {import("tercet/main.js").Page} Page */

/** A note on the limits of a saved page. */
const WITHOUT_MODEL = [
  element("b", {}, "Saved page. "),
  "It contains one text with all its numbers, and the sampling settings work. It does not contain the model, so it " +
    "cannot read other texts, append or mask tokens, or set parts to zero. For that, run ",
  element("code", {}, "tercet explore RUN"),
  ".",
];

/** @param {Page} page @param {HTMLDialogElement} help */
export function header(page, help) {
  const { model, source } = page;
  const button = (
    /** @type {string} */ key,
    /** @type {() => void} */ onclick,
    /** @type {Record<string, unknown>} */ more,
    /** @type {string} */ text = "",
  ) => element("button", { type: "button", "data-key": key, onclick, ...more }, text);
  const theme = button("theme", () => page.change({ theme: nextTheme(page.state.theme) }), {});
  const two = button(
    "compare",
    () => compare(page),
    { hidden: !source.live, title: "compare two texts (c)" },
    "Compare",
  );
  const walk = button(
    "tour",
    () => page.change({ tour: page.state.tour === null ? 0 : null }),
    { class: "primary", title: "guided tour with the numbers of this text (g)" },
    "Tour",
  );
  const keep = button(
    "save",
    () => void save(page, busy),
    { hidden: !source.live, title: "save this page as one file, with all its numbers" },
    "Save page",
  );
  const keys = button(
    "help",
    () => help.showModal(),
    { "aria-label": "Keyboard and help", title: "keyboard (?)" },
    "?",
  );

  const saved = source.live ? null : element("p", { class: "saved", role: "note" }, ...WITHOUT_MODEL);

  /** @param {boolean} on */
  function busy(on) {
    keep.disabled = on;
    keep.textContent = on ? "Saving …" : "Save page";
  }

  return {
    element: element(
      "header",
      { class: "top" },
      element("div", { class: "model" }, element("h1", {}, model.name), element("p", {}, about(model)), saved),
      element("div", { class: "buttons" }, walk, two, keep, theme, keys),
    ),
    update() {
      const { state } = page;
      applyTheme(state.theme, theme);
      theme.title = `theme: ${state.theme === "auto" ? "system" : state.theme} (t)`;
      two.setAttribute("aria-pressed", String(state.panes.length > 1));
      walk.setAttribute("aria-pressed", String(state.tour !== null));
    },
  };
}

/** A description of the model in one line. @param {import("tercet/source.js").Model} model @returns {string} */
function about(model) {
  const family = {
    "decoder-only": "decoder-only (GPT)",
    "encoder-only": "encoder-only (BERT)",
    "encoder-decoder": "encoder-decoder (translator)",
  };
  const depths = model.stacks.map((stack) => stack.n_layers).join(" + ");
  const heads = [...new Set(model.stacks.map((stack) => stack.n_heads))].join(" and ");
  const { data, steps } = /** @type {{data?: unknown, steps?: unknown}} */ (model.about);
  return [
    family[/** @type {keyof typeof family} */ (model.family)] ?? model.family,
    `${counted(model.parameters)} parameters`,
    `${depths} blocks × ${heads} heads`,
    `width ${model.stacks[0]?.d_model}`,
    `${counted(model.vocab_size)} tokens`,
    `context ${model.max_len}`,
    typeof data === "string" && data !== "" ? `trained on ${data}` : "",
    typeof steps === "number" && steps > 0 ? `${counted(steps)} steps` : "",
  ]
    .filter((part) => part !== "")
    .join(" · ");
}
