// Beam search as the tree of its final hypotheses; the width of a line shows the probability of its token.

import { keepScroll, later, showTooltip, hideTooltip } from "tercet/draw.js";
import { element, svg } from "tercet/element.js";
import { labelOf } from "tercet/model.js";
import { number, percent } from "tercet/numbers.js";

/** @typedef {import("tercet/model.js").Pane} Pane */
/** @typedef {import("tercet/model.js").BeamNode} BeamNode */
/** @typedef {{x: number, y: number}} Place */

const SIZES = [1, 2, 3, 5, 8];
const COLUMN = 104; // pixels between two tokens
const LINE = 34;
const BOX = { width: 76, height: 22 };

/** @type {Map<number, number>} */
const chosenSizes = new Map(); // of each pane; not part of the address

/**
 * @param {Pane} pane @param {import("tercet/model.js").State} state @param {import("tercet/model.js").Change} change
 * @returns {HTMLElement}
 */
export function beams(pane, state, change) {
  if (!pane.source.model.can.translate) {
    const note = "Beam search is for translators. This model samples one token at a time.";
    return element("section", { class: "beams", "aria-label": "Beam search" }, element("p", { class: "note" }, note));
  }
  const size = chosenSizes.get(pane.index) ?? 5;
  const choose = (/** @type {number} */ size) => {
    chosenSizes.set(pane.index, size);
    const next = beams(pane, state, change);
    view.replaceWith(next);
    /** @type {HTMLElement | null} */ (next.querySelector(`[data-key="beams-${size}"]`))?.focus();
  };
  const view = element(
    "section",
    { class: "beams", "aria-label": "Beam search" },
    element(
      "div",
      { class: "beams-bar" },
      element(
        "div",
        { class: "switch", role: "group", "aria-label": "beams" },
        element("span", { class: "note" }, "beams"),
        ...SIZES.map((option) =>
          element(
            "button",
            {
              type: "button",
              "data-key": `beams-${option}`,
              "aria-pressed": String(option === size),
              disabled: !pane.source.live && option !== size,
              onclick: () => choose(option),
            },
            String(option),
          ),
        ),
      ),
    ),
    later(
      JSON.stringify([pane.look.ask, size, "beams"]),
      () => pane.source.beams(pane.look.ask, size),
      ({ nodes, search }) =>
        element("div", {}, element("p", { class: "note" }, search), tree(pane, nodes), hypotheses(nodes)),
      "searching …",
    ),
  );
  return view;
}

/** @param {Pane} pane @param {BeamNode[]} nodes */
function tree(pane, nodes) {
  const positions = arranged(nodes);
  const width = Math.max(0, ...positions.map(({ x }) => x)) + BOX.width + 90;
  const height = Math.max(0, ...positions.map(({ y }) => y)) + LINE;
  const drawing = svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "group",
    "aria-label": `a tree of ${nodes.length} tokens`,
  });
  const order = nodes.map((node, i) => ({ node, i })).sort((a, b) => Number(a.node.best) - Number(b.node.best));
  for (const { node, i } of order) {
    const [from, to] = [positions[node.parent], positions[i]];
    if (from === undefined || to === undefined) continue;
    const [x, middle] = [from.x + BOX.width, (from.x + BOX.width + to.x) / 2];
    drawing.append(
      svg("path", {
        d: `M${x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`,
        class: node.best ? "edge best" : "edge",
        "stroke-width": (0.8 + 5 * Math.exp(node.logprob)).toFixed(2),
      }),
    );
  }
  nodes.forEach((node, i) => {
    const position = positions[i];
    if (position !== undefined) drawing.append(drawNode(node, position, i));
  });
  walked(drawing, nodes, positions);
  const box = element("div", { class: "beams-scroll" }, drawing);
  keepScroll(box, `beams ${pane.index}`);
  return box;
}

/** @param {BeamNode} node @param {Place} position @param {number} i */
function drawNode(node, position, i) {
  const text = labelOf(node.text);
  const letters = [...text];
  const lines = [
    `${text}  ${percent(Math.exp(node.logprob))}`,
    `log probability ${number(node.logprob)}, in total ${number(node.total)}`,
    ...(node.score === null
      ? []
      : [`ends here (${node.finish === "eos" ? "end of sentence" : "length limit"}) with score ${number(node.score)}`]),
  ];
  const group = svg(
    "g",
    {
      class: `node${node.best ? " best" : ""}${node.score === null ? "" : " end"}`,
      transform: `translate(${position.x} ${position.y})`,
      tabindex: i === 0 ? "0" : "-1",
      role: "img",
      "aria-label": lines.join("; "),
      "data-key": `beam-${i}`,
    },
    svg("rect", { x: 0, y: -BOX.height / 2, width: BOX.width, height: BOX.height, rx: 5 }),
    svg(
      "text",
      { x: BOX.width / 2, y: 4, "text-anchor": "middle" },
      letters.length > 9 ? `${letters.slice(0, 8).join("")}…` : text,
    ),
    node.score === null
      ? null
      : svg("text", { x: BOX.width + 6, y: 4, class: "small" }, `${number(node.score)}${node.best ? " ★" : ""}`),
  );
  group.addEventListener("pointermove", (event) => {
    const { clientX, clientY } = /** @type {PointerEvent} */ (event);
    showTooltip(group, lines, clientX, clientY);
  });
  group.addEventListener("pointerleave", hideTooltip);
  return group;
}

