"""Parameter groups, and Muon compared with its formula, `torch.optim.AdamW` and `torch.optim.Muon`."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tercet.models import DecoderOnly, build, model_spec
from tercet.training.optim import muon
from tercet.training.optim.muon import COEFFICIENTS, MuonAdamW, orthogonalize
from tercet.training.optim.optimizers import base_rates, build_optimizer, hidden_matrices, set_rates
from tercet.training.optim.specs import Adam, AdamW, Muon, OptimizerSpec


def small_model(**changes: Any) -> DecoderOnly:
    stack = {"d_model": 24, "n_layers": 2, "n_heads": 2}
    return DecoderOnly(
        model_spec({"preset": "gpt2", "vocab_size": 11, "max_len": 7, "stack": stack, **changes}), seed=3
    )


@pytest.mark.parametrize(
    "optimizer",
    [Adam(), AdamW(), Muon(), Muon(head_lr=0.001, adam_weight_decay=0.1)],
    ids=["adam", "adamw", "muon", "muon-head"],
)
@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_is_in_one_group(optimizer: OptimizerSpec, tied: bool) -> None:
    model = small_model(tie_embeddings=tied)
    parameter_ids = [id(p) for group in build_optimizer(optimizer, model).param_groups for p in group["params"]]
    assert sorted(parameter_ids) == sorted(id(p) for p in model.parameters())
    assert len(parameter_ids) == len(set(parameter_ids))


@pytest.mark.parametrize("optimizer", [Adam(), AdamW(), Muon()], ids=lambda spec: spec.kind)
def test_frozen_parameters_are_in_no_group(optimizer: OptimizerSpec) -> None:
    """Weight decay would change them even without a gradient."""
    model = small_model()
    frozen = [
        model.embedding.weight,
        model.stack.blocks[0].feedforward.up.weight,
        model.stack.blocks[1].feedforward.up.bias,
    ]
    for p in frozen:
        p.requires_grad_(False)
    parameter_ids = {id(p) for group in build_optimizer(optimizer, model).param_groups for p in group["params"]}
    assert parameter_ids == {id(p) for p in model.parameters()} - set(map(id, frozen))


@pytest.mark.parametrize("tied", [True, False])
def test_an_output_layer_has_its_own_rate_even_if_it_is_the_embedding(tied: bool) -> None:
    model = small_model(tie_embeddings=tied)
    groups = build_optimizer(Muon(lr=0.02, adam_lr=0.004, head_lr=0.001), model).param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert rates[id(model.unembedding.weight)] == 0.001
    assert rates[id(model.embedding.weight)] == (0.001 if tied else 0.004)
    assert rates[id(model.stack.blocks[0].feedforward.up.weight)] == 0.02
    assert sorted(set(rates.values())) == [0.001, 0.004, 0.02]  # that of AdamW for the norms
    model.unembedding.weight.requires_grad_(False)
    frozen_groups = build_optimizer(Muon(head_lr=0.001), model).param_groups
    assert all(p.requires_grad for group in frozen_groups for p in group["params"])


def test_embeddings_and_output_layers_decay_by_their_own_setting() -> None:
    model = small_model(tie_embeddings=False)
    groups = build_optimizer(Muon(weight_decay=0.1, adam_weight_decay=0.3, head_lr=0.001), model).param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for name, p in model.named_parameters():
        is_hidden = "blocks" in name and p.ndim == 2
        assert decays[id(p)] == (0.1 if is_hidden else 0.3 if p.ndim == 2 else 0.0), name
    assert all(group["params"] for group in groups)


def test_vectors_do_not_decay() -> None:
    model = small_model()
    groups = build_optimizer(AdamW(weight_decay=0.3), model).param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for name, p in model.named_parameters():
        assert decays[id(p)] == (0.3 if p.ndim == 2 else 0.0), name


@pytest.mark.parametrize("preset", ["gpt2", "modern", "llama"])
def test_muon_takes_the_matrices_inside_blocks_only(preset: str) -> None:
    model = small_model(preset=preset)
    matrices, rest = hidden_matrices(model)
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(".blocks." in names[id(p)] and p.ndim == 2 for p in matrices)
    left = [names[id(p)] for p in rest]
    assert all(p.ndim == 1 or "embedding" in name or "position" in name for name, p in zip(left, rest, strict=True))
    assert "embedding.weight" in left
    groups = build_optimizer(Muon(weight_decay=0.2, lr=0.1, adam_lr=0.3), model).param_groups
    assert [(g["muon"], g["lr"], g["weight_decay"]) for g in groups] == [(True, 0.1, 0.2), (False, 0.3, 0.0)]


def test_muon_takes_the_matrices_between_an_encoder_and_its_heads() -> None:
    changes = {
        "preset": "bert-tiny", "vocab_size": 17, "max_len": 8, "pooler": True, "classifier": {"labels": ["a", "b"]},
        "stack": {"d_model": 12, "n_heads": 2, "d_ff": 24},
    }  # fmt: skip
    model = build(model_spec(changes))
    matrices, rest = ({id(p) for p in parameters} for parameters in hidden_matrices(model))
    names = {name: id(p) for name, p in model.named_parameters() if ".blocks." not in name}
    assert [name for name, key in names.items() if key in matrices] == ["transform.dense.weight", "pooler.dense.weight"]
    assert {names["classifier.weight"], names["embedding.weight"], names["segment_embedding.weight"]} <= rest


def test_muon_rejects_a_vector() -> None:
    with pytest.raises(ValueError, match="Muon requires matrices"):
        MuonAdamW([{"params": [nn.Parameter(torch.zeros(3))], "muon": True}])


@pytest.mark.parametrize("shape", [(24, 24), (24, 96), (96, 24), (5, 7)])
def test_orthogonalize_keeps_the_singular_vectors(shape: tuple[int, int]) -> None:
    matrix = torch.randn(*shape)
    if shape[0] == shape[1]:  # a random square matrix has values near zero, which five iterations do not raise
        u, _, v = torch.linalg.svd(matrix)
        matrix = u @ torch.diag(torch.linspace(0.1, 3.0, shape[0])) @ v
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    inner = u.mT @ orthogonalize(matrix[None])[0] @ v.mT
    values = inner.diagonal()
    assert values.min() > 0.6
    assert values.max() < 1.3
    torch.testing.assert_close(inner, torch.diag(values), atol=1e-4, rtol=0)


def test_orthogonalize_treats_each_matrix_separately() -> None:
    matrices = torch.randn(3, 5, 7) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    separate = torch.stack([orthogonalize(m[None])[0] for m in matrices])
    torch.testing.assert_close(orthogonalize(matrices), separate)
    assert torch.equal(orthogonalize(torch.zeros(1, 5, 7)), torch.zeros(1, 5, 7))


def test_muon_is_the_formula() -> None:
    for shape in ((9, 4), (4, 9)):
        ours = nn.Parameter(torch.randn(*shape))
        theirs, momentum = ours.detach().clone(), torch.zeros(shape)
        optimizer = MuonAdamW([{"params": [ours], "muon": True, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}])
        for _ in range(4):
            ours.grad = torch.randn(*shape)
            momentum = 0.9 * momentum + 0.1 * ours.grad
            x = 0.1 * ours.grad + 0.9 * momentum
            transposed = shape[0] > shape[1]
            x = x.T if transposed else x
            x = x / x.norm()
            a, b, c = COEFFICIENTS
            for _ in range(5):
                gram = x @ x.T
                x = a * x + b * gram @ x + c * gram @ gram @ x
            x = x.T if transposed else x
            theirs = theirs * (1 - 0.1 * 0.05) - 0.1 * max(1, shape[0] / shape[1]) ** 0.5 * x
            optimizer.step()
            torch.testing.assert_close(ours.detach(), theirs, atol=1e-5, rtol=1e-4)


class Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names = list[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_muon_on_a_gpu_makes_as_few_calls_for_many_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways give the same numbers; a CPU processes one matrix at a time, which needs less memory."""

    def trained_model(n: int) -> tuple[list[Tensor], list[str]]:
        torch.manual_seed(3)
        matrices = [nn.Parameter(torch.randn(shape)) for _ in range(n) for shape in ((9, 4), (4, 9))]
        optimizer = MuonAdamW([{"params": matrices, "muon": True, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}])
        for step in range(3):
            for p in matrices:
                p.grad = torch.randn_like(p)
            if step == 2:
                with Calls() as calls:
                    optimizer.step()
            else:
                optimizer.step()
        return [p.detach() for p in matrices], calls.names

    separate, separate_calls = trained_model(5)
    monkeypatch.setattr(muon, "BATCHED_DEVICES", ("cpu",))
    batched, batched_calls = trained_model(5)
    assert all(map(torch.equal, batched, separate))
    assert batched_calls == trained_model(2)[1]
    assert len(batched_calls) < len(separate_calls)


