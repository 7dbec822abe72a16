// The overview of a pass: a row for each token, a column for each block, lines for the attention of the chosen row.

import { around } from "tercet/around.js";
import { block } from "tercet/block.js";
import {
  atWidth,
  readPalette,
  css,
  fitted,
  hideTooltip,
  keepScroll,
  mix,
  painted,
  roving,
  sized,
  showTooltip,
  whenSized,
} from "tercet/draw.js";
import { element, svg } from "tercet/element.js";
import { miniature } from "tercet/heatmap.js";
import { hidden, keysOf, labels, rowOf, labelOf, sideOf, stackOf, sumOf, toRow } from "tercet/model.js";
import { exact, number, percent } from "tercet/numbers.js";
import { tensor } from "tercet/tensor.js";

/** @typedef {import("tercet/model.js").Pane} Pane */
/** @typedef {import("tercet/model.js").State} State */
/** @typedef {import("tercet/model.js").Change} Change */
/** @typedef {import("tercet/model.js").Tensor} Tensor */
/** @typedef {import("tercet/model.js").StackInfo} StackInfo */
/** @typedef {{cell: number, gap: number, end: number, left: (column: number) => number, width: number}} Columns */

const TOKENS = 104; // pixels, width of the token column
const PREDICTIONS = 176;
const HEADER = 88; // pixels, height of the header
const FONT = "12px ui-monospace, 'SF Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace";
const MIN_WEIGHT = 0.02; // smaller weights have no line, unless the uniform weight of a long text is smaller

/** @param {Pane} pane @param {State} state @param {Change} change @returns {HTMLElement} */
export function flow(pane, state, change) {
  const stack = stackOf(pane, state);
  const view = element("section", { class: "flow", "aria-label": "The pass through the model" });
  const stacks = pane.source.model.stacks;
  if (stacks.length > 1) view.append(sideSwitch(pane, stack, change));
  view.append(overview(pane, state, change, stack));
  if (state.layer !== null) view.append(block(pane, state, change));
  else if (state.part === "start" || state.part === "end") view.append(around(pane, state, change, state.part));
  return view;
}

/** Buttons for the stacks. @param {Pane} pane @param {StackInfo} stack @param {Change} change @returns {HTMLElement} */
export function sideSwitch(pane, stack, change) {
  return element(
    "div",
    { class: "switch", role: "group", "aria-label": "encoder or decoder" },
    ...pane.source.model.stacks.map((candidate) =>
      element(
        "button",
        {
          type: "button",
          "data-key": `side-${candidate.name}`,
          "aria-pressed": String(candidate.name === stack.name),
          onclick: () => change({ stack: candidate.name, layer: null, part: null, head: 0 }),
        },
        candidate.name === "encoder" ? "encoder (source)" : "decoder (target)",
      ),
    ),
  );
}

