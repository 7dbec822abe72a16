"""Scores of a language model on a text. Each target is scored once, also in the last window, which may be shorter.

Sums are in float64 in the order of the text. Results are bitwise identical on one machine, and equal up to rounding for
other batch sizes.
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
    """Return nats per token, perplexity and bits per byte of `ids` (N,), of which the first is not a target.

    The model stays on its device, its mode (train or eval) is restored, and global random state does not change.

    Args:
        model: The model.
        ids: Token ids of the text.
        n_bytes: UTF-8 bytes of the text of the targets, which are `ids[1:]` without the first id of each document in
            `document_starts`.
        special_ids: Ids without text; excluded from the bits per byte.
        stride: Distance of the model's windows in tokens; by default the context length. A smaller stride is slower,
            and each target outside the first window sees at least context - stride tokens.
        document_starts: Index of the first id of each document, for a model that was trained on separate documents.
        whole_documents: If True, do not split documents that fit into a window, so that each follows the tokens that
            the tokenizer puts before it, such as bos.
        batch_tokens: Maximum number of tokens per batch; a batch has at least one window.
        progress: If True and stderr is a terminal, show a progress bar.

    Raises:
        ValueError: If an id is not in the model's vocabulary, or the stride is not in 1..context.
        UserError: If there are fewer than two tokens.
    """
    special = torch.tensor(sorted(special_ids), dtype=torch.long)
    nats = text_nats = torch.zeros((), dtype=torch.float64)
    tokens = 0
    scored = score_windows(
        model, ids, stride=stride, document_starts=document_starts, whole_documents=whole_documents,
        batch_tokens=batch_tokens, progress=progress,
    )  # fmt: skip
    for targets, logprobs in scored:
        nats = nats - logprobs.sum()
        text_nats = text_nats - logprobs[~torch.isin(targets, special)].sum()
        tokens += len(targets)
    return LanguageScores.from_sums(
        nats=nats.item(),
        text_nats=text_nats.item(),
        tokens=tokens,
        n_bytes=n_bytes,
        context=model.max_len,
        stride=stride or model.max_len,
    )


def score_windows(
    model: DecoderOnly,
    ids: np.ndarray,
    *,
    stride: int | None = None,
    document_starts: np.ndarray | None = None,
    whole_documents: bool = False,
    batch_tokens: int = BATCH_TOKENS,
    progress: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of targets (N,) and ln p of each (N,), in the order of the text; arguments as in `score`.

    All ids are targets except the first one and, with `document_starts`, the first one of each document.
    """
    windows = Windows(ids, model.max_len, stride, document_starts=document_starts, whole_documents=whole_documents)
    batch_size = max(1, batch_tokens // model.max_len)
    starts: Iterable[int] = range(0, len(windows), batch_size)
    if progress and sys.stderr.isatty():
        starts = track(starts, "scoring", transient=True)
    batches = (
        collate_windows(windows.batch(np.arange(start, min(start + batch_size, len(windows))))) for start in starts
    )
    for batch, logprobs in read_logprobs(model, batches):
        targets = batch.targets.flatten()
        yield targets[targets != IGNORE_INDEX], logprobs


def read_logprobs(model: DecoderOnly, batches: Iterable[CausalBatch]) -> Iterator[tuple[CausalBatch, Tensor]]:
    """Yield each batch with ln p of its targets (N,), in float64 on the CPU.

    On a GPU, the next batch is already being computed.

    Raises:
        ValueError: If an id is not in the model's vocabulary.
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
        raise ValueError(f"id {largest} exceeds the model's vocab_size={model.vocab_size}; use the model's tokenizer")
