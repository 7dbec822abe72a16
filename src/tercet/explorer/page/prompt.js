// The text that the model reads: its boxes, its tokens, and the buttons that change them.

import { roving, showTooltip } from "tercet/draw.js";
import { element } from "tercet/element.js";
import { labelOf } from "tercet/model.js";

/** @typedef {import("tercet/model.js").Ask} Ask */
/** @typedef {import("tercet/model.js").Change} Change */
/** @typedef {import("tercet/model.js").Side} Side */
/** @typedef {import("tercet/pane.js").Loaded} Loaded */
/** @typedef {import("tercet/state.js").State} State */
/** @typedef {import("tercet/source.js").Model} Model */

const FAMILIES = { mask: "Text", translate: "Source", sample: "Prompt" };

/** The label of the text, by the model's family. @param {Model} model */
const labelFor = (model) =>
  model.can.translate ? FAMILIES.translate : model.can.mask ? FAMILIES.mask : FAMILIES.sample;

/**
 * The state with one pane's query changed.
 * @param {State} state @param {number} index @param {Partial<Ask>} patch
 */
export function asking(state, index, patch) {
  return { panes: state.panes.map((ask, i) => (i === index ? { ...ask, ...patch } : ask)) };
}

/**
 * The ids that the model still sees after an append: if they do not fit, the older half is dropped.
 * @param {number[]} ids @param {number} maxLength
 */
export function windowed(ids, maxLength) {
  if (ids.length <= maxLength) return ids;
  const half = maxLength - Math.floor(maxLength / 2);
  return ids.slice(half * Math.ceil((ids.length - maxLength) / half));
}

/**
 * The state with a token appended after row `at`; later tokens are dropped.
 * @param {Loaded} pane @param {State} state @param {number} at @param {number} id
 */
export function continued(pane, state, at, id) {
  const { model } = pane.source;
  const key = model.can.translate ? "target_ids" : "ids";
  const prefix = (pane.ask[key] ?? []).slice(0, at + 1);
  const patch = { ids: pane.ask.ids, target_ids: pane.ask.target_ids, [key]: windowed([...prefix, id], model.max_len) };
  return { ...asking(state, pane.index, patch), at: null };
}

/** Replace one token. @param {Loaded} pane @param {State} state @param {number} at @param {number} id */
export function replaced(pane, state, at, id) {
  const newest = state.panes[pane.index]; // may be newer than the pane after two quick clicks
  if (newest === undefined || newest.text !== pane.ask.text) return {};
  const previous = newest.ids ?? pane.ask.ids ?? [];
  const ids = previous.map((old, i) => (i === at ? id : old));
  const original_ids = newest.original_ids ?? previous;
  return { ...asking(state, pane.index, { ids, original_ids }), at };
}

/** The id at a row before it was masked; null if it is not known. @param {Loaded} pane @param {number} at */
export function originalAt(pane, at) {
  const original = pane.ask.original_ids?.[at];
  return original === undefined || original === pane.source.model.mask_id ? null : original;
}

/**
 * Mask a token, or restore it.
 * @param {Loaded} pane @param {State} state @param {number} at @returns {Partial<State>}
 */
export function maskToggled(pane, state, at) {
  const mask = pane.source.model.mask_id;
  const token = pane.look.sides.at(-1)?.tokens[at];
  if (mask === null || token === undefined) return {};
  const masked = token.id === mask;
  if (!masked && token.special) return { at };
  if (!masked) return replaced(pane, state, at, mask);
  const original = originalAt(pane, at);
  return original === null ? { at } : replaced(pane, state, at, original);
}

/** The text of ids that were combined by clicks, as one would type it. @param {Side} side @param {string} tokenizer */
function typed(side, tokenizer) {
  const texts = side.tokens.filter((token) => !token.special).map((token) => token.text);
  if (tokenizer === "wordpiece") return texts.join(" ").replaceAll(" ##", "");
  const bytes = (/** @type {string} */ run) =>
    new TextDecoder().decode(
      Uint8Array.from(run.matchAll(/\\x([0-9a-f]{2})/g), (match) => parseInt(match[1] ?? "", 16)),
    );
  return texts.join("").replace(/(\\x[89a-f][0-9a-f])+/g, bytes);
}

/**
 * The text boxes and the tokens below them.
 * @param {Model} model
 * @param {{change: Change, append: (index: number, kind: "likely" | "sample") => void, index: number}} act
 */
