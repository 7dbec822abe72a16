// Keeps the focus on an element that is redrawn.

/** The focused element, as [pane, key], to restore it later. @returns {[string | null, string] | null} */
export function focused() {
  const on = document.activeElement;
  const key = on?.getAttribute("data-key");
  if (!on || key === null || key === undefined) return null;
  return [on.closest("[data-pane]")?.getAttribute("data-pane") ?? null, key];
}

/** @param {[string | null, string] | null} where */
export function refocus(where) {
  if (where === null) return;
  const [pane, key] = where;
  const root = pane === null ? document : document.querySelector(`[data-pane="${pane}"]`);
  const to = /** @type {HTMLElement | null | undefined} */ (root?.querySelector(`[data-key="${CSS.escape(key)}"]`));
  if (to && to !== document.activeElement) to.focus({ preventScroll: true });
}
