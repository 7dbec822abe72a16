// Shared parts of drawings: colors from the style sheet, canvases, the tooltip, loading, scrolling and arrow keys.

import { element } from "tercet/element.js";

/** @typedef {[number, number, number]} Color */

/** @type {Map<string, unknown>} */
const values = new Map();
/** @type {Map<string, HTMLElement>} */
const slots = new Map();
const MAX_VALUES = 32;

/**
 * An element for a value that is being loaded. A cached value is drawn at once, so that the focus stays.
 * @template T
 * @param {string} key of the request
 * @param {() => Promise<T>} request
 * @param {(value: T) => Node} render
 * @param {string} waiting text until the value is loaded
 * @param {string} [slot] keep the height of the last element with this name while loading, so the page does not jump
 * @returns {HTMLElement}
 */
export function later(key, request, render, waiting, slot) {
  const box = element("div", { class: "later" });
  const height = slot === undefined ? 0 : (slots.get(slot)?.offsetHeight ?? 0);
  if (slot !== undefined) slots.set(slot, box);
  if (values.has(key)) {
    box.append(render(/** @type {T} */ (values.get(key))));
    return box;
  }
  box.setAttribute("aria-busy", "true");
  if (height > 0) box.style.minHeight = `${height}px`;
  box.append(element("p", { class: "note" }, waiting));
  const arrived = () => {
    box.removeAttribute("aria-busy");
    box.style.minHeight = "";
  };
  request().then(
    (value) => {
      values.set(key, value);
      const oldest = values.keys().next().value;
      if (values.size > MAX_VALUES && oldest !== undefined) values.delete(oldest);
      box.replaceChildren(render(value));
      arrived();
    },
    (/** @type {Error} */ error) => {
      box.replaceChildren(element("p", { class: "note problem" }, error.message));
      arrived();
    },
  );
  return box;
}

/** The value that `later` has loaded for a key, if any. @param {string} key @returns {unknown} */
export const laterValue = (key) => values.get(key);

/** @type {Map<string, [number, number]>} */
const scrolled = new Map();

/**
 * Keep the scroll position of a box when it is redrawn.
 * @param {HTMLElement} box @param {string} key @param {() => [number, number]} [first] initial position
 */
export function keepScroll(box, key, first = () => [0, 0]) {
  whenSized(box, () => {
    const [left, top] = scrolled.get(key) ?? first();
    if (box.scrollLeft === 0 && box.scrollTop === 0) box.scrollTo({ left, top, behavior: "instant" });
    box.addEventListener("scroll", () => scrolled.set(key, [box.scrollLeft, box.scrollTop]), { passive: true });
  });
}

/** Call once, when the box is on the page and has a size. @param {Element} box @param {() => void} then */
export function whenSized(box, then) {
  const watch = new ResizeObserver(() => {
    if (!box.isConnected) return;
    watch.disconnect();
    then();
  });
  watch.observe(box);
}

/** Call at the first width and at each new one. @param {Element} box @param {(width: number) => void} then */
export function atWidth(box, then) {
  let last = -1;
  new ResizeObserver(() => {
    const width = Math.floor(box.getBoundingClientRect().width);
    if (width === last || width === 0) return;
    last = width;
    then(width);
  }).observe(box);
}

const NAMES = /** @type {const} */ ([
  "ink",
  "muted",
  "paper",
  "panel",
  "line",
  "accent",
  "share",
  "positive",
  "negative",
]);
/** @typedef {Record<(typeof NAMES)[number], Color>} Palette */
/** @type {Palette | null} */
let palette = null;

/** The style sheet's current colors, as bytes. @returns {Palette} */
export function readPalette() {
  if (palette !== null) return palette;
  const probe = element("span", { hidden: true });
  document.body.append(probe);
  const dot = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  if (dot === null) throw new Error("this browser does not support canvas");
  const read = NAMES.map((name) => {
    probe.style.color = `var(--${name}, gray)`;
    dot.fillStyle = getComputedStyle(probe).color;
    dot.fillRect(0, 0, 1, 1);
    const [r = 0, g = 0, b = 0] = dot.getImageData(0, 0, 1, 1).data;
    return /** @type {const} */ ([name, [r, g, b]]);
  });
  probe.remove();
  palette = /** @type {Palette} */ (/** @type {unknown} */ (Object.fromEntries(read)));
  return palette;
}