/** @param {Pane} pane @param {State} state @param {Change} change @param {StackInfo} stack */
function overview(pane, state, change, stack) {
  const side = sideOf(pane, stack.name);
  const stream = pane.look.stream[stack.name];
  if (stream === undefined) throw new Error(`the stream of ${stack.name} is missing`);
  const texts = labels(side);
  const last = pane.look.sides[pane.look.sides.length - 1] === side;
  const lens = last ? pane.look.lens : null;
  const top = last ? pane.look.top : null;
  const height = side.tokens.length <= 24 ? 28 : 24;
  const chosen = rowOf(pane, state, stack.name);
  let row = chosen;

  const canvas = element("canvas", { "aria-hidden": "true" });
  const lines = svg("svg", { class: "flow-lines", "aria-hidden": "true" });
  const heads = element("div", { class: "flow-heads" });
  const source = stack.cross ? sourceStrip(pane, state, stack) : null;
  /** @type {Columns | null} */
  let columns = null;

  const point = (/** @type {number} */ next) => {
    if (next === row) return;
    row = next;
    if (columns !== null) draw(columns);
    source?.show(row);
  };
  const draw = (/** @type {Columns} */ at) => {
    cells(canvas, at, { stream, lens, texts: pane.look.texts, rows: texts.length, height, chosen: row });
    reads(lines, at, { pane, state, stack, row, height });
  };

  const tokens = element("div", { class: "flow-tokens", role: "group", "aria-label": `tokens of the ${stack.name}` });
  side.tokens.forEach((token, i) => {
    tokens.append(
      element(
        "button",
        {
          type: "button",
          class: token.special ? "flow-token special" : "flow-token",
          style: `height:${height}px`,
          "data-key": `flow-token-${i}`,
          "aria-pressed": String(i === chosen),
          "aria-label": `${i} ${texts[i]}${best(top, pane, i)}`,
          title: `row ${i}, id ${token.id}`,
          tabindex: i === chosen ? "0" : "-1",
          onclick: () => change(toRow(pane, stack.name, i)),
          onfocus: () => point(i),
          onblur: () => point(chosen),
        },
        element("span", { class: "index" }, String(i)),
        " ",
        element("span", { class: "text" }, texts[i] ?? ""),
      ),
    );
  });
  roving(tokens, ".flow-token", 1);

  const body = element("div", { class: "flow-body" }, canvas, lines);
  const under = (/** @type {MouseEvent} */ event) => {
    const bounds = body.getBoundingClientRect();
    const r = Math.floor((event.clientY - bounds.top) / height);
    const c =
      columns === null
        ? -1
        : stream.names.findIndex((_, i) => {
            const from = /** @type {Columns} */ (columns).left(i);
            return (
              event.clientX - bounds.left >= from &&
              event.clientX - bounds.left < from + /** @type {Columns} */ (columns).cell
            );
          });
    return { r: Math.min(Math.max(r, 0), texts.length - 1), c };
  };
  body.addEventListener("pointermove", (event) => {
    const { r, c } = under(event);
    point(r);
    if (c < 0) return hideTooltip();
    showTooltip(body, describeCell(pane, stack, stream, lens, texts, r, c), event.clientX, event.clientY);
  });
  body.addEventListener("pointerleave", () => {
    hideTooltip();
    point(chosen);
  });
  body.addEventListener("click", (event) => change(toRow(pane, stack.name, under(event).r)));

  const sheet = element(
    "div",
    { class: "flow-sheet" },
    element("div", { class: "flow-corner" }, "token"),
    heads,
    element(
      "div",
      { class: "flow-corner right" },
      top === null ? "" : stack.causal ? "most likely next" : "most likely here",
    ),
    tokens,
    body,
    predictions(pane, top, texts.length, height),
  );
  const box = element("div", { class: state.layer === null ? "flow-scroll" : "flow-scroll small" }, sheet);
  const slot = `flow ${pane.index} ${stack.name} ${texts.length}`;
  keepScroll(box, slot);
  if (lastRows.get(slot) !== chosen) whenSized(box, () => toView(box, chosen, height));
  lastRows.set(slot, chosen);
  painted(canvas, () => columns !== null && draw(columns));
  const buttons = headers(pane, state, change, stack);
  heads.append(...buttons.map((button) => button.header));
  roving(heads, "button", 1);
  atWidth(box, (width) => {
    columns = arranged(width - TOKENS - PREDICTIONS - 2, stack.n_layers);
    body.style.width = `${columns.width}px`;
    body.style.height = `${texts.length * height}px`;
    heads.style.width = `${columns.width}px`;
    for (const { header, column } of buttons) {
      const last = column > stack.n_layers;
      const aside = column === 0 ? 8 : columns.gap / 2; // pixels of the gaps that the title may use
      header.style.width = `${last ? columns.end : columns.cell + 2 * aside}px`;
      const left = last ? columns.left(stack.n_layers) + columns.cell + 6 : columns.left(column) - aside;
      header.style.left = `${Math.max(0, left)}px`;
    }
    draw(columns);
  });
  return element("div", { class: "flow-overview" }, box, source?.element, key(pane, state, stack, lens !== null));
}

/** The chosen row at the last drawing. A new chosen row is scrolled into view. @type {Map<string, number>} */
const lastRows = new Map();

/** @param {HTMLElement} box @param {number} row @param {number} height */
function toView(box, row, height) {
  const room = box.clientHeight - HEADER;
  if (row * height < box.scrollTop) box.scrollTop = row * height;
  else if ((row + 1.5) * height > box.scrollTop + room) box.scrollTop = (row + 1.5) * height - room;
}

/** @param {number} width @param {number} layers @returns {Columns} */
function arranged(width, layers) {
  const end = 74;
  const each = Math.max(80, Math.min(210, (width - end - 8) / (layers + 0.58)));
  const cell = Math.floor(Math.max(50, each * 0.56));
  const gap = Math.floor(each - cell);
  const left = (/** @type {number} */ column) => column * (cell + gap);
  return { cell, gap, end, left, width: left(layers) + cell + end + 8 };
}

/**
 * Draw the stream after each block: the vector's length, and the model's prediction if it ended there.
 * @param {HTMLCanvasElement} canvas @param {Columns} columns
 * @param {{stream: {names: string[], norms: Tensor}, lens: import("tercet/model.js").Look["lens"],
 *          texts: Record<string, string>, rows: number, height: number, chosen: number}} what
 */
