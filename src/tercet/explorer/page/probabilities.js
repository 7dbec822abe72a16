// The probabilities of the whole vocabulary at the chosen row, and the effect of the sampling settings on them.
// Changing a setting sends no query: the logits are cached, and filters.js applies the same filters as the sampler.

import { element } from "tercet/element.js";
import { PLAIN, distribution, entropy, rank } from "tercet/filters.js";
import { labelOf } from "tercet/model.js";
import { counted, number, percent } from "tercet/numbers.js";
import { continued, originalAt, replaced } from "tercet/prompt.js";

/** @typedef {import("tercet/model.js").Change} Change */
/** @typedef {import("tercet/filters.js").Distribution} Distribution */
/** @typedef {import("tercet/filters.js").Ranking} Ranking */
/** @typedef {import("tercet/pane.js").Loaded} Loaded */
/** @typedef {import("tercet/state.js").State} State */
/** @typedef {import("tercet/source.js").Model} Model */
/** @typedef {{ranking: Ranking, plain: Distribution, texts: Record<string, string>}} Row the sorted logits of a row */

const MAX_TOKENS = 20; // tokens in the list
const STEPS = 100; // of the top-k slider, whose scale is logarithmic

/** @type {WeakMap<object, Row>} */
const ranked = new WeakMap();

/**
 * @param {{logits: import("tercet/model.js").Tensor | null, texts: Record<string, string>}} answer
 * @returns {Row | null}
 */
export function rowOf(answer) {
  if (answer.logits === null) return null;
  const cached = ranked.get(answer);
  if (cached !== undefined) return cached;
  const ranking = rank(answer.logits.data);
  const row = { ranking, plain: distribution(ranking, PLAIN), texts: answer.texts };
  ranked.set(answer, row);
  return row;
}

/**
 * The logits of a row, from the pass or from the server.
 * @param {Loaded} pane @param {number} at @returns {Promise<Row | null>}
 */
export async function logitsAt(pane, at) {
  if (pane.look.top === null) return null;
  return rowOf(at === pane.look.at && pane.look.logits !== null ? pane.look : await pane.source.logits(pane.ask, at));
}

/** The most likely token and its probability. @param {Row} row */
export function best(row) {
  const id = /** @type {number} */ (row.ranking.ids[0]);
  return { id, text: row.texts[id] ?? `id ${id}`, share: /** @type {number} */ (row.plain.probabilities[0]) };
}

/** The probability of one token. @param {Row} row @param {number} id */
export function shareOf(row, id) {
  const i = row.ranking.ids.indexOf(id);
  return { place: i, share: row.plain.probabilities[i] ?? 0 };
}

