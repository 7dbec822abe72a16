// A guided tour of the page for newcomers. It explains each part in a few sentences, with the numbers of this text.
// A step defines the state to open, the element to outline and its sentences. Unavailable facts are left out.

import { element } from "tercet/element.js";
import { distribution } from "tercet/filters.js";
import { rowOf, labelOf } from "tercet/model.js";
import { counted, number, percent } from "tercet/numbers.js";
import { best, logitsAt } from "tercet/probabilities.js";
import { originalAt } from "tercet/prompt.js";
import { slice } from "tercet/tensor.js";

/** @typedef {import("tercet/model.js").Change} Change */
/** @typedef {import("tercet/model.js").Tensor} Tensor */
/** @typedef {import("tercet/model.js").StackInfo} StackInfo */
/** @typedef {import("tercet/pane.js").Loaded} Loaded */
/** @typedef {import("tercet/state.js").State} State */
/** @typedef {{pane: Loaded, state: State, row: number, stack: StackInfo, tokens: string[]}} Here */
/**
 * @typedef {{title: string, opens: Partial<State>, aim: string,
 *             sentences: (here: Here) => Promise<string[]> | string[]}} Step
 */

const INTERVAL = 300; // ms between two checks whether the outlined element has been drawn
const MAX_SCROLLS = 6; // checks that scroll to the element; after them, the reader can scroll freely

const length = (/** @type {Tensor} */ row) => Math.hypot(...row.data);
const quoted = (/** @type {string | undefined} */ text) => `‘${labelOf(text ?? "")}’`;

/** @param {Here} here @param {number} row @param {string} [stack] */
function token({ pane }, row, stack) {
  const side =
    stack === undefined ? pane.look.sides.at(-1) : pane.look.sides.find((candidate) => candidate.stack === stack);
  return `${quoted(side?.tokens[row]?.text)} (row ${row})`;
}

const toList = (/** @type {Tensor} */ values) => /** @type {number[]} */ ([...values.data]);
const largest = (/** @type {Tensor} */ values) =>
  toList(values).reduce((best, value, i, all) => (value > (all[best] ?? 0) ? i : best), 0);

/** The tensors of the open block, or of the first block if none is open. @param {Here} here */
async function openBlock({ pane, state, stack }) {
  const layer = state.layer ?? 0;
  const name = `${stack.name}.blocks.${layer}`;
  const { tensors, input } = await pane.source.block(pane.ask, name);
  const get = (/** @type {string} */ key) => {
    const tensor = tensors[key];
    if (tensor === undefined) throw new Error(`${key} was not recorded in this pass`);
    return tensor;
  };
  return { layer, name, get, input: get(input ?? "") };
}

/** @param {string} stack @param {"self" | "cross"} part @returns {Step} */
const scoring = (stack, part) => ({
  title: part === "cross" ? "Attention to the source" : "Queries and keys",
  opens: { view: "flow", stack, layer: 0, part },
  aim: '.step:has([data-key="step-scores"])',
  sentences: async (here) => {
    const { layer, name, get } = await openBlock(here);
    const { head } = here.state;
    const scores = slice(slice(get(`${name}.${part}_attention.scores`), head), here.row);
    const weights = slice(slice(get(`${name}.${part}_attention.weights`), head), here.row);
    const best = largest(weights);
    const width = here.stack.d_head;
    const keys = part === "cross" ? "encoder" : here.stack.name;
    const roles =
      part === "cross"
        ? "A query comes from a token of the target, the keys and values from the source."
        : "Each token makes three short rows: a query (what it looks for), a key (what it offers) and a value " +
          "(what it contributes).";
    return [
      `This is block ${layer}, head ${head}. ${roles} Each contains ${width} numbers.`,
      `The dot product of the query of ${token(here, here.row, here.stack.name)} and the key of ` +
        `${token(here, best, keys)}, divided by √${width} = ${number(Math.sqrt(width))}, gives the score ` +
        `${number(scores.get(best))}. Move the pointer over the picture to see the other scores.`,
    ];
  },
});

