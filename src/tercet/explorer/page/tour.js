// A walk through the page for who is new to all this: each part in a few sentences, with the numbers of this text.
// A step says what to open, which element it speaks of, and what there is to say; what is not known is left out.

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
 *             said: (here: Here) => Promise<string[]> | string[]}} Step
 */

const PATIENCE = 300; // ms between two looks whether what is spoken of has been drawn
const LOOKS = 6; // for so many of them it is followed; then the page stays where the reader puts it

const length = (/** @type {Tensor} */ row) => Math.hypot(...row.data);
const quoted = (/** @type {string | undefined} */ text) => `‘${labelOf(text ?? "")}’`;

/** @param {Here} here @param {number} row @param {string} [stack] */
function token({ pane }, row, stack) {
  const side =
    stack === undefined ? pane.look.sides.at(-1) : pane.look.sides.find((candidate) => candidate.stack === stack);
  return `${quoted(side?.tokens[row]?.text)} (row ${row})`;
}

const listed = (/** @type {Tensor} */ values) => /** @type {number[]} */ ([...values.data]);
const largest = (/** @type {Tensor} */ values) =>
  listed(values).reduce((most, value, i, all) => (value > (all[most] ?? 0) ? i : most), 0);

/** The open block's tensors; the first block's where none is open. @param {Here} here */
async function opened({ pane, state, stack }) {
  const layer = state.layer ?? 0;
  const name = `${stack.name}.blocks.${layer}`;
  const { tensors, input } = await pane.source.block(pane.ask, name);
  const get = (/** @type {string} */ key) => {
    const tensor = tensors[key];
    if (tensor === undefined) throw new Error(`${key} was not noted in this pass`);
    return tensor;
  };
  return { layer, name, get, input: get(input ?? "") };
}

/** @param {string} stack @param {"self" | "cross"} part @returns {Step} */
const scoring = (stack, part) => ({
  title: part === "cross" ? "Looking at the source" : "Who asks whom",
  opens: { view: "flow", stack, layer: 0, part },
  aim: '.step:has([data-key="step-scores"])',
  said: async (here) => {
    const { layer, name, get } = await opened(here);
    const { head } = here.state;
    const scores = slice(slice(get(`${name}.${part}_attention.scores`), head), here.row);
    const weights = slice(slice(get(`${name}.${part}_attention.weights`), head), here.row);
    const most = largest(weights);
    const width = here.stack.d_head;
    const keys = part === "cross" ? "encoder" : here.stack.name;
    const what =
      part === "cross"
        ? "A query comes from a token of the target, the keys and values from the source."
        : "Each token makes three short rows: a query (what it looks for), a key (what it offers) and a value " +
          "(what it gives).";
    return [
      `This is block ${layer}, head ${head}. ${what} Each is ${width} numbers long.`,
      `The query of ${token(here, here.row, here.stack.name)} times the key of ${token(here, most, keys)}, ` +
        `divided by √${width} = ${number(Math.sqrt(width))}, gives the score ${number(scores.get(most))}. Point at ` +
        "the picture to see the others.",
    ];
  },
});

/** @param {string} stack @param {"self" | "cross"} part @returns {Step} */
const weighing = (stack, part) => ({
  title: part === "cross" ? "Which word it looks at" : "Scores become shares",
  opens: { view: "flow", stack, layer: 0, part },
  aim: '.step:has([data-key="step-weights"])',
  said: async (here) => {
    const { name, get } = await opened(here);
    const { head } = here.state;
    const weights = slice(slice(get(`${name}.${part}_attention.weights`), head), here.row);
    const most = largest(weights);
    const sum = listed(weights).reduce((total, weight) => total + weight, 0);
    const keys = part === "cross" ? "encoder" : here.stack.name;
    return [
      "Softmax turns a row of scores into shares of one whole: e to the power of each score, divided by the sum " +
        `of them all. The row of ${token(here, here.row, here.stack.name)} adds up to ${sum.toFixed(4)}.`,
      `The largest share in head ${head}, ${percent(weights.get(most))}, goes to ${token(here, most, keys)}. ` +
        "Choose another head above: each looks at something else.",
    ];
  },
});