export function promptBox(model, { change, append, index }) {
  const { live } = model;
  let lastText = ""; // of the text box at the last update
  let lastTarget = "";
  /** @type {State | null} */
  let state = null;

  const hint = model.can.mask ? "enter a text; click a token to mask it" : "enter a text";
  const text = field(labelFor(model), "text", hint);
  const target = field("Target", "target", "leave empty to let the model write it");
  const button = element("button", { type: "submit", class: "primary", "data-key": "read", hidden: !live }, "Read");
  text.box.readOnly = target.box.readOnly = !live;
  const form = element("form", { class: "ask" }, text.label, model.can.translate ? target.label : null, button);
  const tokens = element("div", { class: "sides" });
  const tools = element("div", { class: "tools" });
  const box = element("section", { class: "prompt", "aria-label": "Input" }, form, tokens, tools);

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (state === null) return;
    const now = state.panes[index];
    if (now === undefined) return;
    const same = text.box.value === lastText;
    const requested =
      target.box.value === lastTarget ? now.target : target.box.value.trim() === "" ? null : target.box.value;
    if (same && requested === now.target && now.target_ids === null) return change({ panes: [...state.panes] });
    const ids = same ? now.ids : null;
    const original_ids = same ? now.original_ids : null;
    // Edits of positions are dropped, because the positions have other tokens now.
    const positions = now.edits.filter((edit) => same || edit.positions === null);
    const ask = {
      text: same ? now.text : text.box.value,
      target: requested,
      ids,
      target_ids: null,
      original_ids,
      edits: positions,
    };
    change({ ...asking(state, index, ask), at: null, column: null });
  });
  for (const { box: area } of [text, target]) {
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    area.addEventListener("input", () => grow(area));
  }

  /** Update the boxes, and with a pass also the tokens. @param {Loaded | null} loaded @param {State} now */
  function update(loaded, now) {
    state = now;
    const newest = now.panes[index];
    if (newest === undefined) return;
    const last = loaded?.look.sides.at(-1);
    const appended = newest.ids !== null && model.can.sample && !model.can.translate && last !== undefined;
    const current =
      appended && loaded !== null && loaded.ask.ids?.join() === newest.ids?.join()
        ? typed(last, model.tokenizer)
        : newest.text;
    if (current !== lastText || text.box.value === "") text.box.value = lastText = current;
    if ((newest.target ?? "") !== lastTarget) target.box.value = lastTarget = newest.target ?? "";
    grow(text.box);
    grow(target.box);
    if (loaded === null) return;
    const written =
      model.can.translate && newest.target === null && last !== undefined ? typed(last, model.tokenizer) : "";
    target.box.placeholder = written === "" ? "leave empty to let the model write it" : `the model writes: ${written}`;
    const scrolled = [...tokens.querySelectorAll(".tokens")].map((row) => row.scrollTop);
    tokens.replaceChildren(...loaded.look.sides.map((side) => sideRow(loaded, now, side, change)));
    tokens.querySelectorAll(".tokens").forEach((row, i) => uncover(row, scrolled[i] ?? 0));
    tools.replaceChildren(...toolRow(loaded, now, change, (kind) => append(index, kind)));
  }

  return { element: box, update, focus: () => text.box.focus() };
}

/** @param {string} name @param {string} key @param {string} placeholder */
function field(name, key, placeholder) {
  const box = element("textarea", {
    rows: 1,
    placeholder,
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "off",
    "data-key": key,
    "aria-label": name,
  });
  return { box, label: element("label", { class: "field" }, element("span", {}, name), box) };
}

/** Restore the scroll position, and scroll the chosen token into view. @param {Element} row @param {number} top */
function uncover(row, top) {
  row.scrollTop = top;
  const chip = row.querySelector(".chosen")?.getBoundingClientRect();
  const box = row.getBoundingClientRect();
  if (chip === undefined) return;
  if (chip.bottom > box.bottom) row.scrollTop += chip.bottom - box.bottom + 4;
  if (chip.top < box.top) row.scrollTop -= box.top - chip.top + 4;
}