/** @param {string} stack @param {"self" | "cross"} part @returns {Step} */
const weighing = (stack, part) => ({
  title: part === "cross" ? "Attention weights over the source" : "Scores become weights",
  opens: { view: "flow", stack, layer: 0, part },
  aim: '.step:has([data-key="step-weights"])',
  sentences: async (here) => {
    const { name, get } = await openBlock(here);
    const { head } = here.state;
    const weights = slice(slice(get(`${name}.${part}_attention.weights`), head), here.row);
    const best = largest(weights);
    const sum = toList(weights).reduce((total, weight) => total + weight, 0);
    const keys = part === "cross" ? "encoder" : here.stack.name;
    return [
      "Softmax turns a row of scores into attention weights: e to the power of each score, divided by the sum of " +
        `all of them. The row of ${token(here, here.row, here.stack.name)} adds up to ${sum.toFixed(4)}.`,
      `The largest weight in head ${head}, ${percent(weights.get(best))}, is on ${token(here, best, keys)}. ` +
        "Choose another head above to compare: each head has its own weights.",
    ];
  },
});

/** @param {string} stack @param {"self" | "cross"} part @returns {Step} */
const adding = (stack, part) => ({
  title: "The result is added to the stream",
  opens: { view: "flow", stack, layer: 0, part },
  aim: '.step:has([data-key="step-residual"])',
  sentences: async (here) => {
    const { name, get, input } = await openBlock(here);
    const { n_heads: heads, d_head: width, d_model: model, placement } = here.stack;
    const [before, out, after] = [
      part === "cross" ? get(`${name}.self_residual`) : input,
      get(`${name}.${part}_attention`),
      get(`${name}.${part}_residual`),
    ].map((tensor) => length(slice(tensor, here.row)));
    return [
      `The output of a head is the weighted sum of the values. The ${heads} outputs are concatenated, ` +
        `${heads} × ${width} = ${heads * width} numbers, and a matrix projects them to the stream's width, ${model}.`,
      `The result is added to the stream. For row ${here.row}: the stream has length ${number(before ?? NaN)}, ` +
        `the attention output has length ${number(out ?? NaN)}, and ` +
        `${placement === "post" ? "after addition and norm the length is" : "after the addition the length is"} ` +
        `${number(after ?? NaN)}.`,
    ];
  },
});

/** @type {(stack: string) => Step} */
const masking = (stack) => ({
  title: "The causal mask",
  opens: { view: "flow", stack, layer: 0, part: "self" },
  aim: '.step:has([data-key="step-mask"])',
  sentences: ({ row, tokens }) => {
    const last = tokens.length - 1;
    const hidden = row < last ? `, but not to rows ${row + 1} to ${last}` : ", which are all rows of this text";
    return [
      `A model that predicts the next token must not see it. So row ${row} may attend to rows 0 to ${row}${hidden}; ` +
        "row 0 only sees itself.",
      "A masked score counts as minus infinity, so its weight is exactly 0.",
    ];
  },
});

/** @param {string} stack @returns {Step} */
const thinking = (stack) => ({
  title: "The MLP",
  opens: { view: "flow", stack, layer: 0, part: "mlp" },
  aim: '.step:has([data-key="step-activations"])',
  sentences: async (here) => {
    const { layer, name, get } = await openBlock(here);
    const { d_model: width, d_ff: wide, activation, gated } = here.stack;
    const active = toList(slice(get(`${name}.feedforward.activations`), here.row));
    const above = active.reduce((sum, value) => sum + (value > 0 ? 1 : 0), 0);
    return [
      `After attention, every row passes through the same small network (MLP) separately: ${counted(width)} numbers ` +
        `become ${counted(wide)} neurons${gated ? ", each scaled by a gate" : ""}, then ` +
        `${counted(width)} numbers again. The activation between them, ${activation}, keeps large numbers and ` +
        "flattens those below zero.",
      `In block ${layer}, ${percent(above / active.length)} of the neurons of row ${here.row} are above zero: ` +
        `${counted(above)} of ${counted(active.length)}. The output is added to the stream, which the next block ` +
        "reads.",
    ];
  },
});

