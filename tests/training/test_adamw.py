"""The fused AdamW equals PyTorch's AdamW: clipped, resumed, and with a closure."""

import copy

import pytest
import torch
from torch import nn

from tercet.kernel import adam, supports_gradients
from tercet.kernel.build import library
from tercet.training.optim.adamw import FusedAdamW, clip_gradients
from tercet.training.optim.optimizers import build_optimizer
from tercet.training.optim.specs import Adam, AdamW

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def _small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adam, "MIN_WORK", 1)


def two_copies(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    return model, copy.deepcopy(model)


def learn(model: nn.Module, seed: int, *, size: float = 1.0) -> None:
    torch.manual_seed(seed)
    x = torch.randn(5, 8)
    (model(x).square().sum() * size).backward()


@pytest.mark.parametrize("spec", [AdamW(lr=0.03, weight_decay=0.2), Adam(lr=0.03)], ids=lambda spec: spec.kind)
@pytest.mark.parametrize("size", [0.001, 10.0])  # below and above the limit
def test_clipped_steps_are_those_of_pytorch(spec: AdamW | Adam, size: float) -> None:
    ours, theirs = two_copies(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)))
    our_optimizer = build_optimizer(spec, ours)
    decay = spec.weight_decay if isinstance(spec, AdamW) else 0.0
    groups = [
        {"params": [p for p in theirs.parameters() if p.ndim == 2], "weight_decay": decay},
        {"params": [p for p in theirs.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    torch_optimizer = torch.optim.AdamW(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, foreach=False)
    for seed in range(5):
        for model in (ours, theirs):
            learn(model, seed, size=size)
        norms = (
            clip_gradients(ours.parameters(), our_optimizer, 0.5),
            clip_gradients(theirs.parameters(), torch_optimizer, 0.5),
        )
        assert (norms[0] > 0.5) == (size > 1)
        torch.testing.assert_close(*norms, rtol=1e-4, atol=1e-6)
        for optimizer in (our_optimizer, torch_optimizer):
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_one_clipping_serves_one_step() -> None:
    p = nn.Parameter(torch.zeros(4))
    optimizer = FusedAdamW([p], lr=0.1, weight_decay=0.0)
    p.grad = torch.full((4,), 3.0)
    assert clip_gradients([p], optimizer, 1.0) == 6
    optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["exp_avg"], torch.full((4,), 0.1 * 3 / 6))
    optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["exp_avg"], torch.full((4,), 0.9 * 0.05 + 0.1 * 3))


@pytest.mark.parametrize("kernel_first", [True, False])
def test_kernel_and_pytorch_resume_from_each_other(kernel_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their checkpoints are interchangeable: a run may move to a machine without a compiler and back."""
    model = nn.Linear(8, 3)
    optimizer = FusedAdamW(model.parameters(), fused=True)

    def step(model: nn.Module, optimizer: FusedAdamW, seed: int, *, uses_kernel: bool) -> None:
        monkeypatch.setattr(adam, "MIN_WORK", 1 if uses_kernel else 10**9)
        learn(model, seed)
        assert supports_gradients(list(model.parameters())) == uses_kernel
        optimizer.step()
        optimizer.zero_grad()

    step(model, optimizer, 1, uses_kernel=kernel_first)
    model_copy = copy.deepcopy(model)
    other_optimizer = FusedAdamW(model_copy.parameters(), fused=True)
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer, 2, uses_kernel=kernel_first)
    step(model_copy, other_optimizer, 2, uses_kernel=not kernel_first)
    for p, q in zip(model.parameters(), model_copy.parameters(), strict=True):
        torch.testing.assert_close(p, q)
        assert other_optimizer.state[q]["step"] == 2


def test_a_closure_is_called_before_gradients_are_looked_at() -> None:
    model = nn.Linear(8, 3)
    optimizer = build_optimizer(AdamW(lr=0.1), model)
    before = [p.detach().clone() for p in model.parameters()]

    def closure() -> float:
        learn(model, 0)
        clip_gradients(model.parameters(), optimizer, 1e-3)
        return 7.0

    assert optimizer.step(closure) == 7.0
    assert all((p != q).any() for p, q in zip(model.parameters(), before, strict=True))
    norm = sum(float(s["exp_avg"].square().sum()) for s in optimizer.state.values()) ** 0.5
    assert norm == pytest.approx(0.1 * 1e-3, rel=1e-3)


def test_a_parameter_without_a_gradient_stays() -> None:
    model = nn.Linear(8, 3)
    optimizer = build_optimizer(AdamW(lr=0.1), model)
    learn(model, 0)
    bias, model.bias.grad = model.bias.detach().clone(), None
    assert model.weight.grad is not None
    torch.testing.assert_close(clip_gradients(model.parameters(), optimizer, 1.0), model.weight.grad.norm())
    optimizer.step()
    assert torch.equal(model.bias, bias)
    assert model.bias not in optimizer.state


@pytest.mark.parametrize("option", [{"maximize": True}, {"amsgrad": True}, {"maximize": True, "amsgrad": True}])
def test_options_of_pytorch_are_respected(option: dict[str, bool]) -> None:
    ours, theirs = two_copies(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)))
    our_optimizer = FusedAdamW(ours.parameters(), lr=0.03, fused=True, **option)
    torch_optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.03, foreach=False, **option)
    for seed in range(5):
        for model, optimizer in ((ours, our_optimizer), (theirs, torch_optimizer)):
            learn(model, seed)
            clip_gradients(model.parameters(), optimizer, 0.5)
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fused", [True, False])
def test_a_scalers_gradients_are_unscaled_and_its_infinities_skipped(fused: bool) -> None:
    ours, theirs = two_copies(nn.Linear(8, 3))
    our_optimizer = FusedAdamW(ours.parameters(), lr=0.03, fused=fused)
    torch_optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.03, foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for seed, is_infinite in ((0, False), (1, True), (2, False)):
        torch.manual_seed(seed)
        x = torch.randn(5, 8)
        scaler.scale(ours(x).square().sum() * (torch.inf if is_infinite else 1.0)).backward()
        scaler.step(our_optimizer)
        scaler.update()
        our_optimizer.zero_grad()
        if not is_infinite:
            theirs(x).square().sum().backward()
            torch_optimizer.step()
            torch_optimizer.zero_grad()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_scale_is_kept_if_pytorch_takes_the_step() -> None:
    ours, theirs = two_copies(nn.Linear(8, 3))
    our_optimizer, torch_optimizer = (
        FusedAdamW(ours.parameters(), eps=1.0),
        torch.optim.AdamW(theirs.parameters(), eps=1.0),
    )
    for model, optimizer in ((ours, our_optimizer), (theirs, torch_optimizer)):
        learn(model, 0, size=10.0)
        clip_gradients(model.parameters(), optimizer, 0.5)
    our_optimizer.param_groups[0]["maximize"] = torch_optimizer.param_groups[0]["maximize"] = (
        True  # between clipping and stepping
    )
    our_optimizer.step()
    torch_optimizer.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
