// The dashboard: it queries the state of the runs every few seconds, and redraws the parts that have changed.
//
//     server -> runs -> cards | samples | settings
//            -> curves of the visible range -> charts

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

const POLL_TRAINING = 2000; // ms between queries while a run trains
const POLL_IDLE = 10_000; // ms between queries otherwise
const ZOOM_DELAY = 70; // ms after the last zoom until finer curves are queried
const AXES = /** @type {const} */ (["step", "tokens", "seconds"]);
const AXIS_NAMES = { step: "Steps", tokens: "Tokens", seconds: "Time" };

/** @type {Group[]} */
const GROUPS = [
  { key: "loss", title: "Loss", metrics: ["train/nll", "train/loss", "val/loss", "val/unigram_entropy"], log: true, wide: true },
  { key: "objective", title: "Objective", metrics: ["val/objective"], log: true },
  { key: "bleu", title: "BLEU", metrics: ["val/bleu"], log: false },
  { key: "shares", title: "Accuracy and F1", metrics: ["val/accuracy", "val/f1"], log: false },
  { key: "rmse", title: "RMSE", metrics: ["val/rmse"], log: true },
  { key: "correlations", title: "Correlation", metrics: ["val/pearson", "val/spearman"], log: false },
  {
    key: "search",
    title: "Search",
    metrics: ["val/recall_at_1", "val/recall_at_10", "val/mrr", "val/ndcg_at_10"],
    log: false,
  },
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
let states = "";
/** @type {Map<string, ReturnType<typeof chart>>} */
const charts = new Map();
/** @type {ReturnType<typeof card>[]} */
const cards = [];
let frame = 0;
let zoomTimer = 0;
let lastRequest = 0;

const problem = element("p", { class: "problem", role: "alert", hidden: true });
const live = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
const list = element("section", { class: "cards", "aria-label": "Runs" });
const grid = element("div", { class: "charts" });
const emptyNote = element("p", { class: "note" }, "No metrics yet.");
const sampleSection = samples((run) => state.hidden.has(run));
const settingsSection = settings();

const axis = AXES.map((name) => button(`x:${name}`, AXIS_NAMES[name], () => change({ x: name, range: null })));
const logX = button("log-x", "log x", () => change({ logX: !state.logX, range: null }), "Logarithmic axis of steps, tokens or time");
const logY = button("log-y", "log loss", () => change({ logY: !state.logY }), "Logarithmic axis of losses and norms");
const all = button("all", "Show all", () => zoom(null), "Show the whole axis (0)");
const theme = button("theme", "", () => change({ theme: nextTheme(state.theme) }));
const slider = element("input", {
  type: "range", min: 0, max: 100, value: Math.round(100 * state.smoothing), "data-key": "smoothing", "aria-label": "Smoothing",
  oninput: () => change({ smoothing: Number(slider.value) / 100 }),
});

document.body.append(
  element("a", { class: "skip", href: "#curves", onclick: (/** @type {Event} */ event) => (event.preventDefault(), /** @type {HTMLElement | null} */ (grid.querySelector("[tabindex]"))?.focus()) }, "Skip to the curves"),
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
        { class: "controls", role: "group", "aria-label": "Display of curves" },
        element("span", { class: "switch", role: "group", "aria-label": "Horizontal axis" }, ...axis),
        logX,
        logY,
        element("label", {}, "smoothing ", slider),
        all,
      ),
      emptyNote,
      grid,
    ),
    sampleSection.element,
    settingsSection.element,
  ),
  live,
);

/** @param {string} key @param {string} text @param {() => void} onclick @param {string} [title] */
function button(key, text, onclick, title) {
  return element("button", { type: "button", "data-key": key, title, onclick }, text);
}

