// The parts around the blocks: the embeddings before the first block, and the logits after the last one.

import { step, vectors } from "tercet/block.js";
import { later } from "tercet/draw.js";
import { element } from "tercet/element.js";
import { labels, rowOf, labelOf, sideOf, stackOf, sumOf } from "tercet/model.js";
import { exact, number, percent } from "tercet/numbers.js";
import { slice } from "tercet/tensor.js";

/** @typedef {import("tercet/model.js").Pane} Pane */
/** @typedef {import("tercet/model.js").Block} Block */

const SHOWN = 10; // tokens whose logit is computed

/**
 * @param {Pane} pane @param {import("tercet/model.js").State} state @param {import("tercet/model.js").Change} change
 * @param {"start" | "end"} end
 */
export function around(pane, state, change, end) {
  const stack = stackOf(pane, state);
  const row = rowOf(pane, state, stack.name);
  const rows = labels(sideOf(pane, stack.name));
  const size = `(${rows.length} × ${stack.d_model})`;
  const render = (/** @type {Block} */ opened) => {
    const map = (/** @type {string} */ name, /** @type {string} */ title, /** @type {string} */ formula) => {
      const values = opened.tensors[name];
      return values === undefined
        ? null
        : step(title, `${formula}  ${size}`, vectors(values, rows, row, title, `step-${name}`));
    };
    const embedding = stack.name === "encoder" ? "source_embedding" : "embedding";
    const position = opened.tensors[`${stack.name}.position.embed`] !== undefined;
    if (end === "start") {
      return element(
        "div",
        { class: "steps" },
        map(embedding, "embedding", "row of the table for the token's id"),
        map("segment_embedding", "segment", "first or second text"),
        position ? map(`${stack.name}.position.embed`, `position (${stack.position})`, "position vector") : null,
        map(`${stack.name}.dropout`, "input of block 0", position ? "embedding + position" : "embedding"),
        position
          ? null
          : element(
              "p",
              { class: "note" },
              `no position is added here: ${POSITIONS[stack.position] ?? stack.position}`,
            ),
      );
    }
    return element(
      "div",
      { class: "steps" },
      map(
        `${stack.name}.final_norm`,
        stack.final_norm ? `final ${stack.norm} norm` : "output",
        stack.final_norm ? "norm(x)" : stack.placement === "post" ? "normalized by the last block" : "not normalized",
      ),
      map("transform", "transform", "dense, activation, norm"),
      scores(pane, opened, stack.name, row, rows[row] ?? ""),
    );
  };
  const title = end === "start" ? sumOf(stack) : "from the stream to logits";
  return element(
    "section",
    { class: "block", "aria-label": title },
    element(
      "div",
      { class: "block-bar" },
      element("h2", {}, title),
      element(
        "button",
        { type: "button", class: "close compact", "data-key": "block-close", onclick: () => change({ part: null }) },
        "close",
      ),
    ),
    later(
      JSON.stringify([pane.look.ask, stack.name]),
      () => pane.source.block(pane.look.ask, stack.name),
      render,
      "reading …",
    ),
  );
}

/** @type {Record<string, string>} */
const POSITIONS = {
  rotary: "queries and keys are rotated by the position in every block (rotary)",
  alibi: "scores decrease with the distance in every block (ALiBi)",
  relative_bias: "a learned number for the distance is added to the scores in every block (T5)",
  none: "the order follows from the mask only",
};

/** @param {Pane} pane @param {Block} opened @param {string} stack @param {number} row @param {string} text */
function scores(pane, opened, stack, row, text) {
  const table = opened.unembedding;
  const top = pane.look.top;
  if (table === undefined || top === null) return null;
  const hidden = opened.tensors.transform ?? opened.tensors[`${stack}.final_norm`];
  if (hidden === undefined) return null;
  const vector = slice(hidden, row).data;
  const logit = (/** @type {number} */ i) => {
    let dot = table.bias?.get(i) ?? 0;
    slice(table.rows, i).data.forEach((value, d) => (dot += value * (vector[d] ?? 0)));
    return table.softcap === null ? dot : table.softcap * Math.tanh(dot / table.softcap);
  };
  const all = table.ids
    .map((id, i) => ({ id, logit: logit(i) }))
    .sort((a, b) => b.logit - a.logit)
    .slice(0, SHOWN);
  const best = all[0]?.logit ?? 0;
  const worst = all[all.length - 1]?.logit ?? 0;
  const probability = (/** @type {number} */ id) => {
    const at = top.ids[row]?.indexOf(id) ?? -1;
    return at < 0 ? "" : percent(top.probabilities.get(row, at));
  };
  const formula = `logit = x · row of the token${table.bias === null ? "" : " + bias"}`;
  return element(
    "section",
    { class: "step" },
    element("h3", {}, `logits of row ${row} ${text}`),
    element("code", { class: "formula" }, formula),
    element(
      "table",
      { class: "scores" },
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          ...["token", "logit", "", "probability"].map((name) => element("th", { scope: "col" }, name)),
        ),
      ),
      element(
        "tbody",
        {},
        ...all.map(({ id, logit }) =>
          element(
            "tr",
            {},
            element("th", { scope: "row" }, labelOf(pane.look.texts[id] ?? `id ${id}`)),
            element("td", { title: exact(logit, 0) }, number(logit)),
            element(
              "td",
              { class: "bar-cell" },
              element("span", {
                class: "bar",
                style: `--part:${(8 + (92 * (logit - worst)) / (best - worst || 1)).toFixed(0)}%`,
              }),
            ),
            element("td", {}, probability(id)),
          ),
        ),
      ),
    ),
    element("p", { class: "note" }, "a softmax over the whole vocabulary converts the logits to probabilities"),
  );
}
