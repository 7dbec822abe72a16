"""The scores by which trained models are compared: each model on what its own data kept from training.

    nats per token           of language models that cut the same text into the same tokens
    bits per byte            of language models, whatever their tokens, on the same text
    pseudo-bits per byte     of masked language models: -(sum of log2 p(token | all the others)) / bytes

The last is no likelihood of a text: each token is told by those on both sides of it, so the factors do not multiply to
a probability of the whole (Salazar et al. 2020). It stands beside bits per byte, and is not compared with them.

Two tokenizers cut the last tenth of their tokens off at different places. What is held out from both is the shorter of
the two texts, so that is what both are scored on.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch

from tercet.checkpoint import Trained, load_model
from tercet.config import UserError
from tercet.data import Corpus
from tercet.encoding.pseudo import pseudo_scores
from tercet.evaluate.labels import score_labels
from tercet.evaluate.runs import (
    classifier,
    kind_of,
    labels_to_score,
    masked_model,
    masked_scores,
    pairs_to_score,
    scores_of,
    text_to_score,
    translation_scores,
)
from tercet.generation import Beam

Kind = Literal["language model", "masked language model", "translator", "classifier"]
KINDS: dict[str, Kind] = {
    "generate": "language model", "fill": "masked language model", "translate": "translator", "classify": "classifier",
}  # fmt: skip
PIECES, PIECE_BYTES = 8, 256  # of text whose pseudo-likelihood is taken, a pass for each token


@dataclass(frozen=True, kw_only=True)
class HeldOutScores:
    """Attributes:
    scores: by measure, such as {"nats_per_token": 1.47}; see `MEASURES` of the leaderboard.
    parameters: of the model, tied ones once.
    text: sha256 of the text, pairs or labels that were scored.
    tokenizer: sha256 of the tokenizer; a translator's is the target's.
    tokens: predictions that the scores are means of.
    validation: the documents that a model of text was scored on.
    """

    kind: Kind
    scores: dict[str, float]
    parameters: int
    text: str
    tokenizer: str
    tokens: int
    validation: tuple[str, ...] = field(default=(), repr=False)


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
    if _wants_pseudo(results):
        _add_pseudo(folders, results, device)
    return results


def check_scorable(trained: Trained) -> None:
    """Look for all that scoring needs, before anything is trained beside it.

    Raises:
        UserError: as `score_held_out`.
    """
    what, verb = kind_of(trained)
    if verb not in KINDS:
        raise UserError(f"{trained.folder} is {what}, which fills no masks and gives no labels: leave it out")
    if "data" not in trained.card.recipe:
        raise UserError(f"{trained.folder} does not say what it was trained on, so nothing is held out: leave it out")
    if verb == "translate":
        pairs_to_score(trained, part="validation")
    elif verb == "classify":
        labels_to_score(trained)
    else:
        text_to_score(trained)


def _load(folder: Path, device: str | torch.device) -> Trained:
    trained = load_model(folder)
    trained.model.to(device)
    return trained


def _score(trained: Trained, corpus: Corpus | None = None) -> HeldOutScores:
    _, verb = kind_of(trained)
    if verb not in KINDS:
        check_scorable(trained)
    documents, text = tuple[str, ...](), ""
    if verb in ("generate", "fill"):
        corpus = text_to_score(trained) if corpus is None else corpus
        documents = _documents(corpus)
        text = _digest(*documents)
    if verb == "generate":
        assert corpus is not None
        language = scores_of(trained, corpus)
        scores = {"nats_per_token": language.loss_nats_per_token, "bits_per_byte": language.bits_per_byte}
        tokens = language.tokens
    elif verb == "fill":
        assert corpus is not None
        masked = masked_scores(trained, corpus)
        scores = {"nats_per_masked_token": masked.masked_loss, "accuracy": masked.masked_accuracy}
        tokens = masked.tokens
    elif verb == "translate":
        translated = translation_scores(trained, part="validation", search=Beam(size=1))
        found = translated.scores
        assert found.nll_nats_per_token is not None
        scores = {"nats_per_target_token": found.nll_nats_per_token, "bleu": found.bleu, "chrf": found.chrf}
        text = _digest(*(side for pair in translated.pairs for side in pair))
        tokens = found.tokens or 0
    else:
        labelled = labels_to_score(trained)
        labels = score_labels(classifier(trained), trained.tokenizer, labelled)
        loss = trained.card.metrics.get("val/loss")  # over the same labels, by the training
        scores = {**({} if loss is None else {"nats_per_label": loss}), "accuracy": labels.accuracy, "f1": labels.f1}
        text = _digest(trained.card.data_hash, str(labels.count), *labels.labels)
        tokens = labels.count
    return HeldOutScores(
        kind=KINDS[verb],
        scores=scores,
        parameters=sum(parameter.numel() for parameter in trained.model.parameters()),
        text=text,
        tokenizer=trained.tokenizer.hash,
        tokens=tokens,
        validation=documents,
    )


def _score_shared_tails(folders: Sequence[Path], results: list[HeldOutScores], device: str | torch.device) -> None:
    """Where language models hold out ends of different lengths of one text, score all on the shortest."""
    languages = [i for i, one in enumerate(results) if one.kind == "language model"]
    if len({results[i].text for i in languages}) < 2:
        return
    shortest = min((results[i].validation for i in languages), key=lambda texts: sum(map(len, texts)))
    if not all(_ends_with(results[i].validation, shortest) for i in languages):
        return
    for i in languages:
        if results[i].validation != shortest:
            trained = _load(folders[i], device)
            results[i] = _score(trained, _encoded(text_to_score(trained), shortest))


def _ends_with(documents: Sequence[str], end: Sequence[str]) -> bool:
    """Whether the documents end with those of `end`, the first of which may be the end of one."""
    whole = len(end) - 1
    return (
        len(documents) > whole
        and tuple(documents[len(documents) - whole :]) == tuple(end[1:])
        and documents[len(documents) - whole - 1].endswith(end[0])
    )


def _encoded(corpus: Corpus, documents: Sequence[str]) -> Corpus:
    """The corpus with these documents for its validation part, each ended by eos where there is one."""
    eos = [] if corpus.tokenizer.eos_id is None else [corpus.tokenizer.eos_id]
    parts = [np.append(ids, eos).astype(corpus.validation.dtype) for ids in corpus.tokenizer.encode_batch(documents)]
    starts = np.cumsum([0, *map(len, parts)])[:-1].astype(np.int64)
    return replace(corpus, validation=np.concatenate(parts), validation_documents=starts)


def _wants_pseudo(results: Sequence[HeldOutScores]) -> bool:
    """Whether masked language models stand beside others that cut the text in another way, or predict otherwise."""
    masked = [one for one in results if one.kind == "masked language model"]
    others = any(one.kind == "language model" for one in results)
    return bool(masked) and (others or len({one.tokenizer for one in masked}) > 1)


def _add_pseudo(folders: Sequence[Path], results: list[HeldOutScores], device: str | torch.device) -> None:
    """Pseudo-bits per byte of the masked language models, all on the same pieces of text."""
    masked = [i for i, one in enumerate(results) if one.kind == "masked language model"]
    longest = min(load_model(folders[i]).model.max_len for i in masked)
    text = "\n".join(min((results[i].validation for i in masked), key=lambda texts: sum(map(len, texts))))
    pieces = text_pieces(text, PIECES, most=min(PIECE_BYTES, longest - 2))
    if not pieces:
        return
    for i in masked:
        trained = _load(folders[i], device)
        scored = pseudo_scores(masked_model(trained), trained.tokenizer, pieces, within_word=True)
        logprob = math.fsum(one.logprob for one in scored)
        bits = -logprob / math.log(2) / sum(len(piece.encode()) for piece in pieces)
        results[i] = replace(results[i], scores={**results[i].scores, "pseudo_bits_per_byte": bits})


def text_pieces(text: str, count: int, *, most: int) -> list[str]:
    """At most `count` pieces of at most `most` UTF-8 bytes, whole words, from places spread evenly over the text."""
    pieces = list[str]()
    for number in range(count):
        start = len(text) * number // count
        end = start + 2 * most
        words = text[start:end].split()[1 : None if end >= len(text) else -1]  # what is cut may be half a word
        piece = ""
        for word in words:
            longer = f"{piece} {word}".strip()
            if len(longer.encode()) > most:
                break
            piece = longer
        if piece:
            pieces.append(piece)
    return pieces


def _documents(corpus: Corpus) -> tuple[str, ...]:
    ids, starts = corpus.validation, corpus.validation_documents
    ends = [*starts[1:].tolist(), len(ids)]
    return tuple(
        corpus.tokenizer.decode(cast(list[int], ids[start:end].tolist()))
        for start, end in zip(starts.tolist(), ends, strict=True)
    )


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode() + part.encode(errors="surrogatepass"))
    return digest.hexdigest()