/** @type {Step} */
const reading = {
  title: "The prediction after each block",
  opens: { view: "lens", layer: null, part: null },
  aim: ".lens",
  sentences: (here) => {
    const { lens, texts } = here.pane.look;
    if (lens === null) return ["This model has no language-model head, so the logit lens is not available."];
    const predictions = lens.names.map((name, layer) => {
      const id = lens.ids[layer]?.[here.row]?.[0] ?? -1;
      const after = layer === 0 ? "embedding" : `block ${layer - 1}`;
      return { id, name, text: `${after} ${quoted(texts[id])} ${percent(lens.probabilities.get(layer, here.row, 0))}` };
    });
    const last = predictions.at(-1);
    const since = predictions.findLastIndex((prediction) => prediction.id !== last?.id) + 1;
    const shown = predictions.length <= 7 ? predictions : [...predictions.slice(0, 2), ...predictions.slice(-4)];
    return [
      "The logit lens applies the output head to the stream after every block, as if the model ended there. Row " +
        `${here.row} predicts: ${shown.map((prediction) => prediction.text).join(", ")}.`,
      since === 0
        ? "The final prediction is there from the beginning."
        : since >= predictions.length - 1
          ? "The final prediction only appears after the last block."
          : `From block ${since - 1} on, the prediction stays the same.`,
    ];
  },
};

/** @param {boolean} masked @returns {Step} */
const choosing = (masked) => ({
  title: "From the stream to probabilities",
  opens: { view: "flow", layer: null, part: null },
  aim: ".candidates",
  sentences: async (here) => {
    const row = await logitsAt(here.pane, here.row);
    if (row === null) return ["This model has no language-model head."];
    const { vocab_size: size } = here.pane.source.model;
    const first = best(row);
    const id = row.ranking.ids[1];
    const second =
      id === undefined ? "" : `, then ${quoted(row.texts[id])} with ${percent(row.plain.probabilities[1] ?? 0)}`;
    return [
      "After the last block, this row of the stream is compared with each of the " +
        `${counted(size)} tokens of the vocabulary, which gives one score, or logit, per token. ` +
        "Softmax turns the logits into the probabilities of " +
        `${masked ? "the token at" : "the token after"} ${token(here, here.row)}.`,
      `The most likely token is ${quoted(first.text)} with ${percent(first.share)}${second}. ` +
        `${here.pane.source.live ? `Click a token to ${masked ? "insert it here" : "append it"}.` : ""}`,
    ];
  },
});

/** @type {Step} */
const warming = {
  title: "Sampling",
  opens: { view: "flow", layer: null, part: null },
  aim: ".controls",
  sentences: async (here) => {
    const row = await logitsAt(here.pane, here.row);
    if (row === null) return ["This model has no language-model head."];
    const { text } = best(row);
    const none = { top_k: null, top_p: null, min_p: null };
    const at = (/** @type {number} */ temperature) =>
      percent(distribution(row.ranking, { temperature, ...none }).probabilities[0] ?? 0);
    const kept = distribution(row.ranking, { temperature: 1, ...none, top_p: 0.9 }).kept;
    return [
      `Before a token is sampled, the logits are divided by the temperature. The probability of ${quoted(text)} is ` +
        `${at(0.5)} at 0.5, ${at(1)} at 1 and ${at(2)} at 2. At 0 the most likely token is always chosen.`,
      `Top-k, top-p and min-p remove unlikely tokens. With top-p at 0.9, ${counted(kept)} of ` +
        `${counted(row.ranking.ids.length)} would be kept here. Move a slider: only this list changes.`,
    ];
  },
};

