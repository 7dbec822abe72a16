// The playground: choose a model, then a task. The address contains both, and nothing else.

import { ask, RequestError, setKey } from "tercet/api.js";
import { element } from "tercet/element.js";
import { chatPanel, writePanel } from "tercet/generate.js";
import { lookPanel } from "tercet/look.js";
import { counted } from "tercet/numbers.js";
import { keyBox } from "tercet/panel.js";
import { classifyPanel, comparePanel, fillPanel, rerankPanel, searchPanel } from "tercet/read.js";
import { openByArrows } from "tercet/tablist.js";
import { translatePanel } from "tercet/translate.js";

/** @typedef {import("tercet/panel.js").Model} Model */
/** @typedef {import("tercet/panel.js").Page} Page */
/** @typedef {import("tercet/panel.js").Panel} Panel */

/** Tasks by the route that a model must support. */
const TASKS = [
  { name: "Chat", key: "chat", route: "/v1/chat/completions", open: chatPanel },
  { name: "Generate", key: "write", route: "/v1/completions", open: writePanel },
  { name: "Translate", key: "translate", route: "/translate", open: translatePanel },
  { name: "Fill", key: "fill", route: "/fill-mask", open: fillPanel },
  { name: "Classify", key: "classify", route: "/classify", open: classifyPanel },
  { name: "Search", key: "search", route: "/v1/search", open: searchPanel },
  { name: "Rerank", key: "rerank", route: "/v1/rerank", open: rerankPanel },
  { name: "Compare", key: "compare", route: "/v1/embeddings", open: comparePanel },
  { name: "Look inside", key: "look", route: null, open: lookPanel },
];

/** @param {number} count */
function shortCount(count) {
  if (count < 1000) return String(count);
  // The next unit is used if the number would be rounded to 1,000.
  const [size, unit] = count < 999.5e3 ? [1e3, "k"] : count < 999.5e6 ? [1e6, "M"] : [1e9, "B"];
  return `${(count / size).toFixed(count < 9.95 * size ? 1 : 0)} ${unit}`;
}

function start() {
  /** @type {Model[]} */
  let models = [];
  /** @type {Map<string, Panel>} Panels keep their conversations and results. */
  const panels = new Map();
  const key = keyBox(setKey, load);
  /** @type {Page} */
  const page = { texts: new Map(), askForKey: key.show };
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const rail = element("fieldset", { class: "models" });
  const tabs = element("div", { class: "tabs", role: "tablist", "aria-label": "Tasks" });
  const work = element("div", { id: "work", role: "tabpanel", tabindex: -1 });
  const main = element("main", {}, key.element, problem, element("nav", { "aria-label": "Tasks" }, tabs), work);
  const skip = element("a", { class: "skip", href: "#work", onclick: skipTo }, "Skip to the form");
  const top = element(
    "header",
    { class: "top" },
    element("h1", {}, "Tercet ", element("span", {}, "playground")),
    element("a", { href: "docs" }, "API documentation"),
  );
  const aside = element("aside", { "aria-label": "Models" }, rail);
  document.body.append(skip, top, element("div", { class: "columns" }, aside, main));

  /** @param {Event} event */
  function skipTo(event) {
    event.preventDefault(); // the address contains the model
    work.focus();
  }

  async function load() {
    problem.hidden = true;
    try {
      models = (await ask("/v1/models")).data;
    } catch (error) {
      if (error instanceof RequestError && error.status === 401) return key.show(error.message);
      problem.textContent = /** @type {Error} */ (error).message;
      problem.hidden = false;
      return;
    }
    const [name, task] = readAddress();
    const model = models.find(({ id }) => id === name) ?? models[0];
    if (model === undefined) return;
    drawRail(model);
    choose(model, task);
  }

  /** @param {Model} selected */
  function drawRail(selected) {
    const cards = models.map((model) => {
      const radio = element("input", { type: "radio", name: "model", value: model.id, onchange: () => choose(model) });
      radio.checked = model === selected;
      const facts = `${shortCount(model.parameters)} parameters · context ${counted(model.context)}`;
      const texts = [model.kind, facts].map((text) => element("small", {}, text));
      return element("label", {}, radio, element("strong", {}, model.id), ...texts);
    });
    rail.replaceChildren(element("legend", {}, models.length > 1 ? "Models" : "Model"), ...cards);
  }

  /** @param {Model} model @param {string} [taskKey] by default the model's first task */
  function choose(model, taskKey) {
    const available = TASKS.filter(({ route }) => route === null || model.routes.includes(route));
    const task = available.find((one) => one.key === taskKey) ?? available[0];
    if (task === undefined) return;
    const buttons = available.map((one) => {
      const isOpen = one === task;
      const attributes = { type: "button", role: "tab", "aria-selected": String(isOpen), "aria-controls": "work" };
      const onclick = () => choose(model, one.key);
      const tabindex = isOpen ? 0 : -1;
      return element("button", { ...attributes, id: `task-${one.key}`, tabindex, onclick }, one.name);
    });
    const hadFocus = tabs.contains(document.activeElement);
    tabs.replaceChildren(...buttons);
    if (hadFocus) buttons[available.indexOf(task)]?.focus();
    const place = `${model.id}/${task.key}`;
    const open = panels.get(place);
    // The command of "Look inside" depends on the texts of other tasks.
    const panel = open === undefined || task.route === null ? task.open(page, model) : open;
    panels.set(place, panel);
    work.setAttribute("aria-labelledby", `task-${task.key}`);
    work.replaceChildren(panel.element);
    history.replaceState(null, "", `#${encodeURIComponent(model.id)}/${task.key}`);
    document.title = `${model.id}: ${task.name.toLowerCase()} · Tercet`;
  }

  openByArrows(tabs);
  void load();
}

/** @returns {[string, string | undefined]} */
function readAddress() {
  const [name, task] = location.hash.slice(1).split("/");
  try {
    return [decodeURIComponent(name ?? ""), task];
  } catch {
    return ["", undefined]; // the address was not written by this page
  }
}

start();
