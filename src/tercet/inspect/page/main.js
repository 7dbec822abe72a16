// The page: one state, from which everything is drawn; what changes it, and what is drawn again when it changes.
//
//     address -> state -> pass of the model (source.js) -> prompt | view | probabilities | tour
//
// A setting of the sampler moves the probabilities alone; another text asks the model; all else draws the view again.

import { beams } from "tercet/beams.js";
import { differences, editLine } from "tercet/compare.js";
import { element, percent, shown, toggled } from "tercet/draw.js";
import { flow } from "tercet/flow.js";
import { heads } from "tercet/heads.js";
import { lens } from "tercet/lens.js";
import { maps } from "tercet/maps.js";
import { probabilityPanel } from "tercet/probabilities.js";
import { continued, maskToggled, promptBox } from "tercet/prompt.js";
import { open } from "tercet/source.js";
import { THEMES, readUrl, same, settled, writeUrl } from "tercet/state.js";
import { tourPanel } from "tercet/tour.js";

/** @typedef {import("tercet/draw.js").Ask} Ask */
/** @typedef {import("tercet/source.js").Source} Source */
/** @typedef {import("tercet/state.js").State} State */
/** texts: of every id that has been seen.
 * @typedef {import("tercet/draw.js").Pane & {source: Source, texts: Map<number, string>}} Loaded */
/** @typedef {{index: number, loaded: Loaded | null, ask: Ask | null, error: string | null, asked: number,
 *             element: HTMLElement, prompt: ReturnType<typeof promptBox>, edits: ReturnType<typeof editLine>,
 *             view: HTMLElement, probabilities: ReturnType<typeof probabilityPanel>, alert: HTMLElement}} Shown */

const VIEWS = {
  flow: { name: "Flow", draw: flow, tip: "the whole pass, from the tokens to the probabilities" },
  maps: { name: "Attention maps", draw: maps, tip: "what each head looks at" },
  lens: { name: "Logit lens", draw: lens, tip: "what would be said after each block" },
  heads: { name: "Heads", draw: heads, tip: "what each head does, and what is lost without it" },
  beams: { name: "Beams", draw: beams, tip: "the translations that were tried" },
};
/** @typedef {keyof typeof VIEWS} View */
const KEYS = [
  ["j  k", "next, previous token"],
  ["[  ]", "previous, next block"],
  [",  .", "previous, next head"],
  ["1 … 5", "the views, from left to right"],
  ["a", "set the chosen head to zero, or let it be again"],
  ["m", "mask the chosen token, or put it back"],
  ["n  s", "append the most likely token; a drawn one"],
  ["c", "compare two texts side by side"],
  ["g", "the guided tour"],
  ["t", "light, dark, or as the system is"],
  ["/", "to the text"],
  ["Esc", "close what is open"],
  ["arrows", "move among tokens, tabs and the cells of a picture"],
];
/** What moves nothing but the probabilities. */
const SETTINGS = ["temperature", "top_k", "top_p", "min_p", "seed"];
/** What the browser's way back undoes. */
const STEPS = ["panes", "view", "stack", "layer", "part", "head"];

