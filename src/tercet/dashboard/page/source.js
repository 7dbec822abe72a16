// Queries to the server, and the types of its answers.

import { post, responseError } from "tercet/ask.js";

/** @typedef {{name: string, folder: string, error: string | null, state: string, detail: string, step: number,
 *             total: number | null, seconds: number | null, left: number | null, updated: number | null, rows: number,
 *             generation: number, unreadable: number, problems: string[], last: Record<string, number>,
 *             best: null | {loss: number, step: number},
 *             forecast: null | {loss: number, low: number, high: number}, samples: number[]}} Run */
/** @typedef {{run: number, metric: string, x: number[], low: number[], high: number[], mean: number[]}} Curve */
/** @typedef {{whole: [number, number], start: number, end: number, curves: Curve[]}} Curves */
/** @typedef {{key: string, values: (string | null)[], differs: boolean}} Setting */
/** @typedef {{step: number, key: string, old: string, new: string}} Change */

const NO_SERVER = "the server does not respond: training or `tercet watch` has ended; the data already loaded stays visible";

/** @param {string} name @param {unknown} [query] @returns {Promise<any>} */
async function ask(name, query = {}) {
  const response = await post(`api/${name}`, JSON.stringify(query), NO_SERVER);
  if (!response.ok) throw await responseError(response);
  return response.json();
}

/** @returns {Promise<Run[]>} */
export const askRuns = async () => (await ask("runs")).runs;
/** @param {unknown} query @returns {Promise<Curves>} */
export const askCurves = (query) => ask("curves", query);
/** @returns {Promise<{rows: Setting[], changes: Change[][]}>} */
export const askSettings = () => ask("settings");
/** @param {number} run @param {number} step @returns {Promise<string>} */
export const askSample = async (run, step) => (await ask("sample", { run, step })).text;
