// The recipes: settings that differ between the runs, changes during the runs, then all settings.

import { element } from "tercet/element.js";
import { counted } from "tercet/numbers.js";

/** @typedef {import("tercet/source.js").Run} Run */
/** @typedef {import("tercet/source.js").Setting} Setting */

export function settings() {
  const body = element("div");
  const box = element("section", { "aria-label": "Settings", hidden: true }, element("h2", {}, "Settings"), body);

  /** @param {Setting[]} rows @param {Run[]} runs @param {string} caption */
  function table(rows, runs, caption) {
    const head = runs.map((run) => element("th", { scope: "col" }, run.name));
    const lines = rows.map(({ key, values }) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, key),
        ...values.map((value) => element("td", { class: value === null ? "none" : null }, value ?? "–")),
      ),
    );
    return element(
      "div",
      { class: "table", tabindex: 0, role: "region", "aria-label": caption },
      element(
        "table",
        {},
        element("caption", { class: "unseen" }, caption),
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "key"), ...head)),
        element("tbody", {}, ...lines),
      ),
    );
  }

  return {
    element: box,
    /** @param {{rows: Setting[], changes: import("tercet/source.js").Change[][]}} answer @param {Run[]} runs */
    update({ rows, changes }, runs) {
      box.hidden = rows.length === 0;
      const differing = rows.filter((row) => row.differs);
      const open = body.querySelector("details")?.open ?? false;
      const items = changes.flatMap((runChanges, index) =>
        runChanges.map((change) =>
          element("li", {}, `${runs.length > 1 ? `${runs[index]?.name}: ` : ""}after step ${counted(change.step)} `, element("code", {}, change.key), ` from ${change.old} to ${change.new}`),
        ),
      );
      const allSettings = element("details", { open }, element("summary", {}, `All ${rows.length} settings`), table(rows, runs, "All settings"));
      const parts = [];
      if (runs.length > 1)
        parts.push(differing.length > 0 ? table(differing, runs, "Settings that differ") : element("p", { class: "note" }, "The recipes are the same."));
      if (items.length > 0) parts.push(element("h3", {}, "Changes during the run"), element("ul", {}, ...items));
      body.replaceChildren(...parts, allSettings);
    },
  };
}