/** @param {Source} source */
function start(source) {
  const { model } = source;
  let state = settled(readUrl(), model);
  /** @type {Map<number, string>} */
  const texts = new Map();
  /** @type {Shown[]} */
  const panes = [];
  let waiting = new Set(/** @type {string[]} */ ([]));

  const live = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const say = (/** @type {string} */ text) => (live.textContent = text);
  const columns = element("div", {
    class: "panes",
    id: "workspace",
    role: "tabpanel",
    tabindex: -1,
    "aria-label": "The model at work",
  });
  const between = differences();
  const tour = tourPanel(change);
  const help = helpBox();
  const tabs = tabRow();
  const top = header();
  const skip = element(
    "a",
    {
      class: "skip",
      href: "#workspace",
      onclick: (/** @type {Event} */ event) => {
        event.preventDefault();
        columns.focus();
      },
    },
    "To the model",
  );
  document.body.append(
    skip,
    top.element,
    tabs.element,
    element("main", {}, between.element, columns),
    tour.element,
    help,
    live,
  );
  document.title = `${model.name}: look inside`;

  /** Change the state, and draw what that moves. @param {Record<string, unknown>} patch */
  function change(patch) {
    const before = state;
    state = settled({ ...state, ...patch }, model);
    const moved = Object.keys(state).filter((key) => differ(key, before));
    writeUrl(
      state,
      model.start,
      moved.some((key) => STEPS.includes(key)),
    );
    for (const key of "panes" in patch ? [...moved, "panes"] : moved) waiting.add(key);
    if (waiting.size > 0) schedule();
  }

  /** @param {string} key @param {State} before */
  function differ(key, before) {
    const one = /** @type {keyof State} */ (key);
    return JSON.stringify(state[one]) !== JSON.stringify(before[one]);
  }

  let scheduled = false;
  function schedule() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      const moved = waiting;
      waiting = new Set();
      redraw(moved);
    });
  }

  /** @param {Set<string>} moved keys of the state */
  function redraw(moved) {
    document.documentElement.toggleAttribute("data-theme", state.theme !== "auto");
    if (state.theme !== "auto") document.documentElement.dataset.theme = state.theme;
    top.update();
    tabs.update();
    if (moved.has("panes")) gather();
    const focus = focused();
    for (const one of panes) {
      if (one.loaded !== null && [...moved].some((key) => !SETTINGS.includes(key) && key !== "theme" && key !== "tour"))
        draw(one);
      else if (one.loaded !== null) void one.probabilities.update(one.loaded, seenBy(one.loaded));
    }
    refocus(focus);
    void between.update(
      panes.flatMap((one) => one.loaded ?? []),
      state,
    );
    tour.update(panes[0]?.loaded ?? null, state);
  }

  /** As many panes as the state has, each with the pass that it asks for. */
  function gather() {
    while (panes.length > state.panes.length) panes.pop()?.element.remove();
    while (panes.length < state.panes.length) {
      const one = paneBox(panes.length);
      panes.push(one);
      columns.append(one.element);
    }
    columns.classList.toggle("two", panes.length > 1);
    for (const one of panes) void load(one);
  }

  /** @param {Shown} one */
  async function load(one) {
    const ask = state.panes[one.index];
    if (ask === undefined || (one.ask !== null && same(one.ask, ask) && one.error === null)) return;
    const mine = ++one.asked;
    one.ask = ask;
    one.element.setAttribute("aria-busy", "true");
    if (one.loaded === null) one.prompt.update(null, state);
    try {
      const look = await source.look(ask);
      const base = look.ask.edits.length === 0 ? null : await source.look({ ...look.ask, edits: [] });
      if (mine !== one.asked) return; // something else was asked for meanwhile
      for (const [id, text] of Object.entries(look.texts)) texts.set(Number(id), text);
      for (const side of look.sides) for (const token of side.tokens) texts.set(token.id, token.text);
      one.loaded = { index: one.index, ask: look.ask, look, base, source, texts };
      fail(one, null);
      tell(one.loaded);
      redraw(new Set(["pass"]));
    } catch (error) {
      if (mine !== one.asked) return;
      one.prompt.update(null, state);
      fail(one, /** @type {Error} */ (error).message);
    }
    one.element.removeAttribute("aria-busy");
  }

  /** One line about what went wrong, above what was there before. @param {Shown} one @param {string | null} error */
  function fail(one, error) {
    one.error = error;
    one.alert.hidden = error === null;
    one.alert.textContent = error ?? "";
  }

  /** What a new pass brought, for who does not see it. @param {Loaded} pane */
  function tell({ look, base }) {
    const tokens = look.sides.map((side) => side.tokens.length).join(" and ");
    const id = look.top?.ids[look.at]?.[0];
    const likely =
      id === undefined || look.top === null
        ? ""
        : `; most likely at row ${look.at}: ${shown(look.texts[id] ?? "")}, ` +
          `${percent(look.top.probabilities.get(look.at, 0))}`;
    const cost =
      base?.loss && look.loss ? `; mean loss ${base.loss.mean.toFixed(3)} to ${look.loss.mean.toFixed(3)}` : "";
    say(`${tokens} tokens read${likely}${cost}`);
  }

  /** The state with rows that this pane has; the other one may be longer. @param {Loaded} pane @returns {State} */
  function seenBy({ look }) {
    const rows = look.sides.at(-1)?.tokens.length ?? 0;
    const keys = Math.max(...look.sides.map((side) => side.tokens.length));
    return {
      ...state,
      at: state.at !== null && state.at >= rows ? null : state.at,
      column: state.column !== null && state.column >= keys ? null : state.column,
    };
  }

  /** @param {Shown} one */
  function draw(one) {
    const pane = one.loaded;
    if (pane === null) return;
    const seen = seenBy(pane);
    one.prompt.update(pane, seen);
    void one.edits.update(pane, seen);
    one.view.style.minHeight = `${one.view.offsetHeight}px`; // or the page would jump while the parts come in
    try {
      one.view.replaceChildren(VIEWS[/** @type {View} */ (state.view)].draw(pane, seen, change));
    } catch (error) {
      console.error(error);
      one.view.replaceChildren(
        element(
          "p",
          { class: "problem", role: "alert" },
          `this view could not be drawn: ${/** @type {Error} */ (error).message}`,
        ),
      );
    }
    setTimeout(() => (one.view.style.minHeight = ""), 400);
    void one.probabilities.update(pane, seen);
  }

  /** @param {number} index @returns {Shown} */
  function paneBox(index) {
    const prompt = promptBox(model, { change, append, index });
    const edits = editLine(change);
    const probabilities = probabilityPanel(model, change, say);
    const alert = element("p", { class: "problem", role: "alert", hidden: true });
    const view = element("div", { class: "view" });
    const name = index === 0 ? "A" : "B";
    const label = element(
      "header",
      { class: "pane-name" },
      element("b", {}, name),
      index === 0
        ? null
        : element("button", { type: "button", class: "quiet", "data-key": "close", onclick: compare }, "close"),
    );
    const body = element("div", { class: "body" }, view, probabilities.element);
    const box = element(
      "section",
      { class: "pane", "data-pane": index, "aria-label": `Text ${name}` },
      label,
      prompt.element,
      alert,
      edits.element,
      body,
    );
    return {
      index,
      loaded: null,
      ask: null,
      error: null,
      asked: 0,
      element: box,
      prompt,
      edits,
      view,
      probabilities,
      alert,
    };
  }

  /** Go on writing at the end. @param {number} index @param {"likely" | "sample"} kind */
  async function append(index, kind) {
    const one = panes[index];
    const pane = one?.loaded ?? null;
    const side = pane?.look.sides.at(-1);
    if (
      one === undefined ||
      pane === null ||
      side === undefined ||
      !source.live ||
      one.element.hasAttribute("aria-busy")
    )
      return;
    const at = side.tokens.length - 1;
    const mine = one.asked;
    one.element.setAttribute("aria-busy", "true");
    try {
      const { temperature, top_k, top_p, min_p, seed } = state;
      const drawn =
        kind === "sample" ? await source.sample(pane.ask, at, { temperature, top_k, top_p, min_p, seed }) : null;
      if (mine === one.asked) one.element.removeAttribute("aria-busy");
      const id = drawn?.id ?? pane.look.top?.ids[at]?.[0];
      if (id === undefined || one.loaded !== pane) return;
      const next = kind === "sample" ? { seed: seed + 1 } : {};
      if (model.can.translate && id === model.eos_id) {
        change(next);
        return say("the model ends the sentence here");
      }
      change({ ...continued(pane, state, at, id), ...next });
    } catch (error) {
      if (mine === one.asked) one.element.removeAttribute("aria-busy");
      fail(one, /** @type {Error} */ (error).message);
    }
  }

  function compare() {
    const first = panes[0]?.loaded;
    const copy = state.panes[0];
    if (state.panes.length > 1 || copy === undefined) return change({ panes: state.panes.slice(0, 1) });
    change({ panes: [copy, { ...copy, target_ids: copy.target_ids ?? first?.ask.target_ids ?? null }] });
    requestAnimationFrame(() => requestAnimationFrame(() => panes[1]?.prompt.focus()));
  }

  async function save() {
    const pane = panes[0]?.loaded;
    if (pane === undefined || pane === null) return;
    say("saving the page");
    top.busy(true);
    try {
      const page = await source.save(pane.ask);
      if (page === null)
        return note("Save this page", "On the terminal:", `tercet explore ${model.folder} --export page.html`);
      const link = element("a", {
        href: URL.createObjectURL(new Blob([page], { type: "text/html" })),
        download: `${model.folder}.html`,
      });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
      say("the page is saved");
    } catch (error) {
      note("The page was not saved", /** @type {Error} */ (error).message, "");
    } finally {
      top.busy(false);
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

  function header() {
    const theme = element("button", {
      type: "button",
      "data-key": "theme",
      onclick: () => change({ theme: THEMES[(THEMES.indexOf(state.theme) + 1) % THEMES.length] }),
    });
    const two = element(
      "button",
      {
        type: "button",
        "data-key": "compare",
        onclick: compare,
        hidden: !source.live,
        title: "two texts side by side (c)",
      },
      "Compare",
    );
    const walk = element(
      "button",
      {
        type: "button",
        "data-key": "tour",
        class: "primary",
        onclick: () => change({ tour: state.tour === null ? 0 : null }),
        title: "every part explained with your own numbers (g)",
      },
      "Tour",
    );
    const keep = element(
      "button",
      {
        type: "button",
        "data-key": "save",
        onclick: () => void save(),
        hidden: !source.live,
        title: "this page as one file, with all its numbers",
      },
      "Save page",
    );
    const keys = element(
      "button",
      {
        type: "button",
        "data-key": "help",
        onclick: () => help.showModal(),
        "aria-label": "Keyboard and help",
        title: "keyboard (?)",
      },
      "?",
    );
    return {
      element: element(
        "header",
        { class: "top" },
        element("div", { class: "model" }, element("h1", {}, model.name), element("p", {}, ...about(model))),
        element("div", { class: "buttons" }, walk, two, keep, theme, keys),
      ),
      update() {
        theme.textContent = { auto: "◐", light: "☀", dark: "☾" }[state.theme] ?? "";
        theme.setAttribute("aria-label", `Theme: ${state.theme}`);
        theme.title = `colours: ${state.theme === "auto" ? "as the system is" : state.theme} (t)`;
        two.setAttribute("aria-pressed", String(state.panes.length > 1));
        walk.setAttribute("aria-pressed", String(state.tour !== null));
      },
      busy(/** @type {boolean} */ on) {
        keep.disabled = on;
        keep.textContent = on ? "Saving …" : "Save page";
      },
    };
  }

  function tabRow() {
    const names = /** @type {View[]} */ (Object.keys(VIEWS).filter((name) => name !== "beams" || model.can.translate));
    const all = names.map((name) =>
      element(
        "button",
        {
          type: "button",
          role: "tab",
          "data-key": `view:${name}`,
          "aria-controls": "workspace",
          title: VIEWS[name].tip,
          onclick: () => change({ view: name }),
        },
        VIEWS[name].name,
      ),
    );
    const row = element("div", { class: "tabs", role: "tablist", "aria-label": "Views" }, ...all);
    row.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1 };
      const step = steps[/** @type {keyof typeof steps} */ (event.key)];
      const to =
        all[(all.indexOf(/** @type {HTMLButtonElement} */ (event.target)) + (step ?? 0) + all.length) % all.length];
      if (step === undefined || to === undefined) return;
      event.preventDefault();
      to.focus();
      to.click();
    });
    return {
      element: element("nav", { "aria-label": "Views" }, row),
      names,
      update() {
        names.forEach((name, i) => {
          all[i]?.setAttribute("aria-selected", String(state.view === name));
          all[i]?.setAttribute("tabindex", state.view === name ? "0" : "-1");
        });
      },
    };
  }

  /** @param {number} by */
  function moveRow(by) {
    const look = panes[0]?.loaded?.look;
    const tokens = look?.sides.at(-1)?.tokens;
    if (look === undefined || tokens === undefined) return;
    const at = Math.min(Math.max((state.at ?? look.at) + by, 0), tokens.length - 1);
    change({ at });
    say(`row ${at}, ${shown(tokens[at]?.text ?? "")}`);
  }

  /** @param {number} by */
  function moveLayer(by) {
    const stack = model.stacks.find((one) => one.name === state.stack);
    if (stack === undefined) return;
    const layer = Math.min(Math.max((state.layer ?? (by > 0 ? -1 : stack.n_layers)) + by, 0), stack.n_layers - 1);
    change({ layer });
    say(`${stack.name === "stack" ? "" : `${stack.name}, `}block ${layer}`);
  }

  /** @param {number} by */
  function moveHead(by) {
    const stack = model.stacks.find((one) => one.name === state.stack);
    if (stack === undefined) return;
    const head = (state.head + by + stack.n_heads) % stack.n_heads;
    change({ head });
    say(`head ${head}`);
  }

  function ablate() {
    const pane = panes[0]?.loaded;
    if (pane === undefined || pane === null) return;
    const part = state.part === "cross" ? "cross_attention" : "self_attention";
    change(toggled(pane, state, `${state.stack}.blocks.${state.layer ?? 0}.${part}.heads`, "heads", state.head));
  }

  function mask() {
    const pane = panes[0]?.loaded;
    if (pane !== undefined && pane !== null && source.live) change(maskToggled(pane, state, state.at ?? pane.look.at));
  }

  /** @param {KeyboardEvent} event */
  function pressed(event) {
    const on = /** @type {Element} */ (event.target);
    if (
      event.defaultPrevented ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      document.querySelector("dialog[open]")
    )
      return;
    if (event.key === "Escape") return escape(on);
    if (on.matches("textarea, select, input:not([type=range]), [contenteditable]")) return;
    const view = tabs.names[Number(event.key) - 1];
    const does =
      {
        j: () => moveRow(1),
        k: () => moveRow(-1),
        "[": () => moveLayer(-1),
        "]": () => moveLayer(1),
        ",": () => moveHead(-1),
        ".": () => moveHead(1),
        a: ablate,
        m: mask,
        n: () => void append(0, "likely"),
        s: () => void append(0, "sample"),
        c: compare,
        g: () => change({ tour: state.tour === null ? 0 : null }),
        t: () => change({ theme: THEMES[(THEMES.indexOf(state.theme) + 1) % THEMES.length] }),
        "/": () => panes[0]?.prompt.focus(),
        "?": () => help.showModal(),
      }[event.key] ?? (view === undefined ? undefined : () => change({ view }));
    if (does === undefined) return;
    event.preventDefault();
    does();
  }

  /** @param {Element} on */
  function escape(on) {
    if (on.matches("textarea, input")) return /** @type {HTMLElement} */ (on).blur();
    if (state.tour !== null) change({ tour: null });
    else if (state.layer !== null || state.part !== null) change({ layer: null, part: null });
    else if (state.panes.length > 1) compare();
  }

  document.addEventListener("keydown", pressed);
  addEventListener("popstate", () => {
    const before = state;
    state = settled(readUrl(), model);
    for (const key of Object.keys(state)) if (differ(key, before)) waiting.add(key);
    schedule();
  });
  redraw(new Set(["panes"]));
}

