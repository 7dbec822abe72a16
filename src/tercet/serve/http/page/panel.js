// The parts of every task: a form, buttons to send and to stop, the response, an error line, timings, and the request
// as code.

import { address, RequestError } from "tercet/api.js";
import { element } from "tercet/element.js";
import { asCurl, asPython } from "tercet/snippets.js";

/** @typedef {import("tercet/api.js").Body} Body */
/** @typedef {{id: string, kind: string, context: number, parameters: number, routes: string[],
 *             folder: string | null, source_language: string | null, target_language: string | null}} Model */
/** State shared by all tasks. texts: inputs by task; askForKey: called if the server requires a key.
 * @typedef {{texts: Map<string, string>, askForKey: (message: string) => void}} Page */
/** A task. body: the request of the form; answer: sends it, shows the response in `output`, and returns the facts to
 * show below it.
 * @typedef {{path: string, verb: string, inputs: Node[], settings?: Node[], buttons?: Node[], output: HTMLElement,
 *             body: () => Body, answer: (body: Body, signal: AbortSignal) => Promise<string[]>}} Task */

/** @typedef {{element: HTMLElement, stop: () => void}} Panel */

let ids = 0;

/** A label and its control. @param {string} name @param {HTMLElement} control @param {string} [hint] */
export function field(name, control, hint) {
  control.id ||= `field-${++ids}`;
  const label = element("label", { for: control.id }, name);
  if (hint) control.setAttribute("title", hint);
  return element("div", { class: "field" }, label, control);
}

/**
 * A text area whose content is kept when another task is selected.
 * @param {Page} page @param {string} key @param {string} start @param {Record<string, unknown>} [attributes]
 */
export function textArea(page, key, start, attributes = {}) {
  const area = element("textarea", { rows: 4, spellcheck: "false", "data-key": key, ...attributes });
  area.value = page.texts.get(key) ?? start;
  area.addEventListener("input", () => page.texts.set(key, area.value));
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    area.form?.requestSubmit();
  });
  return area;
}

/**
 * An optional number. @param {Page} page @param {string} key @param {string} name
 * @param {string} placeholder default @param {string} hint
 */
export function numberField(page, key, name, placeholder, hint) {
  const input = element("input", { type: "number", step: "any", inputmode: "decimal", placeholder, "data-key": key });
  input.value = page.texts.get(key) ?? "";
  input.addEventListener("input", () => page.texts.set(key, input.value));
  return {
    element: field(name, input, hint),
    /** @param {number} number */
    set(number) {
      input.value = String(number);
      page.texts.set(key, input.value);
    },
    read() {
      if (input.validity.badInput) throw new Error(`${name} is not a number`);
      return input.value === "" ? undefined : Number(input.value);
    },
  };
}

/** Remove undefined fields. @param {Body} body @returns {Body} */
export const definedFields = (body) =>
  Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined));

/** @param {number} milliseconds */
export const duration = (milliseconds) =>
  milliseconds < 1000
    ? `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`
    : `${(milliseconds / 1000).toFixed(2)} s`;

