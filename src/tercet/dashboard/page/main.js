// The page of runs: asks every few seconds how far they are, and draws what has changed.
//
//     server -> runs -> cards | samples | settings
//            -> curves of the range that is shown -> charts

import { card } from "tercet/cards.js";
import { chart } from "tercet/chart.js";
import { element } from "tercet/element.js";
import { samples } from "tercet/samples.js";
import { settings } from "tercet/settings.js";
import { askCurves, askRuns, askSettings } from "tercet/source.js";
import { applyTheme, nextTheme, THEMES } from "tercet/theme.js";
import { called } from "tercet/words.js";

/** @typedef {import("tercet/source.js").Run} Run */
/** @typedef {import("tercet/source.js").Curves} Curves */
/** @typedef {import("tercet/chart.js").View} View */
/** @typedef {{key: string, title: string, metrics: string[], log: boolean, wide?: boolean}} Group */

const SOON = 2000; // ms until the next question, while a run trains
const LATER = 10_000; // and while none does
const SETTLED = 70; // ms without another zoom, after which finer curves are asked for
const AXES = /** @type {const} */ (["step", "tokens", "seconds"]);
const AXIS_NAMES = { step: "Steps", tokens: "Tokens", seconds: "Time" };

/** @type {Group[]} */
const GROUPS = [
  { key: "loss", title: "Loss", metrics: ["train/nll", "train/loss", "val/loss", "val/unigram_entropy"], log: true, wide: true },
  { key: "bleu", title: "BLEU", metrics: ["val/bleu"], log: false },
  { key: "shares", title: "Accuracy and F1", metrics: ["val/accuracy", "val/f1"], log: false },
  { key: "rmse", title: "RMSE", metrics: ["val/rmse"], log: true },
  { key: "correlations", title: "Correlation", metrics: ["val/pearson", "val/spearman"], log: false },
  { key: "lr", title: "Learning rate", metrics: ["lr"], log: false },
  { key: "grad_norm", title: "Gradient norm", metrics: ["grad_norm"], log: true },
  { key: "rate", title: "Tokens per second", metrics: ["tokens_per_second"], log: false },
];

const state = {
  ...readAddress(),
  range: /** @type {[number, number] | null} */ (null),
  cursor: /** @type {number | null} */ (null),
  hidden: /** @type {Set<number>} */ (new Set()),
};
/** @type {Run[]} */
let runs = [];
/** @type {Curves | null} */
let curves = null;
let version = "";
let recipes = "";
/** @type {Map<string, ReturnType<typeof chart>>} */
const charts = new Map();
/** @type {ReturnType<typeof card>[]} */
const cards = [];
let frame = 0;
let settled = 0;
let asked = 0;

const problem = element("p", { class: "problem", role: "alert", hidden: true });
const live = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
const list = element("section", { class: "cards", "aria-label": "Runs" });
const grid = element("div", { class: "charts" });
const nothing = element("p", { class: "note" }, "Nothing is logged yet.");
const written = samples((run) => state.hidden.has(run));
const recipe = settings();

const axis = AXES.map((name) => button(`x:${name}`, AXIS_NAMES[name], () => change({ x: name, range: null })));
const logX = button("log-x", "log x", () => change({ logX: !state.logX, range: null }), "logarithmic axis of steps, tokens or time");
const logY = button("log-y", "log loss", () => change({ logY: !state.logY }), "logarithmic axis of losses and norms");
const all = button("all", "Show all", () => zoom(null), "the whole of the axis again (0)");
const theme = button("theme", "", () => change({ theme: nextTheme(state.theme) }));
const slider = element("input", {
  type: "range", min: 0, max: 100, value: Math.round(100 * state.smoothing), "data-key": "smoothing", "aria-label": "Smoothing",
  oninput: () => change({ smoothing: Number(slider.value) / 100 }),
});

