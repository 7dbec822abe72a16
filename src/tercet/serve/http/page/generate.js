// Streamed texts: the continuation of a prompt, and a conversation.

import { streamEvents } from "tercet/api.js";
import { element } from "tercet/element.js";
import { duration, definedFields, numberField, panel, textArea } from "tercet/panel.js";

/** @typedef {import("tercet/api.js").Body} Body */
/** @typedef {import("tercet/panel.js").Model} Model */
/** @typedef {import("tercet/panel.js").Page} Page */
/** @typedef {import("tercet/panel.js").Panel} Panel */

/** The settings of the sampler. @param {Page} page @param {string} length default of max_tokens */
function samplerFields(page, length) {
  const fields = {
    temperature: numberField(page, "temperature", "Temperature", "1", "0 always selects the most likely token"),
    top_p: numberField(page, "top_p", "Top-p", "1", "sample from the most likely tokens with this total probability"),
    max_tokens: numberField(page, "max_tokens", "Max tokens", length, "maximum number of generated tokens"),
    seed: numberField(page, "seed", "Seed", "random", "equal seeds result in equal texts"),
  };
  return {
    elements: Object.values(fields).map((one) => one.element),
    read: () => Object.fromEntries(Object.entries(fields).map(([name, one]) => [name, one.read()])),
    seed: fields.seed,
  };
}

/**
 * Request a stream, and show its text while it arrives.
 * @param {string} path @param {Body} body @param {AbortSignal} signal @param {(text: string) => void} onText
 * @returns {Promise<string[]>} facts about the response
 */
async function stream(path, body, signal, onText) {
  const start = performance.now();
  /** @type {number | null} */
  let first = null;
  let last = start;
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
  const reasons = { stop: "end of text", length: "reached max tokens", stopped: "stopped" };
  const facts = [reasons[/** @type {keyof typeof reasons} */ (finish)] ?? finish];
  if (first !== null) facts.unshift(`first token ${duration(first - start)}`);
  if (usage !== null) {
    const count = usage.completion_tokens;
    facts.splice(1, 0, `${count} token${count === 1 ? "" : "s"}`);
    if (first !== null && count > 1 && last > first) {
      facts.splice(1, 0, `${((1000 * (count - 1)) / (last - first)).toFixed(0)} tokens/s`);
    }
  }
  if (seed !== null) facts.push(`seed ${seed}`);
  return facts;
}

/** @param {Page} page @param {Model} model @returns {Panel} */
export function writePanel(page, model) {
  const path = "/v1/completions";
  const prompt = textArea(page, "prompt", "Once upon a time");
  const label = element("label", { for: "prompt" }, "Prompt");
  prompt.id = "prompt";
  const sampler = samplerFields(page, "200");
  const output = element("div", { "data-key": "output" });
  let fullText = "";
  const continueButton = element(
    "button",
    {
      type: "button",
      hidden: true,
      onclick: () => {
        prompt.value = fullText;
        page.texts.set("prompt", fullText);
        prompt.form?.requestSubmit();
      },
    },
    "Continue",
  );
  return panel(page, {
    path,
    verb: "Generate",
    inputs: [label, prompt],
    settings: sampler.elements,
    buttons: [continueButton],
    output,
    body: () =>
      definedFields({
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
      continueButton.hidden = true;
      const facts = await stream(path, body, signal, (text) => written.append(text)).catch((error) => {
        if (written.textContent === "") output.replaceChildren();
        throw error;
      });
      fullText = body.prompt + written.textContent;
      continueButton.hidden = false;
      return facts;
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
  const sampler = samplerFields(page, "all that fit");
  const conversation = element("ol", { class: "conversation" });
  const output = element("div", { role: "log", "aria-label": "Conversation", "data-key": "output" }, conversation);
  const restartButton = element("button", { type: "button", onclick: restart }, "Start over");

  function restart() {
    task.stop();
    messages = [];
    conversation.replaceChildren();
    text.focus();
  }

  /** @param {string} role @param {string} content */
  function bubble(role, content) {
    const words = element("span", { class: "text" }, content);
    const who = element("span", { class: "who" }, role === "user" ? "You" : model.id);
    conversation.append(element("li", { class: role }, who, words));
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
    buttons: [restartButton],
    output,
    body() {
      const head = system.value.trim() === "" ? [] : [{ role: "system", content: system.value }];
      const next = { role: "user", content: text.value };
      const options = { stream: true, stream_options: { include_usage: true } };
      return definedFields({ model: model.id, messages: [...head, ...messages, next], ...sampler.read(), ...options });
    },
    async answer(body, signal) {
      const message = body.messages.at(-1);
      bubble("user", message.content);
      const reply = bubble("assistant", "");
      text.value = "";
      page.texts.set("message", "");
      try {
        const facts = await stream(path, body, signal, (piece) => reply.append(piece));
        messages.push(message, { role: "assistant", content: reply.textContent ?? "" });
        return facts;
      } catch (error) {
        // Restore the conversation and the message, so that the message can be sent again.
        conversation.lastElementChild?.remove();
        conversation.lastElementChild?.remove();
        text.value = message.content;
        page.texts.set("message", message.content);
        throw error;
      }
    },
  });
  return task;
}
