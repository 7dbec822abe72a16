// The logit lens, which is the model's prediction after each block, and the contributions of its parts to a logit.

import { keepScroll, later } from "tercet/draw.js";
import { element } from "tercet/element.js";
import { followed } from "tercet/flow.js";
import { heatMap } from "tercet/heatmap.js";
import { labels, rowOf, labelOf } from "tercet/model.js";
import { number, percent } from "tercet/numbers.js";
import { tensor } from "tercet/tensor.js";

/** @typedef {import("tercet/model.js").Pane} Pane */
/** @typedef {import("tercet/model.js").State} State */
/** @typedef {import("tercet/model.js").Change} Change */

const HEIGHT = 28; // pixels of a row
const CELL = 66; // maximum pixels for a token's text
const NARROW = 30; // minimum
const LETTER = 8;
const PARTS = 14; // parts of a logit in the list

/** @param {Pane} pane @param {State} state @param {Change} change @returns {HTMLElement} */
export function lens(pane, state, change) {
  const view = element("section", { class: "lens", "aria-label": "Logit lens" });
  const { lens: read, sides, texts } = pane.look;
  const side = sides[sides.length - 1];
  if (read === null || side === undefined) {
    view.append(
      element("p", { class: "note" }, "this model has no language-model head, so the logit lens is not available"),
    );
    return view;
  }
  const layers = read.names.length;
  const tokens = labels(side);
  const causal = pane.source.model.family !== "encoder-only";
  const row = rowOf(pane, state, side.stack);
  const layerOf = (/** @type {number} */ line) => layers - 1 - line; // the last block is the top line
  const named = (/** @type {number} */ layer) => (layer === 0 ? "embedding" : `block ${layer - 1}`);
  const values = tensor(
    [layers, tokens.length],
    Float32Array.from({ length: layers * tokens.length }, (_, i) =>
      read.probabilities.get(layerOf(Math.floor(i / tokens.length)), i % tokens.length, 0),
    ),
    read.probabilities.half,
  );
  const ids = (/** @type {number} */ line, /** @type {number} */ column) => read.ids[layerOf(line)]?.[column] ?? [];
  const text = (/** @type {number | undefined} */ id) => (id === undefined ? "" : labelOf(texts[id] ?? `id ${id}`));
  const right = (/** @type {number} */ column, /** @type {number | undefined} */ id) => id === followed(pane, column);
  const layer = state.layer !== null && state.layer >= 0 && state.layer < layers - 1 ? state.layer + 1 : layers - 1;
  const line = layers - 1 - layer;
  const words = read.ids.flatMap((rows) => rows.map(([id]) => text(id)));
  const longest = [...tokens, ...words].reduce((max, word) => Math.max(max, word.length), 1);
  const cell = Math.min(CELL, Math.max(NARROW, LETTER * longest + 10));

  const map = heatMap({
    values,
    columns: tokens,
    kind: "share",
    low: 0,
    high: 1,
    label: "logit lens, last block on top",
    key: "lens",
    names: ["layer", "token"],
    least: cell,
    most: 110,
    cellHeight: HEIGHT,
    legend: true,
    picked: [line, row],
    text: (r, c) => text(ids(r, c)[0]),
    marked: (r, c) => right(c, ids(r, c)[0]),
    lines: (r, c) => [
      `after ${named(layerOf(r))}, row ${c} ${tokens[c]}: ${causal ? "next token" : "this token"}`,
      ...ids(r, c).map(
        (id, k) =>
          `  ${text(id)}  ${percent(read.probabilities.get(layerOf(r), c, k))}${right(c, id) ? "  ✓ true" : ""}`,
      ),
    ],
    onpick: (r, c) => change({ at: c, layer: layerOf(r) === 0 ? null : layerOf(r) - 1 }),
  });
  const field = map.querySelector(".heat-field");
  if (field instanceof HTMLElement) keepScroll(field, `lens ${pane.index}`, () => [(row - 2) * cell, 0]);
  view.append(
    element(
      "p",
      { class: "note" },
      "Each cell is the prediction if the model ended at that layer: the final norm and the unembedding are applied " +
        "to the stream. Stronger color: more probable. The top line is the model's output.",
    ),
    element(
      "div",
      { class: "lens-split" },
      element(
        "div",
        { class: "lens-layers", "aria-hidden": "true" },
        ...Array.from({ length: layers }, (_, r) =>
          element("div", { style: `height:${HEIGHT}px`, class: r === line ? "chosen" : null }, named(layerOf(r))),
        ),
      ),
      map,
    ),
    element(
      "p",
      { class: "key" },
      element(
        "span",
        { class: "key-item" },
        element("span", { class: "key-mark ring", "aria-hidden": "true" }),
        causal ? "the true next token" : "the true token",
      ),
    ),
  );
  const parts = attribution(pane, row, tokens[row] ?? "");
  if (parts !== null) view.append(parts);
  return view;
}

/**
 * The largest parts of the logit of the most likely token of a row.
 * @param {Pane} pane @param {number} row @param {string} token
 */
function attribution(pane, row, token) {
  const id = pane.look.top?.ids[row]?.[0];
  if (id === undefined) return null;
  if (!pane.source.model.linear_head) {
    const why = "The head's transform is not linear, so a logit is not a sum over the parts of the model.";
    return element("p", { class: "note" }, why);
  }
  const text = labelOf(pane.look.texts[id] ?? `id ${id}`);
  const ask = pane.look.ask;
  const causal = pane.source.model.family !== "encoder-only";
  return element(
    "section",
    { class: "lens-after", "aria-label": "attribution" },
    element("h2", {}, `Parts of the logit of ${text} ${causal ? "after" : "at"} row ${row} ${token}`),
    later(
      JSON.stringify([ask, row, id, "attribution"]),
      () => pane.source.attribution(ask, row, id),
      (shares) => {
        const parts = shares.names.map((name, i) => ({ name, value: shares.values[i] ?? 0 }));
        parts.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
        const largest = Math.abs(parts[0]?.value ?? 1) || 1;
        const rest = parts.slice(PARTS).reduce((sum, part) => sum + part.value, 0);
        const list = parts.slice(0, PARTS);
        if (parts.length > PARTS) list.push({ name: `${parts.length - PARTS} smaller parts`, value: rest });
        return element(
          "div",
          {},
          element(
            "p",
            { class: "note" },
            `logit ${number(shares.logit)}; each part is scaled by the norms as in this pass`,
          ),
          element(
            "ol",
            { class: "contributions" },
            ...list.map(({ name, value }) =>
              element(
                "li",
                {},
                element("span", {}, name.replace("blocks.", "block ")),
                element("span", { class: "signed", "aria-hidden": "true" }, bar(value / largest)),
                element("span", { class: "value" }, `${value > 0 ? "+" : ""}${number(value)}`),
              ),
            ),
          ),
        );
      },
      "computing …",
    ),
  );
}

/** @param {number} share from -1 to 1 */
function bar(share) {
  const wide = Math.min(1, Math.abs(share)) * 50;
  const [left, color] = share < 0 ? [50 - wide, "negative"] : [50, "positive"];
  return element("i", { style: `width: ${wide}%; left: ${left}%; background: var(--${color})` });
}
