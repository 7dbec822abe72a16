"""Rules for page sources, and checks of accessibility that a browser runs on any page."""

import re
from collections.abc import Mapping

FORBIDDEN = (
    "Math.random", "getRandomValues", "randomUUID", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
    "eval(", "new Function", "importScripts", "sendBeacon", "XMLHttpRequest", "WebSocket", "EventSource",
    "localStorage",
)  # fmt: skip


def faults_of_source(files: Mapping[str, str]) -> list[str]:
    """Return random numbers, markup, browser storage and addresses of other hosts in the files."""
    faults = list[str]()
    for name, text in files.items():
        code = re.sub(r"/\*.*?\*/|^\s*//.*?$", "", text, flags=re.DOTALL | re.MULTILINE)  # types are comments
        faults += [f"{name}: {word}" for word in (*FORBIDDEN, "import(") if word in code]
        addresses = set(re.findall(r"(?:https?:)?//[\w-]+\.[\w./-]+", code)) - {"http://www.w3.org/2000/svg"}
        faults += [f"{name}: {address}" for address in addresses]
    return faults


NAMELESS = """
() => [...document.querySelectorAll("button, input, textarea, a, canvas, [tabindex], [role=application], svg")]
  .filter((one) => one.checkVisibility() && one.closest("[aria-hidden=true]") === null)
  .filter((one) => !(one.getAttribute("aria-label") || one.labels?.[0]?.textContent.trim() || one.textContent.trim()))
  .filter((one) => !one.closest("label")?.textContent.trim() && !one.matches("#workspace"))
  .map((one) => one.outerHTML.slice(0, 150))
"""
# Contrast ratio of WCAG 2 for each visible text and its background. Disabled elements are excluded.
PALE = """
() => {
  const dot = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    dot.clearRect(0, 0, 1, 1);
    dot.fillStyle = color;
    dot.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = dot.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((one, i) => one * a + under[i] * (1 - a));
  const behind = (one) => {
    if (one === null) return [255, 255, 255];
    const paint = rgba(getComputedStyle(one).backgroundColor);
    return paint[3] === 1 ? paint.slice(0, 3) : over(paint, behind(one.parentElement));
  };
  const light = (color) => {
    const shares = color.map((one) => one / 255);
    const [r, g, b] = shares.map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const opacity = (one) => (one === null ? 1 : Number(getComputedStyle(one).opacity) * opacity(one.parentElement));
  const found = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    if (walk.currentNode.textContent.trim() === "" || !one.checkVisibility()) continue;
    if (one.closest(":disabled, .unseen, svg, script, noscript") !== null) continue;
    const style = getComputedStyle(one);
    const ground = behind(one);
    const text = rgba(style.color);
    const seen = over([...text.slice(0, 3), text[3] * opacity(one)], ground);
    const [high, low] = [light(seen), light(ground)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const height = parseFloat(style.fontSize);
    const large = height >= 24 || (height >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio >= (large ? 3 : 4.5)) continue;
    found.add(`${one.tagName}.${one.className} ${ratio.toFixed(2)}: ${one.textContent.slice(0, 40)}`);
  }
  return [...found];
}
"""
FOCUS_FAULT = """
() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const style = getComputedStyle(one);
  const inner = one.querySelector("canvas, rect");
  const ringed = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none"
    || (inner !== null && getComputedStyle(inner).strokeWidth !== "0px" && one.tagName === "g");
  return ringed ? "" : one.outerHTML.slice(0, 150);
}
"""
