// How to see what happens inside a model: the explorer is a server of its own, and this is how it is started.

import { element } from "tercet/element.js";
import { copyButton } from "tercet/panel.js";
import { quote } from "tercet/snippets.js";

/** @typedef {import("tercet/panel.js").Model} Model */
/** @typedef {import("tercet/panel.js").Page} Page */
/** @typedef {import("tercet/panel.js").Panel} Panel */

/** Which text of another task the explorer opens with. @type {Record<string, [string, string]>} */
const TEXTS = {
  "/v1/completions": ["prompt", "Once upon a time"],
  "/translate": ["source", "A dog runs."],
  "/fill-mask": ["masked", "The [MASK] sat."],
  "/classify": ["classified", "A dog runs."],
  "/v1/embeddings": ["one", "A dog runs."],
};

/** @param {Page} page @param {Model} model @returns {Panel} */
export function lookPanel(page, model) {
  const route = model.routes.find((path) => path in TEXTS && path !== "/v1/embeddings") ?? "/v1/embeddings";
  const [key, start] = TEXTS[route] ?? ["one", ""];
  const text = page.texts.get(key) || start;
  const command = `tercet explore ${quote(model.folder ?? "RUN")} --prompt ${quote(text)} --open`;
  const where =
    model.folder === null
      ? "Run this on the machine that serves it, with the folder of its run in place of RUN:"
      : "Run this in the folder in which the server was started:";
  const shown = element("pre", { tabindex: 0, role: "region", "aria-label": "Command" }, element("code", {}, command));
  const what =
    "The explorer shows this text's way through the model: its tokens, what each head attends to, what every layer " +
    "would say, and every number on the way. It is a server of its own, for this machine alone.";
  const card = element(
    "div",
    { class: "card look" },
    element("h2", {}, `Look inside ${model.id}`),
    element("p", {}, what),
    element("p", { class: "note" }, where),
    shown,
    element(
      "div",
      { class: "buttons" },
      copyButton(() => command, "this command"),
    ),
  );
  return { element: element("div", { class: "task" }, card), stop: () => undefined };
}
