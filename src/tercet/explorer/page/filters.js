// The filters of generation/filters.py over the whole vocabulary, in float64.
//
//     temperature -> top-k -> top-p -> min-p, each applied to the renormalized result of the previous one
//
// Each filter keeps the most likely tokens, and among equal tokens those with the lowest ids. The kept tokens are
// therefore a prefix of one order: a row of logits is sorted once, and a filter only returns the length of the prefix.
// The sampler computes in float32, so its result may differ for a token within the rounding error of a bound.

/** @typedef {{temperature: number, top_k: number | null, top_p: number | null, min_p: number | null}} Sampling */
/** The ids from the most to the least likely, and their logits minus the largest.
 * @typedef {{ids: Uint32Array, logits: Float64Array}} Ranking */
/** The probabilities of the first `kept` ids of the ranking; all others have probability 0.
 * @typedef {{kept: number, probabilities: Float64Array}} Distribution */

// Sums and ratios of float32 probabilities miss round numbers such as 0.9 by a few units in the last place.
export const ROUNDING = 1e-6;
export const PLAIN = Object.freeze({ temperature: 1, top_k: null, top_p: null, min_p: null });
const MAX_IDS = 2 ** 20; // of a float64's 53 bits, 32 hold the logit and the others the id

/** @param {ArrayLike<number>} logits of one row @returns {Ranking} */
export function rank(logits) {
  const size = logits.length;
  if (size === 0 || size > MAX_IDS) throw new Error(`cannot rank ${size} logits; there must be 1 to ${MAX_IDS}`);
  const values = Float32Array.from(logits);
  const bits = new Uint32Array(values.buffer);
  const keys = new Float64Array(size);
  for (let id = 0; id < size; id++) {
    const value = /** @type {number} */ (values[id]);
    if (Number.isNaN(value) || value === Infinity)
      throw new Error("the model's outputs are not finite: its training diverged");
    // As integers, negative floats increase with decreasing value; 0 and -0 become equal.
    const word = value === 0 ? 0 : /** @type {number} */ (bits[id]);
    const falling = word >= 2 ** 31 ? word : 2 ** 31 - 1 - word;
    keys[id] = falling * MAX_IDS + id;
  }
  keys.sort();
  const ids = new Uint32Array(size);
  const sorted = new Float64Array(size);
  for (let k = 0; k < size; k++) {
    const id = /** @type {number} */ (keys[k]) % MAX_IDS;
    ids[k] = id;
    sorted[k] = /** @type {number} */ (values[id]) - /** @type {number} */ (values[/** @type {number} */ (ids[0])]);
  }
  return { ids, logits: sorted };
}

/** @param {Float64Array} logits ranked @param {number} temperature 0 leaves only the most likely token */
export function applyTemperature(logits, temperature) {
  if (temperature === 0) return logits.slice(0, 1);
  return logits.map((logit) => logit / Math.max(temperature, Number.MIN_VALUE));
}

/** Exactly k tokens, also if others equal the k-th. @param {Float64Array} logits ranked @param {number} k */
export const keepTopK = (logits, k) => logits.subarray(0, Math.max(1, k));

/**
 * The fewest tokens whose probabilities add up to p, including the token that crosses p.
 * @param {Float64Array} logits ranked @param {number} p
 */
export function keepTopP(logits, p) {
  if (p >= 1) return logits;
  const probabilities = softmax(logits);
  let sum = 0;
  let kept = 0;
  do sum += /** @type {number} */ (probabilities[kept++]);
  while (kept < logits.length && sum < p * (1 - ROUNDING));
  return logits.subarray(0, kept);
}

/** Tokens at least p times as likely as the most likely one. @param {Float64Array} logits ranked @param {number} p */
export function keepMinP(logits, p) {
  if (p <= 0) return logits;
  const threshold = Math.log(p) - ROUNDING + /** @type {number} */ (logits[0]);
  const end = logits.findIndex((logit) => logit < threshold);
  return end < 0 ? logits : logits.subarray(0, end);
}

/** @param {Float64Array} logits ranked, so that the first is the largest */
export function softmax(logits) {
  const largest = /** @type {number} */ (logits[0]);
  const shares = logits.map((logit) => Math.exp(logit - largest));
  let sum = 0;
  for (const share of shares) sum += share;
  return shares.map((share) => share / sum);
}

/**
 * Apply the sampling settings to a row of logits.
 * @param {Ranking} ranking @param {Sampling} sampling @returns {Distribution}
 */
export function distribution(ranking, sampling) {
  /** @type {Float64Array} */
  let logits = applyTemperature(ranking.logits, sampling.temperature);
  if (sampling.top_k !== null) logits = keepTopK(logits, sampling.top_k);
  if (sampling.top_p !== null) logits = keepTopP(logits, sampling.top_p);
  if (sampling.min_p !== null) logits = keepMinP(logits, sampling.min_p);
  return { kept: logits.length, probabilities: softmax(logits) };
}

/** The probabilities of the whole vocabulary, by id. @param {Ranking} ranking @param {Distribution} filtered */
export function byId(ranking, filtered) {
  const all = new Float64Array(ranking.ids.length);
  filtered.probabilities.forEach((share, k) => (all[/** @type {number} */ (ranking.ids[k])] = share));
  return all;
}

/** The entropy in bits. @param {Distribution} filtered @returns {number} */
export function entropy(filtered) {
  let bits = 0;
  for (const share of filtered.probabilities) if (share > 0) bits -= share * Math.log2(share);
  return bits;
}