/** @param {string} stack @param {"self" | "cross"} part @returns {Step} */
const adding = (stack, part) => ({
  title: "What is found is added",
  opens: { view: "flow", stack, layer: 0, part },
  aim: '.step:has([data-key="step-residual"])',
  said: async (here) => {
    const { name, get, input } = await opened(here);
    const { n_heads: heads, d_head: width, d_model: model, placement } = here.stack;
    const [before, out, after] = [
      part === "cross" ? get(`${name}.self_residual`) : input,
      get(`${name}.${part}_attention`),
      get(`${name}.${part}_residual`),
    ].map((tensor) => length(slice(tensor, here.row)));
    return [
      `A head hands on the sum of the values, each weighed by its share. The ${heads} heads stand side by side, ` +
        `${heads} × ${width} = ${heads * width} numbers, and a matrix brings them to the stream's width, ${model}.`,
      `This is added to what was there. For row ${here.row}: a row of length ${number(before ?? NaN)} comes in, ` +
        `attention has found one of length ${number(out ?? NaN)}, and ` +
        `${placement === "post" ? "added, then normed, it is" : "it goes on with"} ${number(after ?? NaN)}.`,
    ];
  },
});

/** @type {(stack: string) => Step} */
const masking = (stack) => ({
  title: "No look ahead",
  opens: { view: "flow", stack, layer: 0, part: "self" },
  aim: '.step:has([data-key="step-mask"])',
  said: ({ row, tokens }) => {
    const last = tokens.length - 1;
    const hidden = row < last ? ` and not at ${row + 1} to ${last}` : ", which is all there are";
    return [
      `Whoever writes the next token must not see it. So row ${row} may look at rows 0 to ${row}${hidden}; ` +
        "row 0 sees only itself.",
      "A score that is masked counts as minus infinity, so its share becomes exactly 0.",
    ];
  },
});

/** @param {string} stack @returns {Step} */
const thinking = (stack) => ({
  title: "Each token by itself",
  opens: { view: "flow", stack, layer: 0, part: "mlp" },
  aim: '.step:has([data-key="step-activations"])',
  said: async (here) => {
    const { layer, name, get } = await opened(here);
    const { d_model: width, d_ff: wide, activation, gated } = here.stack;
    const active = listed(slice(get(`${name}.feedforward.activations`), here.row));
    const above = active.reduce((sum, value) => sum + (value > 0 ? 1 : 0), 0);
    return [
      `After attention, every row goes through the same small network (MLP) alone: ${counted(width)} numbers ` +
        `become ${counted(wide)} neurons${gated ? ", each let through or held back by a gate" : ""}, then ` +
        `${counted(width)} again. In between stands ${activation}, which keeps large numbers and flattens those ` +
        "below zero.",
      `In block ${layer}, ${percent(above / active.length)} of the neurons of row ${here.row} are above zero, ` +
        `${counted(above)} of ${counted(active.length)}. Its output is added to the stream again, and the next ` +
        "block begins.",
    ];
  },
});

/** @type {Step} */
const reading = {
  title: "What it would say so far",
  opens: { view: "lens", layer: null, part: null },
  aim: ".lens",
  said: (here) => {
    const { lens, texts } = here.pane.look;
    if (lens === null) return ["This model scores no words, so nothing can be read off its stream."];
    const guesses = lens.names.map((name, layer) => {
      const id = lens.ids[layer]?.[here.row]?.[0] ?? -1;
      const after = layer === 0 ? "embedding" : `block ${layer - 1}`;
      return { id, name, text: `${after} ${quoted(texts[id])} ${percent(lens.probabilities.get(layer, here.row, 0))}` };
    });
    const last = guesses.at(-1);
    const since = guesses.findLastIndex((guess) => guess.id !== last?.id) + 1;
    const few = guesses.length <= 7 ? guesses : [...guesses.slice(0, 2), ...guesses.slice(-4)];
    return [
      "The stream can be read after every block as if the model ended there. This is called the logit lens. Row " +
        `${here.row} says after: ${few.map((guess) => guess.text).join(", ")}.`,
      since === 0
        ? "Its answer was there from the first."
        : since >= guesses.length - 1
          ? "Only the last block brought this answer."
          : `From block ${since - 1} on the answer stays the same.`,
    ];
  },
};

