// A request as a program would send it: with curl, and with OpenAI's client for Python.

import { address, hasKey } from "tercet/api.js";

/** @typedef {import("tercet/api.js").Body} Body */
/** @typedef {{path: string, body: Body}} Sent */

/** What OpenAI's client has a method for; `print` is the lines that show the answer. */
const METHODS = {
  "/v1/completions": {
    name: "completions.create",
    streamed: ["    for choice in event.choices:", '        print(choice.text, end="", flush=True)'],
    print: "print(answer.choices[0].text)",
  },
  "/v1/chat/completions": {
    name: "chat.completions.create",
    streamed: ["    for choice in event.choices:", '        print(choice.delta.content or "", end="", flush=True)'],
    print: "print(answer.choices[0].message.content)",
  },
  "/v1/embeddings": { name: "embeddings.create", streamed: [], print: "print(len(answer.data[0].embedding))" },
};

/** JSON with a space behind each comma and colon. @param {unknown} value @returns {string} */
function spaced(value) {
  if (Array.isArray(value)) return `[${value.map(spaced).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const fields = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${spaced(item)}`);
  return `{${fields.join(", ")}}`;
}

/** @param {unknown} value @returns {string} */
function asPythonValue(value) {
  if (Array.isArray(value)) return `[${value.map(asPythonValue).join(", ")}]`;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const fields = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${asPythonValue(item)}`);
  return `{${fields.join(", ")}}`;
}

/** A word for a shell, whatever is in it. @param {string} text */
export const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** @param {Sent} sent */
export function asCurl({ path, body }) {
  const fields = Object.entries(body).map(([name, value]) => `  ${JSON.stringify(name)}: ${spaced(value)}`);
  return [
    `curl ${body.stream ? "-N " : ""}${quote(address() + path)} \\`,
    "  -H 'Content-Type: application/json' \\",
    ...(hasKey() ? ['  -H "Authorization: Bearer $TERCET_API_KEY" \\'] : []),
    `  -d '${`{\n${fields.join(",\n")}\n}`.replaceAll("'", "'\\''")}'`,
  ].join("\n");
}

/** @param {Sent} sent */
export function asPython({ path, body }) {
  const method = METHODS[/** @type {keyof typeof METHODS} */ (path)];
  const key = hasKey() ? 'os.environ["TERCET_API_KEY"]' : '"none is asked for"';
  const base = JSON.stringify(address() + (method ? "/v1" : ""));
  const head = [
    ...(hasKey() ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${base}, api_key=${key})`,
  ];
  if (method === undefined) {
    const fields = Object.entries(body).map(([name, value]) => `    ${JSON.stringify(name)}: ${asPythonValue(value)},`);
    const call = `answer = client.post(${JSON.stringify(path)}, cast_to=object, body=body)`;
    return [...head, "body = {", ...fields, "}", call, "print(answer)"].join("\n");
  }
  const fields = Object.entries(body).map(([name, value]) => `    ${name}=${asPythonValue(value)},`);
  const called = [`${body.stream ? "stream" : "answer"} = client.${method.name}(`, ...fields, ")"];
  const shown = body.stream ? ["for event in stream:", ...method.streamed] : [method.print];
  return [...head, ...called, ...shown].join("\n");
}
