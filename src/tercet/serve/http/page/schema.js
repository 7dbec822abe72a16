// Descriptions of API fields from their JSON schemas: type, range and default.

/** @typedef {Record<string, any>} Schema */

/** Resolve references. @param {Schema} schema @param {Schema} root the OpenAPI document @returns {Schema} */
export function resolve(schema, root) {
  if (typeof schema.$ref !== "string") return schema;
  const { $ref, ...fields } = schema;
  const target = $ref
    .slice(2)
    .split("/")
    .reduce((/** @type {Schema} */ node, /** @type {string} */ name) => node[name], root);
  return { ...resolve(target, root), ...fields };
}

/** The alternatives of a field. Null is excluded: it is equal to omitting the field.
 * @param {Schema} schema @param {Schema} root */
export function choices(schema, root) {
  const resolved = resolve(schema, root);
  /** @type {Schema[]} */
  const all = (resolved.anyOf ?? resolved.oneOf ?? [resolved]).map((/** @type {Schema} */ one) => resolve(one, root));
  const nonNull = all.filter((one) => one.type !== "null");
  return nonNull.length > 0 ? nonNull : all;
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

/** The range of each alternative. @param {Schema} schema @param {Schema} root @returns {string} */
export function rangeOf(schema, root) {
  const ranges = choices(schema, root).map((one) => {
    const low = one.minimum ?? one.exclusiveMinimum;
    const high = one.maximum ?? one.exclusiveMaximum;
    const parts = [];
    if (low !== undefined)
      parts.push(`${one.minimum === undefined ? "more than" : "at least"} ${low.toLocaleString("en")}`);
    if (high !== undefined)
      parts.push(`${one.maximum === undefined ? "less than" : "at most"} ${high.toLocaleString("en")}`);
    const [min, max] = [one.minLength ?? one.minItems, one.maxLength ?? one.maxItems];
    const unit = one.type === "array" ? "items" : one.type === "object" ? "fields" : "characters";
    if (one.maxProperties !== undefined) parts.push(`at most ${one.maxProperties} fields`);
    if (min !== undefined || max !== undefined) {
      parts.push(
        max === undefined ? `${min} or more ${unit}` : `${min ?? 0} to ${max.toLocaleString("en")} ${unit}`,
      );
    }
    return parts.join(", ");
  });
  return [...new Set(ranges.filter((range) => range !== ""))].join("; ");
}

/** The objects in a field, single or in a list. @param {Schema} schema @param {Schema} root @returns {Schema[]} */
export function objectsIn(schema, root) {
  return choices(schema, root).flatMap((one) => {
    if (one.properties !== undefined) return [one];
    return one.type === "array" && one.items !== undefined ? objectsIn(one.items, root) : [];
  });
}
