"""Score a whole text with a language model: every target exactly once, the last, partial window included.

Sums are taken in float64 in the order of the text, so two runs agree to the last bit on one machine, and batches of
another size to rounding.
"""

import sys
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from tercet.data import Windows
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.evaluate.scores import LanguageScores
from tercet.models import DecoderOnly
from tercet.models.inference import inference_mode
from tercet.objectives import IGNORE_INDEX, CausalBatch, causal_logprobs, collate_windows
from tercet.objectives.batch import overlap_copies


def score(
    model: DecoderOnly,
    ids: np.ndarray,
    *,
    n_bytes: int,
    special_ids: frozenset[int] = frozenset(),
    stride: int | None = None,
    document_starts: np.ndarray | None = None,
    whole_documents: bool = False,
    batch_tokens: int = BATCH_TOKENS,
    progress: bool = False,
) -> LanguageScores:
    """Nats per token, perplexity and bits per byte of `ids` (N,), each predicted from those before it but the first.

    Args:
        n_bytes: UTF-8 bytes of the text that `ids[1:]` stands for.
        special_ids: ids that stand for no text; left out of the bits per byte.
        stride: how far apart windows of the model's context begin: the context by default; smaller is slower, and lets
            every target but those of the first window see at least context - stride tokens.
        document_starts: the model sees each document by itself, for one that was trained so.
        whole_documents: no document that fits into a window is cut, so that each is read behind what opens it.
        batch_tokens: tokens read at once.
        progress: show a bar on stderr, where that is a terminal.

    The model stays on its device and gets its own train or eval mode back; no global random state is touched.

    Raises:
        ValueError: for an id that the model does not have, or a stride outside 1..context.
        UserError: for fewer than two tokens.
    """
    context = model.max_len
    windows = Windows(ids, context, stride, document_starts=document_starts, whole_documents=whole_documents)
    batch_size = max(1, batch_tokens // context)
    starts: Iterable[int] = range(0, len(windows), batch_size)
    if progress and sys.stderr.isatty():
        starts = track(starts, "scoring", transient=True)
    special = torch.tensor(sorted(special_ids), dtype=torch.long)
    nats = text_nats = torch.zeros((), dtype=torch.float64)
    tokens = 0
    batches = (
        collate_windows(windows.batch(np.arange(start, min(start + batch_size, len(windows))))) for start in starts
    )
    for batch, logprobs in read_logprobs(model, batches):
        targets = batch.targets.flatten()
        targets = targets[targets != IGNORE_INDEX]
        nats = nats - logprobs.sum()
        text_nats = text_nats - logprobs[~torch.isin(targets, special)].sum()
        tokens += len(targets)
    return LanguageScores.from_sums(
        nats=nats.item(),
        text_nats=text_nats.item(),
        tokens=tokens,
        n_bytes=n_bytes,
        context=context,
        stride=stride or context,
    )


def read_logprobs(model: DecoderOnly, batches: Iterable[CausalBatch]) -> Iterator[tuple[CausalBatch, Tensor]]:
    """Yield each batch with ln p of its targets (N,), in float64 on the CPU; a GPU is then at the next batch.

    Raises:
        ValueError: If the model does not have an id.
    """

    def launch() -> Iterator[tuple[CausalBatch, Tensor]]:
        for batch in batches:
            _check(model, batch)
            with inference_mode(model.modules()):
                logprobs = causal_logprobs(model, batch)
            yield batch, logprobs

    for batch, logprobs in overlap_copies(launch()):
        yield batch, logprobs.double()


def _check(model: DecoderOnly, batch: CausalBatch) -> None:
    largest = max(int(batch.inputs.max()), int(batch.targets.max()))
    if largest >= model.vocab_size:
        raise ValueError(f"the ids go up to {largest}, the model has vocab_size={model.vocab_size}; use its tokenizer")