def test_muon_equals_torch_except_for_precision() -> None:
    ours, theirs = nn.Parameter(torch.randn(12, 8)), nn.Parameter(torch.zeros(12, 8))
    theirs.data.copy_(ours.data)
    before = ours.detach().clone()
    optimizer = MuonAdamW([{"params": [ours], "muon": True, "lr": 0.1, "momentum": 0.95, "weight_decay": 0.1}])
    torch_optimizer = torch.optim.Muon([theirs], lr=0.1, momentum=0.95, weight_decay=0.1)
    for _ in range(3):
        ours.grad = torch.randn(12, 8)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        torch_optimizer.step()
    update, torch_update = ((p.detach() - before).flatten() for p in (ours, theirs))
    assert torch.cosine_similarity(update, torch_update, dim=0) > 0.999
    assert float(update.norm() / torch_update.norm()) == pytest.approx(1.0, abs=0.02)


def test_vectors_use_adamw_of_torch() -> None:
    shapes = [(5, 3), (7,), ()]
    start = [torch.randn(shape) for shape in shapes]
    ours, theirs = ([nn.Parameter(t.clone()) for t in start] for _ in range(2))
    settings = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
    optimizer, torch_optimizer = (
        MuonAdamW([{"params": ours, **settings}]),
        torch.optim.AdamW(theirs, **settings, fused=True),
    )
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        optimizer.step()
        torch_optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def test_a_parameter_without_gradient_stays() -> None:
    model = small_model()
    optimizer = build_optimizer(Muon(), model)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_muon_state_round_trip() -> None:
    def gradients(model: nn.Module, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator)

    first_model, second_model = small_model(), small_model()
    first = build_optimizer(Muon(), first_model)
    for seed in range(3):
        gradients(first_model, seed)
        first.step()
    second_model.load_state_dict(first_model.state_dict())
    second = build_optimizer(Muon(), second_model)
    second.load_state_dict(copy.deepcopy(first.state_dict()))  # loading shares its tensors
    for seed in range(3, 6):
        for model, optimizer in ((first_model, first), (second_model, second)):
            gradients(model, seed)
            optimizer.step()
    left: list[Tensor] = list(first_model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(left, second_model.parameters(), strict=True))


def test_a_factor_is_on_each_groups_own_rate() -> None:
    optimizer = build_optimizer(Muon(lr=0.2, adam_lr=0.4), small_model())
    base = base_rates(optimizer)
    for factor in (0.5, 0.25):
        set_rates(optimizer, base, factor)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2 * factor, 0.4 * factor])
