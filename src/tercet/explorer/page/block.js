// One open block: each step of attention or of the MLP in the order of the computation, with its tensors.

import { later } from "tercet/draw.js";
import { element } from "tercet/element.js";
import { heatMap } from "tercet/heatmap.js";
import { isBiased, isEdited, keysOf, labels, rowOf, sideOf, stackOf, toRow, toggled } from "tercet/model.js";
import { exact, number, percent } from "tercet/numbers.js";
import { slice, tensor } from "tercet/tensor.js";
import { workedOut } from "tercet/worked.js";

/** @typedef {import("tercet/model.js").Pane} Pane */
/** @typedef {import("tercet/model.js").State} State */
/** @typedef {import("tercet/model.js").Change} Change */
/** @typedef {import("tercet/model.js").Tensor} Tensor */
/** @typedef {import("tercet/model.js").StackInfo} StackInfo */
/** @typedef {import("tercet/model.js").Block} Block */
/** @typedef {Pick<import("tercet/heatmap.js").HeatMap, "columns" | "rows" | "masked" | "low" | "high" | "square" |
 *             "most" | "names" | "onpick" | "onpoint" | "picked" | "bands" | "lines" | "cellHeight">} Drawing */

// The positions of the norms in a residual connection, as in nn/residual.py.
//                before branch after
const PLACEMENTS = {
  pre: [true, false, false],
  post: [false, false, true],
  sandwich: [true, true, false],
  branch: [false, true, false],
};

/**
 * The chosen key of an encoder in a translator, by pane; its row is the state's column.
 * @type {Map<number, number>}
 */
const encoderKeys = new Map();

/** @param {Pane} pane @param {State} state @param {Change} change @returns {HTMLElement} */
export function block(pane, state, change) {
  const stack = stackOf(pane, state);
  const layer = Math.min(state.layer ?? 0, stack.n_layers - 1);
  const part = state.part === "mlp" || (state.part === "cross" && stack.cross) ? state.part : "self";
  const head = Math.min(state.head, stack.n_heads - 1);
  const name = `${stack.name}.blocks.${layer}`;
  const row = rowOf(pane, state, stack.name);
  const steps = later(
    JSON.stringify([pane.look.ask, name]),
    () => pane.source.block(pane.look.ask, name),
    (opened) =>
      part === "mlp"
        ? feedforward({ pane, state, change, stack, name, opened, row })
        : attention({ pane, state, change, stack, name, opened, row, part, head }),
    `reading ${name} …`,
    `block ${pane.index}`,
  );
  return element(
    "section",
    { class: "block", "aria-label": `${stack.name === "stack" ? "" : `${stack.name}, `}block ${layer}` },
    toolbar(pane, state, change, { stack, layer, part, head, name, row }),
    steps,
  );
}

/**
 * @param {Pane} pane @param {State} state @param {Change} change
 * @param {{stack: StackInfo, layer: number, part: string, head: number, name: string, row: number}} what
 */
