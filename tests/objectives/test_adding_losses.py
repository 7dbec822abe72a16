"""A loss is a sum and a count: small batches add up to the big one, whatever is padded."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tercet.data import PackedRows, PaddedRows, Windows
from tercet.models import DecoderOnly, model_spec
from tercet.objectives import IGNORED, Batch, Loss, causal_loss, rows_to_learn, windows_to_score
from tercet.objectives.loss import negative_log_likelihood, no_loss

STARTS = np.array([0, 3, 11, 12, 19])
IDS = np.random.default_rng(0).integers(1, 11, 31).astype(np.uint16)


def model() -> DecoderOnly:
    stack = {"d_model": 24, "n_layers": 2, "n_heads": 2}
    return DecoderOnly(model_spec({"preset": "gpt2", "vocab_size": 11, "max_len": 7, "stack": stack}), seed=1)


def gradient(batches: list[Batch]) -> Tensor:
    """Of the mean over all batches' targets, as a training step takes it."""
    one = model()
    targets = sum(int((batch.targets != IGNORED).sum()) for batch in batches)
    for batch in batches:
        (causal_loss(one, batch).total / targets).backward()
    return torch.cat([p.grad.flatten() for p in one.parameters() if p.grad is not None])


def ignoring(batch: Batch) -> Batch:
    return batch._replace(targets=torch.full_like(batch.targets, IGNORED))


@pytest.mark.parametrize("side", ["left", "right"])
def test_four_small_batches_are_one_big_batch(side: str) -> None:
    rows = PaddedRows(IDS, STARTS, length=7, side=side, stride=2)  # pyright: ignore[reportArgumentType]
    numbers = np.arange(32) % len(rows)
    big = rows_to_learn(rows.batch(numbers))
    small = [rows_to_learn(rows.batch(part)) for part in np.split(numbers, 4)]
    counts = [int((batch.targets != IGNORED).sum()) for batch in small]
    assert len(set(counts)) > 1  # means of means would be wrong
    whole = gradient([big])
    parts = gradient([*small, ignoring(small[0])])
    assert float((whole - parts).norm() / whole.norm()) <= 1e-5


def test_losses_add_up() -> None:
    logits, targets = torch.randn(6, 5, 11), torch.randint(0, 11, (6, 5))
    targets[1:3] = IGNORED
    targets[4, 2] = IGNORED
    whole = negative_log_likelihood(logits, targets)
    parts = no_loss(logits.device)
    for i in range(6):
        parts = parts + negative_log_likelihood(logits[i : i + 1], targets[i : i + 1])
    assert int(parts.count) == int(whole.count) == 19
    torch.testing.assert_close(parts.total, whole.total)
    by_hand = -logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0][targets != IGNORED].mean()
    torch.testing.assert_close(whole.mean, by_hand)


def test_nothing_to_learn_costs_nothing() -> None:
    logits = torch.randn(2, 5, 11, requires_grad=True)
    loss = negative_log_likelihood(logits, torch.full((2, 5), IGNORED))
    loss.mean.backward()
    assert (float(loss.total.detach()), int(loss.count), float(loss.mean.detach())) == (0.0, 0, 0.0)
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_a_loss_in_bfloat16_is_summed_in_float32() -> None:
    loss = negative_log_likelihood(torch.zeros(300, 11, dtype=torch.bfloat16), torch.zeros(300, dtype=torch.long))
    assert loss.total.dtype == torch.float32
    assert float(loss.total) == pytest.approx(300 * np.log(11), rel=1e-6)


def test_a_target_is_the_next_real_token() -> None:
    rows = PaddedRows(IDS, STARTS, length=7, side="left", stride=1)
    batch = rows_to_learn(rows.batch(np.arange(len(rows))))
    assert batch.padding is not None
    learnt = batch.targets != IGNORED
    assert int((learnt & ~batch.padding).sum()) == 0  # nothing is learnt from padding
    assert learnt.any(1).all()  # no row for nothing
    for row, targets in enumerate(learnt):  # in one piece, from the document's first token in the row to its last
        places = targets.nonzero().flatten()
        assert int(places[-1] - places[0]) + 1 == len(places)
        assert int(batch.padding[row].sum()) in (len(places), len(places) + 1)


def test_documents_do_not_predict_each_other() -> None:
    rows = PackedRows(IDS, STARTS, length=7, document_mask=True)
    batch = rows_to_learn(rows.batch(np.arange(len(rows))))
    assert batch.documents is not None
    for row in range(len(rows)):
        for column in range(7):
            crosses = row * 7 + column + 1 in STARTS
            assert (int(batch.targets[row, column]) == IGNORED) == crosses


def test_windows_score_every_target_once() -> None:
    for stride in (7, 3, 1):
        windows = Windows(IDS, 7, stride)
        batch = windows_to_score(windows.batch(np.arange(len(windows))))
        scored = batch.targets[batch.targets != IGNORED]
        assert scored.tolist() == IDS[1:].tolist()


def test_the_mean_of_many_is_weighted_by_targets() -> None:
    one, other = Loss(torch.tensor(6.0), torch.tensor(2)), Loss(torch.tensor(1.0), torch.tensor(8))
    assert float((one + other).mean) == pytest.approx(0.7)
