// Samples of the runs at each validation, side by side, inserted as plain text.

import { element } from "tercet/element.js";
import { counted } from "tercet/numbers.js";
import { askSample } from "tercet/source.js";

/** @typedef {import("tercet/source.js").Run} Run */

const MAX_CACHED = 200; // samples

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
  let follows = true; // show the newest samples until the user moves the slider back
  let lastRequest = 0;
  /** @type {Map<string, Promise<string>>} */
  const cache = new Map();
  let drawnKey = "";

  slider.addEventListener("input", () => {
    follows = Number(slider.value) === steps.length - 1;
    void draw();
  });

  /** @param {number} run @param {number} step */
  function text(run, step) {
    const key = `${run} ${runs[run]?.generation} ${step}`;
    const sample = cache.get(key) ?? askSample(run, step);
    cache.set(key, sample);
    sample.catch(() => cache.delete(key));
    const oldest = cache.keys().next().value;
    if (cache.size > MAX_CACHED && oldest !== undefined) cache.delete(oldest);
    return sample;
  }

  async function draw() {
    const request = ++lastRequest;
    const step = steps[Number(slider.value)];
    box.hidden = step === undefined;
    if (step === undefined) return;
    label.textContent = `${counted(step)}, ${Number(slider.value) + 1} of ${steps.length}`;
    slider.setAttribute("aria-valuetext", `step ${counted(step)}`);
    const visible = runs.flatMap((run, index) => {
      const sampleStep = run.samples.filter((saved) => saved <= step).at(-1);
      return isHidden(index) || sampleStep === undefined ? [] : [{ run, index, sampleStep }];
    });
    const key = JSON.stringify(visible.map(({ run, index, sampleStep }) => [index, sampleStep, run.generation]));
    if (key === drawnKey) return;
    const parts = await Promise.all(
      visible.map(async ({ run, index, sampleStep }) => {
        const content = await text(index, sampleStep).catch((/** @type {Error} */ error) => error.message);
        return element(
          "article",
          { class: "sample" },
          element(
            "h3",
            {},
            element("i", { class: `swatch run-${index % 8}`, "aria-hidden": "true" }),
            `${run.name} `,
            element("small", {}, `step ${counted(sampleStep)}`),
          ),
          element("pre", { tabindex: 0, "aria-label": `Sample of ${run.name} after step ${sampleStep}` }, content),
        );
      }),
    );
    if (request !== lastRequest) return;
    drawnKey = key;
    columns.replaceChildren(...parts);
  }

  return {
    element: box,
    /** @param {Run[]} newRuns */
    update(newRuns) {
      runs = newRuns;
      const previousStep = steps[Number(slider.value)];
      steps = [...new Set(runs.flatMap((run) => run.samples))].sort((a, b) => a - b);
      slider.max = String(Math.max(0, steps.length - 1));
      const index = previousStep === undefined ? -1 : steps.indexOf(previousStep);
      slider.value = String(follows || index < 0 ? steps.length - 1 : index);
      slider.disabled = steps.length < 2;
      void draw();
    },
  };
}
