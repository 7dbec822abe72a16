"""Multi-label and regression losses are PyTorch's, add up over batches, and scale targets by standard deviations."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tercet.data import LabeledExamples, label_rows
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.models.target_scale import remove_target_scale, rescale_head
from tercet.objectives import LabeledBatch, classify_loss, collate_labels, count_targets, label_logits

PAD, BOS, EOS, V, LABELS = 0, 1, 2, 13, ("a", "b", "c", "d", "e")
LENGTHS = (4, 1, 7, 3, 7)
HEADS = {
    "regression": Classifier(labels=("n",), problem_type="regression", target_mean=-300.0, target_std=7.0, dropout=0.0),
    "multi_label_classification": Classifier(labels=LABELS, problem_type="multi_label_classification", dropout=0.0),
}


def model(kind: str) -> EncoderOnly:
    stack = StackSpec(d_model=24, n_layers=1, n_heads=3, d_ff=31)
    network = EncoderOnly(EncoderOnlySpec(vocab_size=V, max_len=11, stack=stack, classifier=HEADS[kind]), seed=1).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    return network


def texts(kind: Any) -> LabeledExamples:
    draws = np.random.default_rng(3)
    several = kind != "regression"
    counts = [2, 0, 5, 1, 1]
    labels = np.concatenate([draws.permutation(5)[:n] for n in counts]) if several else draws.normal(-300, 7, 5)
    return LabeledExamples(
        ids=draws.integers(3, V, sum(LENGTHS)).astype(np.uint16),
        starts=np.cumsum([0, *LENGTHS]),
        labels=labels,
        names=HEADS[kind].labels,
        problem_type=kind,
        label_starts=np.cumsum([0, *counts]) if several else None,
    )


def batch(kind: str, numbers: list[int]) -> LabeledBatch:
    rows = label_rows(texts(kind), np.array(numbers), max_len=11, bos=BOS, eos=EOS, pad=PAD)
    return collate_labels(rows, HEADS[kind])


def test_multi_label_loss_is_binary_cross_entropy() -> None:
    network, examples = model("multi_label_classification"), batch("multi_label_classification", [0, 1, 2, 3, 4])
    loss, logits = classify_loss(network, examples), label_logits(network, examples)
    assert examples.targets.sum(1).tolist() == [2, 0, 5, 1, 1]
    torch.testing.assert_close(loss.mean, F.binary_cross_entropy_with_logits(logits, examples.targets))
    p = logits.double().sigmoid()
    by_hand = -(examples.targets * p.log() + (1 - examples.targets) * (1 - p).log()).mean()
    torch.testing.assert_close(loss.mean.double(), by_hand)
    assert (loss.count, loss.total.item()) == (5, loss.plain.item())
    assert not loss.plain.requires_grad


def test_regression_loss_is_squared_error_in_standard_deviations() -> None:
    network, examples = model("regression"), batch("regression", [0, 1, 2, 3, 4])
    loss, scores = classify_loss(network, examples), label_logits(network, examples)[:, 0]
    numbers = torch.from_numpy(texts("regression").labels)
    torch.testing.assert_close(examples.targets.double(), (numbers + 300) / 7)
    predictions = -300 + 7 * scores.double()
    torch.testing.assert_close(loss.mean.double(), ((predictions - numbers) ** 2).mean() / 7**2)
    assert loss.count == 5


@pytest.mark.parametrize("kind", HEADS)
def test_small_batches_add_up_to_the_large_batch(kind: str) -> None:
    network, results = model(kind), list[list[torch.Tensor]]()
    for parts in ([[0, 1, 2, 3, 4]], [[2], [0, 4], [1], [3]]):
        network.zero_grad()
        losses = [classify_loss(network, batch(kind, part)) for part in parts]
        whole = sum(losses[1:], losses[0])
        whole.total.backward()
        results.append(
            [whole.total, whole.count, *(w.grad.clone() for w in network.parameters() if w.grad is not None)]
        )
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", HEADS)
def test_padding_does_not_change_the_loss(kind: str) -> None:
    network, examples = model(kind), batch(kind, [0, 3])
    assert examples.token_mask is not None
    wider = examples._replace(
        inputs=F.pad(examples.inputs, (2, 3), value=5), token_mask=F.pad(examples.token_mask, (2, 3))
    )
    torch.testing.assert_close(
        classify_loss(network, wider).total, classify_loss(network, examples).total, rtol=1e-5, atol=1e-5
    )
    with pytest.raises(ValueError, match="requires one label per target"):
        classify_loss(network, examples, smoothing=0.1)


def test_step_counts_examples_with_targets() -> None:
    assert count_targets(torch.tensor([0, 3, -100])) == 2
    assert count_targets(torch.tensor([-0.5, 3.0, -100.0])) == 3, "targets may be negative"
    assert count_targets(torch.zeros(4, 7)) == 4


@pytest.mark.parametrize("scale", [(0.0, 1.0), (5e3, 0.1), (-2.0, 1e6)])
def test_another_scale_gives_the_same_function(scale: tuple[float, float]) -> None:
    network, examples = model("regression").double(), batch("regression", [0, 1, 2])
    with torch.no_grad():
        numbers = -300 + 7 * label_logits(network, examples)[:, 0].double()
        plain = remove_target_scale(network)
        torch.testing.assert_close(label_logits(plain, examples)[:, 0].double(), numbers, rtol=1e-6, atol=1e-6)
        assert network.spec.classifier == HEADS["regression"], "the model is unchanged"
        old = network.spec.classifier
        assert old is not None
        new = Classifier(labels=("n",), problem_type="regression", target_mean=scale[0], target_std=scale[1])
        network.spec = type(network.spec)(**{**vars(network.spec), "classifier": new})
        rescale_head(network, old)
        rescaled_numbers = scale[0] + scale[1] * label_logits(network, examples)[:, 0].double()
        torch.testing.assert_close(rescaled_numbers, numbers, rtol=1e-5, atol=1e-3)
    assert remove_target_scale(plain) is plain


def test_invalid_heads_are_rejected() -> None:
    for settings, words in (
        ({"labels": ("a", "b"), "problem_type": "regression"}, "has one output, but labels has 2 names"),
        ({"target_mean": 1.0}, "target_mean and target_std require"),
        ({"over": "tokens", "problem_type": "regression"}, "applies to texts, and a token has one label"),
        ({"problem_type": "regression", "target_std": 0.0}, "target_std=0.0 must be above"),
    ):
        with pytest.raises(ValueError, match=words):
            Classifier(**settings)  # pyright: ignore[reportArgumentType]