/** @param {Model} model @param {Change} change @param {(text: string) => void} say */
export function probabilityPanel(model, change, say) {
  let requests = 0;
  /** @type {{pane: Loaded, at: number, row: Row | null} | null} */
  let current = null;
  /** @type {State | null} */
  let state = null;
  const title = element("h2", {});
  const facts = element("p", { class: "facts" });
  const truth = element("p", { class: "truth" });
  const list = element("ol", { class: "candidates", "aria-label": "Most likely tokens" });
  const controls = controlBox(model, change);
  const box = element(
    "aside",
    { class: "probabilities", "aria-label": "Probabilities" },
    title,
    controls.element,
    facts,
    truth,
    list,
  );

  /** @param {Loaded} pane @param {State} now */
  async function update(pane, now) {
    state = now;
    const side = pane.look.sides.at(-1);
    const at = Math.min(now.at ?? pane.look.at, (side?.tokens.length ?? 1) - 1);
    const token = side?.tokens[at];
    const text = `‘${labelOf(token?.text ?? "")}’`;
    title.replaceChildren(
      model.can.mask ? "Token probabilities" : "Next-token probabilities",
      element("small", {}, `${model.can.mask ? "at" : "after"} row ${at}, ${text}`),
    );
    controls.update(now);
    if (current?.pane === pane && current.at === at) return draw();
    const request = ++requests;
    box.setAttribute("aria-busy", "true");
    try {
      const row = await logitsAt(pane, at);
      if (request !== requests) return; // a newer request was sent in the meantime
      current = { pane, at, row };
      draw();
    } catch (error) {
      if (request !== requests) return;
      current = null;
      list.replaceChildren();
      truth.replaceChildren();
      facts.replaceChildren(element("span", { role: "alert", class: "problem" }, /** @type {Error} */ (error).message));
    }
    box.removeAttribute("aria-busy");
  }

  /** Draw everything that depends on the settings. */
  function draw() {
    if (current === null || state === null) return;
    const { pane, at, row } = current;
    if (row === null) {
      facts.replaceChildren("This model has no language-model head.");
      return list.replaceChildren();
    }
    const filtered = distribution(row.ranking, state);
    const size = row.ranking.ids.length;
    const bits = entropy(filtered).toFixed(2);
    const whole = entropy(row.plain).toFixed(2);
    facts.replaceChildren(
      "kept ",
      element("b", { class: "kept" }, counted(filtered.kept)),
      ` of ${counted(size)} tokens`,
      element("br"),
      "entropy ",
      element("b", { class: "entropy" }, bits),
      ` bits${bits === whole ? "" : ` (model: ${whole})`}`,
    );
    truth.replaceChildren(...describeRow(pane, at, row));
    const high = Math.max(filtered.probabilities[0] ?? 0, row.plain.probabilities[0] ?? 0, 1e-9);
    list.classList.toggle("plain", controls.plain(state));
    const focus = list.contains(document.activeElement) ? document.activeElement?.getAttribute("data-key") : null;
    const items = [];
    for (let i = 0; i < Math.min(MAX_TOKENS, size); i++) items.push(candidate(pane, at, row, filtered, i, high));
    list.replaceChildren(...items);
    if (focus) list.querySelector(`[data-key="${focus}"]`)?.dispatchEvent(new Event("refocus"));
  }

  /**
   * @param {Loaded} pane @param {number} at @param {Row} row @param {Distribution} filtered @param {number} i
   * @param {number} high
   */
  function candidate(pane, at, row, filtered, i, high) {
    const id = /** @type {number} */ (row.ranking.ids[i]);
    const plain = row.plain.probabilities[i] ?? 0;
    const isKept = i < filtered.kept;
    const share = isKept ? (filtered.probabilities[i] ?? 0) : 0;
    const text = labelOf(row.texts[id] ?? `id ${id}`);
    const action = model.can.mask ? "insert it here" : `append it after row ${at}`;
    const now = isKept ? `${number(100 * share)} %` : "filtered out";
    const shown = isKept ? percent(share) : "–"; // the label starts with the visible text of the button
    const label = `${text} ${shown}, id ${id}: ${now}; model: ${number(100 * plain)} %`;
    const button = element(
      "button",
      {
        type: "button",
        class: isKept ? "candidate" : "candidate out",
        "data-key": `candidate:${id}`,
        disabled: !pane.source.live,
        "aria-label": `${label}; ${action}`,
        title: `${label}\nclick: ${action}`,
        onclick: () => {
          if (state === null) return;
          if (model.can.mask) return change(replaced(pane, state, at, id));
          if (model.can.translate && id === model.eos_id) return say("the model ends the sentence here");
          change(continued(pane, state, at, id));
        },
      },
      element("span", { class: "text" }, text),
      " ",
      element(
        "span",
        { class: "bar", "aria-hidden": "true" },
        placed("share", "width", share / high),
        placed("mark", "left", plain / high),
      ),
      element("span", { class: "percent" }, shown),
    );
    button.addEventListener("refocus", () => button.focus({ preventScroll: true }));
    return element("li", {}, button);
  }

  return { element: box, update };
}

/**
 * A part of a bar. The style is set here, because the page's policy forbids style attributes in markup.
 * @param {string} kind @param {"width" | "left"} side @param {number} share
 */
function placed(kind, side, share) {
  const bar = element("span", { class: kind });
  bar.style[side] = `${100 * share}%`;
  return bar;
}

/**
 * The true token of the row, if it is known.
 * @param {Loaded} pane @param {number} at @param {Row} row @returns {(string | Node)[]}
 */
function describeRow(pane, at, row) {
  const { model } = pane.source;
  const tokens = pane.look.sides.at(-1)?.tokens ?? [];
  const token = tokens[at];
  const id = !model.can.mask ? tokens[at + 1]?.id : token?.id === model.mask_id ? originalAt(pane, at) : token?.id;
  if (id === null || id === undefined) return [];
  const { place, share } = shareOf(row, id);
  const text = pane.texts.get(id) ?? row.texts[id] ?? `id ${id}`;
  const title = model.can.mask ? (token?.id === model.mask_id ? "Masked token" : "Token here") : "Next token";
  return [`${title}: `, element("b", {}, `‘${labelOf(text)}’`), `, ${percent(share)}, rank ${place + 1}`];
}