/** @param {boolean} masked @returns {Step} */
const choosing = (masked) => ({
  title: "From numbers to words",
  opens: { view: "flow", layer: null, part: null },
  aim: ".candidates",
  said: async (here) => {
    const row = await logitsAt(here.pane, here.row);
    if (row === null) return ["This model scores no words."];
    const { vocab_size: size } = here.pane.source.model;
    const first = best(row);
    const id = row.ranking.ids[1];
    const second =
      id === undefined ? "" : `, then ${quoted(row.texts[id])} with ${percent(row.plain.probabilities[1] ?? 0)}`;
    return [
      `The last row of numbers is compared with each of the ${counted(size)} tokens of the vocabulary: a score, ` +
        "or logit, for each. Softmax makes shares of them, which are the probabilities of " +
        `${masked ? "what stands at" : "what comes after"} ${token(here, here.row)}.`,
      `The most likely is ${quoted(first.text)} with ${percent(first.share)}${second}. ` +
        `${here.pane.source.live ? `Click one to ${masked ? "put it there" : "append it"}.` : ""}`,
    ];
  },
});

/** @type {Step} */
const warming = {
  title: "Safer or wilder",
  opens: { view: "flow", layer: null, part: null },
  aim: ".controls",
  said: async (here) => {
    const row = await logitsAt(here.pane, here.row);
    if (row === null) return ["This model scores no words."];
    const { text } = best(row);
    const none = { top_k: null, top_p: null, min_p: null };
    const at = (/** @type {number} */ temperature) =>
      percent(distribution(row.ranking, { temperature, ...none }).probabilities[0] ?? 0);
    const kept = distribution(row.ranking, { temperature: 1, ...none, top_p: 0.9 }).kept;
    return [
      `Before a token is drawn, the logits are divided by the temperature. For ${quoted(text)}: ${at(0.5)} at ` +
        `0.5, ${at(1)} at 1, ${at(2)} at 2. At 0 the most likely token is always taken.`,
      `Top-k, top-p and min-p leave unlikely tokens out. With top-p at 0.9, ${counted(kept)} of ` +
        `${counted(row.ranking.ids.length)} would be kept here. Move a slider: nothing but this list changes.`,
    ];
  },
};

/** @param {boolean} masked @returns {Step} */
const losing = (masked) => ({
  title: "How wrong it was",
  opens: { view: "flow", layer: null, part: null },
  aim: ".flow-predictions",
  said: (here) => {
    const { loss } = here.pane.look;
    const { vocab_size: size } = here.pane.source.model;
    if (loss === null)
      return [
        masked
          ? "No token is hidden whose answer is known. Click one to mask it, and the loss says how much that " +
            "surprised the model."
          : "One token alone has no loss: there must be a next one to compare with.",
      ];
    const rows = loss.tokens.map((entry, row) => ({ row, loss: entry ?? -1 })).filter((entry) => entry.loss >= 0);
    const worst = rows.reduce((most, entry) => (entry.loss > most.loss ? entry : most), { row: 0, loss: 0 });
    const id = masked ? originalAt(here.pane, worst.row) : null;
    const what = masked
      ? `behind the mask at row ${worst.row}, ` +
        `${id === null ? "" : `really ${quoted(here.pane.texts.get(id) ?? `id ${id}`)}`}`
      : `after ${token(here, worst.row)}, when ${quoted(here.tokens[worst.row + 1])} came`;
    return [
      `The loss is −ln of the probability that the token in the text got. It was largest ${what}: probability ` +
        `${percent(Math.exp(-worst.loss))}, loss ${worst.loss.toFixed(2)}.`,
      `The mean here is ${loss.mean.toFixed(3)} nats. Whoever guesses among all ${counted(size)} tokens blindly ` +
        `has ln ${counted(size)} = ${Math.log(size).toFixed(2)}. Training has only one aim: to make this number ` +
        "smaller.",
    ];
  },
});

