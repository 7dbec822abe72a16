"""Answers to the page's queries: objects for JSON, most of them computed from one forward pass."""

from functools import cached_property
from threading import RLock
from typing import Any

import torch

from tercet.checkpoint import Encoder, TrainedModel
from tercet.config import Plain, UserError, suggest
from tercet.explorer.beam_tree import beam_tree
from tercet.explorer.blocks import block
from tercet.explorer.overview import logits_of_row, overview
from tercet.explorer.passes import Pass, PassCache
from tercet.explorer.queries import (
    QUERIES,
    AnyQuery,
    AttributionQuery,
    BeamsQuery,
    BlockQuery,
    HeadsQuery,
    LogitsQuery,
    ModelQuery,
    OverviewQuery,
    Query,
    SampleQuery,
    parse_query,
    query_to_plain,
)
from tercet.generation import Sampling, distribution, draw
from tercet.inspect.attribution import attribute_logit
from tercet.inspect.heads import HeadScores, ablate_heads, heads_to_dicts, score_heads
from tercet.inspect.lens import stacks_of
from tercet.models import Stack
from tercet.nn import Attention
from tercet.spec import Custom


class Answers:
    """Answer queries about one model, which runs in one thread at a time.

    Args:
        trained_model: Model to ask about.
        start: Query that the page opens with; None for an empty text.
    """

    def __init__(self, trained_model: TrainedModel, *, start: Query | None = None) -> None:
        self.trained_model, self.start = trained_model, Query() if start is None else start
        self.passes = PassCache(trained_model)
        self.lock = RLock()  # held while the model runs

    def answer(self, name: str, body: Any) -> Plain:
        """Return the answer to a query of the page.

        Args:
            name: Name of the query, one of QUERIES.
            body: Parsed JSON body of the query.

        Raises:
            UserError: If the query is unknown, cannot be parsed or cannot be answered.
        """
        if name not in QUERIES:
            raise UserError(f"unknown query: {name!r}{suggest(name, QUERIES)}")
        return self.answer_query(parse_query(QUERIES[name], body))

    def answer_query(self, query: AnyQuery) -> Plain:
        """Return the answer to a parsed query.

        Raises:
            UserError: If the query cannot be answered.
        """
        with self.lock:
            match query:
                case ModelQuery():
                    return self.model()
                case OverviewQuery():
                    return overview(self.passes(query.ask), query.at)
                case BlockQuery():
                    kind = "float32" if query.parameters else None
                    return block(self.passes(query.ask), query.name, parameters=kind)
                case LogitsQuery():
                    return logits_of_row(self.passes(query.ask), query.at)
                case SampleQuery():
                    return self.sample(query)
                case AttributionQuery():
                    return self.attribution(query)
                case HeadsQuery():
                    return self.heads(self.passes(query.ask))
                case BeamsQuery():
                    return beam_tree(self.passes(query.ask), query.size)

    def model(self) -> Plain:
        """Return a description of the model, and the query that the page opens with."""
        trained_model, model, tokenizer = self.trained_model, self.trained_model.model, self.trained_model.tokenizer
        card = trained_model.card.remove_folders()  # saved pages are shared
        folder = self.trained_model.folder.absolute()
        run = folder.parent if folder.name in ("best", "last") else folder
        head = trained_model.model.spec.masked_head if isinstance(trained_model, Encoder) else None
        return {
            "name": card.name or run.name,
            "folder": run.name,
            "family": model.spec.family,
            "vocab_size": model.vocab_size,
            "max_len": model.max_len,
            "parameters": trained_model.n_parameters,
            "mask_id": tokenizer.mask_id if "embed" in trained_model.verbs else None,
            "eos_id": tokenizer.eos_id,
            "tokenizer": tokenizer.kind,
            "can": {
                "sample": "generate" in trained_model.verbs or "translate" in trained_model.verbs,
                "mask": "fill" in trained_model.verbs and tokenizer.mask_id is not None,
                "translate": "translate" in trained_model.verbs,
                "classify": "classify" in trained_model.verbs,
            },
            "linear_head": head is None or not head.transform,  # otherwise a logit is not a sum over the parts
            "stacks": [_stack_sizes(name, stack) for name, stack in stacks_of(model).items()],
            "about": {
                "data": card.data_name,
                "steps": card.step,
                "tokens_seen": card.tokens_seen,
                "metrics": card.metrics,
            },
            "start": query_to_plain(self.start),
            "live": True,
        }

    def sample(self, query: SampleQuery) -> Plain:
        """Return a token that the sampler of text generation draws after row `query.at`, and its probability."""
        forward_pass = self.passes(query.ask)
        recording = forward_pass.recording
        if recording.logits is None:
            raise UserError(f"{self.trained_model.folder} has no language-model head, so no token can be sampled")
        sampling = Sampling(**vars(query.sampling))
        with torch.inference_mode():
            probabilities = distribution(recording.logits[forward_pass.row(query.at)][None], sampling)
            token = int(draw(probabilities, [torch.Generator().manual_seed(sampling.seed)]))
        tokenizer = recording.side.tokenizer
        return {
            "id": token,
            "text": tokenizer.tokens([token])[0],
            "special": token in tokenizer.special_ids,
            "probability": float(probabilities[0, token]),
        }

    def attribution(self, query: AttributionQuery) -> Plain:
        """Return the contribution of each part of the model to a logit, and the logit."""
        forward_pass = self.passes(query.ask)
        recording, row = forward_pass.recording, forward_pass.row(query.at)
        attribution = attribute_logit(self.trained_model.model, recording, row=row, token=query.id)
        assert recording.logits is not None  # otherwise `attribute_logit` has raised
        logit = float(recording.logits[row, query.id])
        return {"names": list(attribution.names), "values": attribution.values[:, 0].tolist(), "logit": logit}

    def heads(self, forward_pass: Pass) -> Plain:
        """Return the scores of each head, and how much the loss of the text increases without the head."""
        attentions = [name for name, part in self.trained_model.model.named_modules() if isinstance(part, Attention)]
        original_ids = forward_pass.query.original_ids
        loss_increases = ablate_heads(
            self.trained_model, forward_pass.recording, edits=forward_pass.edits, original_ids=original_ids
        )
        return {"rows": heads_to_dicts(attentions, self._scores, loss_increases), "loss": forward_pass.loss}

    @cached_property
    def _scores(self) -> HeadScores:
        """Scores of the heads on random tokens, the same for every text; empty if the context is too short."""
        try:
            return score_heads(self.trained_model)
        except UserError:
            return HeadScores(previous={}, induction={})


def _stack_sizes(name: str, stack: Stack) -> Plain:
    spec = stack.spec
    return {
        "name": name,
        "n_layers": spec.n_layers,
        "n_heads": spec.n_heads,
        "n_kv_heads": spec.kv_heads,
        "d_model": spec.d_model,
        "d_head": spec.head_width,
        "d_ff": spec.inner_width,
        "placement": spec.placement,
        "parallel": spec.parallel,
        "first_norm": spec.first_norm,
        "final_norm": spec.has_final_norm,
        "norm": _name(spec.norm),
        "norm_eps": spec.norm_eps,
        "qk_norm": spec.qk_norm,
        "attention_softcap": spec.attention_softcap,
        "position": spec.position.kind,
        "activation": _name(spec.activation),
        "gated": spec.gated,
        "causal": stack.causal,
        "cross": any(isinstance(part, Attention) and "cross" in part_name for part_name, part in stack.named_modules()),
    }


def _name(value: str | Custom) -> str:
    """Return the name of a variant, or the class of a part of another package."""
    return value if isinstance(value, str) else type(value).__name__
