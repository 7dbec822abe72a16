// The state of the page as one plain object, and its conversion to and from an address. A link restores a view.
//
//     #text=First+Citizen&view=maps&layer=2&head=3      default values are left out
//     #b.text=...                                       the second pane, if two texts are compared

import { THEMES } from "tercet/theme.js";

/** @typedef {import("tercet/model.js").Ask} Ask */
/** @typedef {import("tercet/model.js").Edit} Edit */
/** @typedef {import("tercet/source.js").Model} Model */
/** @typedef {{panes: Ask[], view: string, stack: string, layer: number | null, part: string | null, head: number,
 *             at: number | null, column: number | null, temperature: number, top_k: number | null,
 *             top_p: number | null, min_p: number | null, seed: number, tour: number | null, theme: string}} State */

export const VIEWS = ["flow", "maps", "lens", "heads", "beams"];
const STACKS = ["stack", "encoder", "decoder"];
const DEFAULT_STACKS = ["stack", "decoder"]; // the stacks with logits
const PARTS = ["self", "cross", "mlp", "start", "end"];
const START = "\0"; // the text that the page opens with; it cannot be entered
const MAX_LENGTH = 20_000; // characters of a text, or tokens of a row, in an address

/** @type {Readonly<State>} */
export const initial = Object.freeze({
  panes: [],
  view: "flow",
  stack: "",
  layer: null,
  part: null,
  head: 0,
  at: null,
  column: null,
  temperature: 1,
  top_k: null,
  top_p: null,
  min_p: null,
  seed: 0,
  tour: null,
  theme: "auto",
});

/** @type {Readonly<Ask>} */
export const nothing = Object.freeze({
  text: "",
  target: null,
  ids: null,
  target_ids: null,
  original_ids: null,
  edits: [],
});

const count = (/** @type {string | null} */ text, limit = 2 ** 31) =>
  text !== null && /^\d{1,12}$/.test(text) && Number(text) <= limit ? Number(text) : null;

const share = (/** @type {string | null} */ text, /** @type {number} */ limit) =>
  text !== null && text.trim() !== "" && Number(text) >= 0 && Number(text) <= limit ? Number(text) : null;

const oneOf = (/** @type {string | null} */ text, /** @type {string[]} */ all) =>
  text !== null && all.includes(text) ? text : null;

/** @param {string | null} text as `1.22.3` */
function row(text) {
  if (text === null || text.length > 8 * MAX_LENGTH || !/^\d+(\.\d+)*$/.test(text)) return null;
  const ids = text.split(".").map(Number);
  return ids.length <= MAX_LENGTH && ids.every(Number.isSafeInteger) ? ids : null;
}

/**
 * @param {string | null} text as `stack.blocks.1.self_attention.heads~h0.3,stack.blocks.2.feedforward`
 * @returns {Edit[]}
 */
function edits(text) {
  const parsed = [];
  for (const item of (text ?? "").slice(0, MAX_LENGTH).split(",")) {
    const match = /^([a-z_][a-z0-9_]*(?:\.[a-z0-9_]+)*)(?:~h([\d.]+))?(?:~p([\d.]+))?$/i.exec(item);
    if (match === null) continue;
    const [, name = "", heads = null, positions = null] = match;
    parsed.push({ name, heads: row(heads), positions: row(positions) });
  }
  return parsed;
}

/** @param {Edit} edit */
function editToText({ name, heads, positions }) {
  return name + (heads === null ? "" : `~h${heads.join(".")}`) + (positions === null ? "" : `~p${positions.join(".")}`);
}

/** @param {URLSearchParams} of @param {string} prefix @returns {Ask | null} */
function ask(of, prefix) {
  const get = (/** @type {string} */ key) => of.get(prefix + key);
  if (get("text") === null && row(get("ids")) === null) {
    const changes = edits(get("edits"));
    return changes.length === 0 ? null : { ...nothing, text: START, edits: changes };
  }
  return {
    text: (get("text") ?? "").slice(0, MAX_LENGTH),
    target: get("target")?.slice(0, MAX_LENGTH) ?? null,
    ids: row(get("ids")),
    target_ids: row(get("target_ids")),
    original_ids: row(get("original_ids")),
    edits: edits(get("edits")),
  };
}

