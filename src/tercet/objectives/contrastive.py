"""Contrastive learning of text vectors: the vector of a query is most similar to that of its document.

    s_ij = cos(q_i, d_j) / τ        -ln (exp s_ii / sum_j exp s_ij)

The loss is InfoNCE (van den Oord et al. 2018) with in-batch negatives, as in SimCSE (Gao et al. 2021): the documents of
the other queries in the batch, and the hard negatives of all queries. Documents that are relevant to a query are not
among its negatives. With several sizes, the loss is the mean over the losses of the vectors' first elements, so that
vectors can be cut to these sizes (Matryoshka, Kusupati et al. 2022).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from tercet.data import QueryRows
from tercet.models import EncoderOnly
from tercet.nn.pooling import pool
from tercet.nn.specs import Pooling
from tercet.objectives.loss import Loss, count_targets


class QueryBatch(NamedTuple):
    """A batch of queries and documents.

    Attributes:
        queries: (B, S) Token ids, from bos to eos.
        query_mask: (B, S) True at real tokens; None if all are real.
        documents: (C, T) Token ids. The first B are those of the queries, the others are hard negatives.
        document_mask: (C, T) True at real tokens; None if all are real.
        candidates: (B, C) True at the document of each query and at its negatives.
        targets: (B,) Index of the document of each query: 0, 1, 2, ...
    """

    queries: Int[Tensor, "B S"]
    query_mask: Bool[Tensor, "B S"] | None
    documents: Int[Tensor, "C T"]
    document_mask: Bool[Tensor, "C T"] | None
    candidates: Bool[Tensor, "B C"]
    targets: Int[Tensor, " B"]


def collate_queries(rows: QueryRows) -> QueryBatch:
    """Return rows as a batch."""
    query_mask, document_mask = (
        None if mask.all() else torch.from_numpy(mask) for mask in (rows.query_mask, rows.document_mask)
    )
    return QueryBatch(
        torch.from_numpy(rows.queries), query_mask, torch.from_numpy(rows.documents), document_mask,
        torch.from_numpy(rows.candidates), torch.arange(len(rows.queries)),
    )  # fmt: skip


def contrastive_loss(
    model: EncoderOnly,
    batch: QueryBatch,
    *,
    pooling: Pooling = "mean",
    temperature: float = 0.05,
    sizes: tuple[int, ...] = (),
) -> Loss:
    """Return the loss of a batch, summed over its queries.

    Args:
        model: Encoder.
        batch: Batch on the model's device.
        pooling: Pooling of the hidden states of a text.
        temperature: Divisor τ of the cosines.
        sizes: Additional sizes of vectors, smaller than the width of the model.
    """
    texts = (batch.queries, batch.query_mask), (batch.documents, batch.document_mask)
    queries, documents = (  # (B, D), (C, D)
        pool(model.hidden(tokens, token_mask=mask).float(), mask, pooling) for tokens, mask in texts
    )
    all_sizes = (*sizes, queries.shape[1])
    total = torch.zeros((), device=queries.device)
    with torch.autocast(queries.device.type, enabled=False):  # divided by τ, errors of bf16 would be too large
        for size in all_sizes:
            cosines = F.normalize(queries[:, :size], dim=-1) @ F.normalize(documents[:, :size], dim=-1).T  # (B, C)
            logits = (cosines / temperature).masked_fill(~batch.candidates, -torch.inf)
            total = total + F.cross_entropy(logits, batch.targets, reduction="sum") / len(all_sizes)
    return Loss(total, total.detach(), count_targets(batch.targets))
