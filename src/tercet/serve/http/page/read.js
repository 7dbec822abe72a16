// Tasks with a single response: masks, labels, search, reranking, and the similarity of two texts.

import { ask } from "tercet/api.js";
import { element } from "tercet/element.js";
import { percent } from "tercet/numbers.js";
import { duration, definedFields, numberField, panel, textArea } from "tercet/panel.js";

/** @typedef {import("tercet/api.js").Body} Body */
/** @typedef {import("tercet/panel.js").Model} Model */
/** @typedef {import("tercet/panel.js").Page} Page */
/** @typedef {import("tercet/panel.js").Panel} Panel */

const MAX_LABELS = 12; // shown labels
const MASK = "[MASK]";

/** @param {string} path @param {Body} body @param {AbortSignal} signal @param {(answer: any) => void} show */
export async function timed(path, body, signal, show) {
  const start = performance.now();
  const answer = await ask(path, body, signal);
  const facts = [`response in ${duration(performance.now() - start)}`];
  const first = (answer.answers ?? answer.results)?.[0];
  if (first?.truncated) facts.push("the text exceeded the maximum length and was truncated");
  if (answer.usage) facts.push(`${answer.usage.prompt_tokens} tokens read`);
  show(answer);
  return facts;
}

/**
 * A bar chart of probabilities. @param {[string, number][]} shares the best one first @param {string} name
 * @param {(share: number) => string} [format]
 */
function bars(shares, name, format = percent) {
  const rows = shares.map(([text, share], i) => {
    const fill = element("span", { class: "fill", style: `width: ${100 * Math.max(0, Math.min(1, share))}%` });
    return element(
      "li",
      i === 0 ? { class: "best" } : {},
      element("span", { class: "name" }, text),
      element("span", { class: "track", "aria-hidden": "true" }, fill),
      element("span", { class: "share" }, format(share)),
    );
  });
  return element("ol", { class: "bars", "aria-label": name }, ...rows);
}

/** The score of a translation or search result. @param {{score: number}} result */
export const score = (result) => element("small", {}, ` score ${result.score.toFixed(3).replace("-", "−")}`);

/** A visible form of a word, also of white space. @param {string} word */
const visibleWord = (word) => word.trim() || JSON.stringify(word);

/** @param {Page} page @param {Model} model @returns {Panel} */
export function fillPanel(page, model) {
  const text = textArea(page, "masked", `The ${MASK} sat.`, { id: "masked" });
  const top = numberField(page, "top", "Words", "5", "number of words per mask");
  const output = element("div", { "data-key": "output" });
  const insert = element("button", { type: "button", onclick: insertMask }, `Insert ${MASK}`);

  function insertMask() {
    text.setRangeText(MASK, text.selectionStart, text.selectionEnd, "end");
    text.dispatchEvent(new Event("input", { bubbles: true }));
    text.focus();
  }

  return panel(page, {
    path: "/fill-mask",
    verb: "Fill",
    inputs: [element("label", { for: "masked" }, `Text, with ${MASK} for missing words`), text],
    settings: [top.element],
    buttons: [insert],
    output,
    body: () => definedFields({ model: model.id, text: text.value, top: top.read() }),
    answer: (body, signal) =>
      timed("/fill-mask", body, signal, (answer) => {
        const { masks } = answer.answers[0];
        const parts = String(body.text).split(/\[MASK\]|<mask>/);
        const sentence = element("p", { class: "text" });
        parts.forEach((part, i) => {
          sentence.append(part);
          if (i < parts.length - 1) sentence.append(element("mark", {}, visibleWord(masks[i]?.[0]?.word ?? MASK)));
        });
        const all = masks.map((/** @type {any[]} */ words, /** @type {number} */ i) => {
          const name = masks.length > 1 ? `Mask ${i + 1}` : "Candidates";
          return element(
            "section",
            {},
            element("h2", {}, name),
            bars(
              words.map((one) => [visibleWord(one.word), one.probability]),
              name,
            ),
          );
        });
        output.replaceChildren(sentence, element("div", { class: "masks" }, ...all));
      }),
  });
}

/** @param {Page} page @param {Model} model @returns {Panel} */
export function classifyPanel(page, model) {
  const text = textArea(page, "classified", "A dog runs.", { id: "classified" });
  const output = element("div", { "data-key": "output" });
  return panel(page, {
    path: "/classify",
    verb: "Classify",
    inputs: [element("label", { for: "classified" }, "Text"), text],
    output,
    body: () => ({ model: model.id, text: text.value }),
    answer: (body, signal) =>
      timed("/classify", body, signal, (answer) => output.replaceChildren(...describeLabels(answer.answers[0]))),
  });
}

