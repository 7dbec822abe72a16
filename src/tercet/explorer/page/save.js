// Saves the page as one file, which the server returns.

import { element } from "tercet/element.js";

/** @typedef {import("tercet/main.js").Page} Page */

/** @param {Page} page @param {(on: boolean) => void} busy */
export async function save(page, busy) {
  const { source, model, say } = page;
  const pane = page.panes[0]?.loaded;
  if (pane === undefined || pane === null) return;
  say("saving the page");
  busy(true);
  try {
    const text = await source.save(pane.ask);
    if (text === null)
      return note("Save this page", "Run in a terminal:", `tercet explore ${model.folder} --export page.html`);
    const link = element("a", {
      href: URL.createObjectURL(new Blob([text], { type: "text/html" })),
      download: `${model.folder}.html`,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    say("page saved");
  } catch (error) {
    note("The page was not saved", /** @type {Error} */ (error).message, "");
  } finally {
    busy(false);
  }
}

/** @param {string} title @param {string} text @param {string} command */
function note(title, text, command) {
  const box = element(
    "dialog",
    { class: "help", "aria-label": title },
    element("h2", {}, title),
    element("p", {}, text),
    command === "" ? null : element("pre", {}, command),
    element("form", { method: "dialog" }, element("button", { class: "primary" }, "Close")),
  );
  document.body.append(box);
  box.addEventListener("close", () => box.remove());
  box.showModal();
}