/** @type {Step} */
const ablating = {
  title: "Take a part away",
  opens: { view: "heads", layer: null, part: null },
  aim: ".heads",
  said: async (here) => {
    const scores = await here.pane.source.heads({ ...here.pane.ask, edits: [] });
    const all = scores.rows.flatMap(({ name, ablation }) =>
      (ablation ?? []).map((rise, head) => ({ name, head, rise })),
    );
    const sentences = [
      "What does a head do? Set it to zero and see what is lost." +
        (here.pane.source.live ? " A click in this table does so; another one takes it back." : ""),
    ];
    const first = all.reduce(
      (most, candidate) => (candidate.rise > most.rise ? candidate : most),
      all[0] ?? { name: "", head: 0, rise: 0 },
    );
    const match = /^(\w+)\.blocks\.(\d+)\.(\w+)_attention$/.exec(first.name);
    if (match === null || scores.loss === null || first.rise <= 0) return sentences;
    const [, stack, block, kind] = match;
    const part = kind === "cross" ? "cross-attention " : "";
    const where = `${stack === "stack" ? "" : `${stack} `}block ${block}, ${part}head ${first.head}`;
    return [
      ...sentences,
      `For this text, ${where} matters most: without it the mean loss goes from ${scores.loss.toFixed(3)} to ` +
        `${(scores.loss + first.rise).toFixed(3)}. You have seen every part now; change the text, and look again.`,
    ];
  },
};

/** @param {Loaded["source"]["model"]} model @returns {Step} */
const welcome = (model) => ({
  title: `Inside ${model.name}`,
  opens: { view: "flow", layer: null, part: null },
  aim: ".top .model",
  said: () => [
    `This page shows what your model does with a text. It is made of ${counted(model.parameters)} learnt ` +
      "numbers, and everything drawn here was worked out with them, for this very text.",
    {
      "decoder-only": "It reads a text from left to right and says what comes next.",
      "encoder-only": "It reads a whole text at once, in both directions, and says what stands in a gap.",
      "encoder-decoder":
        "One half, the encoder, reads the source; the other, the decoder, writes the translation token by token.",
    }[model.family] ?? "",
  ],
});

/** @type {Step} */
const cutting = {
  title: "A text becomes tokens",
  opens: { view: "flow", layer: null, part: null },
  aim: ".sides",
  said: (here) => {
    const { vocab_size: size, can, max_len: most } = here.pane.source.model;
    const [first] = here.pane.look.sides;
    const example = first?.tokens.find((candidate) => !candidate.special) ?? first?.tokens[0];
    const sides = here.pane.look.sides.map(
      (side) =>
        `${side.tokens.length}${can.translate ? ` of the ${side.stack === "encoder" ? "source" : "target"}` : ""}`,
    );
    return [
      `The text was cut into pieces, its tokens: ${sides.join(" and ")}. The model knows ${counted(size)} of ` +
        `them by number; ${quoted(example?.text)} is number ${example?.id}. It never sees letters, only these ` +
        `numbers, and at most ${most} at a time.`,
      can.mask
        ? `${here.pane.source.live ? "Click a token to hide it from the model; click again to put it back. " : ""}` +
          "Tokens with a dashed border only mark the ends."
        : "Click a token: from now on, its row is the one that is spoken of. ␣ is a space and ⏎ the end of a line.",
    ];
  },
};

/** @param {string} stack @returns {Step} */
const embedding = (stack) => ({
  title: "Numbers for each token",
  opens: { view: "flow", stack, layer: null, part: "start" },
  aim: '[data-key="flow-start"]',
  said: (here) => {
    const { d_model: width, position } = here.stack;
    const norms = here.pane.look.stream[here.stack.name]?.norms;
    const where =
      {
        learned: "A second, learnt row says at which place it stands; the two are added.",
        sinusoidal: "Waves of different lengths say at which place it stands; they are added.",
        rotary:
          "Where it stands is told later: inside attention, queries and keys are turned by an angle for each place.",
        alibi: "Where it stands is told later: inside attention, far tokens lose some score.",
        relative_bias: "Where it stands is told later: inside attention, a learnt number for the distance is added.",
      }[position] ?? "";
    return [
      `Each token's number points at a row of a table: ${width} learnt numbers, its embedding. ${where}`,
      norms === undefined
        ? ""
        : `So ${token(here, here.row, here.stack.name)} begins as ${width} numbers whose length (the root of the ` +
          `sum of their squares) is ${number(norms.get(0, here.row))}.`,
    ];
  },
});