/** @param {boolean} masked @returns {Step} */
const losing = (masked) => ({
  title: "The loss",
  opens: { view: "flow", layer: null, part: null },
  aim: ".flow-predictions",
  sentences: (here) => {
    const { loss } = here.pane.look;
    const { vocab_size: size } = here.pane.source.model;
    if (loss === null)
      return [
        masked
          ? "No masked token has a known original. Click a token to mask it and to see the loss of the prediction."
          : "A single token has no loss, because there is no next token to compare the prediction with.",
      ];
    const rows = loss.tokens.map((entry, row) => ({ row, loss: entry ?? -1 })).filter((entry) => entry.loss >= 0);
    const worst = rows.reduce((largest, entry) => (entry.loss > largest.loss ? entry : largest), { row: 0, loss: 0 });
    const id = masked ? originalAt(here.pane, worst.row) : null;
    const place = masked
      ? `at the mask in row ${worst.row}` +
        `${id === null ? "" : `, whose original is ${quoted(here.pane.texts.get(id) ?? `id ${id}`)}`}`
      : `after ${token(here, worst.row)}, where the next token is ${quoted(here.tokens[worst.row + 1])}`;
    return [
      `The loss of a row is −ln of the probability of the true token. It is largest ${place}: probability ` +
        `${percent(Math.exp(-worst.loss))}, loss ${worst.loss.toFixed(2)}.`,
      `The mean here is ${loss.mean.toFixed(3)} nats. Uniform guessing among all ${counted(size)} tokens ` +
        `has a loss of ln ${counted(size)} = ${Math.log(size).toFixed(2)}. Training minimizes this mean.`,
    ];
  },
});

/** @type {Step} */
const ablating = {
  title: "Ablate a head",
  opens: { view: "heads", layer: null, part: null },
  aim: ".heads",
  sentences: async (here) => {
    const scores = await here.pane.source.heads({ ...here.pane.ask, edits: [] });
    const all = scores.rows.flatMap(({ name, ablation }) =>
      (ablation ?? []).map((increase, head) => ({ name, head, increase })),
    );
    const paragraphs = [
      "To measure what a head contributes, set it to zero and compare the loss." +
        (here.pane.source.live ? " A click on a cell of this table does so; another click restores the head." : ""),
    ];
    const first = all.reduce(
      (largest, candidate) => (candidate.increase > largest.increase ? candidate : largest),
      all[0] ?? { name: "", head: 0, increase: 0 },
    );
    const match = /^(\w+)\.blocks\.(\d+)\.(\w+)_attention$/.exec(first.name);
    if (match === null || scores.loss === null || first.increase <= 0) return paragraphs;
    const [, stack, block, kind] = match;
    const part = kind === "cross" ? "cross-attention " : "";
    const where = `${stack === "stack" ? "" : `${stack} `}block ${block}, ${part}head ${first.head}`;
    return [
      ...paragraphs,
      `For this text, ${where} matters most: without it the mean loss goes from ${scores.loss.toFixed(3)} to ` +
        `${(scores.loss + first.increase).toFixed(3)}. This is the end of the tour. Change the text, and look again.`,
    ];
  },
};

/** @param {Loaded["source"]["model"]} model @returns {Step} */
const welcome = (model) => ({
  title: `Inside ${model.name}`,
  opens: { view: "flow", layer: null, part: null },
  aim: ".top .model",
  sentences: () => [
    `This page shows what your model does with a text. The model has ${counted(model.parameters)} parameters, and ` +
      "every number shown here was computed with them for this text.",
    {
      "decoder-only": "It reads a text from left to right and predicts the next token.",
      "encoder-only": "It reads a whole text at once, in both directions, and predicts masked tokens.",
      "encoder-decoder":
        "The encoder reads the source; the decoder writes the translation token by token.",
    }[model.family] ?? "",
  ],
});

/** @type {Step} */
const cutting = {
  title: "The text becomes tokens",
  opens: { view: "flow", layer: null, part: null },
  aim: ".sides",
  sentences: (here) => {
    const { vocab_size: size, can, max_len: limit } = here.pane.source.model;
    const [first] = here.pane.look.sides;
    const example = first?.tokens.find((candidate) => !candidate.special) ?? first?.tokens[0];
    const sides = here.pane.look.sides.map(
      (side) =>
        `${side.tokens.length}${can.translate ? ` of the ${side.stack === "encoder" ? "source" : "target"}` : ""}`,
    );
    return [
      `The text was split into tokens: ${sides.join(" and ")}. The vocabulary contains ${counted(size)} ` +
        `tokens, each with an id; ${quoted(example?.text)} has id ${example?.id}. The model never sees letters, only ` +
        `these ids, at most ${limit} at a time.`,
      can.mask
        ? `${here.pane.source.live ? "Click a token to mask it; click it again to restore it. " : ""}` +
          "Tokens with a dashed border are special tokens."
        : "Click a token to choose its row; the tour then describes that row. ␣ is a space and ⏎ a line break.",
    ];
  },
};

