"""The chunked likelihood equals cross-entropy in value and gradient."""

from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.kernel import cross_entropy, thread_independent, training_linear
from tercet.kernel.build import library, multiplies_bfloat16
from tercet.models import DecoderOnlySpec, StackSpec
from tercet.models.vocabulary import Unembedding
from tercet.objectives import IGNORE_INDEX, likelihood, zero_loss
from tercet.objectives.likelihood import Form, bytes_of_graph, choose_form, negative_log_likelihood, use_form

D, V = 7, 11


def unembedding(*, softcap: float | None = None, pad_to: int = 1, bias: bool = False, width: int = D) -> Unembedding:
    spec = DecoderOnlySpec(
        vocab_size=V, logit_softcap=softcap, pad_vocab_to=pad_to, stack=StackSpec(d_model=width, n_layers=1, n_heads=1)
    )
    return Unembedding(spec, spec.stack, bias=bias)


def some_targets() -> Tensor:
    targets = torch.randint(0, V, (6, 5))
    targets[1:3] = IGNORE_INDEX
    targets[4, 2] = IGNORE_INDEX
    return targets


@pytest.fixture(params=[1, 3 * V, 1 << 20], ids=["row by row", "three rows", "at once"])
def chunk_elements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(likelihood.CHUNK_ELEMENTS, "cpu", request.param)
    monkeypatch.setattr(likelihood, "MIN_CHUNK_ROWS", 1)


