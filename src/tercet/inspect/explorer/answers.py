"""Answers to what the page asks: each a plain JSON object, worked out from one pass through the model."""

from functools import cached_property
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoint import Trained
from tercet.config import Plain, UserError, nearest
from tercet.generation import distribution, draw
from tercet.inspect.attribution import attribute
from tercet.inspect.explorer.ask import (
    QUESTIONS,
    Ask,
    OfAttribution,
    OfBeams,
    OfBlock,
    OfHeads,
    OfLogits,
    OfLook,
    OfModel,
    OfSample,
    Question,
    question,
    to_plain,
)
from tercet.inspect.explorer.beams import beams
from tercet.inspect.explorer.blocks import block
from tercet.inspect.explorer.overview import look, loss, loss_now, shown_logits
from tercet.inspect.explorer.reading import Pass, Passes
from tercet.inspect.heads import HeadScores, ablations, head_scores
from tercet.inspect.lens import stacks_of
from tercet.models import DecoderOnly, EncoderDecoder, EncoderOnly, Stack
from tercet.nn import Attention


class Answers:
    """What is known of one model. The model is asked from one thread at a time.

    Args:
        start: what the page opens with.
    """

    def __init__(self, trained: Trained, *, start: Ask | None = None) -> None:
        self.trained, self.start = trained, Ask() if start is None else start
        self.passes = Passes(trained)
        self.lock = RLock()  # held while the model is asked

    def answer(self, name: str, body: Any) -> Plain:
        """The answer to the question `name`, whose body is as the page sends it.

        Raises:
            UserError: where the question cannot be read or answered, with the remedy.
        """
        if name not in QUESTIONS:
            raise UserError(f"nothing is called {name!r} here{nearest(name, QUESTIONS)}")
        asked = question(QUESTIONS[name], body)
        return self.of(asked)

    def of(self, asked: Question) -> Plain:
        """The answer to a question that has been read."""
        with self.lock:
            return self._of(asked)

    def _of(self, asked: Question) -> Plain:
        match asked:
            case OfModel():
                return self.model()
            case OfLook():
                return look(self.passes(asked.ask), asked.at)
            case OfBlock():
                return block(self.passes(asked.ask), asked.name, parameters="float32" if asked.parameters else None)
            case OfLogits():
                return shown_logits(self.passes(asked.ask), asked.at)
            case OfSample():
                return self.sample(asked)
            case OfAttribution():
                return self.attribution(asked)
            case OfHeads():
                return self.heads(self.passes(asked.ask))
            case OfBeams():
                return beams(self.passes(asked.ask), asked.size)

    def model(self) -> Plain:
        model, tokenizer, card = self.trained.model, self.trained.tokenizer, self.trained.card
        folder = self.trained.folder.absolute()
        run = folder.parent if folder.name in ("best", "last") else folder
        masks = isinstance(model, EncoderOnly) and model.spec.masked_head is not None
        classifies = isinstance(model, EncoderOnly) and model.spec.classifier is not None
        head = model.spec.masked_head if isinstance(model, EncoderOnly) else None
        return {
            "name": card.name or run.name,
            "folder": run.name,
            "family": model.spec.family,
            "vocab_size": model.vocab_size,
            "max_len": model.max_len,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "mask_id": tokenizer.mask_id if isinstance(model, EncoderOnly) else None,
            "eos_id": tokenizer.eos_id,
            "tokenizer": tokenizer.kind,
            "can": {
                "sample": isinstance(model, DecoderOnly | EncoderDecoder),
                "mask": masks and tokenizer.mask_id is not None,
                "translate": isinstance(model, EncoderDecoder),
                "classify": classifies,
            },
            "linear_head": head is None or not head.transform,  # else a score is no sum over the parts
            "stacks": [_sizes(name, stack) for name, stack in stacks_of(model).items()],
            "about": {
                "data": card.data_name,
                "steps": card.step,
                "tokens_seen": card.tokens_seen,
                "metrics": card.metrics,
            },
            "start": to_plain(self.start),
            "live": True,
        }

    def sample(self, asked: OfSample) -> Plain:
        """A token by the sampler's own distribution and draw."""
        made = self.passes(asked.ask)
        if made.reading.logits is None:
            raise UserError(f"{self.trained.folder} scores no words, so none can be drawn")
        sampling = asked.sampling.sampling
        with torch.inference_mode():
            probabilities = distribution(made.reading.logits[made.row(asked.at)][None], sampling)
            drawn = int(draw(probabilities, [torch.Generator().manual_seed(sampling.seed)]))
        tokenizer = made.side.tokenizer
        return {
            "id": drawn,
            "text": tokenizer.tokens([drawn])[0],
            "special": drawn in tokenizer.special_ids,
            "probability": float(probabilities[0, drawn]),
        }

    def attribution(self, asked: OfAttribution) -> Plain:
        made = self.passes(asked.ask)
        row = made.row(asked.at)
        try:
            found = attribute(self.trained.model, made.reading.seen, position=row, ids=[asked.id])
        except ValueError as error:  # a head that is not linear, or an id that is not there
            raise UserError(str(error)) from None
        assert made.reading.logits is not None
        logit = float(made.reading.logits[row, asked.id])
        return {"names": list(found.names), "values": found.values[:, 0].tolist(), "logit": logit}

    def heads(self, made: Pass) -> Plain:
        """What each head does in general, and how much worse this text is foretold without it."""
        before, model = loss(made), self.trained.model
        edits = [ablation.edit for ablation in made.ask.edits]
        rise = {} if before is None else ablations(model, lambda: loss_now(made), edits=edits)
        rows = [
            {
                "name": name,
                "previous": _listed(self._scores.previous.get(name)),
                "induction": _listed(self._scores.induction.get(name)),
                "ablation": list(rise[name]) if name in rise else None,
            }
            for name, part in model.named_modules()
            if isinstance(part, Attention)
        ]
        return {"rows": rows, "loss": None if before is None else before["mean"]}

    @cached_property
    def _scores(self) -> HeadScores:
        """On random tokens, so the same for every text; none where the context is too short to see repetition."""
        model, target, source = self.trained.model, self.trained.tokenizer, self.trained.source_tokenizer
        try:
            return head_scores(
                model,
                ids=sorted(set(range(model.vocab_size)) - target.special_ids),
                source_ids=sorted(set(range(source.vocab_size)) - source.special_ids),
            )
        except ValueError:
            return HeadScores(previous={}, induction={})


def _listed(scores: Tensor | None) -> list[float] | None:
    return None if scores is None else scores.tolist()


def _sizes(name: str, stack: Stack) -> Plain:
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
        "final_norm": spec.has_final_norm,
        "norm": spec.norm,
        "norm_eps": spec.norm_eps,
        "qk_norm": spec.qk_norm,
        "position": spec.position.kind,
        "activation": spec.activation,
        "gated": spec.gated,
        "causal": stack.causal,
        "cross": any(isinstance(part, Attention) and "cross" in known for known, part in stack.named_modules()),
    }