function toolbar(pane, state, change, { stack, layer, part, head, name, row }) {
  const button = (/** @type {string} */ key, /** @type {string} */ text, /** @type {Record<string, unknown>} */ more) =>
    element("button", { type: "button", "data-key": key, ...more }, text);
  const to = (/** @type {number} */ next) => ({
    disabled: next < 0 || next >= stack.n_layers,
    onclick: () => change({ layer: next }),
  });
  const parts = [["self", "self-attention"], ...(stack.cross ? [["cross", "cross-attention"]] : []), ["mlp", "MLP"]];
  const edit = (
    /** @type {string} */ key,
    /** @type {string} */ text,
    /** @type {string} */ tensorName,
    /** @type {"heads" | "positions" | null} */ kind,
    /** @type {number | null} */ number,
  ) =>
    button(key, text, {
      class: "edit",
      disabled: !pane.source.live,
      "aria-pressed": String(isEdited(pane.ask, tensorName, kind, number)),
      onclick: () => change(toggled(pane, state, tensorName, kind, number)),
    });
  return element(
    "div",
    { class: "block-bar" },
    element(
      "div",
      { class: "pager compact" },
      button("block-previous", "‹", { "aria-label": "previous block", ...to(layer - 1) }),
      element("h2", {}, `${stack.name === "stack" ? "" : `${stack.name} `}block ${layer}`),
      button("block-next", "›", { "aria-label": "next block", ...to(layer + 1) }),
    ),
    element(
      "div",
      { class: "switch", role: "group", "aria-label": "part of the block" },
      ...parts.map(([name = "", text = ""]) =>
        button(`part-${name}`, text, {
          "aria-pressed": String(name === part),
          onclick: () => change({ part: name }),
        }),
      ),
    ),
    part === "mlp"
      ? null
      : element(
          "div",
          { class: "switch which-head", role: "group", "aria-label": "head" },
          element("span", { class: "note" }, "head"),
          ...Array.from({ length: stack.n_heads }, (_, h) =>
            button(`head-${h}`, String(h), {
              "aria-label": `head ${h}`,
              "aria-pressed": String(h === head),
              class: isEdited(pane.ask, `${name}.${part}_attention.heads`, "heads", h) ? "off" : null,
              onclick: () => change({ head: h }),
            }),
          ),
        ),
    element(
      "div",
      { class: "zeroing compact", role: "group", "aria-label": "set to zero" },
      element("span", { class: "note" }, "Set to zero:"),
      part === "mlp"
        ? edit("zero-mlp", "the MLP", `${name}.feedforward`, null, null)
        : edit("zero-head", `head ${head}`, `${name}.${part}_attention.heads`, "heads", head),
      edit("zero-token", `stream of row ${row}`, name, "positions", row),
    ),
    button("block-close", "close", { class: "close compact", onclick: () => change({ layer: null, part: null }) }),
  );
}

/**
 * @param {string} title @param {string} formula @param {HTMLElement} picture @param {...(string | null)} notes
 */
export function step(title, formula, picture, ...notes) {
  return element(
    "section",
    { class: "step" },
    element("h3", {}, title),
    element("code", { class: "formula" }, formula),
    picture,
    ...notes.map((note) => (note === null ? null : element("p", { class: "note" }, note))),
  );
}

/**
 * Vectors as rows of colors, one for each token.
 * @param {Tensor} values (T, N) @param {string[]} rows @param {number} row the chosen one @param {string} label
 * @param {string} key @param {Drawing} [options]
 */
export function vectors(values, rows, row, label, key, options = {}) {
  return heatMap({
    values,
    rows,
    kind: "signed",
    label,
    key,
    picked: row < 0 ? null : [row, null],
    names: ["row", "dimension"],
    cellHeight: Math.max(3, Math.min(18, Math.round(240 / rows.length))),
    most: 14,
    legend: true,
    ...options,
  });
}

/**
 * A step that computes a vector for each token.
 * @param {string} title @param {string} formula @param {Tensor} values (T, N) @param {string} key
 * @param {Drawing & {texts: string[], row: number, notes?: (string | null)[]}} options
 */
function strip(title, formula, values, key, { texts, row, notes = [], ...options }) {
  const size = `${formula}  (${values.shape.join(" × ")})`;
  return step(title, size, vectors(values, texts, row, title, `step-${key}`, options), ...notes);
}

/** @param {Block} opened @param {string} name @returns {Tensor} */
function part(opened, name) {
  const value = opened.tensors[name];
  if (value === undefined) throw new Error(`${name} was not recorded in this pass`);
  return value;
}

/**
 * @param {{pane: Pane, state: State, change: Change, stack: StackInfo, name: string, opened: Block, row: number,
 *          part: "self" | "cross", head: number}} what
 */
