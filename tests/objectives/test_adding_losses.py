"""A loss is a sum and a count, so that small batches add up to the large one, whatever the padding."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tercet.data import PackedRows, PaddedRows, Windows
from tercet.models import DecoderOnly, model_spec
from tercet.objectives import IGNORE_INDEX, CausalBatch, Loss, causal_loss, collate_causal, collate_windows

STARTS = np.array([0, 3, 11, 12, 19])
IDS = np.random.default_rng(0).integers(1, 11, 31).astype(np.uint16)


def model() -> DecoderOnly:
    stack = {"d_model": 24, "n_layers": 2, "n_heads": 2}
    return DecoderOnly(model_spec({"preset": "gpt2", "vocab_size": 11, "max_len": 7, "stack": stack}), seed=1)


def gradient(batches: list[CausalBatch]) -> Tensor:
    """Return the gradient of the mean over all targets of all batches, as in a training step."""
    network = model()
    targets = sum(int((batch.targets != IGNORE_INDEX).sum()) for batch in batches)
    for batch in batches:
        (causal_loss(network, batch).total / targets).backward()
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def ignoring(batch: CausalBatch) -> CausalBatch:
    return batch._replace(targets=torch.full_like(batch.targets, IGNORE_INDEX))


@pytest.mark.parametrize("side", ["left", "right"])
def test_four_small_batches_match_one_large_batch(side: str) -> None:
    rows = PaddedRows(IDS, STARTS, length=7, side=side, stride=2)  # pyright: ignore[reportArgumentType]
    numbers = np.arange(32) % len(rows)
    big = collate_causal(rows.batch(numbers))
    small = [collate_causal(rows.batch(part)) for part in np.split(numbers, 4)]
    counts = [int((batch.targets != IGNORE_INDEX).sum()) for batch in small]
    assert len(set(counts)) > 1  # a mean of means would be wrong
    whole = gradient([big])
    parts = gradient([*small, ignoring(small[0])])
    assert float((whole - parts).norm() / whole.norm()) <= 1e-5


def test_target_is_the_next_real_token() -> None:
    rows = PaddedRows(IDS, STARTS, length=7, side="left", stride=1)
    batch = collate_causal(rows.batch(np.arange(len(rows))))
    assert batch.token_mask is not None
    has_target = batch.targets != IGNORE_INDEX
    assert int((has_target & ~batch.token_mask).sum()) == 0  # padding is not a target
    assert has_target.any(1).all()  # no row without a target
    for row, targets in enumerate(has_target):  # targets are contiguous within a row
        places = targets.nonzero().flatten()
        assert int(places[-1] - places[0]) + 1 == len(places)
        assert int(batch.token_mask[row].sum()) in (len(places), len(places) + 1)


def test_documents_do_not_predict_each_other() -> None:
    rows = PackedRows(IDS, STARTS, length=7, document_mask=True)
    batch = collate_causal(rows.batch(np.arange(len(rows))))
    assert batch.documents is not None
    for row in range(len(rows)):
        for column in range(7):
            crosses = row * 7 + column + 1 in STARTS
            assert (int(batch.targets[row, column]) == IGNORE_INDEX) == crosses


def test_windows_score_every_target_once() -> None:
    for stride in (7, 3, 1):
        windows = Windows(IDS, 7, stride)
        batch = collate_windows(windows.batch(np.arange(len(windows))))
        scored_targets = batch.targets[batch.targets != IGNORE_INDEX]
        assert scored_targets.tolist() == IDS[1:].tolist()


def test_mean_of_several_losses_is_weighted_by_targets() -> None:
    first, second = (
        Loss(torch.tensor(6.0), torch.tensor(5.0), torch.tensor(2)),
        Loss(torch.tensor(1.0), torch.tensor(1.0), torch.tensor(8)),
    )
    assert float((first + second).mean) == pytest.approx(0.7)
    assert float((first + second).plain_mean) == pytest.approx(0.6)