/** @param {string} stack @returns {Step} */
const embedding = (stack) => ({
  title: "Embeddings",
  opens: { view: "flow", stack, layer: null, part: "start" },
  aim: '[data-key="flow-start"]',
  sentences: (here) => {
    const { d_model: width, position } = here.stack;
    const norms = here.pane.look.stream[here.stack.name]?.norms;
    const order =
      {
        learned: "A second, learned vector for the position is added.",
        sinusoidal: "Sines and cosines of different wavelengths encode the position; they are added.",
        rotary:
          "The position is applied later: inside attention, queries and keys are rotated by an angle for it.",
        alibi: "The position is applied later: inside attention, scores decrease with distance.",
        relative_bias: "The position is applied later: inside attention, a learned number for the distance is added.",
      }[position] ?? "";
    return [
      `Each id selects a row of a table: ${width} learned numbers, the token's embedding. ${order}`,
      norms === undefined
        ? ""
        : `${token(here, here.row, here.stack.name)} starts as ${width} numbers. The length of this vector (the root ` +
          `of the sum of their squares) is ${number(norms.get(0, here.row))}.`,
    ];
  },
});

/** @param {string} stack @returns {Step} */
const streaming = (stack) => ({
  title: stack === "encoder" ? "The encoder reads the source" : "The residual stream",
  opens: { view: "flow", stack, layer: null, part: null },
  aim: ".flow-overview",
  sentences: (here) => {
    const norms = here.pane.look.stream[here.stack.name]?.norms;
    const { n_layers: blocks, d_model: width, placement } = here.stack;
    const change =
      norms === undefined
        ? ""
        : ` The length of row ${here.row} goes from ${number(norms.get(0, here.row))} to ` +
          `${number(norms.get(blocks, here.row))} after block ` +
          `${blocks - 1}${placement === "post" ? "; each block ends with a norm, which limits its growth" : ""}.`;
    return [
      `Read this from left to right: every token has its own row of ${width} numbers, the residual stream, and each ` +
        `of the ${blocks} blocks adds to it.${change}`,
      "The lines show which tokens the chosen row attends to. Open a block for details; the tour opens block 0.",
    ];
  },
});

/** @type {Step} */
const bothWays = {
  title: "Attention in both directions",
  opens: { view: "maps", stack: "stack", layer: 0, part: "self" },
  aim: ".maps",
  sentences: (here) => {
    const { layer } = here.state;
    const map = here.pane.look.maps[`${here.stack.name}.blocks.${layer ?? 0}.self_attention.weights`];
    const row = map === undefined ? null : slice(slice(map, here.state.head), here.row);
    let [left, right] = [0, 0];
    row?.data.forEach((share, s) => {
      if (s < here.row) left += share;
      if (s > here.row) right += share;
    });
    return [
      "This view shows the attention maps of all heads. There is no causal mask: a token may attend to tokens before " +
        "and after it, which is not possible in a model that writes from left to right.",
      row === null
        ? ""
        : `In block ${layer ?? 0}, head ${here.state.head}, ${token(here, here.row)} puts ${percent(left)} of its ` +
          `weight on tokens to the left, ${percent(right)} on tokens to the right, and the rest on itself.`,
    ];
  },
};

