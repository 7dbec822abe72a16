// What the model reads: the text, its tokens, and what can be done to them.

import { roving, tell } from "tercet/draw.js";
import { element } from "tercet/element.js";
import { labelOf } from "tercet/model.js";

/** @typedef {import("tercet/model.js").Ask} Ask */
/** @typedef {import("tercet/model.js").Change} Change */
/** @typedef {import("tercet/model.js").Side} Side */
/** @typedef {import("tercet/pane.js").Loaded} Loaded */
/** @typedef {import("tercet/state.js").State} State */
/** @typedef {import("tercet/source.js").Model} Model */

const FAMILIES = { mask: "Text", translate: "Source", sample: "Prompt" };

/** How the family's text is called. @param {Model} model */
const called = (model) => (model.can.translate ? FAMILIES.translate : model.can.mask ? FAMILIES.mask : FAMILIES.sample);

/**
 * The state with one pane's question changed.
 * @param {State} state @param {number} index @param {Partial<Ask>} patch
 */
export function asking(state, index, patch) {
  return { panes: state.panes.map((ask, i) => (i === index ? { ...ask, ...patch } : ask)) };
}

/**
 * The tokens that the model still sees when it goes on: where they do not fit, the older half is dropped.
 * @param {number[]} ids @param {number} most
 */
export function windowed(ids, most) {
  if (ids.length <= most) return ids;
  const half = most - Math.floor(most / 2);
  return ids.slice(half * Math.ceil((ids.length - most) / half));
}

/**
 * A token behind row `at`, in place of what stood there.
 * @param {Loaded} pane @param {State} state @param {number} at @param {number} id
 */
export function continued(pane, state, at, id) {
  const { model } = pane.source;
  const key = model.can.translate ? "target_ids" : "ids";
  const before = (pane.ask[key] ?? []).slice(0, at + 1);
  const now = { ids: pane.ask.ids, target_ids: pane.ask.target_ids, [key]: windowed([...before, id], model.max_len) };
  return { ...asking(state, pane.index, now), at: null };
}

/** A token in place of another. @param {Loaded} pane @param {State} state @param {number} at @param {number} id */
export function replaced(pane, state, at, id) {
  const newest = state.panes[pane.index]; // may be ahead of the pane, where one click follows the other
  if (newest === undefined || newest.text !== pane.ask.text) return {};
  const before = newest.ids ?? pane.ask.ids ?? [];
  const ids = before.map((old, i) => (i === at ? id : old));
  const original_ids = newest.original_ids ?? before;
  return { ...asking(state, pane.index, { ids, original_ids }), at };
}

/** What stood at a row before it was masked; null where nobody knows. @param {Loaded} pane @param {number} at */
export function originalAt(pane, at) {
  const original = pane.ask.original_ids?.[at];
  return original === undefined || original === pane.source.model.mask_id ? null : original;
}

/**
 * Mask a token, or put back what stood there.
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

/** Text of ids that were put together by clicks, as one would type it. @param {Side} side @param {string} tokenizer */
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
 * The box that is typed in and the tokens below it.
 * @param {Model} model
 * @param {{change: Change, append: (index: number, kind: "likely" | "sample") => void, index: number}} act
 */
