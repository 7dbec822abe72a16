"""Scores for the comparison of trained models, each on the held-out part of the data it was trained with.

    nats per token           language models with the same text and the same tokenization
    bits per byte            language models with the same text and any tokenization
    pseudo-bits per byte     masked language models: -(sum of log2 p(token | other tokens)) / bytes

The last is not a likelihood: each token depends on tokens on both sides, so the product of the factors is not the
probability of the text (Salazar et al. 2020). It is reported next to bits per byte, but not compared with them. Tokens
to the right in the same word are masked too (Kauf and Ivanova 2023).

A held-out part such as the last tenth of the tokens begins at a different character for each tokenizer. Language models
with different tokenizers are therefore scored on the shortest of their held-out texts, which is held out from all.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tercet.checkpoint import TrainedModel, load_model, read_spec
from tercet.config import UserError
from tercet.data import Corpus
from tercet.data.encode.document_ids import beginning_ids
from tercet.encoding.pseudo import pseudo_scores
from tercet.evaluate.tasks import evaluation_of
from tercet.evaluate.tasks.evaluation import HeldOutScores
from tercet.evaluate.tasks.language import LanguageEvaluation

# Number and maximum bytes of the pieces of text for pseudo-bits; small, since each token takes a forward pass.
N_PIECES, PIECE_BYTES = 8, 256


def score_held_out(folders: Sequence[Path], *, device: str | torch.device = "cpu") -> list[HeldOutScores]:
    """Return the scores of the model in each folder, in their order; one model is in memory at a time.

    Args:
        folders: Model or run folders.
        device: Device on which the models are scored.

    Raises:
        UserError: If a model cannot be scored, or its data is missing or has changed.
    """
    results, texts = list[HeldOutScores](), dict[str, tuple[str, ...]]()
    for folder in folders:
        scores = _score(_load(folder, device))
        # Runs on the same text share one copy of it.
        results.append(replace(scores, validation=texts.setdefault(scores.text, scores.validation)))
    _score_shared_tails(folders, results, device)
    if _needs_pseudo(results):
        _add_pseudo(folders, results, device)
    return results


def check_scorable(trained_model: TrainedModel) -> None:
    """Check that a model can be scored, before others are trained for a comparison.

    Raises:
        UserError: If the model cannot be scored, as in `score_held_out`.
    """
    if "evaluate" not in trained_model.verbs:
        raise UserError(
            f"{trained_model.folder} is {trained_model.kind}, without masks or labels to score; leave it out"
        )
    if "data" not in trained_model.card.recipe:
        raise UserError(
            f"{trained_model.folder} does not contain its training data settings, so nothing is held out; leave it out"
        )
    evaluation_of(trained_model).load_held_out()


def _load(folder: Path, device: str | torch.device) -> TrainedModel:
    trained_model = load_model(folder)
    trained_model.model.to(device)
    return trained_model


def _score(trained_model: TrainedModel) -> HeldOutScores:
    if "evaluate" not in trained_model.verbs:
        check_scorable(trained_model)
    evaluation = evaluation_of(trained_model)
    return evaluation.score_held_out(evaluation.load_held_out())


def _score_shared_tails(folders: Sequence[Path], results: list[HeldOutScores], device: str | torch.device) -> None:
    """Score language models on the shortest of their held-out texts, if all of these end with it."""
    languages = [i for i, result in enumerate(results) if result.kind == "language model"]
    if len({results[i].text for i in languages}) < 2:
        return
    shortest = min((results[i].validation for i in languages), key=lambda texts: sum(map(len, texts)))
    if not all(_ends_with(results[i].validation, shortest) for i in languages):
        return
    for i in languages:
        if results[i].validation != shortest:
            evaluation = LanguageEvaluation(_load(folders[i], device).require("generate"))
            results[i] = evaluation.score_held_out(_replace_validation(evaluation.load_held_out(), shortest))


def _ends_with(documents: Sequence[str], end: Sequence[str]) -> bool:
    """Return whether the documents end with those of `end`.

    The first document of `end` only needs to be the end of a document.
    """
    whole = len(end) - 1
    return (
        len(documents) > whole
        and tuple(documents[len(documents) - whole :]) == tuple(end[1:])
        and documents[len(documents) - whole - 1].endswith(end[0])
    )


def _replace_validation(corpus: Corpus, documents: Sequence[str]) -> Corpus:
    """Return the corpus with these documents as its validation part, encoded like the documents they replace."""
    tokenizer, dtype = corpus.tokenizer, corpus.validation.dtype
    beginning, eos = beginning_ids(tokenizer), [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    parts = [np.concatenate([beginning, ids, eos]).astype(dtype) for ids in tokenizer.encode_batch(documents)]
    starts = np.cumsum([0, *map(len, parts)])[:-1].astype(np.int64)
    return replace(corpus, validation=np.concatenate(parts), validation_documents=starts)


def _needs_pseudo(results: Sequence[HeldOutScores]) -> bool:
    """Return whether masked language models with different tokenizers, or with language models, are compared."""
    masked_models = [result for result in results if result.kind == "masked language model"]
    has_others = any(result.kind == "language model" for result in results)
    return bool(masked_models) and (has_others or len({result.tokenizer for result in masked_models}) > 1)


def _add_pseudo(folders: Sequence[Path], results: list[HeldOutScores], device: str | torch.device) -> None:
    """Add pseudo-bits per byte of the masked language models, all on the same pieces of text."""
    masked_models = [i for i, result in enumerate(results) if result.kind == "masked language model"]
    longest = min(read_spec(folders[i]).max_len for i in masked_models)
    text = "\n".join(min((results[i].validation for i in masked_models), key=lambda texts: sum(map(len, texts))))
    pieces = text_pieces(text, N_PIECES, max_bytes=min(PIECE_BYTES, longest - 2))
    if not pieces:
        return
    for i in masked_models:
        trained_model = _load(folders[i], device)
        scores = pseudo_scores(trained_model.require("fill").model, trained_model.tokenizer, pieces, within_word=True)
        logprob = math.fsum(score.logprob for score in scores)
        bits = -logprob / math.log(2) / sum(len(piece.encode()) for piece in pieces)
        results[i] = replace(results[i], scores={**results[i].scores, "pseudo_bits_per_byte": bits})


def text_pieces(text: str, count: int, *, max_bytes: int) -> list[str]:
    """Return up to `count` pieces of whole words, spread evenly over the text.

    A piece has at most `max_bytes` UTF-8 bytes.
    """
    pieces = list[str]()
    for number in range(count):
        start = len(text) * number // count
        end = start + 2 * max_bytes
        words = text[start:end].split()[1 : None if end >= len(text) else -1]  # words at the cuts may be incomplete
        piece = ""
        for word in words:
            longer = f"{piece} {word}".strip()
            if len(longer.encode()) > max_bytes:
                break
            piece = longer
        if piece:
            pieces.append(piece)
    return pieces
