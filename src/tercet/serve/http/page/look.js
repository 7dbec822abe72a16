// The command that starts the explorer, a separate server that shows the inside of a model.

import { element } from "tercet/element.js";
import { copyButton } from "tercet/panel.js";
import { quote } from "tercet/snippets.js";

/** @typedef {import("tercet/panel.js").Model} Model */
/** @typedef {import("tercet/panel.js").Page} Page */
/** @typedef {import("tercet/panel.js").Panel} Panel */

/** For each route, the key of the text that the explorer opens with, and the default text. @type {Record<string, [string, string]>} */
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
  const hint =
    model.folder === null
      ? "Run this command on the server's machine, with the run folder instead of RUN:"
      : "Run this command in the folder in which the server was started:";
  const codeBlock = element(
    "pre",
    { tabindex: 0, role: "region", "aria-label": "Command" },
    element("code", {}, command),
  );
  const description =
    "The explorer shows how the model processes this text: tokens, the attention of each head, the prediction of " +
    "each layer, and all activations. It is a separate server that only this machine can reach.";
  const card = element(
    "div",
    { class: "card look" },
    element("h2", {}, `Look inside ${model.id}`),
    element("p", {}, description),
    element("p", { class: "note" }, hint),
    codeBlock,
    element(
      "div",
      { class: "buttons" },
      copyButton(() => command, "this command"),
    ),
  );
  return { element: element("div", { class: "task" }, card), stop: () => undefined };
}
