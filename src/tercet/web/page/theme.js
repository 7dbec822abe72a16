// Light or dark: the system's theme, or the reader's choice.

export const THEMES = /** @type {const} */ (["auto", "light", "dark"]);

/** @param {string} theme */
export const nextTheme = (theme) => THEMES[(THEMES.findIndex((name) => name === theme) + 1) % THEMES.length] ?? "auto";

/** Apply a theme, and show it on the button that changes it. @param {string} theme @param {HTMLElement} button */
export function applyTheme(theme, button) {
  document.documentElement.toggleAttribute("data-theme", theme !== "auto");
  if (theme !== "auto") document.documentElement.dataset.theme = theme;
  button.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme] ?? "";
  button.setAttribute("aria-label", `Theme: ${theme}`);
}
