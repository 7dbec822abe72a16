// The effect of a change: a pass compared with the same pass without edits, and one pane compared with the other.

import { element } from "tercet/element.js";
import { labelOf } from "tercet/model.js";
import { percent } from "tercet/numbers.js";
import { best, logitsAt, shareOf } from "tercet/probabilities.js";
import { asking } from "tercet/prompt.js";

/** @typedef {import("tercet/model.js").Change} Change */
/** @typedef {import("tercet/model.js").Edit} Edit */
/** @typedef {import("tercet/pane.js").Loaded} Loaded */
/** @typedef {import("tercet/state.js").State} State */

const PARTS = { self_attention: "attention", cross_attention: "cross-attention", feedforward: "MLP" };

/** A description of an edit. @param {Edit} edit */
export function describeEdit({ name, heads, positions }) {
  const match =
    /^(stack|encoder|decoder)\.blocks\.(\d+)(?:\.(self_attention|cross_attention|feedforward)(\.heads)?)?$/.exec(name);
  const rows = positions === null ? "" : `, row ${positions.join(", ")}`;
  const selected = heads === null ? "" : `head ${heads.join(", ")}`;
  if (match === null) return name + (selected && `, ${selected}`) + rows;
  const [, stack, block, part] = match;
  const place = `${stack === "stack" ? "" : `${stack} `}block ${block}`;
  if (part === undefined) return `${place}, stream${rows}`;
  const kind = PARTS[/** @type {keyof typeof PARTS} */ (part)];
  if (selected === "") return `${place}, ${kind}${rows}`;
  return `${place}, ${part === "cross_attention" ? `${kind} ` : ""}${selected}${rows}`;
}

/** Split an edit into one for each head or row, so that each can be removed. @param {Edit} edit @returns {Edit[]} */
function split(edit) {
  if (edit.heads !== null) return edit.heads.map((head) => ({ ...edit, heads: [head] }));
  if (edit.positions !== null) return edit.positions.map((row) => ({ ...edit, positions: [row] }));
  return [edit];
}

/** @param {Edit[]} edits @param {Edit} removed @returns {Edit[]} */
function without(edits, removed) {
  return edits.flatMap((edit) => {
    if (edit.name !== removed.name) return [edit];
    const heads = edit.heads?.filter((head) => !removed.heads?.includes(head)) ?? null;
    const positions =
      edit.heads === null
        ? (edit.positions?.filter((row) => !removed.positions?.includes(row)) ?? null)
        : edit.positions;
    if (heads === null && positions === null) return [];
    return heads?.length === 0 || positions?.length === 0 ? [] : [{ ...edit, heads, positions }];
  });
}

