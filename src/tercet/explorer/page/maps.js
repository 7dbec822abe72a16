// The attention maps of all heads as small pictures, and the chosen one enlarged, with its tokens.

import { keepScroll, laterValue, later, roving } from "tercet/draw.js";
import { element } from "tercet/element.js";
import { heatMap, miniature } from "tercet/heatmap.js";
import { hidden, isEdited, keysOf, labels, rowOf, sideOf, stackOf, toRow, toggled } from "tercet/model.js";
import { exact } from "tercet/numbers.js";
import { slice } from "tercet/tensor.js";

/** @typedef {import("tercet/model.js").Pane} Pane */
/** @typedef {import("tercet/model.js").State} State */
/** @typedef {import("tercet/model.js").Change} Change */
/** @typedef {import("tercet/model.js").Tensor} Tensor */
/** @typedef {import("tercet/model.js").StackInfo} StackInfo */
/** @typedef {"self" | "cross"} Part */

const QUANTILE = 0.98; // of a map's weights; it gets the darkest color if the colors are stretched
let stretched = false;

/** @param {Pane} pane @param {State} state @param {Change} change @returns {HTMLElement} */
export function maps(pane, state, change) {
  const stacks = pane.source.model.stacks;
  const chosen = stackOf(pane, state);
  const part = state.part === "cross" && chosen.cross ? "cross" : "self";
  const layer = Math.min(Math.max(state.layer ?? 0, 0), chosen.n_layers - 1);
  const head = Math.min(state.head, chosen.n_heads - 1);
  const grids = stacks.flatMap((stack) => {
    const parts = /** @type {Part[]} */ (stack.cross ? ["self", "cross"] : ["self"]);
    return parts.map((kind) => {
      const isChosen = stack.name === chosen.name && kind === part;
      return grid(pane, change, stack, kind, isChosen ? { layer, head } : null);
    });
  });
  return element(
    "section",
    { class: "maps", "aria-label": "All attention maps" },
    element(
      "div",
      { class: "maps-split" },
      element("div", { class: "maps-grids" }, ...grids),
      large(pane, state, change, { stack: chosen, part, layer, head }),
    ),
  );
}

/** @param {StackInfo} stack @param {Part} part */
function titled(stack, part) {
  if (stack.name === "stack") return "self-attention";
  return part === "cross"
    ? "cross-attention: from the target to the source"
    : `${stack.name}: ${stack.name === "encoder" ? "source" : "target"} self-attention`;
}

/**
 * @param {Pane} pane @param {Change} change @param {StackInfo} stack @param {Part} part
 * @param {{layer: number, head: number} | null} chosen
 */
function grid(pane, change, stack, part, chosen) {
  const name = (/** @type {number} */ layer) => `${stack.name}.blocks.${layer}.${part}_attention`;
  const size = stack.n_heads > 6 ? 34 : pane.source.model.stacks.length > 1 ? 48 : stack.n_heads > 4 ? 54 : 64;
  const rows = element("div", {
    class: "maps-rows",
    style: `grid-template-columns: auto repeat(${stack.n_heads}, auto)`,
    role: "group",
    "aria-label": `${titled(stack, part)}: ${stack.n_layers} blocks by ${stack.n_heads} heads`,
  });
  rows.append(element("span", { class: "axis row" }, "head"));
  for (let head = 0; head < stack.n_heads; head++) rows.append(element("span", { class: "axis" }, String(head)));
  let missing = false;
  for (let layer = 0; layer < stack.n_layers; layer++) {
    const map = mapOf(pane, `${stack.name}.blocks.${layer}`, `${name(layer)}.weights`);
    rows.append(element("span", { class: "axis row" }, `block ${layer}`));
    for (let head = 0; head < stack.n_heads; head++) {
      const isChosen = chosen !== null && chosen.layer === layer && chosen.head === head;
      missing ||= map === undefined;
      rows.append(
        element(
          "button",
          {
            type: "button",
            "data-key": `map-${stack.name}-${part}-${layer}-${head}`,
            "aria-label": `${titled(stack, part)}, block ${layer}, head ${head}`,
            "aria-pressed": String(isChosen),
            class: isEdited(pane.ask, `${name(layer)}.heads`, "heads", head) ? "off" : null,
            tabindex: isChosen || (chosen === null && layer === 0 && head === 0) ? "0" : "-1",
            onclick: () => change({ stack: stack.name, part, layer, head }),
          },
          map === undefined ? `${layer}·${head}` : small(slice(map, head), stack, part, size),
        ),
      );
    }
  }
  roving(rows, "button", stack.n_heads);
  const box = element("div", { class: "maps-grid" }, rows);
  keepScroll(box, `maps ${pane.index} ${stack.name} ${part}`);
  return element(
    "section",
    {},
    element("h2", {}, titled(stack, part)),
    missing ? element("p", { class: "note" }, "long text: choose a head to load the maps of its block") : null,
    box,
  );
}

