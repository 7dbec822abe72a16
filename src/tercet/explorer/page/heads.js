// Scores of each head: its weight on the previous token, its weight on repetitions, and its effect on the loss.

import { later } from "tercet/draw.js";
import { element } from "tercet/element.js";
import { heatMap } from "tercet/heatmap.js";
import { isEdited, toggled } from "tercet/model.js";
import { number } from "tercet/numbers.js";
import { tensor } from "tercet/tensor.js";

/** @typedef {import("tercet/model.js").Pane} Pane */
/** @typedef {import("tercet/model.js").State} State */
/** @typedef {import("tercet/model.js").Change} Change */
/** @typedef {import("tercet/model.js").HeadScores} HeadScores */
/** @typedef {{name: string, layer: number, kind: string}} Row */

const SCORES = /** @type {const} */ ([
  ["previous", "previous token", "mean weight on the previous token, on random tokens"],
  ["induction", "induction", "mean weight on the token after the previous occurrence, on repeated random tokens"],
  ["ablation", "ablation", "increase of this text's mean loss if the head is set to zero, in nats"],
]);

/** @param {Pane} pane @param {State} state @param {Change} change @returns {HTMLElement} */
export function heads(pane, state, change) {
  const unedited = { ...pane.look.ask, edits: [] }; // each head separately, independent of the current edits
  return element(
    "section",
    { class: "heads", "aria-label": "Scores of each head" },
    element("p", { class: "effect", "aria-live": "polite" }, effect(pane)),
    later(
      JSON.stringify([unedited, "heads"]),
      () => pane.source.heads(unedited),
      (scores) => element("div", {}, ...kinds(scores).map((rows) => ofKind(pane, state, change, scores, rows))),
      "setting each head to zero in turn …",
    ),
  );
}

/** The loss with and without the current edits. @param {Pane} pane */
function effect(pane) {
  const loss = pane.look.loss?.mean;
  const original = pane.base?.loss?.mean;
  if (loss === undefined) return "This text has no loss, because no token to be predicted is known.";
  if (original === undefined)
    return `Mean loss of this text ${number(loss)} nats.${pane.source.live ? " Click a head to set it to zero." : ""}`;
  const change = loss - original;
  const increase = `${change < 0 ? "" : "+"}${number(change)}`;
  return `Mean loss of this text: ${number(original)} nats without edits, ${number(loss)} with them (${increase}).`;
}

/** Group the scores by stack and kind of attention. @param {HeadScores} scores @returns {Row[][]} */
function kinds(scores) {
  /** @type {Map<string, Row[]>} */
  const groups = new Map();
  for (const { name } of scores.rows) {
    const match = /^(\w+)\.blocks\.(\d+)\.(\w+)_attention$/.exec(name);
    if (match === null) continue;
    const kind = `${match[1] === "stack" ? "" : `${match[1]}, `}${match[3]}-attention`;
    groups.set(kind, [...(groups.get(kind) ?? []), { name, layer: Number(match[2]), kind }]);
  }
  return [...groups.values()];
}

/** @param {Pane} pane @param {State} state @param {Change} change @param {HeadScores} scores @param {Row[]} rows */
function ofKind(pane, state, change, scores, rows) {
  const kind = rows[0]?.kind ?? "";
  const isHeadEdited = (/** @type {number} */ row, /** @type {number} */ head) =>
    isEdited(pane.ask, `${rows[row]?.name}.heads`, "heads", head);
  const widest = Math.max(...scores.rows.map(({ previous, ablation }) => (previous ?? ablation ?? []).length));
  const pictures = SCORES.map(([score, title, meaning]) => {
    const lists = rows.map((row) => scores.rows.find((candidate) => candidate.name === row.name)?.[score] ?? null);
    if (lists.some((list) => list === null)) return null;
    const width = lists[0]?.length ?? 0;
    const values = tensor([rows.length, width], Float32Array.from(lists.flatMap((list) => list ?? [])));
    const best = values.data.indexOf(Math.max(...values.data));
    const [row, head] = [Math.floor(best / width), best % width];
    return element(
      "section",
      {},
      element("h3", {}, title),
      element("p", { class: "note" }, meaning),
      heatMap({
        values,
        rows: rows.map(({ layer }) => `block ${layer}`),
        columns: Array.from({ length: width }, (_, h) => String(h)),
        kind: score === "ablation" ? "signed" : "share",
        ...(score === "ablation" ? {} : { low: 0, high: 1 }),
        label: `${kind}: ${title}`,
        key: `heads-${score}-${kind}`,
        names: ["block", "head"],
        cellHeight: 30,
        most: 72,
        legend: true,
        text: (r, h) => (isHeadEdited(r, h) ? "✕" : short(values.get(r, h))),
        marked: (r, h) => r === row && h === head,
        lines: (r, h) => [
          `block ${rows[r]?.layer}, head ${h}${isHeadEdited(r, h) ? ", set to zero" : ""}`,
          `${number(values.get(r, h))}  (${meaning})`,
        ],
        ...(pane.source.live
          ? { onpick: (r, h) => change(toggled(pane, state, `${rows[r]?.name}.heads`, "heads", h)) }
          : {}),
      }),
      element(
        "p",
        { class: "note best" },
        `highest: block ${rows[row]?.layer}, head ${head}, with ${number(values.get(row, head))}`,
      ),
    );
  });
  return element(
    "section",
    { class: "heads-kind" },
    element("h2", {}, kind),
    element("div", { class: "heads-three", style: `--least: ${Math.max(16, 2.5 * widest + 5)}rem` }, ...pictures),
  );
}

/** @param {number} value */
const short = (value) => (Math.abs(value) < 0.005 ? "0" : value.toFixed(2).replace("-", "−").replace("0.", "."));
