// Code that sends a request: with curl, and with OpenAI's Python client.

import { address, hasKey } from "tercet/api.js";

/** @typedef {import("tercet/api.js").Body} Body */
/** @typedef {{path: string, body: Body}} SentRequest */

/** Methods of OpenAI's client, with the lines that print the response. */
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

/** JSON with a space after each comma and colon. @param {unknown} value @returns {string} */
function formatJson(value) {
  if (Array.isArray(value)) return `[${value.map(formatJson).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const fields = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${formatJson(item)}`);
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

/** Quote a word for a shell. @param {string} text */
export const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** @param {SentRequest} sent */
export function asCurl({ path, body }) {
  const fields = Object.entries(body).map(([name, value]) => `  ${JSON.stringify(name)}: ${formatJson(value)}`);
  return [
    `curl ${body.stream ? "-N " : ""}${quote(address() + path)} \\`,
    "  -H 'Content-Type: application/json' \\",
    ...(hasKey() ? ['  -H "Authorization: Bearer $TERCET_API_KEY" \\'] : []),
    `  -d '${`{\n${fields.join(",\n")}\n}`.replaceAll("'", "'\\''")}'`,
  ].join("\n");
}

/** @param {SentRequest} sent */
export function asPython({ path, body }) {
  const method = METHODS[/** @type {keyof typeof METHODS} */ (path)];
  const key = hasKey() ? 'os.environ["TERCET_API_KEY"]' : '"not required"';
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
  const call = [`${body.stream ? "stream" : "answer"} = client.${method.name}(`, ...fields, ")"];
  const output = body.stream ? ["for event in stream:", ...method.streamed] : [method.print];
  return [...head, ...call, ...output].join("\n");
}
