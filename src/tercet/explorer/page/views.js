// The views, from left to right, with their names, tooltips and functions.

import { beams } from "tercet/beams.js";
import { flow } from "tercet/flow.js";
import { heads } from "tercet/heads.js";
import { lens } from "tercet/lens.js";
import { maps } from "tercet/maps.js";

/** @typedef {import("tercet/source.js").Model} Model */

export const views = {
  flow: { name: "Flow", draw: flow, tip: "the forward pass, from tokens to probabilities" },
  maps: { name: "Attention maps", draw: maps, tip: "attention weights of all heads" },
  lens: { name: "Logit lens", draw: lens, tip: "predictions after each block" },
  heads: { name: "Heads", draw: heads, tip: "scores of each head, and the increase of the loss without it" },
  beams: { name: "Beams", draw: beams, tip: "hypotheses of beam search" },
};
/** @typedef {keyof typeof views} View */

/** The views available for a model. @param {Model} model @returns {View[]} */
export const viewsOf = (model) =>
  /** @type {View[]} */ (Object.keys(views).filter((name) => name !== "beams" || model.can.translate));