/** @type {Step} */
const hiding = {
  title: "Masked tokens",
  opens: { view: "flow", layer: null, part: null },
  aim: ".tokens",
  sentences: (here) => {
    const { top, texts, sides } = here.pane.look;
    const mask = here.pane.source.model.mask_id;
    const rows = (sides.at(-1)?.tokens ?? []).flatMap((candidate, row) => (candidate.id === mask ? [row] : []));
    const [row] = rows;
    if (row === undefined || top === null)
      return [
        "This model was trained to predict masked tokens. No token is masked now" +
          (here.pane.source.live ? ": click a token to mask it, and see what the model predicts." : "."),
      ];
    const original = originalAt(here.pane, row);
    const truth =
      original === null ? "" : ` The original token: ${quoted(here.pane.texts.get(original) ?? `id ${original}`)}.`;
    const prediction = top.ids[row]?.[0] ?? -1;
    return [
      `This model was trained to predict masked tokens. ${rows.length === 1 ? "One is" : `${rows.length} are`} ` +
        `masked now. At row ${row} the model only sees the mask, and predicts from the context: ` +
        `${quoted(texts[prediction])}, ${percent(top.probabilities.get(row, 0))}.${truth}`,
      "Click another token to mask that one too, and see how the predictions change.",
    ];
  },
};

/** @type {Step} */
const writing = {
  title: "The decoder writes",
  opens: { view: "flow", stack: "decoder", layer: null, part: null },
  aim: ".flow-overview",
  sentences: (here) => {
    const top = here.pane.look.top;
    const id = top?.ids[0]?.[0];
    const first =
      id === undefined || top === null
        ? ""
        : ` At row 0 it predicts ${quoted(here.pane.look.texts[id])}, ${percent(top.probabilities.get(0, 0))}.`;
    return [
      `The decoder starts with ${quoted(here.tokens[0])}, a special token for the beginning, and predicts the next ` +
        `token at each row.${first}`,
      `Each of its ${here.stack.n_layers} blocks has two attentions: one to the target so far, and one to the ` +
        "encoder's output.",
    ];
  },
};

/** @type {Step} */
const branching = {
  title: "Beam search",
  opens: { view: "beams", layer: null, part: null },
  aim: ".beams",
  sentences: async (here) => {
    const { nodes, search } = await here.pane.source.beams(here.pane.ask, 5);
    const ends = nodes.filter((node) => node.score !== null).sort((a, b) => (b.score ?? 0) - (a.score ?? 0));
    const paragraphs = [
      "The most likely first token need not start the most likely sentence. So beam search continues several " +
        "hypotheses at once and keeps the best.",
    ];
    const [first] = ends;
    if (first !== undefined)
      paragraphs.push(
        `${search}: ${ends.length} ${ends.length === 1 ? "hypothesis" : "hypotheses"} at the end. The best has the ` +
          `score ${number(first.score ?? 0)}; the log-probabilities of its tokens add up to ` +
          `${number(first.total)}.`,
      );
    return paragraphs;
  },
};

/** @param {Loaded["source"]["model"]} model @returns {Step[]} */
export function stepsOf(model) {
  const name = model.stacks.at(-1)?.name ?? "stack";
  if (model.can.translate) {
    return [
      welcome(model),
      cutting,
      embedding("encoder"),
      streaming("encoder"),
      scoring("encoder", "self"),
      writing,
      masking(name),
      scoring(name, "cross"),
      weighing(name, "cross"),
      thinking(name),
      choosing(false),
      warming,
      losing(false),
      branching,
    ];
  }
  const masked = model.family === "encoder-only";
  return [
    welcome(model),
    cutting,
    embedding(name),
    streaming(name),
    scoring(name, "self"),
    masked ? bothWays : masking(name),
    weighing(name, "self"),
    adding(name, "self"),
    thinking(name),
    reading,
    ...(masked ? [hiding, choosing(true)] : [choosing(false), warming]),
    losing(masked),
    ablating,
  ];
}

