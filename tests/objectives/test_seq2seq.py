"""The loss of sentence pairs counts each target token once and does not depend on padding."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.data import PairRows, Pairs, gather
from tercet.models import EncoderDecoder, model_spec
from tercet.objectives import IGNORE_INDEX, PairBatch, collate_pairs, seq2seq_loss

PAD, BOS, EOS, V = 0, 1, 2, 13
DRAWS = np.random.default_rng(3)
SENTENCES = [  # five pairs of different lengths; each side ends with eos
    [[*DRAWS.integers(3, V, n).tolist(), EOS], [*DRAWS.integers(3, V, m).tolist(), EOS]]
    for n, m in ((2, 5), (5, 1), (3, 3), (1, 4), (5, 5))
]


STACK: dict[str, Any] = {
    "d_model": 24, "n_layers": 2, "n_heads": 3, "d_ff": 31, "dropout": {"embedding": 0.0, "residual": 0.0},
}  # fmt: skip


def pairs() -> Pairs:
    sides: list[np.ndarray] = []
    for side in zip(*SENTENCES, strict=True):
        sides += [np.concatenate([np.array(ids, np.uint16) for ids in side])]
        sides += [np.cumsum([0, *map(len, side)], dtype=np.int64)]
    return Pairs(source=sides[0], source_starts=sides[1], target=sides[2], target_starts=sides[3])


def rows(*numbers: int) -> PairRows:
    return gather(pairs(), np.array(numbers), max_len=99, source_pad=PAD, bos=BOS, pad=PAD)


def model(**changes: Any) -> EncoderDecoder:
    small = {"vocab_size": V, "max_len": 11, "encoder": STACK, "decoder": STACK}
    spec = model_spec({"preset": "modern-translator", **small, **changes})
    translator = EncoderDecoder(spec, seed=5)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        for parameter in translator.parameters():
            parameter.mul_(3)  # far enough from zero to make errors visible
    return translator


def gradient(translator: EncoderDecoder, batches: list[PairBatch], *, smoothing: float = 0.0) -> Tensor:
    """Return the gradient of the mean over all targets of all batches, as in a training step."""
    translator.zero_grad()
    targets = sum(int((batch.targets != IGNORE_INDEX).sum()) for batch in batches)
    for batch in batches:
        (seq2seq_loss(translator, batch, smoothing=smoothing).total / targets).backward()
    return torch.cat([p.grad.flatten() for p in translator.parameters() if p.grad is not None])


def test_decoder_input_is_the_target_shifted_by_one() -> None:
    batch = collate_pairs(rows(0, 1, 3))
    for row, number in enumerate((0, 1, 3)):
        source, target = SENTENCES[number]
        n, m = len(source), len(target)
        assert batch.source[row, :n].tolist() == source
        assert batch.source_token_mask is not None
        assert batch.source_token_mask[row].tolist() == [True] * n + [False] * (6 - n)
        assert batch.inputs[row, :m].tolist() == [BOS, *target[:-1]]
        assert batch.targets[row].tolist() == target + [IGNORE_INDEX] * (6 - m)
    assert batch.inputs.shape == batch.targets.shape == (3, 6)


def test_batch_without_padding_has_no_mask() -> None:
    assert collate_pairs(rows(1, 4)).source_token_mask is None  # both sources have six tokens
    assert collate_pairs(rows(1, 0)).source_token_mask is not None


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_the_sum_of_separate_pairs_by_the_formula(smoothing: float) -> None:
    translator, total, plain, count = model(), 0.0, 0.0, 0
    for source, target in SENTENCES:
        logs = translator(torch.tensor([source]), torch.tensor([[BOS, *target[:-1]]]))[0].log_softmax(-1).detach()
        nll = -logs[torch.arange(len(target)), torch.tensor(target)]
        plain += float(nll.sum())
        total += float(((1 - smoothing) * nll - smoothing * logs.mean(-1)).sum())
        count += len(target)
    loss = seq2seq_loss(translator, collate_pairs(rows(*range(5))), smoothing=smoothing)
    assert int(loss.count) == count
    assert float(loss.total.detach()) == pytest.approx(total, rel=1e-5)
    assert float(loss.plain) == pytest.approx(plain, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_small_batches_match_one_large_batch(smoothing: float) -> None:
    translator = model()
    big = [collate_pairs(rows(0, 1, 2, 3, 4))]
    small = [collate_pairs(rows(3)), collate_pairs(rows(1, 0)), collate_pairs(rows(4, 2))]
    assert len({int((batch.targets != IGNORE_INDEX).sum()) // len(batch.source) for batch in small}) > 1
    whole, parts = gradient(translator, big, smoothing=smoothing), gradient(translator, small, smoothing=smoothing)
    assert float((whole - parts).norm() / whole.norm()) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "filler"),
    [("rotary", PAD), ("sinusoidal", BOS), ("learned", 7), ("alibi", PAD), ("relative_bias", BOS)],
)
def test_padding_of_a_pair_changes_neither_loss_nor_gradient(position: str, filler: int) -> None:
    kind = {"position": position}
    translator = model(encoder=STACK | kind, decoder=STACK | kind)
    batch = collate_pairs(rows(0, 1, 3))
    assert batch.source_token_mask is not None
    wider = PairBatch(
        F.pad(batch.source.masked_fill(~batch.source_token_mask, filler), (0, 3), value=filler),
        F.pad(batch.source_token_mask, (0, 3)),
        F.pad(batch.inputs.masked_fill(batch.targets == IGNORE_INDEX, filler), (0, 2), value=filler),
        F.pad(batch.targets, (0, 2), value=IGNORE_INDEX),
    )
    losses = [seq2seq_loss(translator, pairs) for pairs in (batch, wider)]
    torch.testing.assert_close(losses[0].total, losses[1].total)
    assert int(losses[0].count) == int(losses[1].count)
    before, after = gradient(translator, [batch]), gradient(translator, [wider])
    assert float((before - after).norm() / before.norm()) <= 1e-5


def test_missing_source_mask_changes_the_loss() -> None:
    translator, batch = model(), collate_pairs(rows(0, 1, 3))
    loss, loss_without_mask = (
        float(seq2seq_loss(translator, b).total.detach()) for b in (batch, batch._replace(source_token_mask=None))
    )
    assert abs(loss - loss_without_mask) > 1e-2


def test_source_gets_a_gradient() -> None:
    translator = model()
    seq2seq_loss(translator, collate_pairs(rows(0, 2, 4)), smoothing=0.1).mean.backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in translator.parameters())