/** @param {Color} color @param {number} [alpha] */
export const css = ([r, g, b], alpha = 1) => `rgb(${r} ${g} ${b} / ${alpha})`;

/** @param {Color} from @param {Color} to @param {number} share @returns {Color} */
export function mix(from, to, share) {
  const blend = (/** @type {number} */ a, /** @type {number} */ b) => Math.round(a + (b - a) * share);
  return [blend(from[0], to[0]), blend(from[1], to[1]), blend(from[2], to[2])];
}

/**
 * Paint again when the theme changes.
 * @param {HTMLCanvasElement} canvas @param {() => void} paint
 */
export function painted(canvas, paint) {
  canvas.classList.add("painted");
  canvas.addEventListener("repaint", () => canvas.isConnected && paint());
  watchTheme();
}

let watching = false;

function watchTheme() {
  if (watching) return;
  watching = true;
  const repaint = () => {
    palette = null;
    for (const canvas of document.querySelectorAll("canvas.painted")) canvas.dispatchEvent(new Event("repaint"));
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  const watch = new MutationObserver(repaint);
  for (const root of [document.documentElement, document.body]) {
    watch.observe(root, { attributes: true, attributeFilter: ["class", "style", "data-theme"] });
  }
}

/**
 * Size a canvas in CSS pixels, at the screen's resolution.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height
 * @returns {{pen: CanvasRenderingContext2D, dots: number}} dots: device pixels per CSS pixel
 */
export function sized(canvas, width, height) {
  const dots = Math.max(1, Math.min(devicePixelRatio || 1, 8192 / Math.max(width, height, 1)));
  canvas.width = Math.max(1, Math.round(width * dots));
  canvas.height = Math.max(1, Math.round(height * dots));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  if (pen === null) throw new Error("this browser does not support canvas");
  return { pen, dots };
}

/** Shorten a text to a width in pixels. @param {CanvasRenderingContext2D} pen @param {string} text @param {number} width */
export function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  const letters = [...text];
  while (letters.length > 1 && pen.measureText(`${letters.join("")}…`).width > width) letters.pop();
  return `${letters.join("")}…`;
}

/** @type {HTMLElement | null} */
let tip = null;
/** @type {Element | null} */
let tipped = null;

/**
 * Show the tooltip near a point of the window.
 * @param {Element} owner @param {string[]} lines @param {number} x @param {number} y
 */
export function showTooltip(owner, lines, x, y) {
  if (tip === null) {
    tip = element("div", { class: "tip", "aria-hidden": "true", hidden: true });
    document.addEventListener("pointermove", (event) => {
      if (tipped !== null && !(event.target instanceof Node && tipped.contains(event.target))) hideTooltip();
    });
    document.addEventListener("pointerdown", hideTooltip, true);
    document.addEventListener("scroll", hideTooltip, { capture: true, passive: true });
  }
  if (!tip.isConnected) document.body.append(tip);
  tipped = owner;
  tip.replaceChildren(...lines.map((line) => element("div", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
}

export function hideTooltip() {
  tipped = null;
  if (tip !== null) tip.hidden = true;
}

/**
 * Arrow keys move the focus among the members of a box; only one of them is in the tab order.
 * @param {HTMLElement} box @param {string} members CSS selector @param {number} columns members per row
 */
export function roving(box, members, columns) {
  const all = () => /** @type {HTMLElement[]} */ ([...box.querySelectorAll(members)]);
  box.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const list = all();
    const current = list.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    const to =
      event.key === "Home" ? 0 : event.key === "End" ? list.length - 1 : step === undefined ? -1 : current + step;
    const next = list[to];
    if (current < 0 || next === undefined) return;
    event.preventDefault();
    for (const item of list) item.tabIndex = item === next ? 0 : -1;
    next.focus();
  });
}
