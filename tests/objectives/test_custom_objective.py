"""The loss by an objective of another package: sums over counted targets, by hand, in chunks and for all kinds."""

from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.config import UserError
from tercet.models import Classifier, DecoderOnly, DecoderOnlySpec, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.objectives import (
    IGNORE_INDEX,
    CausalBatch,
    CustomObjective,
    LabeledBatch,
    MaskedBatch,
    causal_loss,
    classify_loss,
    label_logits,
    likelihood,
    masked_loss,
    masked_states,
)
from tercet.objectives.custom import check_objective, sum_losses
from tercet.spec import Share, spec

V = 13


@spec
class Likelihood(CustomObjective):
    """-ln p, as by default."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="none")


@spec
class Squares(CustomObjective):
    """Squared distance of the probabilities to the targets (the Brier score)."""

    weight: Share = 0.5

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if logits.ndim == 1:
            return self.weight * (logits - targets).abs()
        one_hot = targets if targets.is_floating_point() else F.one_hot(targets, logits.shape[1])
        probabilities = logits.sigmoid() if targets.is_floating_point() else logits.softmax(-1)
        return self.weight * (probabilities - one_hot).square().sum(-1)


def returning(function: Any) -> CustomObjective:
    @spec
    class Part(CustomObjective):
        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            return function(logits, targets)

    return Part()


def language_model(**settings: Any) -> DecoderOnly:
    stack = StackSpec(d_model=24, n_layers=1, n_heads=3, d_ff=31)
    model = DecoderOnly(DecoderOnlySpec(vocab_size=V, max_len=11, stack=stack, **settings), seed=1).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    return model


def causal_batch() -> CausalBatch:
    tokens = torch.from_numpy(np.random.default_rng(4).integers(0, V, (3, 9)))
    targets = tokens[:, 1:].clone()
    targets[1, 4:] = targets[2, 0] = IGNORE_INDEX
    return CausalBatch(tokens[:, :-1], targets)


def gradients(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the logits of five rows at a time."""
    monkeypatch.setattr("tercet.objectives.custom.rows_per_chunk", lambda *_: 5)


def test_likelihood_as_an_objective_is_the_default_loss() -> None:
    model, batch, results = language_model(logit_softcap=5.0, pad_vocab_to=8), causal_batch(), list[Tensor]()
    for objective in (None, Likelihood()):
        model.zero_grad()
        loss = causal_loss(model, batch, objective=objective)
        loss.total.backward()
        results.append(torch.cat([loss.total[None], loss.plain[None], loss.count[None], gradients(model)]))
    assert results[0][2] == 3 * 8 - 4 - 1
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_chunks_have_the_sum_and_gradient_of_all_rows(precision: torch.dtype) -> None:
    model, batch, results = language_model(), causal_batch(), list[Tensor]()
    for form in ("whole", "chunks"):
        model.zero_grad()
        with likelihood.use_form(form), torch.autocast("cpu", precision, enabled=precision != torch.float32):
            loss = causal_loss(model, batch, objective=Squares())
        loss.total.backward()
        assert (loss.total.dtype, loss.plain.requires_grad) == (torch.float32, False)
        results.append(torch.cat([loss.total.detach()[None], loss.plain[None], gradients(model)]))
    exact = {"atol": 1e-5, "rtol": 1e-5} if precision == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(results[1], results[0], **exact)


@pytest.mark.usefixtures("small_chunks")
def test_ignored_targets_and_the_division_of_a_batch_change_nothing() -> None:
    model, batch, results = language_model(), causal_batch(), list[Tensor]()
    single = [CausalBatch(batch.inputs[i : i + 1], batch.targets[i : i + 1]) for i in range(3)]
    single[1] = CausalBatch(batch.inputs[1:2, :4], batch.targets[1:2, :4])
    for batches in ([batch], single):
        model.zero_grad()
        losses = [causal_loss(model, part, objective=Squares()) for part in batches]
        total = sum(losses[1:], losses[0])
        total.total.backward()
        results.append(torch.cat([total.total[None], total.plain[None], total.count[None], gradients(model)]))
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-4)
    logits = model(batch.inputs)
    by_hand = 0.5 * (logits.softmax(-1) - F.one_hot(batch.targets.clamp(min=0), V)).square().sum(-1)
    assert results[0][0].item() == pytest.approx(by_hand[batch.targets >= 0].sum().item(), rel=1e-5)


def test_masked_model_has_the_objective_of_its_masked_tokens() -> None:
    stack = StackSpec(d_model=24, n_layers=1, n_heads=3)
    model = EncoderOnly(EncoderOnlySpec(vocab_size=V, max_len=8, stack=stack, masked_head=MaskedHead()), seed=1).eval()
    inputs = torch.randint(V, (2, 6), generator=torch.Generator().manual_seed(1))
    batch = MaskedBatch(inputs, torch.tensor([1, 4, 9, 0]), torch.tensor([3, 7, 2, IGNORE_INDEX]))
    loss = masked_loss(model, batch, objective=Squares())
    logits = model.logits(masked_states(model, batch))[:3]
    by_hand = 0.5 * (logits.softmax(-1) - F.one_hot(batch.targets[:3], V)).square().sum()
    torch.testing.assert_close(loss.total, by_hand)
    torch.testing.assert_close(loss.plain, F.cross_entropy(logits, batch.targets[:3], reduction="sum"))
    assert loss.count == 3