function attention({ pane, state, change, stack, name, opened, row, part: kind, head }) {
  const get = (/** @type {string} */ key) => part(opened, key);
  const module = `${name}.${kind}_attention`;
  const residual = `${name}.${kind}_residual`;
  const first = kind === "self" || stack.parallel;
  const input = first ? get(opened.input ?? "") : get(`${name}.self_residual`);
  const rows = labels(sideOf(pane, stack.name));
  const keys = labels(keysOf(pane, stack.name, kind));
  const [beforeSublayers, branch, after] = PLACEMENTS[stack.placement];
  const before = beforeSublayers && hasNormBefore(stack, name, kind);
  const width = stack.d_head;
  const shared = Math.floor(head / (stack.n_heads / stack.n_kv_heads));
  const [T, S, H] = [rows.length, keys.length, stack.n_heads];
  const q = slice(get(`${module}.q`), head);
  const k = slice(get(`${module}.k`), shared);
  const v = slice(get(`${module}.v`), shared);
  const scores = slice(get(`${module}.scores`), head);
  const weights = slice(get(`${module}.weights`), head);
  const heads = get(`${module}.heads`);
  const mask = spread(get(`${module}.mask`), T, S);
  const off = isEdited(pane.ask, `${module}.heads`, "heads", head);

  const last = pane.look.sides[pane.look.sides.length - 1]?.stack === stack.name;
  const storedColumn = last ? state.column : (encoderKeys.get(pane.index) ?? null);
  const column = storedColumn === null || storedColumn >= S ? likeliest(weights, row) : storedColumn;
  const worked = workedOut({
    q,
    k,
    v,
    scores,
    weights,
    mask,
    head: slice(heads, head),
    rows,
    keys,
    biased: isBiased(stack, kind),
    softcap: stack.attention_softcap ?? null,
    off,
  });
  worked.show(row, column);
  const onpick = (/** @type {number} */ t, /** @type {number} */ s) => {
    if (!last) encoderKeys.set(pane.index, s);
    change(last ? { at: t, column: s } : toRow(pane, stack.name, t));
  };
  const square = /** @type {const} */ ({
    rows,
    columns: keys,
    square: true,
    most: 34,
    names: ["query", "key"],
    legend: true,
  });
  const picked = { onpick, onpoint: worked.show, picked: /** @type {[number, number]} */ ([row, column]) };
  const masked = (/** @type {number} */ t, /** @type {number} */ s) => mask.data[t * S + s] === 0;
  const grouped = stack.n_kv_heads < H ? `key/value head ${shared}, shared by ${H / stack.n_kv_heads} heads` : null;
  const turned = stack.position === "rotary" && kind === "self" ? "rotated by position (rotary)" : "";
  const normOfHeads = stack.qk_norm === "all_heads" ? "normalized together with the other heads (RMS norm)" : "";
  const normed = stack.qk_norm === true ? "normalized (RMS norm)" : normOfHeads;
  const changes = [normed, turned].filter((text) => text !== "").join(", then ") || null;
  const asks = before ? "h" : "x";
  const queryInput = kind === "cross" ? "memory" : asks;
  const byRow = { texts: rows, row };
  const byKey = { texts: keys, row: kind === "cross" ? -1 : row };
  const map = (
    /** @type {Tensor} */ values,
    /** @type {string} */ label,
    /** @type {"share" | "signed"} */ kind,
    options = {},
  ) =>
    heatMap({
      values,
      kind: kind,
      label: `${label} of head ${head}`,
      key: `step-${label}`,
      ...square,
      ...picked,
      ...options,
    });
  const ofHead = (/** @type {number} */ t, /** @type {number} */ c) => {
    const [h, k] = [Math.floor(c / width), c % width];
    return [`row ${t} ${rows[t]}, head ${h}, dimension ${k}`, exact(heads.get(h, t, k), heads.half)];
  };
  const maskNote = !masks(mask)
    ? `no masked keys: every token attends to every ${kind === "cross" ? "source token" : "other"}`
    : stack.causal && kind === "self"
      ? "hatched: masked, later tokens"
      : "hatched: masked";
  const size = `(${T} × ${S})`;
  const bias = isBiased(stack, kind) ? " + bias" : "";
  const cap = stack.attention_softcap ?? null;
  const formula = cap === null ? `q kᵀ / √${width}` : `${cap} tanh(q kᵀ / √${width} / ${cap})`;

  return element(
    "div",
    { class: "steps" },
    strip(first ? "the stream" : "the stream after self-attention", "x", input, "input", byRow),
    before
      ? strip(`${stack.norm} norm`, "h = norm(x)", get(`${reader(stack, name, residual)}.before`), "norm", byRow)
      : null,
    row3(
      strip(`queries of head ${head}`, `q = ${asks} W_q`, q, "q", { ...byRow, notes: [changes] }),
      strip(`keys of head ${head}`, `k = ${queryInput} W_k`, k, "k", { ...byKey, notes: [grouped, changes] }),
      strip(`values of head ${head}`, `v = ${queryInput} W_v`, v, "v", { ...byKey, notes: [grouped] }),
    ),
    row3(
      step("scores", `${formula}${bias}  ${size}`, map(scores, "scores", "signed")),
      step(
        "mask",
        `may t attend to s?  ${size}`,
        map(mask, "mask", "share", { legend: false, low: 0, high: 2, masked, format: () => "allowed" }),
        maskNote,
      ),
      step("weights", `softmax(scores + mask)  ${size}`, map(weights, "weights", "share", { low: 0, high: 1, masked })),
    ),
    worked.element,
    row3(
      strip(`output of head ${head}`, "weights · v", slice(heads, head), "head", {
        ...byRow,
        notes: [off ? "set to zero" : null],
      }),
      strip("all heads, concatenated", `${H} heads of ${width}`, sideBySide(heads), "heads", {
        ...byRow,
        bands: { size: width, chosen: head },
        lines: ofHead,
      }),
      strip("projected to the stream's width", "heads · W_o", get(module), "out", byRow),
    ),
    branch ? strip(`${stack.norm} norm`, "norm(heads · W_o)", get(`${residual}.branch`), "branch", byRow) : null,
    added(after, get(residual), byRow, null),
  );
}

