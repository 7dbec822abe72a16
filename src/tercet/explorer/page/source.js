// The source of the data: the server with the model, or, in a saved page, the answers that it contains.

import { post, responseError } from "tercet/ask.js";
import { unpacked } from "tercet/tensor.js";

/** @typedef {import("tercet/model.js").Ask} Ask */
/** @typedef {import("tercet/model.js").Look} Look */
/** @typedef {import("tercet/model.js").Source} Drawn the part that the drawings use */
/** @typedef {import("tercet/model.js").Model & {name: string, folder: string, max_len: number, parameters: number,
 *             mask_id: number | null, eos_id: number | null, tokenizer: string, about: Record<string, unknown>,
 *             start: Ask, live: boolean}} Model */
/**
 * @typedef {{temperature: number, top_k: number | null, top_p: number | null, min_p: number | null,
 *             seed: number}} Drawing
 */
/** @typedef {Drawn & {model: Model,
 *             look: (ask: Ask, at?: number | null) => Promise<Look>,
 *             logits: (ask: Ask, at: number) => Promise<{at: number, logits: import("tercet/model.js").Tensor,
 *                                                        texts: Record<string, string>}>,
 *             sample: (ask: Ask, at: number, sampling: Drawing) => Promise<{id: number, text: string, special: boolean,
 *                                                                           probability: number}>,
 *             save: (ask: Ask) => Promise<string | null>}} Source */

export const SAVED = "this saved page does not contain the model; run `tercet explore RUN` for other queries";
const GONE = "the server does not respond; run `tercet explore RUN` again and reload this page";
const MAX_ANSWERS = 64; // cached answers; a block of a long text takes some megabytes

/** JSON with sorted keys, so that equal queries have equal text. @param {unknown} value @returns {string} */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const entries = Object.entries(value).filter(([, item]) => item !== undefined);
  entries.sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${entries.map(([key, item]) => `${JSON.stringify(key)}:${canonical(item)}`).join(",")}}`;
}

/** The answers that a saved page contains; null if the page is not saved. @returns {Record<string, unknown> | null} */
function embedded() {
  const script = document.querySelector('script[type="application/json"]');
  const text = script?.textContent?.trim() ?? "";
  return text === "" ? null : (JSON.parse(text).answers ?? null);
}

/** Add the tensors of a block that were sent once under another tensor's name. @param {any} answer */
function addShared(answer) {
  const same = /** @type {[string, string][]} */ (Object.entries(answer.same ?? {}));
  for (const [name, other] of same) answer.tensors[name] = answer.tensors[other];
  return answer;
}

/** @returns {Promise<Source>} */
export async function open() {
  const answers = embedded();
  /** @type {Map<string, Promise<any>>} */
  const cache = new Map();

  /** @param {string} path @param {string} body */
  async function fresh(path, body) {
    if (answers !== null) {
      const answer = answers[`${path} ${body}`];
      if (answer === undefined) throw new Error(SAVED);
      return addShared(unpacked(answer));
    }
    const response = await post(path, body, GONE);
    if (!response.ok) throw await responseError(response);
    return addShared(unpacked(await response.json()));
  }

  /** Send a query once; the oldest cached answers are dropped. @param {string} path @param {unknown} query */
  function ask(path, query) {
    const body = canonical(query);
    const key = `${path} ${body}`;
    const cached = cache.get(key);
    const answer = cached ?? fresh(path, body);
    cache.delete(key);
    cache.set(key, answer);
    if (cached === undefined) answer.catch(() => cache.delete(key));
    const oldest = cache.keys().next().value;
    if (cache.size > MAX_ANSWERS && oldest !== undefined) cache.delete(oldest);
    return answer;
  }

  /** @type {Model} */
  const model = await ask("api/model", {});
  return {
    model,
    live: model.live,
    look: (query, at = null) => ask("api/look", { ask: query, at }),
    block: (query, name, parameters) =>
      ask("api/block", parameters === true ? { ask: query, name, parameters } : { ask: query, name }),
    logits: (query, at) => ask("api/logits", { ask: query, at }),
    sample: (query, at, sampling) => ask("api/sample", { ask: query, at, sampling }),
    attribution: (query, at, id) => ask("api/attribution", { ask: query, at, id }),
    heads: (query) => ask("api/heads", { ask: query }),
    beams: (query, size) => ask("api/beams", { ask: query, size }),
    save: async (query) => {
      const response = await post("api/export", canonical({ ask: query }), GONE);
      if (response.status === 404 || response.status === 405) return null;
      if (!response.ok) throw await responseError(response);
      return await response.text();
    },
  };
}