/** A button that copies a text to the clipboard. @param {() => string} text @param {string} name */
export function copyButton(text, name) {
  const button = element("button", { type: "button", "aria-label": `Copy ${name}` }, "Copy");
  button.addEventListener("click", async () => {
    const isCopied = await navigator.clipboard?.writeText(text()).then(
      () => true,
      () => false,
    );
    button.textContent = isCopied ? "Copied" : "Cannot copy; select the text";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return button;
}

/** The request as curl and Python code. @returns {{element: HTMLElement, show: (path: string, body: Body) => void}} */
function requestBox() {
  /** @type {import("tercet/snippets.js").SentRequest} */
  let sent = { path: "/", body: {} };
  let write = asCurl;
  const code = element("code");
  const languages = { curl: asCurl, Python: asPython };
  const choices = Object.entries(languages).map(([name, writer]) =>
    element(
      "button",
      { type: "button", "aria-pressed": String(writer === write), onclick: () => choose(writer) },
      name,
    ),
  );
  /** @param {typeof asCurl} writer */
  function choose(writer) {
    write = writer;
    Object.values(languages).forEach((other, i) => choices[i]?.setAttribute("aria-pressed", String(other === write)));
    code.textContent = write(sent);
  }
  const bar = element(
    "div",
    { class: "bar" },
    ...choices,
    copyButton(() => code.textContent ?? "", "this request"),
  );
  const shown = element("pre", { tabindex: 0, role: "region", "aria-label": "Request as code" }, code);
  const summary = element("summary", {}, "This request as curl and Python");
  return {
    element: element("details", { class: "request" }, summary, bar, shown),
    show(path, body) {
      sent = { path, body };
      choose(write);
    },
  };
}

/** @param {Page} page @param {Task} task @returns {Panel} */
export function panel(page, task) {
  /** @type {AbortController | null} */
  let running = null;
  let isSent = false; // the sent request is shown until the next one
  const go = element("button", { class: "primary", "data-key": "go", title: "Ctrl+Enter" }, task.verb);
  const halt = element("button", { type: "button", "data-key": "stop", hidden: true, onclick: stop }, "Stop");
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const figures = element("ul", { class: "figures", "aria-label": "Facts about the response", hidden: true });
  const request = requestBox();
  const settings = task.settings ? element("div", { class: "settings" }, ...task.settings) : null;
  const buttons = element("div", { class: "buttons" }, go, halt, ...(task.buttons ?? []));
  const form = element(
    "form",
    { class: "card", novalidate: true, onsubmit: submit },
    ...task.inputs,
    settings,
    buttons,
  );
  form.addEventListener("input", describe);

  function stop() {
    running?.abort();
  }

  function describe() {
    if (isSent) return;
    try {
      request.show(task.path, task.body());
    } catch {
      // an invalid form is reported when it is sent
    }
  }

  /** @param {Error | null} error */
  function showProblem(error) {
    problem.hidden = error === null;
    problem.textContent = error?.message ?? "";
  }

  /** @param {Event} event */
  async function submit(event) {
    event.preventDefault();
    if (running !== null) return;
    const controller = new AbortController();
    running = controller;
    showProblem(null);
    figures.hidden = true;
    try {
      const body = task.body();
      request.show(task.path, body);
      isSent = true;
      setBusy(true);
      const facts = await task.answer(body, controller.signal);
      figures.replaceChildren(...facts.map((text) => element("li", {}, text)));
      figures.hidden = facts.length === 0;
    } catch (error) {
      if (!controller.signal.aborted) {
        showProblem(/** @type {Error} */ (error));
        if (error instanceof RequestError && error.status === 401) page.askForKey(error.message);
      }
    } finally {
      running = null;
      setBusy(false);
    }
  }

  /** @param {boolean} busy */
  function setBusy(busy) {
    const hadFocus = document.activeElement === go || document.activeElement === halt;
    task.output.setAttribute("aria-busy", String(busy));
    go.hidden = busy;
    halt.hidden = !busy;
    if (hadFocus) (busy ? halt : go).focus();
  }

  task.output.classList.add("card", "output");
  task.output.setAttribute("aria-live", "polite");
  describe();
  return { element: element("div", { class: "task" }, form, problem, task.output, figures, request.element), stop };
}

/** The form for the API key, shown if the server requires one.
 * @param {(key: string) => void} use @param {() => void} onKey */
export function keyBox(use, onKey) {
  const input = element("input", { type: "password", autocomplete: "off", "data-key": "key", spellcheck: "false" });
  const why = element("p", { role: "status" });
  const note = element("small", {}, "The key is only stored in the memory of this page.");
  const row = element(
    "div",
    { class: "ask" },
    field("API key", input),
    element("button", { class: "primary" }, "Use key"),
  );
  const form = element("form", { class: "card key", hidden: true, onsubmit: submit }, why, row, note);

  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    use(input.value);
    input.value = "";
    form.hidden = true;
    onKey();
  }

  return {
    element: form,
    /** @param {string} message */
    show(message) {
      why.textContent = `${address()}: ${message.split(";")[0]}.`;
      form.hidden = false;
      input.focus();
    },
  };
}