@pytest.fixture(params=["by PyTorch", "by the kernel"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "by the kernel":
        if library() is None:
            pytest.skip("no C++ compiler")
        monkeypatch.setattr(cross_entropy, "MIN_WORK", 1)


@pytest.mark.usefixtures("chunk_elements", "either_way")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_likelihood_equals_cross_entropy(smoothing: float, softcap: float | None, bias: bool) -> None:
    head, hidden, targets = unembedding(softcap=softcap, pad_to=4, bias=bias), torch.randn(6, 5, D), some_targets()
    grads: list[tuple[Tensor, ...]] = []
    losses: list[Tensor] = []
    for chunked in (True, False):
        h = hidden.clone().requires_grad_()
        head.zero_grad()
        if chunked:
            loss = negative_log_likelihood(h, head, targets, smoothing=smoothing)
            total, plain = loss.total, loss.plain
        else:
            logits = head(h).flatten(0, 1)
            total = F.cross_entropy(
                logits, targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing
            )
            plain = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum").detach()
        (total * 0.37).backward()
        losses += [total.detach(), plain]
        assert h.grad is not None
        assert head.weight.grad is not None
        grads.append((h.grad, *(p.grad.clone() for p in head.parameters() if p.grad is not None)))
    torch.testing.assert_close(losses[0], losses[2])
    torch.testing.assert_close(losses[1], losses[3])
    assert len(grads[0]) == 2 + bias
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.skipif(library() is None, reason="no C++ compiler")
@pytest.mark.parametrize("bias", [False, True])
def test_kernels_compute_every_chunk_if_results_must_not_depend_on_threads(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(likelihood.CHUNK_ELEMENTS, "cpu", 1)
    monkeypatch.setattr(likelihood, "MIN_CHUNK_ROWS", 20)
    monkeypatch.setattr(training_linear, "MIN_WORK", 1)
    product = Mock(wraps=likelihood.linear_forward)
    monkeypatch.setattr(likelihood, "linear_forward", product)
    head, hidden, targets = unembedding(bias=bias, width=16), torch.randn(60, 16), torch.randint(0, V, (60,))
    hidden.requires_grad_()
    negative_log_likelihood(hidden, head, targets).total.backward()
    assert not product.called  # several chunks use PyTorch
    plain = [hidden.grad, *(p.grad for p in head.parameters())]
    hidden.grad = None
    head.zero_grad()
    with thread_independent():
        negative_log_likelihood(hidden, head, targets).total.backward()
    assert product.call_count == 3
    torch.testing.assert_close([hidden.grad, *(p.grad for p in head.parameters())], plain)


def test_label_smoothing_matches_pytorch_and_plain_loss_has_none() -> None:
    head, hidden = unembedding(), torch.randn(4, D)
    targets = torch.randint(0, V, (4,))
    smoothed = negative_log_likelihood(hidden, head, targets, smoothing=0.1)
    plain = negative_log_likelihood(hidden, head, targets)
    torch.testing.assert_close(smoothed.plain, plain.total.detach())
    torch.testing.assert_close(smoothed.mean, F.cross_entropy(head(hidden), targets, label_smoothing=0.1))
    assert not torch.isclose(smoothed.mean, plain.mean)


@pytest.mark.usefixtures("chunk_elements", "either_way")
@pytest.mark.parametrize("bias", [False, True])
def test_frozen_unembedding_has_no_gradient_and_changes_no_other(bias: bool) -> None:
    head, hidden, targets = unembedding(bias=bias), torch.randn(6, 5, D), some_targets()
    gradients: list[tuple[Tensor | None, ...]] = []
    for learns in (True, False):
        h = hidden.clone().requires_grad_()
        head.zero_grad()
        head.weight.requires_grad_(learns)
        negative_log_likelihood(h, head, targets).total.backward()
        gradients.append((h.grad, None if head.bias is None else head.bias.grad))
        assert (head.weight.grad is not None) == learns
    for full, frozen in zip(*gradients, strict=True):
        torch.testing.assert_close(frozen, full)


def test_losses_add_up() -> None:
    head, hidden, targets = unembedding(), torch.randn(6, 5, D), some_targets()
    whole, parts = negative_log_likelihood(hidden, head, targets), zero_loss(hidden.device)
    for i in range(6):
        parts = parts + negative_log_likelihood(hidden[i : i + 1], head, targets[i : i + 1])
    assert int(parts.count) == int(whole.count) == 19
    torch.testing.assert_close(parts.total, whole.total)
    logs = head(hidden).log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(whole.mean, -logs[targets != IGNORE_INDEX].mean())


def test_padding_columns_change_neither_loss_nor_gradient() -> None:
    head, hidden, targets = unembedding(), torch.randn(3, 4, D), torch.randint(0, V, (3, 4))
    padded_hidden = F.pad(hidden, (0, 0, 0, 5), value=3.0).requires_grad_()
    padded_loss = negative_log_likelihood(
        padded_hidden, head, F.pad(targets, (0, 5), value=IGNORE_INDEX), smoothing=0.1
    )
    padded_loss.mean.backward()
    first = head.weight.grad.clone() if head.weight.grad is not None else None
    head.zero_grad()
    expected_loss = negative_log_likelihood(hidden, head, targets, smoothing=0.1)
    expected_loss.mean.backward()
    torch.testing.assert_close(padded_loss.mean, expected_loss.mean)
    torch.testing.assert_close(first, head.weight.grad)
    assert padded_hidden.grad is not None
    assert not padded_hidden.grad[:, 4:].any()


def test_no_targets_give_zero_loss() -> None:
    hidden = torch.randn(2, 5, D, requires_grad=True)
    loss = negative_log_likelihood(hidden, unembedding(), torch.full((2, 5), IGNORE_INDEX), smoothing=0.1)
    loss.mean.backward()
    assert (float(loss.total.detach()), int(loss.count), float(loss.mean.detach())) == (0.0, 0, 0.0)
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_unneeded_gradients_are_not_computed() -> None:
    hidden, targets = torch.randn(2, 5, D), torch.randint(0, V, (2, 5))
    with torch.no_grad():
        loss = negative_log_likelihood(hidden, unembedding(), targets)
    assert not loss.total.requires_grad


def test_bfloat16_losses_are_summed_in_float32() -> None:
    head = unembedding().bfloat16()
    loss = negative_log_likelihood(torch.zeros(300, D, dtype=torch.bfloat16), head, torch.zeros(300, dtype=torch.long))
    assert loss.total.dtype == torch.float32
    assert float(loss.total.detach()) == pytest.approx(300 * float(torch.tensor(V).log()), rel=1e-6)


@pytest.mark.usefixtures("chunk_elements", "either_way")
def test_autocast_applies_within_the_likelihood() -> None:
    """Autocast multiplies in bfloat16, and gives float32 gradients to float32 weights."""
    head, hidden = unembedding(), torch.randn(9, D, requires_grad=True)
    targets = torch.randint(0, V, (9,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = negative_log_likelihood(hidden, head, targets)
        expected = F.cross_entropy(head(hidden), targets, reduction="sum")
    loss.total.backward()
    torch.testing.assert_close(loss.total, expected)
    assert head.weight.grad is not None
    assert hidden.grad is not None
    assert (head.weight.grad.dtype, hidden.grad.dtype) == (torch.float32,) * 2
    found = head.weight.grad.clone(), hidden.grad.clone()
    head.zero_grad()
    hidden.grad = None
    F.cross_entropy(head(hidden), targets, reduction="sum").backward()
    for gradient, exact in zip(found, (head.weight.grad, hidden.grad), strict=True):
        assert float((gradient - exact).norm() / exact.norm()) < 0.01


def test_second_backward_pass_is_rejected() -> None:
    hidden = torch.randn(3, D, requires_grad=True)
    total = negative_log_likelihood(hidden, unembedding(), torch.tensor([1, IGNORE_INDEX, 2])).total
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="compute the loss again"):
        total.backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_gradient_products_are_computed_without_grad(mode: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation has trainable weights but must not compute gradients."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a gradient was computed")

    monkeypatch.setattr(torch, "mm", fail)
    head, hidden, targets = unembedding(), torch.randn(3, D), torch.tensor([1, IGNORE_INDEX, 2])
    with mode():
        loss = negative_log_likelihood(hidden, head, targets)
    torch.testing.assert_close(loss.plain, F.cross_entropy(head(hidden), targets, reduction="sum").detach())
    with pytest.raises(AssertionError, match="a gradient was computed"):
        negative_log_likelihood(hidden, head, targets)


@pytest.mark.skipif(not multiplies_bfloat16(), reason="this CPU does not multiply bfloat16, or no compiler")
@pytest.mark.parametrize("pad_to", [1, 3])
def test_small_products_use_the_kernel_with_the_same_result(pad_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_linear, "MIN_WORK", 1)
    calls = {name: Mock(wraps=getattr(likelihood, name)) for name in ("linear_forward", "linear_backward")}
    for name, call in calls.items():
        monkeypatch.setattr(likelihood, name, call)
    spec = DecoderOnlySpec(vocab_size=19, pad_vocab_to=pad_to, stack=StackSpec(d_model=32, n_layers=1, n_heads=1))
    head, hidden = Unembedding(spec, spec.stack), torch.randn(4, 10, 32)
    targets = torch.randint(0, 19, (4, 10))
    targets[1, 3:] = IGNORE_INDEX
    results: dict[bool, list[Tensor]] = {}
    for is_small in (True, False):
        monkeypatch.setattr(likelihood, "SMALL_MATMUL", 1 << 25 if is_small else 0)
        h = hidden.clone().requires_grad_()
        head.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = negative_log_likelihood(h, head, targets, smoothing=0.1)
        (0.37 * loss.total).backward()
        assert [call.call_count for call in calls.values()] == [int(is_small)] * 2
        for call in calls.values():
            call.reset_mock()
        assert h.grad is not None
        assert head.weight.grad is not None
        assert head.weight.grad.dtype == torch.float32
        results[is_small] = [loss.total.detach(), loss.plain, h.grad, head.weight.grad.clone()]
    for ours, theirs in zip(results[True], results[False], strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=0.01, atol=0.01 * float(theirs.abs().max()))


@pytest.mark.usefixtures("chunk_elements")
@pytest.mark.parametrize("form", ["whole", "library"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("softcap", "smoothing"), [(None, 0.0), (1.5, 0.0), (None, 0.1), (1.5, 0.1)])
def test_all_forms_have_the_same_loss_and_gradient(
    form: Form, softcap: float | None, smoothing: float, bias: bool
) -> None:
    if form == "library" and not hasattr(F, "linear_cross_entropy"):
        pytest.skip("this PyTorch has no linear_cross_entropy")
    head, hidden, targets = unembedding(softcap=softcap, pad_to=4, bias=bias), torch.randn(6, 5, D), some_targets()
    if form == "library" and (softcap or smoothing):
        with use_form(form), pytest.raises(ValueError, match="neither a softcap nor"):
            negative_log_likelihood(hidden, head, targets, smoothing=smoothing)
        return
    results: list[list[Tensor]] = []
    for form_name in (form, "chunks"):
        h = hidden.clone().requires_grad_()
        head.zero_grad()
        with use_form(form_name):
            loss = negative_log_likelihood(h, head, targets, smoothing=smoothing)
        (0.37 * loss.total).backward()
        gradients = [p.grad.clone() for p in (h, *head.parameters()) if p.grad is not None]
        results.append([loss.total.detach(), loss.plain, loss.count, *gradients])
    torch.testing.assert_close(*results)
    assert len(results[0]) == 5 + bias


def test_form_follows_from_device_compiler_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def form(n_rows: int, device: str = "cuda") -> Form:
        return choose_form(n_rows, 50304, torch.bfloat16, device)

    assert form(12 * 1024) == "chunks"  # without a compiler, chunks save memory
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert [form(12 * 1024), form(21_345), form(21_346), form(1, "cpu")] == ["whole", "whole", "chunks", "chunks"]
    assert bytes_of_graph(12 * 1024, 50304, torch.bfloat16) == 2 * 12 * 1024 * 50304 * 2
    assert bytes_of_graph(1 << 20, 50304, torch.bfloat16) == 4 << 30


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="PyTorch has no linear_cross_entropy before 2.13")
def test_pytorchs_loss_is_one_graph_with_the_same_gradients() -> None:
    hidden, targets, layer = torch.randn(6, 5, D, requires_grad=True), some_targets(), unembedding()
    expected = negative_log_likelihood(hidden, layer, targets)
    gradients = torch.autograd.grad(expected.total, (hidden, layer.weight))
    with use_form("library"):
        compiled = torch.compile(negative_log_likelihood, backend="aot_eager", fullgraph=True, dynamic=False)
        found = compiled(hidden, layer, targets)
        torch.testing.assert_close(found.total, expected.total)
        for gradient, reference in zip(
            torch.autograd.grad(found.total, (hidden, layer.weight)), gradients, strict=True
        ):
            torch.testing.assert_close(gradient, reference)
