// A field of the API in words, from its JSON schema: what it is, what range it has, what holds without it.

/** @typedef {Record<string, any>} Schema */

/** @param {Schema} schema @param {Schema} root the whole document @returns {Schema} with what it refers to */
export function resolved(schema, root) {
  if (typeof schema.$ref !== "string") return schema;
  const { $ref, ...own } = schema;
  const target = $ref
    .slice(2)
    .split("/")
    .reduce((/** @type {Schema} */ at, /** @type {string} */ step) => at[step], root);
  return { ...resolved(target, root), ...own };
}

/** What it may be, null aside: that is the same as left out. @param {Schema} schema @param {Schema} root */
export function choices(schema, root) {
  const whole = resolved(schema, root);
  /** @type {Schema[]} */
  const all = (whole.anyOf ?? whole.oneOf ?? [whole]).map((/** @type {Schema} */ one) => resolved(one, root));
  const others = all.filter((one) => one.type !== "null");
  return others.length > 0 ? others : all;
}

/** @param {Schema} schema @param {Schema} root @returns {string} */
export function typeOf(schema, root) {
  return [...new Set(choices(schema, root).map((one) => typeOfOne(one, root)))].join(" or ");
}

/** @param {Schema} one @param {Schema} root @returns {string} */
function typeOfOne(one, root) {
  if (one.enum !== undefined)
    return one.enum.length > 0 ? one.enum.map((/** @type {any} */ x) => JSON.stringify(x)).join(" | ") : "none";
  if (one.const !== undefined) return JSON.stringify(one.const);
  if (one.anyOf !== undefined) return typeOf(one, root);
  if (one.type === "array") {
    const item = typeOf(one.items ?? {}, root);
    return `list of ${item.includes(" or ") ? `(${item})` : item}`;
  }
  if (one.type === "object" && one.additionalProperties instanceof Object) {
    return `object of ${typeOf(one.additionalProperties, root)}`;
  }
  return (
    { integer: "integer", number: "number", string: "text", boolean: "true | false" }[String(one.type)] ??
    one.type ??
    "anything"
  );
}

/** Bounds, of each way to write it. @param {Schema} schema @param {Schema} root @returns {string} */
export function rangeOf(schema, root) {
  const ranges = choices(schema, root).map((one) => {
    const low = one.minimum ?? one.exclusiveMinimum;
    const high = one.maximum ?? one.exclusiveMaximum;
    const parts = [];
    if (low !== undefined)
      parts.push(`${one.minimum === undefined ? "more than" : "at least"} ${low.toLocaleString("en")}`);
    if (high !== undefined)
      parts.push(`${one.maximum === undefined ? "less than" : "at most"} ${high.toLocaleString("en")}`);
    const [least, most] = [one.minLength ?? one.minItems, one.maxLength ?? one.maxItems];
    const unit = one.type === "array" ? "items" : one.type === "object" ? "fields" : "characters";
    if (one.maxProperties !== undefined) parts.push(`at most ${one.maxProperties} fields`);
    if (least !== undefined || most !== undefined) {
      parts.push(
        most === undefined ? `${least} or more ${unit}` : `${least ?? 0} to ${most.toLocaleString("en")} ${unit}`,
      );
    }
    return parts.join(", ");
  });
  return [...new Set(ranges.filter((range) => range !== ""))].join("; ");
}

/** The object that stands in a field, alone or in a list. @param {Schema} schema @param {Schema} root @returns {Schema[]} */
export function objectsIn(schema, root) {
  return choices(schema, root).flatMap((one) => {
    if (one.properties !== undefined) return [one];
    return one.type === "array" && one.items !== undefined ? objectsIn(one.items, root) : [];
  });
}