function cells(canvas, columns, { stream, lens, texts, rows, height, chosen }) {
  const { pen, dots } = sized(canvas, columns.width, rows * height);
  const palette = readPalette();
  const longest = Math.max(...stream.norms.data, 1e-9);
  pen.scale(dots, dots);
  pen.font = FONT;
  pen.textBaseline = "middle";
  pen.fillStyle = css(palette.accent, 0.1);
  pen.fillRect(0, chosen * height, columns.width, height);
  for (let row = 0; row < rows; row++) {
    const middle = row * height + height / 2;
    pen.fillStyle = css(row === chosen ? palette.accent : palette.line);
    pen.fillRect(0, middle - 0.5, columns.width, 1); // the stream itself
    for (let column = 0; column < stream.names.length; column++) {
      const left = columns.left(column);
      const norm = stream.norms.get(column, row);
      const likely = lens?.probabilities.get(column, row, 0) ?? 0;
      const id = lens?.ids[column]?.[row]?.[0];
      const shade = mix(palette.panel, palette.share, 0.55 * likely);
      pen.fillStyle = css(shade);
      pen.strokeStyle = css(row === chosen ? palette.accent : palette.line);
      pen.lineWidth = 1;
      pen.beginPath();
      pen.roundRect(left + 0.5, row * height + 2.5, columns.cell - 1, height - 5, 4);
      pen.fill();
      pen.stroke();
      pen.fillStyle = css(palette.accent, 0.75);
      pen.fillRect(left + 4, (row + 1) * height - 5.5, Math.max(1, ((columns.cell - 8) * norm) / longest), 2);
      pen.fillStyle = css(mix(palette.muted, palette.ink, likely));
      const text = id === undefined ? norm.toPrecision(3) : labelOf(texts[id] ?? `id ${id}`);
      pen.textAlign = "center";
      pen.fillText(fitted(pen, text, columns.cell - 8), left + columns.cell / 2, middle - 2);
    }
  }
}

/**
 * Draw a line from each token that the row attends to, with its weight as the width; none if the map was not sent.
 * @param {SVGElement} lines @param {Columns} columns
 * @param {{pane: Pane, state: State, stack: StackInfo, row: number, height: number}} what
 */
function reads(lines, columns, { pane, state, stack, row, height }) {
  const rows = sideOf(pane, stack.name).tokens.length;
  lines.setAttribute("width", String(columns.width));
  lines.setAttribute("height", String(rows * height));
  lines.replaceChildren();
  for (let layer = 0; layer < stack.n_layers; layer++) {
    const map = pane.look.maps[`${stack.name}.blocks.${layer}.self_attention.weights`];
    if (map === undefined) continue;
    const head = layer === state.layer && state.part !== "cross" ? state.head : null;
    const weights = ofRow(map, row, head);
    const from = columns.left(layer) + columns.cell;
    const to = columns.left(layer + 1);
    const bend = (to - from) * 0.5;
    const end = row * height + height / 2;
    weights.forEach((weight, key) => {
      if (weight < Math.min(MIN_WEIGHT, 0.5 / weights.length)) return;
      const start = key * height + height / 2;
      lines.append(
        svg("path", {
          d: `M${from} ${start}C${from + bend} ${start} ${to - bend} ${end} ${to} ${end}`,
          class: head === null ? "read" : "read chosen",
          "stroke-width": (0.6 + 5.4 * weight).toFixed(2),
          "stroke-opacity": Math.min(0.95, 0.1 + 1.2 * weight).toFixed(2),
        }),
      );
    });
  }
}

/**
 * The row's weights in one head, or their mean over all heads if head is null.
 * @param {Tensor} map @param {number} row @param {number | null} head
 */
function ofRow(map, row, head) {
  const [heads = 0, rows = 0, keys = 0] = map.shape;
  return Array.from({ length: keys }, (_, key) => {
    const of = (/** @type {number} */ h) => map.data[(h * rows + row) * keys + key] ?? 0;
    if (head !== null) return of(Math.min(head, heads - 1));
    let sum = 0;
    for (let h = 0; h < heads; h++) sum += of(h);
    return sum / heads;
  });
}

/** @param {Tensor} map (H, T, S) @returns {Tensor} (T, S) */
export function meanOverHeads(map) {
  const [heads = 0, rows = 0, keys = 0] = map.shape;
  const mean = new Float32Array(rows * keys);
  for (let i = 0; i < map.data.length; i++) {
    const at = i % mean.length;
    mean[at] = (mean[at] ?? 0) + (map.data[i] ?? 0) / heads;
  }
  return tensor([rows, keys], mean, map.half);
}