/**
 * Whether a sublayer has a norm before it, if the placement has one. That of the first block's attention is optional.
 * @param {StackInfo} stack @param {string} name @param {"self" | "cross" | "feedforward"} kind
 */
const hasNormBefore = (stack, name, kind) =>
  stack.first_norm !== false || name !== `${stack.name}.blocks.0` || (kind !== "self" && stack.parallel !== true);

/**
 * The sublayer whose norm is shown: its own, or the first one if the sublayers of a block are parallel and share it.
 * @param {StackInfo} stack @param {string} name @param {string} residual
 */
const reader = (stack, name, residual) => (stack.parallel === true ? `${name}.self_residual` : residual);

/**
 * @param {boolean | undefined} normed @param {Tensor} stream @param {{texts: string[], row: number}} byRow
 * @param {string | null} note
 */
function added(normed, stream, byRow, note) {
  const title = normed ? "added to the stream, then normalized" : "added to the stream";
  return strip(title, normed ? "norm(x + out)" : "x + out", stream, "residual", { ...byRow, notes: [note] });
}

/**
 * @param {{pane: Pane, state: State, change: Change, stack: StackInfo, name: string, opened: Block, row: number}} what
 */
function feedforward({ pane, stack, name, opened, row }) {
  const get = (/** @type {string} */ key) => part(opened, key);
  const module = `${name}.feedforward`;
  const residual = `${name}.feedforward_residual`;
  const rows = labels(sideOf(pane, stack.name));
  const [beforeSublayers, branch, after] = PLACEMENTS[stack.placement];
  const before = beforeSublayers && hasNormBefore(stack, name, "feedforward");
  const h = before ? "h" : "x";
  const activations = get(`${module}.activations`);
  const byRow = { texts: rows, row };
  const neurons = { ...byRow, names: /** @type {const} */ (["row", "neuron"]) };
  const many = { ...neurons, notes: [pooled(stack.d_ff)] };
  const loud = { ...neurons, notes: [describeNeurons(activations, row, rows[row] ?? "")] };
  const act = stack.gated ? `${stack.activation}(${h} W_gate) ⊙ (${h} W_up)` : `${stack.activation}(${h} W_up)`;
  const off = isEdited(pane.ask, module, null, null) ? "set to zero" : null;
  return element(
    "div",
    { class: "steps" },
    stack.parallel
      ? strip("the stream, as for attention", "x", get(opened.input ?? ""), "input", byRow)
      : strip(
          "the stream after attention",
          "x",
          get(`${name}.${stack.cross ? "cross" : "self"}_residual`),
          "input",
          byRow,
        ),
    before
      ? strip(`${stack.norm} norm`, "h = norm(x)", get(`${reader(stack, name, residual)}.before`), "norm", byRow)
      : null,
    fullWidth(strip("up projection", `${h} W_up`, get(`${module}.up`), "up", many)),
    stack.gated ? fullWidth(strip("gate", `${h} W_gate`, get(`${module}.gate`), "gate", many)) : null,
    fullWidth(strip("activations", act, activations, "activations", loud)),
    strip("down projection", "activations · W_down", get(module), "out", { ...byRow, notes: [off] }),
    branch ? strip(`${stack.norm} norm`, "norm(out)", get(`${residual}.branch`), "branch", byRow) : null,
    added(after, get(name), byRow, "input of the next block"),
  );
}

