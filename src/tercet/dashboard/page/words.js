// Numbers as a reader wants them: steps counted, times in hours, losses in four digits.

/** @param {number} value */
export const counted = (value) => Math.round(value).toLocaleString("en");

/** A length of time. @param {number} seconds */
export function duration(seconds) {
  if (seconds < 60) return `${Number(seconds.toFixed(seconds < 10 ? 1 : 0))} s`;
  const minutes = Math.floor(seconds / 60);
  const two = (/** @type {number} */ value, /** @type {string} */ unit) =>
    value === 0 ? "" : ` ${String(value).padStart(2, "0")} ${unit}`;
  if (minutes < 60) return `${minutes} min${two(Math.floor(seconds % 60), "s")}`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h${two(minutes % 60, "min")}`;
  return `${Math.floor(hours / 24)} d${two(hours % 24, "h")}`;
}

/** In four digits. @param {number} value */
export function figure(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  if (size >= 1000) return counted(value);
  return String(Number(value.toPrecision(4)));
}

/** Beside an axis, where there is little room. @param {number} value */
export function short(value) {
  const size = Math.abs(value);
  for (const [unit, name] of /** @type {[number, string][]} */ ([[1e9, "G"], [1e6, "M"], [1e3, "k"]]))
    if (size >= unit) return `${Number((value / unit).toPrecision(4))}${name}`;
  if (size !== 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(4)));
}

/** @param {"step" | "tokens" | "seconds"} axis @param {number} value */
export const place = (axis, value) =>
  axis === "seconds" ? duration(value) : `${axis === "step" ? "step " : ""}${counted(value)}${axis === "tokens" ? " tokens" : ""}`;

/** Of a curve, what it is called in words. @param {string} metric */
export const called = (metric) => NAMES[/** @type {keyof typeof NAMES} */ (metric)] ?? metric;

const NAMES = {
  "train/loss": "training",
  "train/nll": "training",
  "val/loss": "validation",
  "val/unigram_entropy": "counting words",
  "val/bleu": "BLEU",
  "val/accuracy": "accuracy",
  "val/f1": "F1",
  "val/rmse": "RMSE",
  "val/pearson": "Pearson",
  "val/spearman": "Spearman",
  lr: "learning rate",
  grad_norm: "gradient norm",
  tokens_per_second: "tokens/s",
};