export function promptBox(model, { change, append, index }) {
  const { live } = model;
  let read = ""; // what the boxes said when they were read last
  let aimed = "";
  /** @type {State | null} */
  let state = null;

  const text = field(called(model), "text", model.can.mask ? "a text; click a token to mask it" : "type a text");
  const target = field("Target", "target", "empty: the model writes it");
  const button = element("button", { type: "submit", class: "primary", "data-key": "read", hidden: !live }, "Read");
  text.box.readOnly = target.box.readOnly = !live;
  const form = element("form", { class: "ask" }, text.label, model.can.translate ? target.label : null, button);
  const tokens = element("div", { class: "sides" });
  const tools = element("div", { class: "tools" });
  const box = element("section", { class: "prompt", "aria-label": "What is read" }, form, tokens, tools);

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (state === null) return;
    const now = state.panes[index];
    if (now === undefined) return;
    const same = text.box.value === read;
    const wish = target.box.value === aimed ? now.target : target.box.value.trim() === "" ? null : target.box.value;
    if (same && wish === now.target && now.target_ids === null) return change({ panes: [...state.panes] });
    const ids = same ? now.ids : null;
    const original_ids = same ? now.original_ids : null;
    const positions = now.edits.filter((edit) => same || edit.positions === null); // other tokens stand there now
    const ask = {
      text: same ? now.text : text.box.value,
      target: wish,
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

  /** Without a pass, the boxes alone. @param {Loaded | null} loaded @param {State} now */
  function update(loaded, now) {
    state = now;
    const newest = now.panes[index];
    if (newest === undefined) return;
    const last = loaded?.look.sides.at(-1);
    const appended = newest.ids !== null && model.can.sample && !model.can.translate && last !== undefined;
    const says =
      appended && loaded !== null && loaded.ask.ids?.join() === newest.ids?.join()
        ? typed(last, model.tokenizer)
        : newest.text;
    if (says !== read || text.box.value === "") text.box.value = read = says;
    if ((newest.target ?? "") !== aimed) target.box.value = aimed = newest.target ?? "";
    grow(text.box);
    grow(target.box);
    if (loaded === null) return;
    const written =
      model.can.translate && newest.target === null && last !== undefined ? typed(last, model.tokenizer) : "";
    target.box.placeholder = written === "" ? "empty: the model writes it" : `the model writes: ${written}`;
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

/** Scrolled as before, or so that the chosen token can be seen. @param {Element} row @param {number} before */
function uncover(row, before) {
  row.scrollTop = before;
  const chip = row.querySelector(".chosen")?.getBoundingClientRect();
  const box = row.getBoundingClientRect();
  if (chip === undefined) return;
  if (chip.bottom > box.bottom) row.scrollTop += chip.bottom - box.bottom + 4;
  if (chip.top < box.top) row.scrollTop -= box.top - chip.top + 4;
}

/** As high as its lines. @param {HTMLTextAreaElement} area */
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
    const was = original === null ? "" : `, was ‘${labelOf(pane.texts.get(original) ?? `id ${original}`)}’`;
    const loss = last ? pane.look.loss?.tokens[row] : null;
    const lines = [
      `row ${row}: ‘${labelOf(token.text)}’, id ${token.id}${token.special ? ", special" : ""}${was}`,
      typeof loss === "number"
        ? `${model.can.mask ? "loss here" : "loss of the next token"}: ${loss.toFixed(3)} nats`
        : "",
      isMasking && !(token.special && !masked) ? (masked ? "click to put it back" : "click to mask it") : "",
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
      tell(chip, lines, left - 10, bottom - 12);
    };
    chip.addEventListener("pointerenter", hover);
    chip.addEventListener("focus", () => chip.matches(":focus-visible") && hover());
    chip.addEventListener("click", () =>
      change(!last ? { column: row } : isMasking ? maskToggled(pane, state, row) : { at: row }),
    );
    return chip;
  });
  const row = element("div", { class: "tokens", role: "group", "aria-label": `${name} read, ${count}` }, ...chips);
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
    const most = model.can.translate && ids.length >= model.max_len;
    const ended = model.can.translate && likely === model.eos_id;
    row.push(
      ended
        ? tool("append", "The model ends here", "its most likely token is the end of the sentence", () => {}, true)
        : tool("append", `Append${text}`, "append the most likely token (n)", () => append("likely"), most),
      tool(
        "sample",
        "Sample a token",
        "draw a token with the settings on the right, and append it (s)",
        () => append("sample"),
        most,
      ),
      tool(
        "shorten",
        "Take one off",
        "take the last token off",
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
        masked ? `Put row ${at} back` : `Mask row ${at}`,
        "hide the chosen token from the model (m)",
        () => change(maskToggled(pane, state, at)),
        masked ? originalAt(pane, at) === null : side?.tokens[at]?.special === true,
      ),
      tool(
        "unmask",
        "Put all back",
        "every token as it was in the text",
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
        `longer than the model reads; these are its ${kept} ${model.max_len} tokens`,
      ),
    );
  }
  return row;
}