/** @param {...(HTMLElement | null)} steps */
const row3 = (...steps) => element("div", { class: "three" }, ...steps);

/** @param {HTMLElement} item */
function fullWidth(item) {
  item.classList.add("whole");
  return item;
}

/** @param {number} neurons */
const pooled = (neurons) =>
  neurons > 600
    ? "with more neurons than pixels, a pixel shows the value of largest magnitude; move the pointer for each value"
    : null;

/** @param {Tensor} activations (T, F) @param {number} row @param {string} text */
function describeNeurons(activations, row, text) {
  const values = slice(activations, row).data;
  let [largest, active] = [0, 0];
  values.forEach((value, i) => {
    if (Math.abs(value) > Math.abs(values[largest] ?? 0)) largest = i;
    if (value > 0) active += 1;
  });
  const [share, extreme] = [percent(active / values.length), number(values[largest] ?? 0)];
  return `row ${row} ${text}: ${share} of the neurons are above zero; largest in magnitude: ${largest} with ${extreme}`;
}

/**
 * Expand a mask that is the same for all queries to one row per query.
 * @param {Tensor} mask (1, T or 1, S) @param {number} T @param {number} S @returns {Tensor}
 */
function spread(mask, T, S) {
  const data = Uint8Array.from({ length: T * S }, (_, i) => mask.data[mask.data.length === T * S ? i : i % S] ?? 0);
  return tensor([T, S], data);
}

/** @param {Tensor} mask */
const masks = (mask) => mask.data.some((/** @type {number} */ value) => value === 0);

/** @param {Tensor} heads (H, T, K) @returns {Tensor} (T, H K) */
function sideBySide(heads) {
  const [H = 0, T = 0, K = 0] = heads.shape;
  const data = new Float32Array(heads.data.length);
  for (let h = 0; h < H; h++) {
    for (let t = 0; t < T; t++) data.set(heads.data.subarray((h * T + t) * K, (h * T + t + 1) * K), t * H * K + h * K);
  }
  return tensor([T, H * K], data, heads.half);
}

/** @param {Tensor} weights (T, S) @param {number} row */
function likeliest(weights, row) {
  const values = slice(weights, row).data;
  return values.indexOf(Math.max(...values));
}
