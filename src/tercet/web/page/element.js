// Elements of a page; their texts are never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element with its attributes, listeners (`onclick`, ...) and children; strings become text, never markup.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, unknown>} [attributes]
 * @param {...(Node | string | null | undefined)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/**
 * @param {string} tag
 * @param {Record<string, unknown>} [attributes]
 * @param {...(Node | string | null | undefined)} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...children) {
  return filled(/** @type {SVGElement} */ (document.createElementNS(SVG, tag)), attributes, children);
}

/**
 * @template {HTMLElement | SVGElement} E
 * @param {E} target
 * @param {Record<string, unknown>} attributes
 * @param {(Node | string | null | undefined)[]} children
 * @returns {E}
 */
function filled(target, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) target.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (name === "style")
      target.style.cssText = String(value); // the page's policy forbids the attribute
    else target.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null && child !== undefined) target.append(child);
  return target;
}
