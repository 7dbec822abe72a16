"""The classification loss is PyTorch's, counts each label once, and does not depend on padding."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.data import LabeledExamples, label_rows
from tercet.data.corpora import label_corpus
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.objectives import IGNORE_INDEX, LabeledBatch, classify_loss, collate_labels

PAD, BOS, EOS, V, LABELS = 0, 1, 2, 13, ("a", "b", "c", "d", "e")
LENGTHS = (4, 1, 7, 3, 7)


def model(over: Any = "texts", **settings: Any) -> EncoderOnly:
    stack = StackSpec(d_model=24, n_layers=2, n_heads=3, d_ff=31)
    classifier = Classifier(labels=LABELS, over=over, dropout=0.0, **settings)
    network = EncoderOnly(EncoderOnlySpec(vocab_size=V, max_len=11, stack=stack, classifier=classifier), seed=1).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    return network


def texts(over: Any = "texts") -> LabeledExamples:
    draws = np.random.default_rng(3)
    labels = draws.integers(0, len(LABELS), len(LENGTHS) if over == "texts" else sum(LENGTHS))
    if over == "tokens":
        labels[1::3] = IGNORE_INDEX
    return LabeledExamples(
        ids=draws.integers(3, V, sum(LENGTHS)).astype(np.uint16),
        starts=np.cumsum([0, *LENGTHS]),
        labels=labels,
        names=LABELS,
        over=over,
    )


def batch(numbers: list[int], over: Any = "texts") -> LabeledBatch:
    rows = label_rows(texts(over), np.array(numbers), max_len=11, bos=BOS, eos=EOS, pad=PAD)
    return collate_labels(rows)


def test_ignore_index_is_the_same_in_both_packages() -> None:
    assert label_corpus.IGNORE_INDEX == IGNORE_INDEX


def test_rows_of_one_length_need_no_padding() -> None:
    assert batch([2, 4]).token_mask is None
    padded = batch([0, 1])
    assert padded.token_mask is not None
    assert padded.token_mask.sum(1).tolist() == [6, 3]
    assert padded.inputs[1].tolist()[2:] == [EOS, PAD, PAD, PAD]
    assert padded.targets.shape == (2,)
    assert batch([0, 1], "tokens").targets.shape == (2, 6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("over", ["texts", "tokens"])
def test_loss_matches_pytorch(over: Any, smoothing: float) -> None:
    network, examples = model(over), batch([0, 1, 2, 3, 4], over)
    loss = classify_loss(network, examples, smoothing=smoothing)
    scores = network.classify(network.hidden(examples.inputs, token_mask=examples.token_mask), examples.token_mask)
    flat, targets = scores.reshape(-1, len(LABELS)), examples.targets.reshape(-1)
    has_label = targets != IGNORE_INDEX
    assert loss.count == has_label.sum() == (5 if over == "texts" else (texts(over).labels != IGNORE_INDEX).sum())
    torch.testing.assert_close(
        loss.total, F.cross_entropy(flat[has_label], targets[has_label], label_smoothing=smoothing) * has_label.sum()
    )
    plain = -flat[has_label].log_softmax(-1)[torch.arange(int(has_label.sum())), targets[has_label]].sum()
    torch.testing.assert_close(loss.plain, plain)
    assert not loss.plain.requires_grad
    assert bool(loss.total == loss.plain) == (smoothing == 0)


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("over", ["texts", "tokens"])
def test_small_batches_add_up_to_the_large_batch(over: Any, pooling: str) -> None:
    if over == "tokens" and pooling == "first":
        pytest.skip("token classifiers do not pool")
    network = model(over, pooling=pooling)

    def loss_and_gradients(parts: list[list[int]]) -> tuple[Tensor, Tensor, list[Tensor]]:
        network.zero_grad()
        losses = [classify_loss(network, batch(part, over), smoothing=0.1) for part in parts]
        whole = sum(losses[1:], losses[0])
        whole.total.backward()
        return whole.total, whole.count, [w.grad.clone() for w in network.parameters() if w.grad is not None]

    large, small = loss_and_gradients([[0, 1, 2, 3, 4]]), loss_and_gradients([[2], [0, 4], [1], [3]])
    torch.testing.assert_close(small[0], large[0])
    assert small[1] == large[1]
    for found, expected in zip(small[2], large[2], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("over", ["texts", "tokens"])
def test_more_padding_on_either_side_does_not_change_the_loss(over: Any) -> None:
    network, examples = model(over), batch([0, 3], over)
    expected = classify_loss(network, examples)
    real = torch.ones(examples.inputs.shape, dtype=torch.bool) if examples.token_mask is None else examples.token_mask
    for left, right in ((0, 3), (2, 0), (1, 2)):
        wider = LabeledBatch(
            F.pad(examples.inputs, (left, right), value=5),
            F.pad(real, (left, right)),
            F.pad(examples.targets, (left, right), value=IGNORE_INDEX) if over == "tokens" else examples.targets,
        )
        found = classify_loss(network, wider)
        torch.testing.assert_close(found.total, expected.total, rtol=1e-5, atol=1e-5)
        assert found.count == expected.count
        blind = classify_loss(network, wider._replace(token_mask=None))  # this test can fail
        assert abs(float(blind.plain - expected.plain)) > 1e-3


def test_batch_without_labels_has_zero_loss() -> None:
    network, examples = model("tokens"), batch([0, 1], "tokens")
    loss = classify_loss(
        network, examples._replace(targets=torch.full_like(examples.targets, IGNORE_INDEX)), smoothing=0.1
    )
    loss.mean.backward()
    assert (loss.total.item(), loss.count.item(), loss.mean.item()) == (0, 0, 0)
    assert all(bool(w.grad.isfinite().all()) for w in network.parameters() if w.grad is not None)