/** The label, labels, number or labeled words of a text. @param {any} answer @returns {Node[]} */
function describeLabels(answer) {
  if (answer.words) return [element("p", { class: "tagged" }, ...answer.words.map(taggedWord))];
  if (answer.value !== undefined)
    return [element("p", { class: "verdict" }, String(Number(answer.value.toPrecision(6))))];
  const names = answer.label === undefined ? Object.keys(answer.labels) : [answer.label];
  const shares = /** @type {[string, number][]} */ (Object.entries(answer.scores)).sort((a, b) => b[1] - a[1]);
  const nHidden = shares.length - MAX_LABELS;
  return [
    element("p", { class: "verdict" }, names.join(", ") || "no label"),
    bars(shares.slice(0, MAX_LABELS), "Labels"),
    ...(nHidden > 0 ? [element("p", { class: "note" }, `and ${nHidden} less likely labels`)] : []),
  ];
}

/** @param {{word: string, label: string | null, probability: number | null}} one */
function taggedWord({ word, label, probability }) {
  const title = probability === null ? "" : `${label}, ${percent(probability)}`;
  return element("span", { class: "word", title }, word, element("small", {}, label ?? "–"));
}

/** @param {Page} page @param {Model} model @returns {Panel} */
export function searchPanel(page, model) {
  const query = textArea(page, "searched", "Who runs?", { rows: 2, id: "searched" });
  const top = numberField(page, "results", "Results", "5", "number of results");
  const output = element("div", { "data-key": "output" });
  return panel(page, {
    path: "/v1/search",
    verb: "Search",
    inputs: [element("label", { for: "searched" }, "Query"), query],
    settings: [top.element],
    output,
    body: () => definedFields({ model: model.id, query: query.value, top: top.read() }),
    answer: (body, signal) =>
      timed("/v1/search", body, signal, ({ answers }) => {
        const items = answers[0].neighbors.map((/** @type {any} */ one) => {
          const part = one.start === null ? "" : `, characters ${one.start} to ${one.end}`;
          return element("li", {}, one.text ?? "", score(one), element("small", {}, ` in ${one.id ?? one.index}${part}`));
        });
        output.replaceChildren(element("ol", { class: "others", "aria-label": "Results" }, ...items));
      }),
  });
}

/** @param {Page} page @param {Model} model @returns {Panel} */
export function rerankPanel(page, model) {
  const query = textArea(page, "query", "Who runs?", { rows: 2, id: "query" });
  const documents = textArea(page, "documents", "A dog runs.\nA cat sleeps.", { id: "documents" });
  const output = element("div", { "data-key": "output" });
  return panel(page, {
    path: "/v1/rerank",
    verb: "Rerank",
    inputs: [
      element("label", { for: "query" }, "Query"),
      query,
      element("label", { for: "documents" }, "Documents, one per line"),
      documents,
    ],
    output,
    body: () => ({
      model: model.id,
      query: query.value,
      documents: documents.value.split("\n").filter((line) => line.trim()),
    }),
    answer: (body, signal) =>
      timed("/v1/rerank", body, signal, ({ results }) => {
        /** @type {[string, number][]} */
        const scores = results.map((/** @type {any} */ one) => [one.document.text, one.relevance_score]);
        output.replaceChildren(bars(scores, "Documents", (relevance) => relevance.toFixed(3).replace("-", "−")));
      }),
  });
}

/** @param {Page} page @param {Model} model @returns {Panel} */
export function comparePanel(page, model) {
  const first = textArea(page, "one", "A dog runs.", { rows: 3, id: "one" });
  const second = textArea(page, "other", "A cat sleeps.", { rows: 3, id: "other" });
  const output = element("div", { "data-key": "output" });
  const pair = element(
    "div",
    { class: "pair" },
    element("div", {}, element("label", { for: "one" }, "First text"), first),
    element("div", {}, element("label", { for: "other" }, "Second text"), second),
  );
  return panel(page, {
    path: "/v1/embeddings",
    verb: "Compare",
    inputs: [pair],
    output,
    body: () => ({ model: model.id, input: [first.value, second.value] }),
    answer: (body, signal) =>
      timed("/v1/embeddings", body, signal, (answer) => {
        /** @type {[number[], number[]]} */
        const [a, b] = answer.data.map((/** @type {any} */ item) => item.embedding);
        const similarity = a.reduce((sum, value, i) => sum + value * (b[i] ?? 0), 0); // both have length 1
        const left = 50 + 50 * Math.max(-1, Math.min(1, similarity));
        const dot = element("span", { class: "needle", style: `left: ${left}%` });
        output.replaceChildren(
          element("p", { class: "verdict", "data-key": "alike" }, similarity.toFixed(3).replace("-", "−")),
          element("div", { class: "scale", "aria-hidden": "true" }, dot),
          element(
            "div",
            { class: "ends", "aria-hidden": "true" },
            ...["−1", "0", "1"].map((end) => element("span", {}, end)),
          ),
          element(
            "p",
            { class: "note" },
            `cosine similarity of their vectors (${a.length} dimensions); 1 means the same direction`,
          ),
        );
      }),
  });
}
