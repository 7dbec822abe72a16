"""The contrastive loss, compared with its formula, and the properties of its negatives."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tercet.data import QueryRows
from tercet.models import EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.nn.pooling import pool
from tercet.objectives import QueryBatch, collate_queries, contrastive_loss

B, C, S, T, D = 3, 5, 7, 6, 24


@pytest.fixture
def model() -> EncoderOnly:
    spec = EncoderOnlySpec(
        vocab_size=31, max_len=16, stack=StackSpec(d_model=D, n_layers=1, n_heads=3), masked_head=None
    )
    return EncoderOnly(spec, seed=3).eval()


def make_batch(seed: int = 0) -> QueryBatch:
    rng = np.random.default_rng(seed)
    query_mask = np.arange(S) < np.array([[7], [4], [5]])
    document_mask = np.arange(T) < np.array([[3], [6], [4], [6], [5]])
    candidates = np.ones((B, C), dtype=bool)
    candidates[0, 1] = candidates[2, 4] = False
    rows = QueryRows(
        queries=rng.integers(1, 31, (B, S)), query_mask=query_mask, documents=rng.integers(1, 31, (C, T)),
        document_mask=document_mask, candidates=candidates,
    )  # fmt: skip
    return collate_queries(rows)


def vectors(model: EncoderOnly, tokens: Tensor, mask: Tensor | None, kind: str) -> list[list[float]]:
    hidden = model.hidden(tokens, token_mask=mask)
    return pool(hidden, mask, kind).double().tolist()  # type: ignore[arg-type]


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))


@pytest.mark.parametrize("kind", ["mean", "first", "max"])
@pytest.mark.parametrize("sizes", [(), (5, 11)])
def test_loss_equals_its_formula(model: EncoderOnly, kind: str, sizes: tuple[int, ...]) -> None:
    batch, temperature = make_batch(), 0.2
    loss = contrastive_loss(model, batch, pooling=kind, temperature=temperature, sizes=sizes)  # type: ignore[arg-type]
    queries = vectors(model, batch.queries, batch.query_mask, kind)
    documents = vectors(model, batch.documents, batch.document_mask, kind)
    expected = 0.0
    for size in (*sizes, D):
        for row in range(B):
            scores = [cosine(queries[row][:size], document[:size]) / temperature for document in documents]
            total = sum(math.exp(score) for column, score in enumerate(scores) if batch.candidates[row, column])
            expected += (math.log(total) - scores[row]) / (len(sizes) + 1)
    assert loss.total.item() == pytest.approx(expected, rel=1e-5)
    assert int(loss.count) == B
    assert loss.plain.item() == loss.total.item()


def test_excluded_documents_and_padding_do_not_change_the_loss(model: EncoderOnly) -> None:
    batch = make_batch()
    reference = contrastive_loss(model, batch).total
    documents = batch.documents.clone()
    assert batch.document_mask is not None
    documents[~batch.document_mask] = 9
    assert torch.allclose(contrastive_loss(model, batch._replace(documents=documents)).total, reference)
    candidates = batch.candidates.clone()
    candidates[:, 4] = False
    without = contrastive_loss(model, batch._replace(candidates=candidates)).total
    shorter = batch._replace(
        documents=batch.documents[:4], document_mask=batch.document_mask[:4], candidates=batch.candidates[:, :4]
    )
    assert torch.allclose(without, contrastive_loss(model, shorter).total)
    assert without < reference


def test_gradient_reaches_queries_and_documents(model: EncoderOnly) -> None:
    batch = make_batch()
    contrastive_loss(model, batch, sizes=(5,)).total.backward()
    gradient = model.embedding.weight.grad
    assert gradient is not None
    for tokens, mask in ((batch.queries, batch.query_mask), (batch.documents, batch.document_mask)):
        assert mask is not None
        assert (gradient[tokens[mask].unique()].abs().sum(-1) > 0).all()