/** @param {string} stack @returns {Step} */
const streaming = (stack) => ({
  title: stack === "encoder" ? "The encoder reads the source" : "A stream through the blocks",
  opens: { view: "flow", stack, layer: null, part: null },
  aim: ".flow-overview",
  said: (here) => {
    const norms = here.pane.look.stream[here.stack.name]?.norms;
    const { n_layers: blocks, d_model: width, placement } = here.stack;
    const change =
      norms === undefined
        ? ""
        : ` The length of row ${here.row} goes from ${number(norms.get(0, here.row))} to ` +
          `${number(norms.get(blocks, here.row))} after block ` +
          `${blocks - 1}${placement === "post" ? "; each block here ends with a norm, which keeps it even" : ""}.`;
    return [
      `Read from left to right: every token keeps its own row of ${width} numbers, and each of the ${blocks} ` +
        `blocks adds something to it.${change}`,
      "The lines show from which tokens the chosen row reads. Open a block to see how; the tour opens block 0.",
    ];
  },
});

/** @type {Step} */
const bothWays = {
  title: "Both ways at once",
  opens: { view: "maps", stack: "stack", layer: 0, part: "self" },
  aim: ".maps",
  said: (here) => {
    const { layer } = here.state;
    const map = here.pane.look.maps[`${here.stack.name}.blocks.${layer ?? 0}.self_attention.weights`];
    const row = map === undefined ? null : slice(slice(map, here.state.head), here.row);
    let [left, right] = [0, 0];
    row?.data.forEach((share, s) => {
      if (s < here.row) left += share;
      if (s > here.row) right += share;
    });
    return [
      "Here is every head at once, small. Nothing is forbidden: a token may look at those before it and at those " +
        "after it, which a model that writes from left to right may not.",
      row === null
        ? ""
        : `In block ${layer ?? 0}, head ${here.state.head}, ${token(here, here.row)} gives ${percent(left)} of its ` +
          `look to the left, ${percent(right)} to the right, and the rest to itself.`,
    ];
  },
};

/** @type {Step} */
const hiding = {
  title: "Hide and guess",
  opens: { view: "flow", layer: null, part: null },
  aim: ".tokens",
  said: (here) => {
    const { top, texts, sides } = here.pane.look;
    const mask = here.pane.source.model.mask_id;
    const rows = (sides.at(-1)?.tokens ?? []).flatMap((candidate, row) => (candidate.id === mask ? [row] : []));
    const [row] = rows;
    if (row === undefined || top === null)
      return [
        "This model learnt by guessing hidden tokens. Nothing is hidden now" +
          (here.pane.source.live ? ": click a token to mask it, and look at what the model would put there." : "."),
      ];
    const original = originalAt(here.pane, row);
    const really =
      original === null ? "" : ` What stood there: ${quoted(here.pane.texts.get(original) ?? `id ${original}`)}.`;
    const guess = top.ids[row]?.[0] ?? -1;
    return [
      `This model learnt by guessing hidden tokens. ${rows.length === 1 ? "One is" : `${rows.length} are`} ` +
        `hidden now. At row ${row} the model sees only the mask, and must tell from its neighbours: ` +
        `${quoted(texts[guess])}, ${percent(top.probabilities.get(row, 0))}.${really}`,
      "Click another token to hide that one too, and watch how the guesses change.",
    ];
  },
};

/** @type {Step} */
const writing = {
  title: "The decoder writes",
  opens: { view: "flow", stack: "decoder", layer: null, part: null },
  aim: ".flow-overview",
  said: (here) => {
    const top = here.pane.look.top;
    const id = top?.ids[0]?.[0];
    const first =
      id === undefined || top === null
        ? ""
        : ` From row 0 alone it says ${quoted(here.pane.look.texts[id])}, ${percent(top.probabilities.get(0, 0))}.`;
    return [
      `The decoder begins with ${quoted(here.tokens[0])}, a mark for the beginning, and at each row says what ` +
        `comes next.${first}`,
      `Each of its ${here.stack.n_layers} blocks looks twice: at the target so far, and at what the encoder made ` +
        "of the source.",
    ];
  },
};

