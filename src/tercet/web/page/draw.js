// What every drawing is made of: colors from the style sheet, canvases, one tooltip, boxes that wait, scroll and take keys.

import { element } from "tercet/element.js";

/** @typedef {[number, number, number]} Colour */

/** @type {Map<string, unknown>} */
const values = new Map();
/** @type {Map<string, HTMLElement>} */
const slots = new Map();
const REMEMBERED = 32;

/**
 * An element for what is still to come. What came before is drawn at once, so that nothing flickers and focus stays.
 * @template T
 * @param {string} key of the question
 * @param {() => Promise<T>} request
 * @param {(value: T) => Node} render
 * @param {string} waiting what is told meanwhile
 * @param {string} [slot] what stood there last keeps its height meanwhile, so that the page does not jump
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
      if (values.size > REMEMBERED && oldest !== undefined) values.delete(oldest);
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

/** What `later` has drawn already, if it has. @param {string} key @returns {unknown} */
export const laterValue = (key) => values.get(key);

/** @type {Map<string, [number, number]>} */
const scrolled = new Map();

/**
 * Keep a box where it was scrolled to, over redraws.
 * @param {HTMLElement} box @param {string} key @param {() => [number, number]} [first] where it stands at first
 */
export function keepScroll(box, key, first = () => [0, 0]) {
  whenSized(box, () => {
    const [left, top] = scrolled.get(key) ?? first();
    if (box.scrollLeft === 0 && box.scrollTop === 0) box.scrollTo({ left, top, behavior: "instant" });
    box.addEventListener("scroll", () => scrolled.set(key, [box.scrollLeft, box.scrollTop]), { passive: true });
  });
}

/** Once, when it is on the page and has a size. @param {Element} box @param {() => void} then */
export function whenSized(box, then) {
  const watch = new ResizeObserver(() => {
    if (!box.isConnected) return;
    watch.disconnect();
    then();
  });
  watch.observe(box);
}

/** At each new width, and the first. @param {Element} box @param {(width: number) => void} then */
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
/** @typedef {Record<(typeof NAMES)[number], Colour>} Palette */
/** @type {Palette | null} */
let palette = null;

/** The style sheet's colours as they are now, as bytes. @returns {Palette} */
export function colours() {
  if (palette !== null) return palette;
  const probe = element("span", { hidden: true });
  document.body.append(probe);
  const dot = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  if (dot === null) throw new Error("this browser draws no canvas");
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

/** @param {Colour} colour @param {number} [alpha] */
export const css = ([r, g, b], alpha = 1) => `rgb(${r} ${g} ${b} / ${alpha})`;

/** @param {Colour} from @param {Colour} to @param {number} share @returns {Colour} */
export function mix(from, to, share) {
  const blend = (/** @type {number} */ a, /** @type {number} */ b) => Math.round(a + (b - a) * share);
  return [blend(from[0], to[0]), blend(from[1], to[1]), blend(from[2], to[2])];
}

/**
 * Paint now, once it is on the page, and again when the theme changes.
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
 * A canvas of so many CSS pixels, in as many real ones as the screen has.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height
 * @returns {{pen: CanvasRenderingContext2D, dots: number}} dots: real pixels to a CSS pixel
 */
export function sized(canvas, width, height) {
  const dots = Math.max(1, Math.min(devicePixelRatio || 1, 8192 / Math.max(width, height, 1)));
  canvas.width = Math.max(1, Math.round(width * dots));
  canvas.height = Math.max(1, Math.round(height * dots));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  if (pen === null) throw new Error("this browser draws no canvas");
  return { pen, dots };
}

/** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} width */
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
 * The one tooltip, beside a point of the window.
 * @param {Element} owner @param {string[]} lines @param {number} x @param {number} y
 */
export function tell(owner, lines, x, y) {
  if (tip === null) {
    tip = element("div", { class: "tip", "aria-hidden": "true", hidden: true });
    document.addEventListener("pointermove", (event) => {
      if (tipped !== null && !(event.target instanceof Node && tipped.contains(event.target))) hush();
    });
    document.addEventListener("pointerdown", hush, true);
    document.addEventListener("scroll", hush, { capture: true, passive: true });
  }
  if (!tip.isConnected) document.body.append(tip);
  tipped = owner;
  tip.replaceChildren(...lines.map((line) => element("div", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
}

export function hush() {
  tipped = null;
  if (tip !== null) tip.hidden = true;
}

/**
 * Arrow keys move the focus among its members, of which one alone is in the order of Tab.
 * @param {HTMLElement} box @param {string} members @param {number} columns how many stand in a row
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
