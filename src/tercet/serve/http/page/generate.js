// Texts that are written as one watches: a prompt that is continued, and a conversation.

import { streamEvents } from "tercet/api.js";
import { element } from "tercet/element.js";
import { duration, given, numberField, panel, textArea } from "tercet/panel.js";

/** @typedef {import("tercet/api.js").Body} Body */
/** @typedef {import("tercet/panel.js").Model} Model */
/** @typedef {import("tercet/panel.js").Page} Page */
/** @typedef {import("tercet/panel.js").Panel} Panel */

/** The settings of the sampler. @param {Page} page @param {string} length what holds without max_tokens */
function samplerFields(page, length) {
  const fields = {
    temperature: numberField(page, "temperature", "Temperature", "1", "0 always takes the likeliest token"),
    top_p: numberField(page, "top_p", "Top-p", "1", "of the likeliest tokens, as many as have this share together"),
    max_tokens: numberField(page, "max_tokens", "Max tokens", length, "the most that is written"),
    seed: numberField(page, "seed", "Seed", "fresh", "the same seed brings the same text again"),
  };
  return {
    elements: Object.values(fields).map((one) => one.element),
    read: () => Object.fromEntries(Object.entries(fields).map(([name, one]) => [name, one.read()])),
    seed: fields.seed,
  };
}

/**
 * Ask for a stream, and show each piece of text as it comes.
 * @param {string} path @param {Body} body @param {AbortSignal} signal @param {(text: string) => void} onText
 * @returns {Promise<string[]>} what there is to say of it
 */
async function stream(path, body, signal, onText) {
  const began = performance.now();
  /** @type {number | null} */
  let first = null;
  let last = began;
  let seed = null;
  let usage = null;
  let finish = "";
  try {
    for await (const event of streamEvents(path, body, signal)) {
      const choice = event.choices[0];
      usage = event.usage ?? usage;
      if (choice === undefined) continue;
      const text = choice.text ?? choice.delta?.content ?? "";
      seed = choice.seed ?? seed;
      finish = choice.finish_reason ?? finish;
      if (text === "") continue;
      last = performance.now();
      first ??= last;
      onText(text);
    }
  } catch (error) {
    if (!signal.aborted) throw error;
    finish = "stopped";
  }
  const why = { stop: "the text ended", length: "as long as was asked for", stopped: "stopped" };
  const figures = [why[/** @type {keyof typeof why} */ (finish)] ?? finish];
  if (first !== null) figures.unshift(`first token ${duration(first - began)}`);
  if (usage !== null) {
    const count = usage.completion_tokens;
    figures.splice(1, 0, `${count} token${count === 1 ? "" : "s"}`);
    if (first !== null && count > 1 && last > first) {
      figures.splice(1, 0, `${((1000 * (count - 1)) / (last - first)).toFixed(0)} tokens/s`);
    }
  }
  if (seed !== null) figures.push(`seed ${seed}`);
  return figures;
}

/** @param {Page} page @param {Model} model @returns {Panel} */
export function writePanel(page, model) {
  const path = "/v1/completions";
  const prompt = textArea(page, "prompt", "Once upon a time");
  const label = element("label", { for: "prompt" }, "Prompt");
  prompt.id = "prompt";
  const sampler = samplerFields(page, "200");
  const output = element("div", { "data-key": "output" });
  let whole = "";
  const goOn = element(
    "button",
    {
      type: "button",
      hidden: true,
      onclick: () => {
        prompt.value = whole;
        page.texts.set("prompt", whole);
        prompt.form?.requestSubmit();
      },
    },
    "Write on",
  );
  return panel(page, {
    path,
    verb: "Write",
    inputs: [label, prompt],
    settings: sampler.elements,
    buttons: [goOn],
    output,
    body: () =>
      given({
        model: model.id,
        prompt: prompt.value,
        ...sampler.read(),
        stream: true,
        stream_options: { include_usage: true },
      }),
    async answer(body, signal) {
      const written = element("span", { class: "written", "data-key": "written" });
      output.replaceChildren(
        element("p", { class: "text" }, element("span", { class: "prompt" }, body.prompt), written),
      );
      goOn.hidden = true;
      const figures = await stream(path, body, signal, (text) => written.append(text)).catch((error) => {
        if (written.textContent === "") output.replaceChildren();
        throw error;
      });
      whole = body.prompt + written.textContent;
      goOn.hidden = false;
      return figures;
    },
  });
}

/** @param {Page} page @param {Model} model @returns {Panel} */
export function chatPanel(page, model) {
  const path = "/v1/chat/completions";
  /** @type {{role: string, content: string}[]} */
  let messages = [];
  const text = textArea(page, "message", "Hello", { rows: 2, id: "message" });
  const system = element("input", { type: "text", id: "system", "data-key": "system", placeholder: "none" });
  system.value = page.texts.get("system") ?? "";
  system.addEventListener("input", () => page.texts.set("system", system.value));
  const sampler = samplerFields(page, "as fit");
  const said = element("ol", { class: "conversation" });
  const output = element("div", { role: "log", "aria-label": "Conversation", "data-key": "output" }, said);
  const again = element("button", { type: "button", onclick: restart }, "Start over");

  function restart() {
    task.stop();
    messages = [];
    said.replaceChildren();
    text.focus();
  }

  /** @param {string} role @param {string} content */
  function bubble(role, content) {
    const words = element("span", { class: "text" }, content);
    const who = element("span", { class: "who" }, role === "user" ? "You" : model.id);
    said.append(element("li", { class: role }, who, words));
    return words;
  }

  const task = panel(page, {
    path,
    verb: "Send",
    inputs: [element("label", { for: "message" }, "Message"), text],
    settings: [
      element("div", { class: "field wide" }, element("label", { for: "system" }, "System message"), system),
      ...sampler.elements,
    ],
    buttons: [again],
    output,
    body() {
      const head = system.value.trim() === "" ? [] : [{ role: "system", content: system.value }];
      const next = { role: "user", content: text.value };
      const options = { stream: true, stream_options: { include_usage: true } };
      return given({ model: model.id, messages: [...head, ...messages, next], ...sampler.read(), ...options });
    },
    async answer(body, signal) {
      const asked = body.messages.at(-1);
      bubble("user", asked.content);
      const reply = bubble("assistant", "");
      text.value = "";
      page.texts.set("message", "");
      try {
        const figures = await stream(path, body, signal, (piece) => reply.append(piece));
        messages.push(asked, { role: "assistant", content: reply.textContent ?? "" });
        return figures;
      } catch (error) {
        // The conversation is as it was, and the message is there to be sent again.
        said.lastElementChild?.remove();
        said.lastElementChild?.remove();
        text.value = asked.content;
        page.texts.set("message", asked.content);
        throw error;
      }
    },
  });
  return task;
}