/** The sampling settings, each as a slider and a number. @param {Model} model @param {Change} change */
function controlBox(model, change) {
  const size = model.vocab_size;
  const toK = (/** @type {number} */ at) => (at >= STEPS ? null : Math.max(1, Math.round(size ** (at / STEPS))));
  const fromK = (/** @type {number | null} */ k) => (k === null ? STEPS : (STEPS * Math.log(k)) / Math.log(size));
  const same = (/** @type {number} */ value) => value;
  const rows = [
    control(
      "temperature",
      "Temperature",
      "0: always the most likely token; 1: the model's distribution; above 1: more random",
      { min: 0, max: 2, step: 0.05 },
      same,
      (value) => value ?? 1,
      { min: 0, max: 100 },
      (value) => value ?? 1,
    ),
    control(
      "top_k",
      "Top-k",
      "keep only the k most likely tokens (empty: all)",
      { min: 0, max: STEPS, step: 1 },
      toK,
      fromK,
      { min: 1, max: size, step: 1 },
      (value) => (value === null ? null : Math.min(Math.max(Math.round(value), 1), size)),
    ),
    control(
      "top_p",
      "Top-p",
      "keep the fewest tokens whose probabilities add up to at least p (empty: all)",
      { min: 0.01, max: 1, step: 0.01 },
      (value) => (value >= 1 ? null : value),
      (value) => value ?? 1,
      { min: 0.01, max: 1 },
      (value) => (value === null || value >= 1 || value <= 0 ? null : value),
    ),
    control(
      "min_p",
      "Min-p",
      "keep only tokens at least p times as likely as the most likely one (empty: all)",
      { min: 0, max: 0.5, step: 0.005 },
      (value) => (value <= 0 ? null : value),
      (value) => value ?? 0,
      { min: 0, max: 1 },
      (value) => (value === null || value <= 0 ? null : value),
    ),
  ];
  const plain = (/** @type {State} */ now) =>
    Object.entries(PLAIN).every(([key, value]) => now[/** @type {keyof State} */ (key)] === value);
  const reset = element(
    "button",
    {
      type: "button",
      class: "quiet",
      "data-key": "plain",
      onclick: () => change({ ...PLAIN }),
    },
    "Reset",
  );
  const box = element(
    "fieldset",
    { class: "controls" },
    element("legend", {}, "Sampling"),
    ...rows.map((row) => row.element),
    reset,
  );

  /**
   * @param {"temperature" | "top_k" | "top_p" | "min_p"} key @param {string} name @param {string} tip
   * @param {Record<string, number>} range
   * @param {(value: number) => number | null} from @param {(value: number | null) => number} to
   * @param {Record<string, number>} limits @param {(value: number | null) => number | null} valid
   */
  function control(key, name, tip, range, from, to, limits, valid) {
    const slider = element("input", { type: "range", ...range, "data-key": key, "aria-label": name });
    const exact = element("input", {
      type: "number",
      step: "any",
      ...limits,
      "data-key": `${key}:number`,
      "aria-label": `${name}, as a number`,
      placeholder: "off",
      inputmode: "decimal",
    });
    slider.addEventListener("input", () => change({ [key]: from(slider.valueAsNumber) }));
    exact.addEventListener("input", () => {
      const value = exact.value.trim() === "" ? null : exact.valueAsNumber;
      if (value !== null && !(value >= (limits.min ?? 0) && value <= (limits.max ?? Infinity))) return;
      change({ [key]: valid(value) });
    });
    const row = element("label", { class: "control", title: tip }, element("span", {}, name), slider);
    /** @param {State} now */
    const update = (now) => {
      const value = now[key];
      slider.value = String(to(value));
      const text = value === null ? "off" : String(value);
      slider.setAttribute("aria-valuetext", text);
      if (document.activeElement !== exact) exact.value = value === null ? "" : String(+value.toPrecision(6));
    };
    return { element: element("div", { class: "control-row" }, row, exact), update };
  }

  return {
    element: box,
    /** @param {State} now */
    update(now) {
      for (const row of rows) row.update(now);
      reset.disabled = plain(now);
    },
    plain,
  };
}
