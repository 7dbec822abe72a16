// Translation of a text, or of a text file in batches. Lines and empty lines are kept.

import { ask, RequestError } from "tercet/api.js";
import { element } from "tercet/element.js";
import { counted } from "tercet/numbers.js";
import { definedFields, duration, numberField, panel, textArea } from "tercet/panel.js";
import { score, timed } from "tercet/read.js";
import { joinLines, nextBatch, readLines } from "tercet/text_file.js";

/** @typedef {import("tercet/api.js").Body} Body */
/** @typedef {import("tercet/panel.js").Model} Model */
/** @typedef {import("tercet/panel.js").Page} Page */
/** @typedef {import("tercet/panel.js").Panel} Panel */
/** @typedef {import("tercet/text_file.js").TextFile} TextFile */

const BUSY = [429, 503]; // the queue is full, or the server is busy
const RETRY_MS = 1000;
const PREVIEW_LINES = 8;

/** The English name of a language code, or the name in the model's data settings. @param {string | null} language */
function languageName(language) {
  if (language === null) return null;
  try {
    return new Intl.DisplayNames(["en"], { type: "language", fallback: "none" }).of(language) ?? language;
  } catch {
    return language; // not a code
  }
}

/** The attributes of a text in a language. @param {string | null} language */
function inLanguage(language) {
  const isCode = language !== null && languageName(language) !== language;
  return { dir: "auto", lang: isCode ? language : null };
}

/** Wait, unless the request is stopped. @param {number} ms @param {AbortSignal} signal */
const pause = (ms, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });

/** @param {Page} page @param {Model} model @returns {Panel} */
export function translatePanel(page, model) {
  const [from, into] = [languageName(model.source_language), languageName(model.target_language)];
  const isEnglish = from === null || from === "English"; // the language of the example
  const attributes = { id: "source", placeholder: "One sentence per line", ...inLanguage(model.source_language) };
  const text = textArea(page, "source", isEnglish ? "A dog runs." : "", attributes);
  const beam = numberField(page, "beam", "Beam", "5", "number of hypotheses; 1 is greedy search");
  const count = numberField(page, "n_best", "Translations", "1", "number of translations, at most the beam size");
  const output = element("div", { "data-key": "output" });
  const chooser = fileChooser(() => text.dispatchEvent(new Event("input", { bubbles: true })));
  const label = element("label", { for: "source" }, from === null ? "Text" : `Text in ${from}`);
  const area = element("div", { class: "drop" }, label, text, chooser.element);
  chooser.acceptDrops(area, (hasFile) => (text.hidden = count.element.hidden = hasFile));
  return panel(page, {
    path: "/translate",
    verb: into === null ? "Translate" : `Translate into ${into}`,
    inputs: [area],
    settings: [beam.element, count.element],
    output,
    body() {
      const file = chooser.file();
      const settings = { beam: beam.read(), n_best: file === null ? count.read() : undefined };
      const source = file === null ? text.value : nextBatch(file, 0).map((index) => file.lines[index]?.trim());
      return definedFields({ model: model.id, text: source, ...settings });
    },
    answer(body, signal) {
      const file = chooser.file();
      if (file !== null) return translateFile(file, body, signal, output, model);
      return timed("/translate", body, signal, ({ answers }) => showText(answers[0].translations, output, model));
    },
  });
}

/** @param {any[]} translations @param {HTMLElement} output @param {Model} model */
function showText([best, ...others], output, model) {
  const attributes = inLanguage(model.target_language);
  output.replaceChildren(
    element("h2", {}, languageName(model.target_language) ?? "Translation"),
    element("p", { class: "text", "data-key": "translation", ...attributes }, best.text),
    element("p", { class: "note" }, score(best), ` · ${best.tokens} tokens`),
  );
  const items = others.map((one) => element("li", { ...attributes, class: "text" }, one.text, score(one)));
  if (items.length > 0) output.append(element("ol", { class: "others", start: 2 }, ...items));
}

/**
 * The button that chooses a text file, and the chosen file with a button that removes it.
 * @param {() => void} onChange
 */