/** @param {Change} change */
export function tourPanel(change) {
  const title = element("h2", {});
  const body = element("div", { class: "said", "aria-live": "polite" });
  const bar = element("progress", { "aria-label": "Progress of the tour" });
  const position = element("span", { class: "note" });
  const back = element("button", { type: "button", "data-key": "tour:back" }, "Back");
  const next = element("button", { type: "button", class: "primary", "data-key": "tour:next" }, "Next");
  const close = element(
    "button",
    { type: "button", class: "quiet", "data-key": "tour:close", onclick: () => change({ tour: null }) },
    "End the tour",
  );
  const box = element(
    "section",
    { class: "tour", "aria-label": "Tour", hidden: true },
    element("header", {}, title, close),
    body,
    element("footer", {}, back, next, bar, position),
  );
  let shownKey = "";
  let requests = 0;
  let aim = "";
  /** @type {Element | null} */
  let outlined = null;
  let timer = 0;
  let scrolls = 0;

  /** Outline the element of the current step, also if it is drawn later or redrawn. */
  function outline() {
    const target = aim === "" ? null : document.querySelector(`.pane ${aim}, ${aim}`);
    if (target !== outlined) outlined?.classList.remove("toured");
    outlined = target;
    if (target === null) return;
    target.classList.add("toured");
    if (scrolls <= 0) return;
    scrolls -= 1; // several times, because elements that are drawn above the target later move it
    const { top, bottom, height } = target.getBoundingClientRect();
    const visible = innerHeight - box.offsetHeight;
    if (top >= 0 && (bottom <= visible || (height > visible && top < visible / 3))) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    target.scrollIntoView({ block: height > visible - 40 ? "start" : "center", behavior: calm ? "auto" : "smooth" });
  }

  new ResizeObserver(() => {
    document.documentElement.style.setProperty("--tour", box.hidden ? "0px" : `${box.offsetHeight}px`);
  }).observe(box);

  /** @param {Loaded | null} pane @param {State} state */
  async function update(pane, state) {
    const wasHidden = box.hidden;
    box.hidden = state.tour === null || pane === null;
    clearInterval(timer);
    if (state.tour === null || pane === null) {
      [aim, shownKey] = ["", ""];
      return outline();
    }
    const steps = stepsOf(pane.source.model);
    const at = Math.min(state.tour, steps.length - 1);
    const step = /** @type {Step} */ (steps[at]);
    const to = (/** @type {number} */ other) => () => {
      const target = steps[other];
      if (target === undefined) return change({ tour: null });
      scrolls = MAX_SCROLLS;
      change({ ...target.opens, tour: other });
    };
    back.onclick = to(at - 1);
    next.onclick = to(at + 1);
    back.disabled = at === 0;
    next.textContent = at === steps.length - 1 ? "Done" : "Next";
    box.onkeydown = (event) => {
      const other = { ArrowRight: at + 1, ArrowLeft: at - 1 }[event.key];
      if (other === undefined || steps[other] === undefined) return;
      event.preventDefault();
      to(other)();
    };
    if (wasHidden) next.focus({ preventScroll: true });
    if (aim !== step.aim) [aim, scrolls] = [step.aim, MAX_SCROLLS];
    outline();
    timer = setInterval(outline, INTERVAL);
    const key = JSON.stringify([at, pane.ask, state.at, state.column, state.head, state.layer, state.stack]);
    if (key === shownKey) return;
    shownKey = key;
    const request = ++requests;
    title.textContent = step.title;
    bar.max = steps.length;
    bar.value = at + 1;
    position.textContent = `${at + 1} of ${steps.length}`;
    const name = step.opens.stack ?? state.stack;
    const stack =
      pane.source.model.stacks.find((candidate) => candidate.name === name) ?? pane.source.model.stacks.at(-1);
    if (stack === undefined) return;
    const tokens = (pane.look.sides.at(-1)?.tokens ?? []).map((candidate) => candidate.text);
    const described = step.opens.stack === undefined ? (pane.look.sides.at(-1)?.stack ?? name) : name;
    const row = rowOf(
      pane,
      { ...state, at: state.at !== null && state.at >= tokens.length ? null : state.at },
      described,
    );
    const lines = await Promise.resolve(step.sentences({ pane, state, row, stack, tokens })).catch(
      (/** @type {Error} */ error) => [error.message],
    );
    if (request === requests)
      body.replaceChildren(...lines.filter((line) => line !== "").map((line) => element("p", {}, line)));
  }

  return { element: box, update };
}