/** @type {Step} */
const branching = {
  title: "Several answers at once",
  opens: { view: "beams", layer: null, part: null },
  aim: ".beams",
  said: async (here) => {
    const { nodes, search } = await here.pane.source.beams(here.pane.ask, 5);
    const ends = nodes.filter((node) => node.score !== null).sort((a, b) => (b.score ?? 0) - (a.score ?? 0));
    const sentences = [
      "The likeliest first word need not begin the likeliest sentence. So beam search follows several beginnings " +
        "at once and keeps the best.",
    ];
    const [first] = ends;
    if (first !== undefined)
      sentences.push(
        `${search}: ${ends.length} ${ends.length === 1 ? "answer" : "answers"} in the end. The best has the ` +
          `score ${number(first.score ?? 0)}; the logarithms of its tokens' probabilities add up to ` +
          `${number(first.total)}.`,
      );
    return sentences;
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
  const said = element("div", { class: "said", "aria-live": "polite" });
  const bar = element("progress", { "aria-label": "Progress of the tour" });
  const where = element("span", { class: "note" });
  const back = element("button", { type: "button", "data-key": "tour:back" }, "Back");
  const next = element("button", { type: "button", class: "primary", "data-key": "tour:next" }, "Next");
  const close = element(
    "button",
    { type: "button", class: "quiet", "data-key": "tour:close", onclick: () => change({ tour: null }) },
    "end the tour",
  );
  const box = element(
    "section",
    { class: "tour", "aria-label": "Tour", hidden: true },
    element("header", {}, title, close),
    said,
    element("footer", {}, back, next, bar, where),
  );
  let shownKey = "";
  let requests = 0;
  let aim = "";
  /** @type {Element | null} */
  let aimed = null;
  let timer = 0;
  let looks = 0;

  /** Outline what is spoken of, also where it is drawn later, or again. */
  function point() {
    const now = aim === "" ? null : document.querySelector(`.pane ${aim}, ${aim}`);
    if (now !== aimed) aimed?.classList.remove("toured");
    aimed = now;
    if (now === null) return;
    now.classList.add("toured");
    if (looks <= 0) return;
    looks -= 1; // what is drawn above it meanwhile moves it
    const { top, bottom, height } = now.getBoundingClientRect();
    const room = innerHeight - box.offsetHeight;
    if (top >= 0 && (bottom <= room || (height > room && top < room / 3))) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    now.scrollIntoView({ block: height > room - 40 ? "start" : "center", behavior: calm ? "auto" : "smooth" });
  }

  new ResizeObserver(() => {
    document.documentElement.style.setProperty("--tour", box.hidden ? "0px" : `${box.offsetHeight}px`);
  }).observe(box);

  /** @param {Loaded | null} pane @param {State} state */
  async function update(pane, state) {
    const was = box.hidden;
    box.hidden = state.tour === null || pane === null;
    clearInterval(timer);
    if (state.tour === null || pane === null) {
      [aim, shownKey] = ["", ""];
      return point();
    }
    const steps = stepsOf(pane.source.model);
    const at = Math.min(state.tour, steps.length - 1);
    const step = /** @type {Step} */ (steps[at]);
    const to = (/** @type {number} */ other) => () => {
      const target = steps[other];
      if (target === undefined) return change({ tour: null });
      looks = LOOKS;
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
    if (was) next.focus({ preventScroll: true });
    if (aim !== step.aim) [aim, looks] = [step.aim, LOOKS];
    point();
    timer = setInterval(point, PATIENCE);
    const key = JSON.stringify([at, pane.ask, state.at, state.column, state.head, state.layer, state.stack]);
    if (key === shownKey) return;
    shownKey = key;
    const request = ++requests;
    title.textContent = step.title;
    bar.max = steps.length;
    bar.value = at + 1;
    where.textContent = `${at + 1} of ${steps.length}`;
    const name = step.opens.stack ?? state.stack;
    const stack =
      pane.source.model.stacks.find((candidate) => candidate.name === name) ?? pane.source.model.stacks.at(-1);
    if (stack === undefined) return;
    const tokens = (pane.look.sides.at(-1)?.tokens ?? []).map((candidate) => candidate.text);
    const speaking = step.opens.stack === undefined ? (pane.look.sides.at(-1)?.stack ?? name) : name;
    const row = rowOf(
      pane,
      { ...state, at: state.at !== null && state.at >= tokens.length ? null : state.at },
      speaking,
    );
    const lines = await Promise.resolve(step.said({ pane, state, row, stack, tokens })).catch(
      (/** @type {Error} */ error) => [error.message],
    );
    if (request === requests)
      said.replaceChildren(...lines.filter((line) => line !== "").map((line) => element("p", {}, line)));
  }

  return { element: box, update };
}
