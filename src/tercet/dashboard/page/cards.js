// A card for each run, with its step, speed and metrics, and a button that hides its curves.

import { element } from "tercet/element.js";
import { counted, duration, figure } from "tercet/numbers.js";

/** @typedef {import("tercet/source.js").Run} Run */

const SCORES = /** @type {[string, string, (value: number) => string][]} */ ([
  ["val/bleu", "BLEU", figure],
  ["val/accuracy", "accuracy", (value) => `${(100 * value).toFixed(1)}%`],
  ["val/f1", "F1", (value) => `${(100 * value).toFixed(1)}%`],
  ["val/rmse", "RMSE", figure],
  ["val/pearson", "Pearson", figure],
  ["val/ndcg_at_10", "nDCG@10", figure],
]);

/** @param {Run} run */
function facts(run) {
  const train = run.last["train/nll"] ?? run.last["train/loss"];
  const rate = run.last["tokens_per_second"];
  /** @type {[string, string][]} */
  const rows = [["step", run.total === null ? counted(run.step) : `${counted(run.step)} of ${counted(run.total)}`]];
  if (run.left !== null) rows.push(["time left", duration(run.left)]);
  if (run.seconds !== null) rows.push(["trained", duration(run.seconds)]);
  if (train !== undefined) rows.push(["training loss", figure(train)]);
  if (run.best !== null) rows.push(["best validation", `${figure(run.best.loss)} at ${counted(run.best.step)}`]);
  if (run.forecast !== null) {
    const { loss, low, high } = run.forecast;
    rows.push(["forecast", `${figure(loss)} (${figure(low)} to ${figure(high)})`]);
  }
  for (const [metric, name, write] of SCORES) {
    const value = run.last[metric];
    if (value !== undefined) rows.push([name, write(value)]);
  }
  if (rate !== undefined) rows.push(["tokens/s", counted(rate)]);
  return rows;
}

/** @param {Run} run */
function noteOf(run) {
  if (run.error !== null) return run.error;
  if (run.unreadable > 0) return `${counted(run.unreadable)} lines of metrics.csv are invalid and are not shown`;
  if (run.problems.length > 0) return run.problems.join("\n");
  if (run.state === "running" && run.updated !== null && run.updated > 60) return `last line ${duration(run.updated)} ago`;
  return run.detail;
}

/** @param {number} index @param {(index: number) => void} toggle */
export function card(index, toggle) {
  const name = element("h2");
  const state = element("span", { class: "state" });
  const bar = element("progress", { max: 1, value: 0 });
  const list = element("dl");
  const note = element("p", { class: "note" });
  const toggleButton = element(
    "button",
    { type: "button", class: "shown", "data-key": `shown:${index}`, onclick: () => toggle(index) },
    element("i", { class: `swatch run-${index % 8}${index >= 8 ? " dashed" : ""}`, "aria-hidden": "true" }),
    name,
  );
  const box = element("article", { class: "card" }, element("header", {}, toggleButton, state), bar, list, note);
  return {
    element: box,
    /** @param {Run} run @param {boolean} hidden @param {boolean} single true if there is only one run */
    update(run, hidden, single) {
      name.textContent = run.name;
      toggleButton.setAttribute("aria-pressed", String(!hidden));
      toggleButton.disabled = single;
      toggleButton.title = single ? run.folder : `${run.folder}: ${hidden ? "show" : "hide"} its curves`;
      state.textContent = run.state;
      state.dataset.state = run.state;
      bar.setAttribute("aria-label", `steps of ${run.name}`);
      bar.value = run.total === null || run.total === 0 ? Number(run.state === "finished") : Math.min(1, run.step / run.total);
      list.replaceChildren(...facts(run).map(([key, value]) => element("div", {}, element("dt", {}, key), element("dd", {}, value))));
      note.textContent = noteOf(run);
      note.classList.toggle("warning", run.error !== null || run.unreadable + run.problems.length > 0);
      note.hidden = note.textContent === "";
      box.classList.toggle("hidden", hidden);
    },
  };
}