/** Read the settings in the address. */
function readAddress() {
  const params = new URLSearchParams(location.hash.replace(/^#/, ""));
  const smoothing = Number(params.get("smoothing") ?? 0);
  return {
    x: AXES.find((name) => name === params.get("x")) ?? "step",
    logX: params.get("log-x") === "1",
    logY: params.get("log-y") !== "0",
    smoothing: smoothing >= 0 && smoothing <= 1 ? smoothing : 0,
    theme: THEMES.find((name) => name === params.get("theme")) ?? "auto",
  };
}

function writeAddress() {
  const params = new URLSearchParams();
  if (state.x !== "step") params.set("x", state.x);
  if (state.logX) params.set("log-x", "1");
  if (!state.logY) params.set("log-y", "0");
  if (state.smoothing > 0) params.set("smoothing", String(state.smoothing));
  if (state.theme !== "auto") params.set("theme", state.theme);
  history.replaceState(null, "", params.size > 0 ? `#${params}` : location.pathname);
}

/** @param {Partial<typeof state>} patch */
function change(patch) {
  const needsCurves = "x" in patch || "logX" in patch;
  Object.assign(state, patch);
  if (needsCurves) state.cursor = null;
  writeAddress();
  if (needsCurves) void gather();
  schedule();
}

/** @param {[number, number] | null} range */
function zoom(range) {
  if (curves === null) return;
  const [from, to] = curves.whole;
  const low = range === null ? from : Math.max(from, range[0]);
  const high = range === null ? to : Math.min(to, range[1]);
  const minimum = (to - from) * 1e-7;
  if (high - low < minimum) return;
  state.range = low <= from && high >= to ? null : [low, high];
  clearTimeout(zoomTimer);
  zoomTimer = setTimeout(() => void gather(), ZOOM_DELAY);
  schedule();
}

/** Draw once, in the next animation frame. */
function schedule() {
  if (frame === 0)
    frame = requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
}

/** Query the curves of the visible range with a margin on both sides, so that scrolling needs no query. */
async function gather() {
  const request = ++lastRequest;
  const { x, logX: log, range } = state;
  const margin = range === null ? null : log ? Math.sqrt(range[1] / range[0]) : (range[1] - range[0]) / 2;
  const start = range === null || margin === null ? null : log ? range[0] / margin : range[0] - margin;
  const end = range === null || margin === null ? null : log ? range[1] * margin : range[1] + margin;
  const buckets = Math.min(4000, Math.round((range === null ? 1 : 2) * Math.max(200, grid.clientWidth * 0.7)));
  try {
    const answer = await askCurves({ x, log, start, end, buckets });
    if (request !== lastRequest) return;
    curves = answer;
    fail(null);
  } catch (error) {
    if (request === lastRequest) fail(/** @type {Error} */ (error).message);
  }
  schedule();
}

function draw() {
  applyTheme(state.theme, theme);
  axis.forEach((axisButton, i) => axisButton.setAttribute("aria-pressed", String(AXES[i] === state.x)));
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
  sampleSection.update(runs);
  schedule();
}

function drawCharts() {
  if (curves === null) return;
  const visible = curves.curves.filter((curve) => !state.hidden.has(curve.run));
  const plainRuns = new Set(visible.filter((curve) => curve.metric === "train/nll").map((curve) => curve.run));
  const groupedMetrics = new Set(GROUPS.flatMap((group) => group.metrics));
  const otherMetrics = [...new Set(curves.curves.map((curve) => curve.metric))].filter((metric) => !groupedMetrics.has(metric));
  /** @type {Group[]} */
  const groups = [...GROUPS, ...otherMetrics.map((metric) => ({ key: metric, title: metric, metrics: [metric], log: false }))];
  /** @type {View} */
  const view = { ...state, range: state.range ?? spread(curves.whole) };
  emptyNote.hidden = curves.curves.length > 0;
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
    // If a run logs its training loss without label smoothing, show that one, because the validation loss has none.
    const groupCurves = visible.filter((curve) => group.metrics.includes(curve.metric) && !(curve.metric === "train/loss" && plainRuns.has(curve.run)));
    box.explain(legend(group, groupCurves.map((curve) => curve.metric)));
    box.update(groupCurves, view);
  }
}

/** @param {[number, number]} whole @returns {[number, number]} */
const spread = ([low, high]) => (high > low ? [low, high] : [low, low + 1]);

/** @param {Group} group @param {string[]} metrics */
function legend({ metrics: order }, metrics) {
  const names = order.filter((metric) => metrics.includes(metric));
  if (names.length < 2) return [];
  return [...new Set(names.map(called))].map((name) =>
    element("span", {}, element("i", { class: `mark ${name === "training" ? "thin" : name === "unigram entropy" ? "dots" : "thick"}`, "aria-hidden": "true" }), name),
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
  const color = swatch === undefined ? "gray" : getComputedStyle(swatch).color;
  return { name: runs[index]?.name ?? "", color, dashed: index >= 8 };
}

/** @param {string | null} message */
function fail(message) {
  problem.hidden = message === null;
  if (problem.textContent !== (message ?? "")) problem.textContent = message ?? "";
}

async function follow() {
  try {
    const previousRuns = runs;
    runs = await askRuns();
    fail(null);
    const newVersion = JSON.stringify(runs.map((run) => [run.rows, run.generation]));
    if (newVersion !== version) await gather();
    version = newVersion;
    const newStates = JSON.stringify(runs.map((run) => [run.state, run.total, run.error]));
    if (newStates !== states) {
      settingsSection.update(await askSettings(), runs);
      states = newStates;
      const changedRuns = runs.filter((run, i) => previousRuns[i] !== undefined && previousRuns[i]?.state !== run.state);
      live.textContent = changedRuns.map((run) => `${run.name} is ${run.state}`).join("; ");
    }
    sampleSection.update(runs);
    schedule();
  } catch (error) {
    fail(/** @type {Error} */ (error).message);
  }
  const trains = runs.length === 0 || runs.some((run) => run.state === "running" || run.state === "waiting");
  setTimeout(() => (document.hidden ? resume() : void follow()), trains ? POLL_TRAINING : POLL_IDLE);
}

/** Stop querying while the page is hidden. */
function resume() {
  document.addEventListener("visibilitychange", () => void follow(), { once: true });
}

void follow();