/**
 * Headers of the columns, which open the blocks.
 * @param {Pane} pane @param {State} state @param {Change} change @param {StackInfo} stack
 */
function headers(pane, state, change, stack) {
  const open = (/** @type {number} */ layer, /** @type {string} */ part) =>
    change({ stack: stack.name, layer: state.layer === layer && inside === part ? null : layer, part });
  /** @type {{header: HTMLElement, column: number}[]} */
  const buttons = [];
  const button = (/** @type {number | null} */ layer, /** @type {string} */ part, /** @type {string} */ text) => {
    const isOpen = layer === null ? state.layer === null && state.part === part : state.layer === layer;
    return element(
      "button",
      {
        type: "button",
        class: "flow-open",
        "data-key": layer === null ? `flow-${part}` : `flow-block-${layer}`,
        "aria-expanded": String(isOpen),
        "aria-label": `${text}: ${isOpen ? "close" : "open"}`,
        tabindex: buttons.length === 0 ? "0" : "-1",
        onclick: () => change({ stack: stack.name, layer: isOpen ? null : layer, part: isOpen ? null : part }),
      },
      text,
    );
  };
  const inside = state.part === "cross" || state.part === "mlp" ? state.part : "self";
  buttons.push({ header: element("div", { class: "flow-head" }, button(null, "start", sumOf(stack))), column: 0 });
  for (let layer = 0; layer < stack.n_layers; layer++) {
    const name = `${stack.name}.blocks.${layer}`;
    const zeroed = pane.ask.edits.filter((edit) => edit.name === name || edit.name.startsWith(`${name}.`));
    const off = zeroed.reduce((sum, edit) => sum + (edit.heads?.length ?? edit.positions?.length ?? 1), 0);
    const parts = stack.cross ? ["self", "cross"] : ["self"];
    const pictures = parts.map((part) => {
      const map = pane.look.maps[`${name}.${part}_attention.weights`];
      if (map === undefined) return null;
      const [, rows = 1, keys = 1] = map.shape;
      const size = parts.length > 1 ? 36 : 48;
      const wide = Math.max(12, Math.round(size * Math.min(1, keys / rows)));
      const high = Math.max(12, Math.round(size * Math.min(1, rows / keys)));
      const masked = hidden(stack, part);
      const picture = { values: meanOverHeads(map), kind: /** @type {const} */ ("share"), low: 0, high: 1 };
      return element(
        "button",
        {
          type: "button",
          class: "flow-map",
          tabindex: "-1",
          "data-key": `flow-map-${layer}-${part}`,
          "aria-label": `block ${layer}, ${part}-attention, mean of ${map.shape[0]} heads: open`,
          title: `${part}-attention, mean of ${map.shape[0]} heads`,
          onclick: () => open(layer, part),
        },
        miniature(masked === undefined ? picture : { ...picture, masked }, wide, high),
      );
    });
    buttons.push({
      header: element(
        "div",
        { class: state.layer === layer ? "flow-head open" : "flow-head" },
        element("div", { class: "flow-maps" }, ...pictures),
        button(layer, inside, `block ${layer}`),
        off > 0 ? element("span", { class: "flow-off" }, `${off} set to zero`) : null,
      ),
      column: layer + 1,
    });
  }
  const end = stack.final_norm ? "final norm" : "output";
  buttons.push({
    header: element("div", { class: "flow-head" }, button(null, "end", end)),
    column: stack.n_layers + 1,
  });
  return buttons;
}

/**
 * @param {Pane} pane @param {import("tercet/model.js").Look["top"]} top @param {number} rows @param {number} height
 */
function predictions(pane, top, rows, height) {
  const list = element("div", { class: "flow-predictions" });
  if (top === null) return list;
  for (let row = 0; row < rows; row++) {
    const id = top.ids[row]?.[0];
    if (id === undefined) continue;
    const share = top.probabilities.get(row, 0);
    const right = id === followed(pane, row);
    list.append(
      element(
        "div",
        { class: "flow-prediction", style: `height:${height}px`, title: `id ${id}` },
        element("span", { class: "text" }, labelOf(pane.look.texts[id] ?? `id ${id}`)),
        right ? element("span", { class: "right", title: "the true token" }, "✓") : null,
        element("span", { class: "bar", style: `--part:${(100 * share).toFixed(1)}%` }),
        element("span", { class: "share" }, percent(share)),
      ),
    );
  }
  return list;
}