/**
 * Positions of the nodes: columns by depth, one line per hypothesis, a fork in the middle of its branches.
 * @param {BeamNode[]} nodes @returns {Place[]}
 */
function arranged(nodes) {
  const children = branches(nodes);
  /** @type {Place[]} */
  const positions = nodes.map(() => ({ x: 0, y: 0 }));
  let line = 0;
  const put = (/** @type {number} */ i, /** @type {number} */ depth) => {
    const below = children[i] ?? [];
    for (const child of below) put(child, depth + 1);
    const first = positions[below[0] ?? -1];
    const last = positions[below[below.length - 1] ?? -1];
    const y = first !== undefined && last !== undefined ? (first.y + last.y) / 2 : 22 + LINE * line++;
    positions[i] = { x: 12 + COLUMN * depth, y };
  };
  nodes.forEach((node, i) => {
    if (node.parent < 0) put(i, 0);
  });
  return positions;
}

/** @param {BeamNode[]} nodes @returns {number[][]} */
function branches(nodes) {
  const children = nodes.map(() => /** @type {number[]} */ ([]));
  nodes.forEach((node, i) => children[node.parent]?.push(i));
  return children;
}

/**
 * Arrow keys: right to the most likely branch, left to the parent, up and down within the column.
 * @param {SVGElement} drawing @param {BeamNode[]} nodes @param {Place[]} positions
 */
function walked(drawing, nodes, positions) {
  const children = branches(nodes);
  const groups = /** @type {SVGGElement[]} */ ([...drawing.querySelectorAll(".node")]);
  const likeliest = (/** @type {number[]} */ candidates) =>
    candidates.reduce(
      (best, candidate) => ((nodes[candidate]?.logprob ?? 0) > (nodes[best]?.logprob ?? -Infinity) ? candidate : best),
      candidates[0] ?? -1,
    );
  const sibling = (/** @type {number} */ current, /** @type {number} */ step) => {
    const origin = positions[current];
    const column = nodes.map((_, i) => i).filter((i) => positions[i]?.x === origin?.x);
    column.sort((a, b) => (positions[a]?.y ?? 0) - (positions[b]?.y ?? 0));
    return column[column.indexOf(current) + step] ?? -1;
  };
  drawing.addEventListener("keydown", (event) => {
    const current = groups.indexOf(/** @type {SVGGElement} */ (/** @type {unknown} */ (document.activeElement)));
    const node = nodes[current];
    if (node === undefined) return;
    const key = /** @type {KeyboardEvent} */ (event).key;
    const to =
      key === "ArrowRight"
        ? likeliest(children[current] ?? [])
        : key === "ArrowLeft"
          ? node.parent
          : key === "ArrowUp"
            ? sibling(current, -1)
            : key === "ArrowDown"
              ? sibling(current, 1)
              : -1;
    const next = groups[to];
    if (next === undefined) return;
    event.preventDefault();
    for (const group of groups) group.setAttribute("tabindex", group === next ? "0" : "-1");
    next.focus();
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

/** The hypotheses as a table, best first. @param {BeamNode[]} nodes */
function hypotheses(nodes) {
  const ends = nodes.map((node, i) => ({ node, i })).filter(({ node }) => node.score !== null);
  ends.sort((a, b) => Number(b.node.best) - Number(a.node.best) || (b.node.score ?? 0) - (a.node.score ?? 0));
  const written = (/** @type {number} */ i) => {
    const texts = [];
    for (let at = i; at >= 0; at = nodes[at]?.parent ?? -1) texts.unshift(labelOf(nodes[at]?.text ?? ""));
    return texts.join(" ");
  };
  const head = element(
    "tr",
    {},
    ...["hypothesis", "score", "log probability", "ends"].map((name) => element("th", { scope: "col" }, name)),
  );
  return element(
    "table",
    { class: "hypotheses", "aria-label": "the hypotheses, best first" },
    element("thead", {}, head),
    element(
      "tbody",
      {},
      ...ends.map(({ node, i }) =>
        element(
          "tr",
          { class: node.best ? "best" : null },
          element("td", {}, written(i), node.best ? " ★" : null),
          element("td", { class: "figure" }, number(node.score ?? 0)),
          element("td", { class: "figure" }, number(node.total)),
          element("td", {}, node.finish === "eos" ? "end of sentence" : "length limit"),
        ),
      ),
    ),
  );
}
