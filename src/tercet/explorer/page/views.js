// The views, from left to right: what each is called, says of itself, and how it is drawn.

import { beams } from "tercet/beams.js";
import { flow } from "tercet/flow.js";
import { heads } from "tercet/heads.js";
import { lens } from "tercet/lens.js";
import { maps } from "tercet/maps.js";

/** @typedef {import("tercet/source.js").Model} Model */

export const views = {
  flow: { name: "Flow", draw: flow, tip: "the whole pass, from the tokens to the probabilities" },
  maps: { name: "Attention maps", draw: maps, tip: "what each head looks at" },
  lens: { name: "Logit lens", draw: lens, tip: "what would be said after each block" },
  heads: { name: "Heads", draw: heads, tip: "what each head does, and what is lost without it" },
  beams: { name: "Beams", draw: beams, tip: "the translations that were tried" },
};
/** @typedef {keyof typeof views} View */

/** The views that a model has. @param {Model} model @returns {View[]} */
export const viewsOf = (model) =>
  /** @type {View[]} */ (Object.keys(views).filter((name) => name !== "beams" || model.can.translate));