/**
 * The token to be predicted at a row: the next token, or the masked token; null if it is not known.
 * @param {Pane} pane @param {number} row
 */
export function followed(pane, row) {
  const side = pane.look.sides[pane.look.sides.length - 1];
  const { original_ids: originals, ids } = pane.look.ask;
  if (pane.source.model.family === "encoder-only")
    return originals?.[row] === ids?.[row] ? null : (originals?.[row] ?? null);
  return side?.tokens[row + 1]?.id ?? null;
}

/** @param {import("tercet/model.js").Look["top"]} top @param {Pane} pane @param {number} row */
function best(top, pane, row) {
  const id = top?.ids[row]?.[0];
  if (top === null || id === undefined) return "";
  return `; most likely ${labelOf(pane.look.texts[id] ?? `id ${id}`)}, ${percent(top.probabilities.get(row, 0))}`;
}

/**
 * @param {Pane} pane @param {StackInfo} stack @param {{names: string[], norms: Tensor}} stream
 * @param {import("tercet/model.js").Look["lens"]} lens
 * @param {string[]} texts @param {number} row @param {number} column
 */
function describeCell(pane, stack, stream, lens, texts, row, column) {
  const place = column === 0 ? sumOf(stack) : `after block ${column - 1}`;
  const lines = [
    `${place}, row ${row} ${texts[row]}`,
    `length of the vector ${exact(stream.norms.get(column, row), stream.norms.half)}`,
  ];
  const ids = lens?.ids[column]?.[row];
  if (lens !== null && ids !== undefined) {
    lines.push("prediction if the model ended here:");
    ids.forEach((id, i) => {
      lines.push(`  ${labelOf(pane.look.texts[id] ?? `id ${id}`)}  ${percent(lens.probabilities.get(column, row, i))}`);
    });
  }
  return lines;
}

/**
 * The source's tokens, colored by the weight of the chosen row.
 * @param {Pane} pane @param {State} state @param {StackInfo} stack
 */
function sourceStrip(pane, state, stack) {
  const texts = labels(keysOf(pane, stack.name, "cross"));
  const spans = texts.map((text) => element("span", { class: "source-token" }, text));
  const title = element("span", { class: "note" });
  const strip = element("div", { class: "source-strip" }, title, ...spans);
  const layer = state.layer !== null && state.layer >= 0 && state.layer < stack.n_layers ? state.layer : null;
  const show = (/** @type {number} */ row) => {
    const layers = layer === null ? Array.from({ length: stack.n_layers }, (_, i) => i) : [layer];
    const head = layer !== null && state.part === "cross" ? state.head : null;
    const maps = layers
      .map((i) => pane.look.maps[`${stack.name}.blocks.${i}.cross_attention.weights`])
      .filter((map) => map !== undefined);
    strip.hidden = maps.length === 0;
    const each = maps.map((map) => ofRow(map, row, head));
    const place = layer === null ? "all blocks" : `block ${layer}`;
    const selection = `${place}, ${head === null ? "mean of heads" : `head ${head}`}`;
    title.textContent = `attention of row ${row} to the source (${selection}):`;
    spans.forEach((span, key) => {
      const weight = each.reduce((sum, weights) => sum + (weights[key] ?? 0), 0) / Math.max(1, each.length);
      span.style.setProperty("--part", `${(100 * weight).toFixed(1)}%`);
      span.title = number(weight);
    });
  };
  show(rowOf(pane, state, stack.name));
  return { element: strip, show };
}

/** The legend. @param {Pane} pane @param {State} state @param {StackInfo} stack @param {boolean} lens */
function key(pane, state, stack, lens) {
  const cross = state.part === "cross";
  const hasMaps = Object.keys(pane.look.maps).length > 0;
  const inside = state.layer !== null && state.layer >= 0 && state.layer < stack.n_layers;
  const item = (/** @type {string} */ mark, /** @type {string} */ text) =>
    element("span", { class: "key-item" }, element("span", { class: `key-mark ${mark}`, "aria-hidden": "true" }), text);
  return element(
    "p",
    { class: "key" },
    item("bar", "length of the residual stream"),
    lens ? item("tint", "logit lens: top prediction at this layer; stronger color: more probable") : null,
    hasMaps
      ? item("line", "attention of the chosen row, mean of heads")
      : element("span", { class: "key-item" }, "long text: attention maps are loaded when you open a block"),
    hasMaps && inside && !cross ? item("line chosen", `head ${state.head} in block ${state.layer}`) : null,
  );
}
