// What the models wrote at each validation, side by side, as it was written: text, whatever stands in it.

import { element } from "tercet/element.js";
import { counted } from "tercet/numbers.js";
import { askSample } from "tercet/source.js";

/** @typedef {import("tercet/source.js").Run} Run */

const REMEMBERED = 200;

/** @param {(run: number) => boolean} isHidden */
export function samples(isHidden) {
  const slider = element("input", { type: "range", min: 0, max: 0, value: 0, step: 1, "data-key": "sample", "aria-label": "Samples after step" });
  const label = element("output", { class: "note" });
  const columns = element("div", { class: "samples" });
  const bar = element("div", { class: "controls" }, element("label", {}, "after step ", slider), label);
  const box = element("section", { "aria-label": "Samples", hidden: true }, element("h2", {}, "Samples"), bar, columns);
  /** @type {Run[]} */
  let runs = [];
  /** @type {number[]} */
  let steps = [];
  let follows = true; // the newest, until the reader goes back
  let asked = 0;
  /** @type {Map<string, Promise<string>>} */
  const cache = new Map();
  let drawn = "";

  slider.addEventListener("input", () => {
    follows = Number(slider.value) === steps.length - 1;
    void draw();
  });

  /** @param {number} run @param {number} step */
  function text(run, step) {
    const key = `${run} ${runs[run]?.generation} ${step}`;
    const known = cache.get(key) ?? askSample(run, step);
    cache.set(key, known);
    known.catch(() => cache.delete(key));
    const oldest = cache.keys().next().value;
    if (cache.size > REMEMBERED && oldest !== undefined) cache.delete(oldest);
    return known;
  }

  async function draw() {
    const request = ++asked;
    const step = steps[Number(slider.value)];
    box.hidden = step === undefined;
    if (step === undefined) return;
    label.textContent = `${counted(step)}, ${Number(slider.value) + 1} of ${steps.length}`;
    slider.setAttribute("aria-valuetext", `step ${counted(step)}`);
    const shown = runs.flatMap((run, index) => {
      const own = run.samples.filter((one) => one <= step).at(-1);
      return isHidden(index) || own === undefined ? [] : [{ run, index, own }];
    });
    const now = JSON.stringify(shown.map(({ run, index, own }) => [index, own, run.generation]));
    if (now === drawn) return;
    const parts = await Promise.all(
      shown.map(async ({ run, index, own }) => {
        const written = await text(index, own).catch((/** @type {Error} */ error) => error.message);
        return element(
          "article",
          { class: "sample" },
          element(
            "h3",
            {},
            element("i", { class: `swatch run-${index % 8}`, "aria-hidden": "true" }),
            `${run.name} `,
            element("small", {}, `step ${counted(own)}`),
          ),
          element("pre", { tabindex: 0, "aria-label": `Written by ${run.name} after step ${own}` }, written),
        );
      }),
    );
    if (request !== asked) return;
    drawn = now;
    columns.replaceChildren(...parts);
  }

  return {
    element: box,
    /** @param {Run[]} now */
    update(now) {
      runs = now;
      const before = steps[Number(slider.value)];
      steps = [...new Set(runs.flatMap((run) => run.samples))].sort((a, b) => a - b);
      slider.max = String(Math.max(0, steps.length - 1));
      const kept = before === undefined ? -1 : steps.indexOf(before);
      slider.value = String(follows || kept < 0 ? steps.length - 1 : kept);
      slider.disabled = steps.length < 2;
      void draw();
    },
  };
}