function helpBox() {
  const rows = KEYS.map(([keys = "", what = ""]) => [
    element("dt", {}, element("kbd", {}, keys)),
    element("dd", {}, what),
  ]);
  const close = element("form", { method: "dialog" }, element("button", { class: "primary" }, "Close"));
  return element(
    "dialog",
    { class: "help", "aria-label": "Keyboard" },
    element("h2", {}, "Keyboard"),
    element("dl", {}, ...rows.flat()),
    element(
      "p",
      { class: "note" },
      "Every number on this page was computed by your model when it read this text. Blocks, heads and rows are " +
        "counted from 0. A link to this page, as the address bar shows it, brings all of this back.",
    ),
    close,
  );
}

/** What the model is, in one line. @param {import("tercet/source.js").Model} model @returns {string[]} */
function about(model) {
  const family = {
    "decoder-only": "decoder-only (GPT)",
    "encoder-only": "encoder-only (BERT)",
    "encoder-decoder": "encoder-decoder (translator)",
  };
  const depths = model.stacks.map((one) => one.n_layers).join(" + ");
  const many = [...new Set(model.stacks.map((one) => one.n_heads))].join(" and ");
  const { data, steps } = /** @type {{data?: unknown, steps?: unknown}} */ (model.about);
  return [
    [
      family[/** @type {keyof typeof family} */ (model.family)] ?? model.family,
      `${model.parameters.toLocaleString("en")} parameters`,
      `${depths} blocks × ${many} heads`,
      `width ${model.stacks[0]?.d_model}`,
      `${model.vocab_size.toLocaleString("en")} tokens`,
      `context ${model.max_len}`,
      typeof data === "string" && data !== "" ? `trained on ${data}` : "",
      typeof steps === "number" && steps > 0 ? `${steps.toLocaleString("en")} steps` : "",
    ]
      .filter((one) => one !== "")
      .join(" · "),
  ];
}

/** Where the focus is, so that it can be given back: [pane, key]. @returns {[string | null, string] | null} */
function focused() {
  const on = document.activeElement;
  const key = on?.getAttribute("data-key");
  if (!on || key === null || key === undefined) return null;
  return [on.closest("[data-pane]")?.getAttribute("data-pane") ?? null, key];
}

/** @param {[string | null, string] | null} where */
function refocus(where) {
  if (where === null) return;
  const [pane, key] = where;
  const root = pane === null ? document : document.querySelector(`[data-pane="${pane}"]`);
  const to = /** @type {HTMLElement | null | undefined} */ (root?.querySelector(`[data-key="${CSS.escape(key)}"]`));
  if (to && to !== document.activeElement) to.focus({ preventScroll: true });
}

try {
  start(await open());
} catch (error) {
  document.body.append(element("p", { class: "problem", role: "alert" }, /** @type {Error} */ (error).message));
  throw error;
}
