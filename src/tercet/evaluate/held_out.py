"""The scores by which trained models are compared: each model on what its own data kept from training.

    nats per token           of language models that cut the same text into the same tokens
    bits per byte            of language models, whatever their tokens, on the same text
    pseudo-bits per byte     of masked language models: -(sum of log2 p(token | all the others)) / bytes

The last is no likelihood of a text: each token is told by those on both sides of it, so the factors do not multiply to
a probability of the whole (Salazar et al. 2020). It stands beside bits per byte, and is not compared with them.

Two tokenizers cut the last tenth of their tokens off at different places. What is held out from both is the shorter of
the two texts, so that is what both are scored on.
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

N_PIECES, PIECE_BYTES = 8, 256  # of text whose pseudo-likelihood is taken, a pass for each token


def score_held_out(folders: Sequence[Path], *, device: str | torch.device = "cpu") -> list[HeldOutScores]:
    """The scores of the model in each folder, in their order; one model is in memory at a time.

    Raises:
        UserError: where a model is none that can be scored, or its data is gone or has changed.
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
    """Look for all that scoring needs, before anything is trained beside it.

    Raises:
        UserError: as `score_held_out`.
    """
    if "evaluate" not in trained_model.verbs:
        raise UserError(
            f"{trained_model.folder} is {trained_model.kind}, which fills no masks and gives no labels: leave it out"
        )
    if "data" not in trained_model.card.recipe:
        raise UserError(
            f"{trained_model.folder} does not say what it was trained on, so nothing is held out: leave it out"
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
    """Where language models hold out ends of different lengths of one text, score all on the shortest."""
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
    """Whether the documents end with those of `end`, the first of which may be the end of one."""
    whole = len(end) - 1
    return (
        len(documents) > whole
        and tuple(documents[len(documents) - whole :]) == tuple(end[1:])
        and documents[len(documents) - whole - 1].endswith(end[0])
    )


def _replace_validation(corpus: Corpus, documents: Sequence[str]) -> Corpus:
    """The corpus with these documents for its validation part, as its own documents are begun and ended."""
    tokenizer, dtype = corpus.tokenizer, corpus.validation.dtype
    beginning, eos = beginning_ids(tokenizer), [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    parts = [np.concatenate([beginning, ids, eos]).astype(dtype) for ids in tokenizer.encode_batch(documents)]
    starts = np.cumsum([0, *map(len, parts)])[:-1].astype(np.int64)
    return replace(corpus, validation=np.concatenate(parts), validation_documents=starts)


def _needs_pseudo(results: Sequence[HeldOutScores]) -> bool:
    """Whether masked language models stand beside others that cut the text in another way, or predict otherwise."""
    masked_models = [result for result in results if result.kind == "masked language model"]
    has_others = any(result.kind == "language model" for result in results)
    return bool(masked_models) and (has_others or len({result.tokenizer for result in masked_models}) > 1)


def _add_pseudo(folders: Sequence[Path], results: list[HeldOutScores], device: str | torch.device) -> None:
    """Pseudo-bits per byte of the masked language models, all on the same pieces of text."""
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
    """Return up to `count` pieces of whole words, at most `max_bytes` UTF-8 bytes each, spread evenly over the text."""
    pieces = list[str]()
    for number in range(count):
        start = len(text) * number // count
        end = start + 2 * max_bytes
        words = text[start:end].split()[1 : None if end >= len(text) else -1]  # what is cut may be half a word
        piece = ""
        for word in words:
            longer = f"{piece} {word}".strip()
            if len(longer.encode()) > max_bytes:
                break
            piece = longer
        if piece:
            pieces.append(piece)
    return pieces