@pytest.mark.parametrize("kind", ["single", "tokens", "multi_label", "regression"])
def test_labels_of_each_kind_have_the_objective(kind: str) -> None:
    heads = {
        "single": Classifier(labels=("a", "b", "c"), dropout=0.0),
        "tokens": Classifier(labels=("a", "b", "c"), over="tokens", dropout=0.0),
        "multi_label": Classifier(labels=("a", "b", "c"), problem_type="multi_label_classification", dropout=0.0),
        "regression": Classifier(labels=("n",), problem_type="regression", dropout=0.0),
    }
    targets = {
        "single": torch.tensor([2, 0]),
        "tokens": torch.tensor([[IGNORE_INDEX, 1, 0, IGNORE_INDEX], [IGNORE_INDEX, 2, IGNORE_INDEX, IGNORE_INDEX]]),
        "multi_label": torch.tensor([[1.0, 0, 1], [0, 0, 0]]),
        "regression": torch.tensor([0.5, -2.0]),
    }[kind]
    stack = StackSpec(d_model=24, n_layers=1, n_heads=3)
    model = EncoderOnly(EncoderOnlySpec(vocab_size=V, max_len=8, stack=stack, classifier=heads[kind]), seed=1).eval()
    batch = LabeledBatch(torch.randint(V, (2, 4), generator=torch.Generator().manual_seed(1)), None, targets)
    logits, default = label_logits(model, batch), classify_loss(model, batch)
    loss = classify_loss(model, batch, objective=Squares())
    assert (loss.plain, loss.count) == (default.plain, default.count)
    if kind == "regression":
        expected = (logits[:, 0] - targets).abs().sum()
    elif kind == "multi_label":
        expected = (logits.sigmoid() - targets).square().sum()
    else:
        counted = targets.flatten() >= 0
        one_hot = F.one_hot(targets.flatten()[counted], 3)
        expected = (logits[counted].softmax(-1) - one_hot).square().sum()
    torch.testing.assert_close(loss.total, 0.5 * expected)


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("form", ["whole", "chunks"])
@pytest.mark.parametrize("reads_value", [False, True])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # by PyTorch, after a graph break
def test_compiled_loss_is_the_same(form: Any, reads_value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is read from a tensor breaks the graph, but does not change the result."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # checked shape annotations cannot be compiled
    torch.compiler.reset()
    model, batch, results = language_model(), causal_batch(), list[Tensor]()
    squares = Squares()
    reading = returning(lambda logits, targets: squares.loss(logits, targets) * (1 + (logits.max().item() > 1e6)))
    objective = reading if reads_value else squares
    with likelihood.use_form(form):
        compiled = torch.compile(lambda: causal_loss(model, batch, objective=objective).total, backend="eager")
        for function in (compiled, lambda: causal_loss(model, batch, objective=squares).total):
            model.zero_grad()
            total = function()
            total.backward()
            results.append(torch.cat([total.detach()[None], gradients(model)]))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (F.cross_entropy, r"loss returned shape \(\), expected one loss per target, shape \(4,\); leave out sums"),
        (lambda logits, targets: logits, r"loss returned shape \(4, 13\), expected one loss per target"),
        (lambda logits, targets: None, "loss returned NoneType, expected one loss per target"),
        (lambda logits, targets: logits.detach().sum(1), "loss has no gradient for random logits"),
        (lambda logits, targets: logits.log().sum(1), "a loss or gradient that is not finite"),
        (lambda logits, targets: logits @ logits, "mat1 and mat2 shapes cannot be multiplied"),
    ],
)  # fmt: skip
def test_wrong_objective_is_rejected_by_its_name(function: Any, message: str) -> None:
    with pytest.raises(UserError, match=rf"Part: .*{message}"):
        check_objective(returning(function), n_classes=V)
    check_objective(Squares(), n_classes=V, problem_type="multi_label_classification")


def test_ignored_targets_are_never_indices() -> None:
    seen = list[Tensor]()
    objective = returning(lambda logits, targets: (seen.append(targets), logits.sum(1))[1])
    sum_losses(objective, torch.ones(3, V), torch.tensor([4, IGNORE_INDEX, 0]))
    assert seen[0].tolist() == [4, 0, 0]


def test_class_in_place_of_an_objective_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"objective is the class Likelihood; pass an object, such as Likelihood\(\)"):
        sum_losses(Likelihood, torch.zeros(2, V), torch.zeros(2, dtype=torch.long))  # type: ignore[arg-type]
