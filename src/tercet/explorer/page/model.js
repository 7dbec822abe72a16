// Types of the data that is drawn, and functions of it: the model, the text, the selected part, and the edits.

/**
 * @typedef {{shape: number[], data: Float32Array | Uint8Array, get: (...i: number[]) => number, half: number}} Tensor
 */
/** @typedef {{id: number, text: string, special: boolean}} Token */
/** @typedef {{stack: string, tokens: Token[]}} Side */
/** @typedef {{name: string, heads: number[] | null, positions: number[] | null}} Edit */
/** @typedef {{text: string, target: string | null, ids: number[] | null, target_ids: number[] | null,
 *             original_ids: number[] | null, edits: Edit[]}} Ask */
/** @typedef {{name: string, n_layers: number, n_heads: number, n_kv_heads: number, d_model: number, d_head: number,
 *             d_ff: number, placement: "pre" | "post" | "sandwich" | "branch", norm: string, position: string,
 *             activation: string, gated: boolean, causal: boolean, cross: boolean,
 *             parallel: boolean | "separate_norms", final_norm: boolean, first_norm?: boolean,
 *             qk_norm?: boolean | "all_heads", attention_softcap?: number | null}} StackInfo */
/** @typedef {{family: string, stacks: StackInfo[], vocab_size: number, can: Record<string, boolean>,
 *             linear_head: boolean}} Model */
/** @typedef {{ask: Ask, at: number, truncated: boolean, sides: Side[],
 *             stream: Record<string, {names: string[], norms: Tensor}>,
 *             lens: null | {names: string[], ids: number[][][], probabilities: Tensor},
 *             maps: Record<string, Tensor>, logits: Tensor | null,
 *             loss: null | {mean: number, tokens: (number | null)[]}, texts: Record<string, string>,
 *             top: null | {ids: number[][], probabilities: Tensor}}} Look */
/** @typedef {{name: string, input?: string, tensors: Record<string, Tensor>,
 *             unembedding?: {ids: number[], rows: Tensor, bias: Tensor | null, softcap: number | null}}} Block */
/** @typedef {{rows: {name: string, previous: number[] | null, induction: number[] | null, ablation: number[] | null}[],
 *             loss: number | null}} HeadScores */
/** @typedef {{parent: number, id: number, text: string, logprob: number, total: number, score: number | null,
 *             finish: string | null, best: boolean}} BeamNode */
/** @typedef {{model: Model, live: boolean,
 *             block: (ask: Ask, name: string, parameters?: boolean) => Promise<Block>,
 *             attribution: (ask: Ask, at: number, id: number) =>
 *               Promise<{names: string[], values: number[], logit: number}>,
 *             heads: (ask: Ask) => Promise<HeadScores>,
 *             beams: (ask: Ask, size: number) => Promise<{nodes: BeamNode[], search: string}>}} Source */
/** @typedef {{index: number, ask: Ask, look: Look, base: Look | null, source: Source, error?: string | null}} Pane */
/** @typedef {{panes: Ask[], stack: string, layer: number | null, part: string | null, head: number,
 *             at: number | null, column: number | null}} State */
/** @typedef {(patch: Record<string, unknown>) => void} Change */

/** A token's text with visible spaces and line ends. @param {string} text */
export function labelOf(text) {
  if (text === "") return "∅";
  return text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍");
}

/** @param {Side} side */
export const labels = (side) => side.tokens.map((token) => labelOf(token.text));

/** The selected stack, or by default the one whose tokens have logits. @param {Pane} pane @param {State} state */
export function stackOf(pane, state) {
  const stacks = pane.source.model.stacks;
  const stack = stacks.find((candidate) => candidate.name === state.stack) ?? stacks[stacks.length - 1];
  if (stack === undefined) throw new Error("the model has no stack");
  return stack;
}

/** @param {Pane} pane @param {string} stack @returns {Side} */
export function sideOf(pane, stack) {
  const side = pane.look.sides.find((candidate) => candidate.stack === stack);
  if (side === undefined) throw new Error(`the stack ${stack} has no tokens`);
  return side;
}

/**
 * The tokens of the keys: for cross-attention, those of the encoder.
 * @param {Pane} pane @param {string} stack @param {string} part
 */
export const keysOf = (pane, stack, part) => sideOf(pane, part === "cross" ? "encoder" : stack);

/**
 * The chosen row of a stack: `at` for the stack with logits, `column` for the encoder of a translator.
 * @param {Pane} pane @param {State} state @param {string} stack
 */
export function rowOf(pane, state, stack) {
  const sides = pane.look.sides;
  const last = sides[sides.length - 1]?.stack === stack;
  const row = last ? (state.at ?? pane.look.at) : (state.column ?? 0);
  return Math.min(Math.max(row, 0), sideOf(pane, stack).tokens.length - 1);
}

/** The change of the state that chooses a row. @param {Pane} pane @param {string} stack @param {number} row */
export function toRow(pane, stack, row) {
  const sides = pane.look.sides;
  return sides[sides.length - 1]?.stack === stack ? { at: row } : { column: row };
}

/**
 * The causal mask, as a function of query and key; undefined if the attention has none.
 * @param {StackInfo} stack @param {string} part
 * @returns {((row: number, column: number) => boolean) | undefined}
 */
export const hidden = (stack, part) => (stack.causal && part === "self" ? (row, column) => column > row : undefined);

/** Whether a bias for the distance is added to the scores. @param {StackInfo} stack @param {string} part */
export const isBiased = (stack, part) => part === "self" && ["alibi", "relative_bias"].includes(stack.position);

/** The name of the first block's input: positions are not always added. @param {StackInfo} stack */
export const sumOf = (stack) =>
  ["learned", "sinusoidal"].includes(stack.position) ? "embedding +\u00a0position" : "embedding";

/** @param {Ask} ask @param {string} name @param {"heads" | "positions" | null} kind @param {number | null} index */
export function isEdited(ask, name, kind, index) {
  return ask.edits.some(
    (edit) => edit.name === name && (kind === null || edit[kind] === null || edit[kind].includes(index ?? -1)),
  );
}

/**
 * The change of the state that sets a head, a row or a whole tensor to zero, or restores it. The token ids are kept:
 * otherwise a translator could write another target, and the losses could not be compared.
 * @param {Pane} pane @param {State} state
 * @param {string} name @param {"heads" | "positions" | null} kind @param {number | null} index
 */
export function toggled(pane, state, name, kind, index) {
  const ask = state.panes[pane.index] ?? pane.ask;
  const others = ask.edits.filter((edit) => edit.name !== name);
  const edit = ask.edits.find((candidate) => candidate.name === name);
  let ownEdits = /** @type {Edit[]} */ ([]);
  if (kind === null || index === null) {
    if (edit === undefined) ownEdits = [{ name, heads: null, positions: null }];
  } else {
    const previous = edit?.[kind] ?? [];
    const next = previous.includes(index) ? previous.filter((item) => item !== index) : [...previous, index];
    next.sort((a, b) => a - b);
    if (next.length > 0) ownEdits = [{ name, heads: null, positions: null, [kind]: next }];
  }
  const targetIds = ask.target_ids ?? pane.look.ask.target_ids;
  const changed = { ...ask, target_ids: targetIds, edits: [...others, ...ownEdits] };
  return { panes: state.panes.map((current, i) => (i === pane.index ? changed : current)) };
}
