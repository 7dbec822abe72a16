"""Reranking: documents in the order of their relevance to a query, by a classifier of pairs (a cross-encoder).

    score(query, document) = classifier(hidden([bos] query [eos] document [eos]))

The model reads both texts together, so it can compare their words (Nogueira and Cho 2019), which the similarity of two
vectors cannot. But it must read every document again for each query, and is therefore used for the first documents of a
faster search.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.config import UserError
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.encoding.classify import text_logits
from tercet.models import Classifier, EncoderOnly
from tercet.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class RankedDocument:
    """Document with its relevance to a query.

    Attributes:
        index: Position of the document in the input.
        score: Probability that the document is relevant; for a regression model the predicted number.
        truncated: True if the query and the document together exceed the model's context and were cut.
    """

    index: int
    score: float
    truncated: bool


def rerank(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    query: str,
    documents: Sequence[str],
    *,
    batch_tokens: int = BATCH_TOKENS,
) -> list[RankedDocument]:
    """Return all documents, the most relevant first. Documents with equal scores keep their order.

    Args:
        model: Model with a classifier of pairs that has one output: a single label (relevant or not) or a number.
        tokenizer: Tokenizer of the model.
        query: The query.
        documents: The documents.
        batch_tokens: Maximum number of tokens per batch, including padding.

    Raises:
        UserError: If the model has no such classifier, the tokenizer has no bos or eos, or a text cannot be encoded.
    """
    scores, cuts = score_relevance(
        model, tokenizer, [(query, document) for document in documents], batch_tokens=batch_tokens
    )
    return [
        RankedDocument(index=index, score=scores[index], truncated=cuts[index])
        for index in sorted(range(len(documents)), key=lambda index: -scores[index])
    ]


def score_relevance(
    model: EncoderOnly, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], *, batch_tokens: int = BATCH_TOKENS
) -> tuple[list[float], list[bool]]:
    """Return the score of each pair of a query and a document, and whether it was truncated; see `rerank`."""
    head = relevance_head(model)
    logits, cuts = text_logits(model, tokenizer, pairs, batch_tokens)
    return relevance_scores(head, logits), cuts


def relevance_scores(head: Classifier, logits: Sequence[Tensor]) -> list[float]:
    """Return the score of each pair from its logits (1,); see `rerank`."""
    if not logits:
        return []
    outputs = torch.cat([*logits]).double()  # in float32 many probabilities would be equal to 1
    scores = outputs.sigmoid() if head.problem_type == "multi_label_classification" else outputs
    return (head.target_mean + head.target_std * scores).tolist()


def can_rerank(model: EncoderOnly) -> bool:
    """Return True if the model has a classifier of texts with one output."""
    head = model.spec.classifier
    return head is not None and head.over == "texts" and len(head.labels) == 1


def relevance_head(model: EncoderOnly) -> Classifier:
    """Return the classifier of a reranker.

    Raises:
        UserError: If the model has no classifier, or one for words, or one with several outputs.
    """
    head = model.spec.classifier
    if head is None or not can_rerank(model):
        gives = "no classifier" if head is None else f"a classifier of {head.over} with {len(head.labels)} outputs"
        raise UserError(
            f"the model has {gives}, but reranking requires one score per pair of texts; "
            "train one with `tercet train rerank-docstrings --data FILE`"
        )
    return head