/**
 * A map that was sent with the overview, or with its block.
 * @param {Pane} pane @param {string} block @param {string} name @returns {Tensor | undefined}
 */
function mapOf(pane, block, name) {
  const opened = /** @type {import("tercet/model.js").Block | undefined} */ (
    laterValue(JSON.stringify([pane.look.ask, block]))
  );
  return pane.look.maps[name] ?? opened?.tensors[name];
}

/**
 * A small picture in the shape of the map: queries are rows, keys are columns.
 * @param {Tensor} map @param {StackInfo} stack @param {Part} part @param {number} size
 */
function small(map, stack, part, size) {
  const [rows = 1, columns = 1] = map.shape;
  const masked = hidden(stack, part);
  const picture = { values: map, kind: /** @type {const} */ ("share"), low: 0, high: 1 };
  const longest = Math.max(rows, columns);
  const side = (/** @type {number} */ count) => Math.max(Math.round(size * 0.4), Math.round((size * count) / longest));
  return miniature(masked === undefined ? picture : { ...picture, masked }, side(columns), side(rows));
}

/**
 * @param {Pane} pane @param {State} state @param {Change} change
 * @param {{stack: StackInfo, part: Part, layer: number, head: number}} what
 */
function large(pane, state, change, { stack, part, layer, head }) {
  const name = `${stack.name}.blocks.${layer}.${part}_attention`;
  const rows = labels(sideOf(pane, stack.name));
  const keys = labels(keysOf(pane, stack.name, part));
  const row = rowOf(pane, state, stack.name);
  const last = pane.look.sides[pane.look.sides.length - 1]?.stack === stack.name;
  const off = isEdited(pane.ask, `${name}.heads`, "heads", head);
  const column = last && state.column !== null && state.column < keys.length ? state.column : null;
  const render = (/** @type {Tensor} */ map) => {
    const weights = slice(map, head);
    const box = element("div", {}, picture(weights));
    const stretch = element("input", {
      type: "checkbox",
      "data-key": "stretch",
      onchange: () => {
        stretched = stretch.checked;
        box.replaceChildren(picture(weights));
      },
    });
    stretch.checked = stretched;
    const why = `the darkest color is the ${Math.round(100 * QUANTILE)}th percentile of the weights instead of 1`;
    return element(
      "div",
      {},
      box,
      element("label", { class: "stretch", title: why }, stretch, "stretch the colors to this map"),
    );
  };
  const picture = (/** @type {Tensor} */ weights) => {
    const masked = hidden(stack, part);
    return heatMap({
      values: weights,
      rows,
      columns: keys,
      kind: "share",
      low: 0,
      high: stretched ? quantile(weights, hidden(stack, part)) : 1,
      label: `attention weights of block ${layer}, head ${head}`,
      key: `map-large-${stack.name}-${part}`,
      names: ["query", "key"],
      square: true,
      most: 44,
      legend: true,
      format: (value) => `weight ${exact(value, weights.half)}`,
      picked: [row, column],
      onpick: (t, s) => change(last ? { at: t, column: s } : toRow(pane, stack.name, t)),
      ...(masked === undefined ? {} : { masked }),
    });
  };
  const map = pane.look.maps[`${name}.weights`];
  return element(
    "section",
    { class: "maps-large", "aria-label": "the chosen head" },
    element("h2", {}, `${titled(stack, part)}, block ${layer}, head ${head}`),
    element(
      "code",
      { class: "formula" },
      `row t, column s: weight of s in the output of t  (${rows.length} × ${keys.length})`,
    ),
    map !== undefined
      ? render(map)
      : later(
          JSON.stringify([pane.look.ask, `${stack.name}.blocks.${layer}`]),
          () => pane.source.block(pane.look.ask, `${stack.name}.blocks.${layer}`),
          (opened) => {
            const map = opened.tensors[`${name}.weights`];
            return map === undefined
              ? element("p", { class: "note problem" }, `${name}.weights was not recorded`)
              : render(map);
          },
          `reading block ${layer} …`,
        ),
    element(
      "div",
      { class: "zeroing compact" },
      element(
        "button",
        {
          type: "button",
          "data-key": "zero-head",
          disabled: !pane.source.live,
          "aria-pressed": String(off),
          onclick: () => change(toggled(pane, state, `${name}.heads`, "heads", head)),
        },
        `Set head ${head} of block ${layer} to zero`,
      ),
      element(
        "button",
        { type: "button", "data-key": "open-block", onclick: () => change({ view: "flow", layer, part }) },
        "Open this block",
      ),
    ),
  );
}

/** @param {Tensor} weights @param {((row: number, column: number) => boolean) | undefined} masked */
function quantile(weights, masked) {
  const width = weights.shape[1] ?? 1;
  const visible = Array.from(weights.data).filter((_, i) => masked?.(Math.floor(i / width), i % width) !== true);
  visible.sort((a, b) => a - b);
  return visible[Math.floor(QUANTILE * (visible.length - 1))] || 1;
}
