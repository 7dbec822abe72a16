"""What is answered in one go: for each task, many clients' questions to one call of the room that knows the answer.

What becomes of a text does not depend on the texts beside it, so those of several clients may share a batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from tercet.checkpoint import Trained
from tercet.config import UserError
from tercet.encoding import Classified, Filled, Tagged, classify, fill, tag
from tercet.encoding.batches import framed
from tercet.encoding.embed import embed_rows
from tercet.evaluate import classifier, encoder, language_model, masked_model, translator
from tercet.generation import Beam, Sampling, Translation, translate
from tercet.generation.sampling import DIVERGED
from tercet.models.rest import at_rest
from tercet.nn.pooling import Pooling

POSITIONS_AT_ONCE = 64  # of a prompt: rows of scores over the whole vocabulary that are held together


class Source(NamedTuple):
    """A text to translate, and how its translation begins."""

    text: str
    prefix: str


class Pooled(NamedTuple):
    """How the vectors of a text's tokens become its own."""

    pooling: Pooling
    normalise: bool


class Wanted(NamedTuple):
    """How many candidates of which words."""

    top: int | None
    only: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The tokens of a prompt but the first: what the model gave each, and the likeliest (id, logprob) in its place."""

    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]


@dataclass(frozen=True)
class Tasks:
    """One model's answers. Each method takes many items and one setting for all of them.

    Each raises UserError or ValueError where an item cannot be answered, and UserError where the weights are broken.
    """

    trained: Trained

    def translations(self, items: list[Source], search: Beam | Sampling) -> list[list[Translation]]:
        found = translate(
            translator(self.trained), self.trained.tokenizer, [item.text for item in items], search,
            source_tokenizer=self.trained.source_tokenizer, prefixes=[item.prefix for item in items],
        )  # fmt: skip
        _check_numbers(one.score for several in found for one in several)
        return found

    def vectors(self, items: list[tuple[int, ...]], how: Pooled) -> list[np.ndarray]:
        """As `tercet.encoding.embed`, of texts that are ids already; none is longer than the model takes."""
        model, tokenizer = encoder(self.trained), self.trained.tokenizer
        rows = framed(tokenizer, [list(ids) for ids in items], max_len=model.max_len).rows
        found = embed_rows(model, rows, pad=tokenizer.pad_id, pooling=how.pooling, normalise=how.normalise)
        _check_numbers(vector.sum().item() for vector in found)
        return found

    def fills(self, items: list[str], wanted: Wanted) -> list[Filled]:
        model = masked_model(self.trained)
        found = fill(model, self.trained.tokenizer, items, top=wanted.top, only=wanted.only)
        _check_numbers(one.probability for text in found for mask in text.masks for one in mask)
        return found

    def labels(self, items: list[str], _: None) -> list[Classified] | list[Tagged]:
        model, tokenizer = classifier(self.trained), self.trained.tokenizer
        head = model.spec.classifier
        assert head is not None
        if head.over == "texts":
            found = classify(model, tokenizer, items)
            _check_numbers(one.probability for one in found)
            return found
        tagged = tag(model, tokenizer, [text.split() for text in items])
        _check_numbers(one.probability for text in tagged for one in text.tags if one is not None)
        return tagged

    def scores(self, items: list[tuple[int, ...]], top: int) -> list[Scored]:
        """What a language model gives the tokens of each prompt, each seen from those before it."""
        return [self._score(list(ids), top) for ids in items]

    def _score(self, ids: list[int], top: int) -> Scored:
        model = language_model(self.trained)
        device = model.embedding.weight.device
        logprobs, likeliest = list[float](), list[tuple[tuple[int, float], ...]]()
        with at_rest(model.modules()):
            hidden = model.hidden(torch.tensor([ids[:-1] or ids], device=device))[0]  # (T, D)
            targets = torch.tensor(ids[1:], device=device)
            for states, target in zip(
                hidden[: len(targets)].split(POSITIONS_AT_ONCE), targets.split(POSITIONS_AT_ONCE), strict=True
            ):
                scores = model.logits(states).log_softmax(-1)  # (t, V)
                logprobs += scores.gather(-1, target[:, None]).squeeze(-1).tolist()
                values, best = scores.topk(min(top, scores.shape[-1]), dim=-1)
                likeliest += [
                    tuple(zip(*pair, strict=True)) for pair in zip(best.tolist(), values.tolist(), strict=True)
                ]
        _check_numbers(logprobs)
        return Scored(logprobs=tuple(logprobs), top=tuple(likeliest))


def _check_numbers(numbers: "Sequence[float] | object") -> None:
    if any(math.isnan(number) for number in numbers):  # type: ignore[union-attr]
        raise UserError(DIVERGED)