document.body.append(
  element("a", { class: "skip", href: "#curves", onclick: (/** @type {Event} */ event) => (event.preventDefault(), /** @type {HTMLElement | null} */ (grid.querySelector("[tabindex]"))?.focus()) }, "To the curves"),
  element("header", { class: "top" }, element("div", { class: "model" }, element("h1", {}, "Runs")), element("div", { class: "buttons" }, theme)),
  element(
    "main",
    {},
    problem,
    list,
    element(
      "section",
      { id: "curves", "aria-label": "Curves" },
      element(
        "div",
        { class: "controls", role: "group", "aria-label": "How curves are drawn" },
        element("span", { class: "switch", role: "group", "aria-label": "Against" }, ...axis),
        logX,
        logY,
        element("label", {}, "smoothing ", slider),
        all,
      ),
      nothing,
      grid,
    ),
    written.element,
    recipe.element,
  ),
  live,
);

/** @param {string} key @param {string} text @param {() => void} onclick @param {string} [title] */
function button(key, text, onclick, title) {
  return element("button", { type: "button", "data-key": key, title, onclick }, text);
}

/** The settings that an address holds. */
function readAddress() {
  const of = new URLSearchParams(location.hash.replace(/^#/, ""));
  const smoothing = Number(of.get("smoothing") ?? 0);
  return {
    x: AXES.find((one) => one === of.get("x")) ?? "step",
    logX: of.get("log-x") === "1",
    logY: of.get("log-y") !== "0",
    smoothing: smoothing >= 0 && smoothing <= 1 ? smoothing : 0,
    theme: THEMES.find((one) => one === of.get("theme")) ?? "auto",
  };
}

function writeAddress() {
  const of = new URLSearchParams();
  if (state.x !== "step") of.set("x", state.x);
  if (state.logX) of.set("log-x", "1");
  if (!state.logY) of.set("log-y", "0");
  if (state.smoothing > 0) of.set("smoothing", String(state.smoothing));
  if (state.theme !== "auto") of.set("theme", state.theme);
  history.replaceState(null, "", of.size > 0 ? `#${of}` : location.pathname);
}

/** @param {Partial<typeof state>} patch */
function change(patch) {
  const asks = "x" in patch || "logX" in patch;
  Object.assign(state, patch);
  if (asks) state.cursor = null;
  writeAddress();
  if (asks) void gather();
  schedule();
}

/** @param {[number, number] | null} range */
function zoom(range) {
  if (curves === null) return;
  const [from, to] = curves.whole;
  const low = range === null ? from : Math.max(from, range[0]);
  const high = range === null ? to : Math.min(to, range[1]);
  const least = (to - from) * 1e-7;
  if (high - low < least) return;
  state.range = low <= from && high >= to ? null : [low, high];
  clearTimeout(settled);
  settled = setTimeout(() => void gather(), SETTLED);
  schedule();
}

/** Draw in the next frame, once. */
function schedule() {
  if (frame === 0)
    frame = requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
}

/** The curves of what is shown, and of some more beside it, so that it can be moved at once. */
async function gather() {
  const request = ++asked;
  const { x, logX: log, range } = state;
  const beside = range === null ? null : log ? Math.sqrt(range[1] / range[0]) : (range[1] - range[0]) / 2;
  const start = range === null || beside === null ? null : log ? range[0] / beside : range[0] - beside;
  const end = range === null || beside === null ? null : log ? range[1] * beside : range[1] + beside;
  const buckets = Math.min(4000, Math.round((range === null ? 1 : 2) * Math.max(200, grid.clientWidth * 0.7)));
  try {
    const now = await askCurves({ x, log, start, end, buckets });
    if (request !== asked) return;
    curves = now;
    fail(null);
  } catch (error) {
    if (request === asked) fail(/** @type {Error} */ (error).message);
  }
  schedule();
}

function draw() {
  applyTheme(state.theme, theme);
  axis.forEach((one, i) => one.setAttribute("aria-pressed", String(AXES[i] === state.x)));
  logX.setAttribute("aria-pressed", String(state.logX));
  logY.setAttribute("aria-pressed", String(state.logY));
  all.disabled = state.range === null;
  const running = runs.filter((run) => run.state === "running").length;
  document.title = `${runs.length === 1 ? runs[0]?.name : `${runs.length} runs`}${running > 0 ? ", training" : ""}: Tercet`;
  runs.forEach((run, index) => {
    const box = (cards[index] ??= card(index, toggle));
    if (!box.element.isConnected) list.append(box.element);
    box.update(run, state.hidden.has(index), runs.length === 1);
  });
  drawCharts();
}

/** @param {number} index */
function toggle(index) {
  if (!state.hidden.delete(index)) state.hidden.add(index);
  written.update(runs);
  schedule();
}

function drawCharts() {
  if (curves === null) return;
  const shown = curves.curves.filter((curve) => !state.hidden.has(curve.run));
  const plain = new Set(shown.filter((curve) => curve.metric === "train/nll").map((curve) => curve.run));
  const known = new Set(GROUPS.flatMap((group) => group.metrics));
  const others = [...new Set(curves.curves.map((curve) => curve.metric))].filter((metric) => !known.has(metric));
  /** @type {Group[]} */
  const groups = [...GROUPS, ...others.map((metric) => ({ key: metric, title: metric, metrics: [metric], log: false }))];
  /** @type {View} */
  const view = { ...state, range: state.range ?? spread(curves.whole) };
  nothing.hidden = curves.curves.length > 0;
  for (const group of groups) {
    const exists = curves.curves.some((curve) => group.metrics.includes(curve.metric));
    let box = charts.get(group.key);
    if (!exists) {
      box?.element.remove();
      continue;
    }
    if (box === undefined) {
      const height = group.wide ? 340 : 220;
      box = chart({ title: group.title, note: "", height, log: group.log }, { move, zoom }, look);
      box.element.classList.toggle("wide", group.wide ?? false);
      charts.set(group.key, box);
    }
    if (!box.element.isConnected) grid.append(box.element);
    // Where the loss is smoothed by labels, the one without it is compared with the validation's.
    const own = shown.filter((curve) => group.metrics.includes(curve.metric) && !(curve.metric === "train/loss" && plain.has(curve.run)));
    box.explain(legend(group, own.map((curve) => curve.metric)));
    box.update(own, view);
  }
}

/** @param {[number, number]} whole @returns {[number, number]} */
const spread = ([low, high]) => (high > low ? [low, high] : [low, low + 1]);

/** @param {Group} group @param {string[]} metrics */
function legend({ metrics: order }, metrics) {
  const names = order.filter((metric) => metrics.includes(metric));
  if (names.length < 2) return [];
  return [...new Set(names.map(called))].map((name) =>
    element("span", {}, element("i", { class: `mark ${name === "training" ? "thin" : name === "counting words" ? "dots" : "thick"}`, "aria-hidden": "true" }), name),
  );
}

/** @param {number | null} at */
function move(at) {
  state.cursor = at;
  schedule();
}

/** @param {number} index */
function look(index) {
  const swatch = list.querySelectorAll(".swatch")[index];
  const colour = swatch === undefined ? "gray" : getComputedStyle(swatch).color;
  return { name: runs[index]?.name ?? "", colour, dashed: index >= 8 };
}

/** @param {string | null} message */
function fail(message) {
  problem.hidden = message === null;
  if (problem.textContent !== (message ?? "")) problem.textContent = message ?? "";
}

async function follow() {
  try {
    const before = runs;
    runs = await askRuns();
    fail(null);
    const now = JSON.stringify(runs.map((run) => [run.rows, run.generation]));
    if (now !== version) await gather();
    version = now;
    const about = JSON.stringify(runs.map((run) => [run.state, run.total, run.error]));
    if (about !== recipes) {
      recipe.update(await askSettings(), runs);
      recipes = about;
      const moved = runs.filter((run, i) => before[i] !== undefined && before[i]?.state !== run.state);
      live.textContent = moved.map((run) => `${run.name} is ${run.state}`).join("; ");
    }
    written.update(runs);
    schedule();
  } catch (error) {
    fail(/** @type {Error} */ (error).message);
  }
  const trains = runs.length === 0 || runs.some((run) => run.state === "running" || run.state === "waiting");
  setTimeout(() => (document.hidden ? resume() : void follow()), trains ? SOON : LATER);
}

/** Nothing is asked for a page that nobody sees. */
function resume() {
  document.addEventListener("visibilitychange", () => void follow(), { once: true });
}

void follow();
