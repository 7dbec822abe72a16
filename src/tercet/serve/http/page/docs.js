// API documentation from /openapi.json: every route with its fields, an example and its responses.

import { address, ask, hasKey, RequestError, setKey } from "tercet/api.js";
import { element } from "tercet/element.js";
import { copyButton, keyBox } from "tercet/panel.js";
import { objectsIn, rangeOf, resolve, typeOf } from "tercet/schema.js";
import { asCurl } from "tercet/snippets.js";

/** @typedef {import("tercet/schema.js").Schema} Schema */
/** @typedef {{method: string, path: string, operation: Schema}} Operation */

const JSON_TYPE = "application/json";

function start() {
  const key = keyBox(setKey, load);
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const contents = element("nav", { "aria-label": "Routes" });
  const body = element("div", { class: "routes" });
  const head = element("h1", {}, "Tercet ", element("span", {}, "API"));
  const links = element(
    "p",
    {},
    element("a", { href: "." }, "Playground"),
    " · ",
    element("a", { href: "openapi.json" }, "openapi.json"),
  );
  document.body.append(
    element("header", { class: "top" }, head, links),
    element(
      "div",
      { class: "columns" },
      element("aside", {}, contents),
      element("main", {}, key.element, problem, body),
    ),
  );

  async function load() {
    problem.hidden = true;
    try {
      draw(await ask("/openapi.json"));
    } catch (error) {
      if (error instanceof RequestError && error.status === 401) return key.show(error.message);
      problem.textContent = /** @type {Error} */ (error).message;
      problem.hidden = false;
    }
  }

  /** @param {Schema} root */
  function draw(root) {
    const operations = Object.entries(root.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => ({ method: method.toUpperCase(), path, operation })),
    );
    operations.sort((a, b) => Number(b.method === "POST") - Number(a.method === "POST")); // requests to models first
    const items = operations.map((one) =>
      element("li", {}, element("a", { href: `#${anchor(one)}` }, badge(one.method), element("code", {}, one.path))),
    );
    contents.replaceChildren(element("ul", { class: "contents" }, ...items));
    const needsKey = root.components?.securitySchemes !== undefined;
    const errors = "Every error is an object whose message contains a remedy: ";
    body.replaceChildren(
      element("p", { class: "lead" }, root.info.description),
      element("p", { class: "note" }, errors, element("code", {}, '{"error": {"message", "type", "param", "code"}}')),
      needsKey
        ? element(
            "p",
            { class: "note" },
            "Send the key as a header: ",
            element("code", {}, "Authorization: Bearer KEY"),
          )
        : "",
      ...operations.map((one) => section(one, root)),
    );
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    target?.scrollIntoView();
  }

  void load();
}

/** @param {Operation} one */
const anchor = ({ method, path }) => `${method.toLowerCase()}${path.replaceAll(/[^a-z0-9]+/g, "-")}`.replace(/-$/, "");

/** @param {string} method */
const badge = (method) => element("span", { class: `method ${method.toLowerCase()}` }, method);

/** @param {Operation} one @param {Schema} root */
function section(one, root) {
  const { method, path, operation } = one;
  const request = operation.requestBody?.content?.[JSON_TYPE]?.schema;
  const schema = request && resolve(request, root);
  const parameters = (operation.parameters ?? []).map((/** @type {Schema} */ parameter) => parameter);
  const fields = Object.fromEntries(parameters.map((/** @type {Schema} */ one) => [one.name, one.schema]));
  const required = parameters
    .filter((/** @type {Schema} */ one) => one.required)
    .map((/** @type {Schema} */ one) => one.name);
  return element(
    "section",
    { class: "card", id: anchor(one) },
    element("h2", {}, badge(method), element("code", {}, path)),
    element("p", {}, operation.description ?? operation.summary ?? ""),
    parameters.length > 0 ? fieldList({ properties: fields, required }, root, "Path parameters") : null,
    schema ? fieldList(schema, root, "Fields") : null,
    example(path, schema),
    answers(operation.responses, root),
  );
}

/** @param {string} path @param {Schema | undefined} schema */
function example(path, schema) {
  const body = schema?.examples?.[0];
  const key = hasKey() ? ' -H "Authorization: Bearer $TERCET_API_KEY"' : "";
  const text = body === undefined ? `curl${key} ${address()}${path.replace("{name}", "NAME")}` : asCurl({ path, body });
  const code = element(
    "pre",
    { tabindex: 0, role: "region", "aria-label": `Example of ${path}` },
    element("code", {}, text),
  );
  return element(
    "div",
    { class: "example" },
    element("h3", {}, "Example"),
    code,
    copyButton(() => text, "the example"),
  );
}

/** @param {Schema} schema schema of an object @param {Schema} root @param {string} name @returns {HTMLElement} */
function fieldList(schema, root, name) {
  const rows = Object.entries(schema.properties ?? {}).flatMap(([field, /** @type {Schema} */ about]) => {
    const resolved = resolve(about, root);
    const isRequired = (schema.required ?? []).includes(field);
    const hasDefault = resolved.default !== undefined && resolved.default !== null;
    const notes = [rangeOf(resolved, root), hasDefault ? `default: ${JSON.stringify(resolved.default)}` : ""].filter(
      (text) => text !== "",
    );
    const inner = objectsIn(resolved, root).map((object) => fieldList(object, root, `Fields of each item`));
    return [
      element(
        "dt",
        {},
        element("code", {}, field),
        element("small", {}, ` ${typeOf(resolved, root)}`),
        isRequired ? element("span", { class: "required" }, "required") : null,
      ),
      element(
        "dd",
        {},
        resolved.description ? element("p", {}, resolved.description) : null,
        notes.length > 0 ? element("p", { class: "note" }, notes.join(" · ")) : null,
        ...inner,
      ),
    ];
  });
  return element("div", { class: "fields" }, element("h3", {}, name), element("dl", {}, ...rows));
}

/** @param {Schema} responses by status @param {Schema} root */
function answers(responses, root) {
  const success = responses["200"]?.content?.[JSON_TYPE]?.schema;
  const shapes = success ? objectsIn(success, root) : [];
  const rows = Object.entries(responses).flatMap(([status, response]) => [
    element("dt", {}, element("code", {}, status)),
    element("dd", {}, response.description),
  ]);
  return element(
    "div",
    { class: "answers" },
    shapes.length > 0
      ? element(
          "details",
          {},
          element("summary", {}, "Fields of the response"),
          ...shapes.map((one) => fieldList(one, root, "Response")),
        )
      : null,
    element("details", {}, element("summary", {}, "Statuses"), element("dl", { class: "statuses" }, ...rows)),
  );
}

start();
