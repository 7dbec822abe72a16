// Text for positions on an axis and for names of metrics.

import { counted, duration } from "tercet/numbers.js";

/** @param {"step" | "tokens" | "seconds"} axis @param {number} value */
export const place = (axis, value) =>
  axis === "seconds" ? duration(value) : `${axis === "step" ? "step " : ""}${counted(value)}${axis === "tokens" ? " tokens" : ""}`;

/** The displayed name of a metric. @param {string} metric */
export const called = (metric) => NAMES[/** @type {keyof typeof NAMES} */ (metric)] ?? metric;

const NAMES = {
  "train/loss": "training",
  "train/nll": "training",
  "val/loss": "validation",
  "val/objective": "objective",
  "val/unigram_entropy": "unigram entropy",
  "val/bleu": "BLEU",
  "val/accuracy": "accuracy",
  "val/f1": "F1",
  "val/rmse": "RMSE",
  "val/pearson": "Pearson",
  "val/spearman": "Spearman",
  "val/recall_at_1": "recall@1",
  "val/recall_at_10": "recall@10",
  "val/mrr": "MRR",
  "val/ndcg_at_10": "nDCG@10",
  lr: "learning rate",
  grad_norm: "gradient norm",
  tokens_per_second: "tokens/s",
};