/** The state in an address; missing and invalid values get their defaults. @returns {State} */
export function readUrl(hash = location.hash) {
  const of = new URLSearchParams(hash.replace(/^#/, ""));
  const first = ask(of, "");
  const second = ask(of, "b.");
  return {
    panes: second !== null ? [first ?? { ...nothing, text: START }, second] : first !== null ? [first] : [],
    view: oneOf(of.get("view"), VIEWS) ?? initial.view,
    stack: oneOf(of.get("stack"), STACKS) ?? initial.stack,
    layer: count(of.get("layer"), 10_000),
    part: oneOf(of.get("part"), PARTS),
    head: count(of.get("head"), 10_000) ?? initial.head,
    at: count(of.get("at"), MAX_LENGTH),
    column: count(of.get("column"), MAX_LENGTH),
    temperature: share(of.get("temperature"), 100) ?? initial.temperature,
    top_k: count(of.get("top_k")) || null,
    top_p: share(of.get("top_p"), 1) || null,
    min_p: share(of.get("min_p"), 1),
    seed: count(of.get("seed")) ?? initial.seed,
    tour: count(of.get("tour"), 1000),
    theme: oneOf(of.get("theme"), THEMES) ?? initial.theme,
  };
}

/**
 * The fragment of an address for this state.
 * @param {State} state @param {Ask} start the query that the page opens with
 */
export function hashOf(state, start) {
  const of = new URLSearchParams();
  state.panes.forEach((pane, i) => {
    if (i === 0 && same(pane, start)) return;
    const prefix = i === 0 ? "" : "b.";
    of.set(`${prefix}text`, pane.text);
    if (pane.target !== null) of.set(`${prefix}target`, pane.target);
    for (const key of /** @type {const} */ (["ids", "target_ids", "original_ids"])) {
      const ids = pane[key];
      if (ids !== null) of.set(prefix + key, ids.join("."));
    }
    if (pane.edits.length > 0) of.set(`${prefix}edits`, pane.edits.map(editToText).join(","));
  });
  for (const [key, value] of Object.entries(state)) {
    if (
      key === "panes" ||
      value === null ||
      (key === "stack" && DEFAULT_STACKS.includes(String(value))) ||
      value === initial[/** @type {keyof State} */ (key)]
    )
      continue;
    of.set(key, String(value));
  }
  return of.toString().replaceAll("%2C", ",").replaceAll("%7E", "~");
}

/**
 * Write the state to the address; with `step`, the browser's back button undoes this change.
 * @param {State} state @param {Ask} start @param {boolean} step
 */
export function writeUrl(state, start, step) {
  const hash = hashOf(state, start);
  if (hash === location.hash.replace(/^#/, "")) return;
  const url = hash === "" ? location.pathname + location.search : `#${hash}`;
  if (step) history.pushState(null, "", url);
  else history.replaceState(null, "", url);
}

/** @param {Ask} a @param {Ask} b */
export const same = (a, b) => JSON.stringify(Object.entries(a).sort()) === JSON.stringify(Object.entries(b).sort());

/**
 * The state, with values that the model does not have replaced by the defaults.
 * @param {State} state @param {Model} model @returns {State}
 */
export function fitToModel(state, model) {
  const stack = model.stacks.find((candidate) => candidate.name === state.stack) ?? model.stacks.at(-1);
  if (stack === undefined) throw new Error("the model has no stack");
  const panes = state.panes.map((pane) => (pane.text === START ? { ...model.start, edits: pane.edits } : pane));
  return {
    ...state,
    panes: panes.length === 0 ? [model.start] : panes,
    view: state.view === "beams" && !model.can.translate ? initial.view : state.view,
    stack: stack.name,
    layer: state.layer === null || state.layer >= stack.n_layers ? null : state.layer,
    part: state.part === "cross" && !stack.cross ? null : state.part,
    head: state.head >= stack.n_heads ? 0 : state.head,
  };
}

/** The keys whose values differ. @param {State} state @param {State} before @returns {string[]} */
export const changedKeys = (state, before) =>
  /** @type {(keyof State)[]} */ (Object.keys(state)).filter(
    (key) => JSON.stringify(state[key]) !== JSON.stringify(before[key]),
  );