function fileChooser(onChange) {
  /** @type {TextFile | null} */
  let file = null;
  let showArea = (/** @type {boolean} */ _hasFile) => {};
  const types = { type: "file", accept: "text/*,.txt,.md", "aria-label": "Text file" };
  const input = element("input", { ...types, class: "unseen", "data-key": "file", tabindex: -1 });
  input.addEventListener("change", () => void choose(input.files?.[0]));
  const opens = { type: "button", "data-key": "choose", onclick: () => input.click() };
  const button = element("button", opens, "Choose a text file");
  const hint = element("small", {}, "or drop one here");
  const name = element("strong", { "data-key": "file_name" });
  const size = element("small");
  const remove = element("button", { type: "button", "data-key": "remove", onclick: () => use(null) }, "Remove");
  const chosen = element("p", { class: "file", hidden: true }, name, size, remove);
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const offer = element("p", { class: "file" }, button, hint);

  /** @param {TextFile | null} chosenFile */
  function use(chosenFile) {
    file = chosenFile;
    input.value = ""; // the same file can be chosen again
    problem.hidden = true;
    name.textContent = file?.name ?? "";
    size.textContent = file === null ? "" : `${counted(file.count)} lines, ${counted(file.pending.length)} with text`;
    chosen.hidden = file === null;
    offer.hidden = file !== null;
    showArea(file !== null);
    onChange();
    (file === null ? button : remove).focus();
  }

  /** @param {File | undefined} candidate */
  async function choose(candidate) {
    if (candidate === undefined) return;
    try {
      use(await readLines(candidate));
    } catch (error) {
      use(null);
      problem.textContent = /** @type {Error} */ (error).message;
      problem.hidden = false;
    }
  }

  return {
    element: element("div", {}, offer, chosen, input, problem),
    file: () => file,
    /** @param {HTMLElement} area @param {(hasFile: boolean) => void} show */
    acceptDrops(area, show) {
      showArea = show;
      area.addEventListener("dragover", (event) => {
        if (!event.dataTransfer?.types.includes("Files")) return; // a dragged text goes to the text area
        event.preventDefault();
        area.classList.add("over");
      });
      area.addEventListener("dragleave", () => area.classList.remove("over"));
      area.addEventListener("drop", (event) => {
        area.classList.remove("over");
        if (!event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        void choose(event.dataTransfer.files[0]);
      });
    },
  };
}

/**
 * Translate the lines of a file in batches, and show the progress and then a link to the translation. If it is stopped,
 * the next call with the same settings continues.
 * @param {TextFile} file @param {Body} body @param {AbortSignal} signal @param {HTMLElement} output
 * @param {Model} model
 * @returns {Promise<string[]>} facts
 */
async function translateFile(file, body, signal, output, model) {
  const total = file.pending.length;
  const settings = String(body.beam ?? "");
  if (file.settings !== settings || file.translations.size === total) file.restart(settings);
  const bar = element("progress", { max: Math.max(1, total), value: 0, "aria-label": "Translated lines" });
  const status = element("p", { class: "note", "data-key": "progress", "aria-live": "off" });
  const into = languageName(model.target_language);
  const heading = into === null ? `Translation of ${file.name}` : `${file.name} in ${into}`;
  output.replaceChildren(element("h2", {}, heading), bar, status);
  const start = performance.now();
  const before = file.translations.size;
  let isBusy = false;

  /** @param {string} [note] */
  function report(note = "") {
    const done = file.translations.size;
    bar.value = total === 0 ? 1 : done;
    const rate = (done - before) / ((performance.now() - start) / 1000);
    const rest = done > before && done < total ? `, about ${duration((1000 * (total - done)) / rate)} left` : "";
    status.textContent = `${counted(done)} of ${counted(total)} lines${note || rest}`;
  }

  try {
    for (let batch = nextBatch(file); batch.length > 0; batch = nextBatch(file)) {
      report(isBusy ? "; the server is busy, trying again" : "");
      const lines = batch.map((index) => file.lines[index]?.trim());
      try {
        const { answers } = await ask("/translate", { ...body, text: lines }, signal);
        batch.forEach((index, i) => file.keep(index, answers[i].translations[0].text, answers[i].truncated));
        isBusy = false;
      } catch (error) {
        if (!(error instanceof RequestError && BUSY.includes(error.status))) throw error;
        isBusy = true;
        await pause(RETRY_MS, signal);
      }
    }
  } catch (error) {
    report("; the button above continues");
    throw error;
  }
  report();
  showFile(file, output, model);
  const facts = [`${counted(total - before)} lines in ${duration(performance.now() - start)}`];
  if (file.truncated > 0) facts.push(`${counted(file.truncated)} lines exceeded the maximum length and were truncated`);
  return facts;
}

/** @param {TextFile} file @param {HTMLElement} output @param {Model} model */
function showFile(file, output, model) {
  const lines = joinLines(file);
  const href = URL.createObjectURL(new Blob([lines], { type: "text/plain;charset=utf-8" }));
  const name = file.resultName(model.source_language, model.target_language);
  const link = element("a", { class: "download", href, download: name, "data-key": "download" }, `Download ${name}`);
  const preview = lines.split(/\r\n|\n|\r/).slice(0, PREVIEW_LINES);
  if (preview.length < file.lines.length) preview.push("…");
  const attributes = { class: "text", "data-key": "translation", ...inLanguage(model.target_language) };
  output.append(link, element("p", attributes, preview.join("\n")));
}
