// The tabs, one for each view of the model.

import { element } from "tercet/element.js";
import { openByArrows } from "tercet/tablist.js";
import { views, viewsOf } from "tercet/views.js";

/** @typedef {import("tercet/main.js").Page} Page */

/** @param {Page} page */
export function tabRow(page) {
  const names = viewsOf(page.model);
  const all = names.map((name) =>
    element(
      "button",
      {
        type: "button",
        role: "tab",
        "data-key": `view:${name}`,
        "aria-controls": "workspace",
        title: views[name].tip,
        onclick: () => page.change({ view: name }),
      },
      views[name].name,
    ),
  );
  const row = element("div", { class: "tabs", role: "tablist", "aria-label": "Views" }, ...all);
  openByArrows(row);
  return {
    element: element("nav", { "aria-label": "Views" }, row),
    update() {
      names.forEach((name, i) => {
        all[i]?.setAttribute("aria-selected", String(page.state.view === name));
        all[i]?.setAttribute("tabindex", page.state.view === name ? "0" : "-1");
      });
    },
  };
}