const fine = (/** @type {number} */ share) => `${(100 * share).toFixed(2)}%`;
const nats = (/** @type {number} */ loss) => loss.toFixed(4);
const signed = (/** @type {number} */ value, digits = 4) =>
  `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;

/** The edits of a pane, and their effect. @param {Change} change */
export function editLine(change) {
  const chips = element("div", { class: "chips", role: "group", "aria-label": "Set to zero" });
  const outcome = element("p", { class: "outcome" });
  const box = element("section", { class: "edits", "aria-label": "Edits", hidden: true }, chips, outcome);
  let requests = 0;

  /** @param {Loaded} pane @param {State} state */
  async function update(pane, state) {
    const request = ++requests;
    const edits = state.panes[pane.index]?.edits ?? [];
    box.hidden = edits.length === 0;
    if (box.hidden) return;
    const all = edits.flatMap(split);
    chips.replaceChildren(
      element("span", { class: "name" }, "Set to zero"),
      ...all.map((edit) =>
        element(
          "button",
          {
            type: "button",
            class: "chip",
            "data-key": `edit:${edit.name}:${edit.heads ?? ""}:${edit.positions ?? ""}`,
            disabled: !pane.source.live,
            "aria-label": `${describeEdit(edit)}; click to restore it`,
            title: `${edit.name}\nclick to restore it`,
            onclick: () => change(asking(state, pane.index, { edits: without(edits, edit) })),
          },
          describeEdit(edit),
          element("span", { "aria-hidden": "true" }, " ×"),
        ),
      ),
      element(
        "button",
        {
          type: "button",
          class: "quiet",
          "data-key": "edits:none",
          hidden: all.length < 2 || !pane.source.live,
          onclick: () => change(asking(state, pane.index, { edits: [] })),
        },
        "Restore all",
      ),
    );
    const sentences = await outcomeOf(pane, state).catch(() => []);
    if (request === requests) outcome.replaceChildren(...sentences);
  }

  return { element: box, update };
}

/** @param {Loaded} pane @param {State} state @returns {Promise<(string | Node)[]>} */
async function outcomeOf(pane, state) {
  const { look, base } = pane;
  if (base === null) return [];
  /** @type {(string | Node)[]} */
  const sentences = [];
  if (look.loss && base.loss) {
    const change = look.loss.mean - base.loss.mean;
    sentences.push(
      "mean loss ",
      nats(base.loss.mean),
      " → ",
      element("b", {}, nats(look.loss.mean)),
      " nats (",
      element("b", { class: change > 0 ? "worse" : "better" }, signed(change)),
      ")",
    );
  }
  const at = state.at ?? look.at;
  const id = base.top?.ids[at]?.[0];
  if (base.top && id !== undefined) {
    const before = base.top.probabilities.get(at, 0);
    const row = await logitsAt(pane, at);
    if (row !== null) {
      const now = best(row);
      const text = base.texts[id] ?? look.texts[id] ?? `id ${id}`;
      sentences.push(
        sentences.length > 0 ? " · " : "",
        `row ${at}: ‘${labelOf(text)}’ `,
        fine(before),
        " → ",
        element("b", {}, fine(shareOf(row, id).share)),
      );
      if (now.id !== id) sentences.push(`; now ‘${labelOf(now.text)}’ ${fine(now.share)}`);
    }
  }
  return sentences;
}

/** A table that compares the two panes. */
export function differences() {
  const box = element("section", { class: "differences", "aria-label": "Comparison of the two texts", hidden: true });
  let requests = 0;

  /** @param {Loaded[]} panes @param {State} state */
  async function update(panes, state) {
    const request = ++requests;
    box.hidden = state.panes.length < 2;
    const [a, b] = panes;
    if (box.hidden || a === undefined || b === undefined) return;
    const rows = await Promise.all(
      [a, b].map(async (pane) => {
        const last = (pane.look.sides.at(-1)?.tokens.length ?? 1) - 1;
        const at = Math.min(state.at ?? pane.look.at, last);
        return { at, row: await logitsAt(pane, at).catch(() => null) };
      }),
    );
    if (request !== requests) return;
    const lines = [];
    if (a.look.loss && b.look.loss) {
      lines.push([
        "mean loss, nats",
        nats(a.look.loss.mean),
        nats(b.look.loss.mean),
        signed(b.look.loss.mean - a.look.loss.mean),
      ]);
    }
    const [left, right] = rows;
    if (left?.row && right?.row) {
      const [first, second] = [best(left.row), best(right.row)];
      const cross = shareOf(right.row, first.id).share;
      const place = left.at === right.at ? `row ${left.at}` : `rows ${left.at} and ${right.at}`;
      lines.push([
        `most likely, ${place}`,
        `‘${labelOf(first.text)}’ ${percent(first.share)}`,
        `‘${labelOf(second.text)}’ ${percent(second.share)}`,
        first.id === second.id ? "same" : "different",
      ]);
      lines.push([
        `probability of ‘${labelOf(first.text)}’`,
        percent(first.share),
        percent(cross),
        `${signed(100 * (cross - first.share), 1)} points`,
      ]);
    }
    const head = ["", "A", "B", "B − A"].map((name) => element("th", { scope: "col" }, name));
    box.replaceChildren(
      element(
        "table",
        {},
        element("thead", {}, element("tr", {}, ...head)),
        element(
          "tbody",
          {},
          ...lines.map(([name = "", ...cells]) =>
            element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell))),
          ),
        ),
      ),
    );
  }

  return { element: box, update };
}
