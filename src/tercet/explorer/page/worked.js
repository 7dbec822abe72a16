// The computation of one cell of an attention map: query and key, score, weight, and the head's output.

import { element } from "tercet/element.js";
import { exact, number } from "tercet/numbers.js";
import { slice } from "tercet/tensor.js";

/** @typedef {import("tercet/model.js").Tensor} Tensor */

const TERMS = 3; // largest terms of a score
const VALUES = 4; // largest terms of an output

/**
 * @param {{q: Tensor, k: Tensor, v: Tensor, scores: Tensor, weights: Tensor, mask: Tensor, head: Tensor,
 *          rows: string[], keys: string[], biased: boolean, softcap: number | null, off: boolean}} of one head; biased: numbers were added to
 *          the scores (ALiBi, T5); off: its output was set to zero
 * @returns {{element: HTMLElement, show: (t: number, s: number) => void}}
 */
export function workedOut({ q, k, v, scores, weights, mask, head, rows, keys, biased, softcap, off }) {
  const lines = element("div", { class: "sums" });
  const title = element("h3", {});
  const show = (/** @type {number} */ t, /** @type {number} */ s) => {
    const [sum, terms] = score(t, s);
    const [mean, size] = output(t);
    title.textContent = `query ${t} ${rows[t]}, key ${s} ${keys[s]}`;
    lines.replaceChildren(line("score", sum, terms), line("weight", weight(t, s)), line("output", mean, size));
  };

  /** @param {number} t @param {number} s @returns {[string, string]} */
  const score = (t, s) => {
    const [query, key] = [slice(q, t).data, slice(k, s).data];
    const terms = Array.from(query, (value, i) => ({ i, product: value * (key[i] ?? 0) }));
    const dot = terms.reduce((sum, { product }) => sum + product, 0);
    const root = Math.sqrt(query.length);
    const entry = scores.get(t, s);
    const capped = softcap === null ? dot / root : softcap * Math.tanh(dot / root / softcap);
    const bias = entry - capped;
    const added = biased ? ` ${bias < 0 ? "−" : "+"} ${number(Math.abs(bias))}` : "";
    const equals = q.half > 0 || scores.half > 0 ? "≈" : "=";
    const cap = (/** @type {string} */ text) => (softcap === null ? text : `${softcap} tanh(${text} / ${softcap})`);
    const meaning = `${cap(`q[${t}] · k[${s}] / √${query.length}`)}${biased ? " + bias" : ""}`;
    const term = (/** @type {{i: number, product: number}} */ { i, product }) =>
      `q[${t},${i}] k[${s},${i}] = ${number(query[i] ?? 0)} × ${number(key[i] ?? 0)} = ${number(product)}`;
    const largest = terms.sort((a, b) => Math.abs(b.product) - Math.abs(a.product)).slice(0, TERMS);
    return [
      `${meaning} = ${cap(`${number(dot)} / ${number(root)}`)}${added} ${equals} ${exact(entry, scores.half)}`,
      `largest terms: ${largest.map(term).join(";  ")}`,
    ];
  };

  const weight = (/** @type {number} */ t, /** @type {number} */ s) => {
    const [T = 0, S = 0] = mask.shape;
    if (t >= T || mask.get(t, s) === 0) return "masked: the query cannot attend to this key, so its weight is 0";
    const visible = Array.from({ length: S }, (_, i) => i).filter((i) => mask.get(t, i) !== 0);
    const highest = Math.max(...visible.map((i) => scores.get(t, i)));
    const sum = visible.reduce((all, i) => all + Math.exp(scores.get(t, i) - highest), 0);
    const over = Math.exp(scores.get(t, s) - highest);
    const rounded = scores.half > 0 || weights.half > 0 ? "≈" : "=";
    return (
      `exp(score − ${number(highest)}) / Σ over ${visible.length} visible = ${number(over)} / ${number(sum)} ` +
      `${rounded} ${exact(weights.get(t, s), weights.half)}`
    );
  };

  /** @param {number} t @returns {[string, string]} */
  const output = (t) => {
    const parts = keys.map((text, i) => ({
      i,
      text,
      weight: weights.get(t, i),
      size: weights.get(t, i) * length(slice(v, i)),
    }));
    const largest = parts
      .sort((a, b) => b.size - a.size)
      .slice(0, VALUES)
      .filter(({ size }) => size > 0);
    const sum = largest.map(({ i, text, weight }) => `${number(weight)} v[${i}] ${text}`).join("  +  ");
    const rest = parts.filter(({ size }) => size > 0).length - largest.length;
    return [
      `Σ weight × v = ${sum}${rest > 0 ? `  +  ${rest} smaller` : ""}`,
      off
        ? "then set to zero"
        : `a vector of length ${number(length(slice(head, t)))}; largest first, by weight × length of v`,
    ];
  };

  return { element: element("section", { class: "worked", "aria-label": "cell computation" }, title, lines), show };
}

/** @param {string} name @param {string} sum @param {...string} notes */
function line(name, sum, ...notes) {
  return element(
    "div",
    { class: "sum" },
    element("span", { class: "sum-name" }, name),
    element("code", {}, sum),
    ...notes.map((note) => element("span", { class: "note" }, note)),
  );
}

/** @param {Tensor} vector */
const length = (vector) => Math.hypot(...vector.data);