/** Make a box as high as its lines. @param {HTMLTextAreaElement} area */
function grow(area) {
  if (!area.isConnected) return;
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, 140)}px`;
}

/** One stack's tokens. @param {Loaded} pane @param {State} state @param {Side} side @param {Change} change */
function sideRow(pane, state, side, change) {
  const { model } = pane.source;
  const last = side === pane.look.sides.at(-1);
  const isMasking = model.can.mask && pane.source.live;
  const chosen = last ? (state.at ?? pane.look.at) : state.column;
  const name = model.can.translate ? (last ? "Target" : "Source") : "Tokens";
  const count = `${side.tokens.length} of at most ${model.max_len}`;
  const chips = side.tokens.map((token, row) => {
    const masked = model.mask_id !== null && token.id === model.mask_id;
    const silenced = pane.ask.edits.some(
      (edit) => edit.name.startsWith(`${side.stack}.`) && (edit.positions?.includes(row) ?? false),
    );
    const kinds = [
      "token",
      token.special && "special",
      masked && "masked",
      row === chosen && "chosen",
      silenced && "silenced",
    ];
    const original = masked ? originalAt(pane, row) : null;
    const before = original === null ? "" : `, before ‘${labelOf(pane.texts.get(original) ?? `id ${original}`)}’`;
    const loss = last ? pane.look.loss?.tokens[row] : null;
    const lines = [
      `row ${row}: ‘${labelOf(token.text)}’, id ${token.id}${token.special ? ", special" : ""}${before}`,
      typeof loss === "number"
        ? `${model.can.mask ? "loss here" : "loss of the next token"}: ${loss.toFixed(3)} nats`
        : "",
      isMasking && !(token.special && !masked) ? (masked ? "click to restore it" : "click to mask it") : "",
    ].filter((line) => line !== "");
    const chip = element(
      "button",
      {
        type: "button",
        class: kinds.filter(Boolean).join(" "),
        "data-key": `token:${side.stack}:${row}`,
        "aria-pressed": String(row === chosen),
        "aria-label": lines.join("; "),
        tabindex: row === (chosen ?? 0) ? 0 : -1,
      },
      labelOf(token.text),
    );
    const hover = () => {
      const { left, bottom } = chip.getBoundingClientRect();
      showTooltip(chip, lines, left - 10, bottom - 12);
    };
    chip.addEventListener("pointerenter", hover);
    chip.addEventListener("focus", () => chip.matches(":focus-visible") && hover());
    chip.addEventListener("click", () =>
      change(!last ? { column: row } : isMasking ? maskToggled(pane, state, row) : { at: row }),
    );
    return chip;
  });
  const row = element("div", { class: "tokens", role: "group", "aria-label": `${name}, ${count}` }, ...chips);
  roving(row, ".token", 1);
  const title = element(
    "span",
    { class: "name" },
    name,
    element("small", {}, ` ${side.tokens.length} / ${model.max_len}`),
  );
  return element("div", { class: "side", "data-stack": side.stack }, title, row);
}

/**
 * @param {Loaded} pane @param {State} state @param {Change} change
 * @param {(kind: "likely" | "sample") => void} append
 */
function toolRow(pane, state, change, append) {
  const { model, live } = pane.source;
  const side = pane.look.sides.at(-1);
  const ids = side?.tokens.map((token) => token.id) ?? [];
  const tool = (
    /** @type {string} */ key,
    /** @type {string} */ name,
    /** @type {string} */ tip,
    /** @type {() => void} */ does,
    off = false,
  ) => element("button", { type: "button", "data-key": key, title: tip, disabled: off || !live, onclick: does }, name);
  const row = [];
  if (model.can.sample || model.can.translate) {
    const likely = side === undefined ? undefined : pane.look.top?.ids[ids.length - 1]?.[0];
    const text = likely === undefined ? "" : ` ‘${labelOf(pane.look.texts[likely] ?? "")}’`;
    const isFull = model.can.translate && ids.length >= model.max_len;
    const isFinished = model.can.translate && likely === model.eos_id;
    row.push(
      isFinished
        ? tool("append", "The model ends here", "the most likely token is the end of the sentence", () => {}, true)
        : tool("append", `Append${text}`, "append the most likely token (n)", () => append("likely"), isFull),
      tool(
        "sample",
        "Sample a token",
        "sample a token with the settings on the right, and append it (s)",
        () => append("sample"),
        isFull,
      ),
      tool(
        "shorten",
        "Remove last",
        "remove the last token",
        () => {
          const key = model.can.translate ? "target_ids" : "ids";
          change({
            ...asking(state, pane.index, {
              ids: pane.ask.ids,
              target_ids: pane.ask.target_ids,
              [key]: ids.slice(0, -1),
            }),
            at: null,
          });
        },
        ids.length < 2,
      ),
    );
  }
  if (model.can.mask && model.mask_id !== null) {
    const at = state.at ?? pane.look.at;
    const masked = ids[at] === model.mask_id;
    const changed = pane.ask.original_ids?.some((id, i) => id !== ids[i]) ?? false;
    row.push(
      tool(
        "mask",
        masked ? `Unmask row ${at}` : `Mask row ${at}`,
        "mask or unmask the chosen token (m)",
        () => change(maskToggled(pane, state, at)),
        masked ? originalAt(pane, at) === null : side?.tokens[at]?.special === true,
      ),
      tool(
        "unmask",
        "Unmask all",
        "restore all tokens of the text",
        () => change(asking(state, pane.index, { ids: pane.ask.original_ids, original_ids: null })),
        !changed,
      ),
    );
  }
  if (pane.look.truncated) {
    const kept = model.can.sample && !model.can.translate ? "last" : "first";
    row.push(
      element(
        "span",
        { class: "note warning" },
        `the text is longer than the context; only its ${kept} ${model.max_len} tokens are used`,
      ),
    );
  }
  return row;
}
