"""Initial weights have their scheme's spread, depend only on the seed, and leave the global generator unchanged."""

import math

import pytest
import torch
from torch import nn

from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.nn import Rotary
from tercet.nn.init import initialize
from tercet.nn.specs import Normal, PyTorch, Xavier, ZeroProjections

D, F, V, LAYERS = 96, 200, 301, 3
LAST = ("self_attention.out.weight", "feedforward.down.weight")


def model(scheme, *, seed: int = 0, tied: bool = False) -> DecoderOnly:
    stack = StackSpec(d_model=D, n_layers=LAYERS, n_heads=6, n_kv_heads=2, d_ff=F, gated=True, qk_norm=True)
    return DecoderOnly(
        DecoderOnlySpec(vocab_size=V, max_len=67, stack=stack, tie_embeddings=tied, init=scheme), seed=seed
    )


def matrices(decoder: DecoderOnly) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    return {
        f"{name}.weight": (module, module.weight)
        for name, module in decoder.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding)
    }


def expected_std(scheme, name: str, module: nn.Module) -> float:
    last, embedding = name.endswith(LAST), isinstance(module, nn.Embedding)
    if isinstance(scheme, Normal):
        return scheme.std / math.sqrt(2 * LAYERS) if last else scheme.std
    if isinstance(scheme, Xavier):
        return D**-0.5 if embedding else math.sqrt(2 / sum(module.weight.shape))
    if embedding:
        return scheme.embedding_std
    return 0.0 if last or name == "unembedding.weight" else scheme.gain / math.sqrt(module.in_features)


@pytest.mark.parametrize("scheme", [Normal(), Normal(std=0.1), Xavier(), ZeroProjections()], ids=str)
def test_each_tensor_has_the_standard_deviation_of_its_scheme(scheme) -> None:
    found = matrices(model(scheme))
    assert sum(name.endswith(LAST) for name in found) == 2 * LAYERS
    for name, (module, weight) in found.items():
        expected = expected_std(scheme, name, module)
        assert weight.std().item() == pytest.approx(expected, rel=0.06), name
        assert abs(weight.mean().item()) <= 5 * expected / math.sqrt(weight.numel()), name


@pytest.mark.parametrize("scheme", [Normal(), Xavier(), ZeroProjections()], ids=str)
def test_norms_start_at_one_and_biases_at_zero(scheme) -> None:
    for name, parameter in model(scheme).named_parameters():
        if parameter.ndim == 1:
            assert (parameter == (0 if name.endswith("bias") else 1)).all(), name


@pytest.mark.parametrize("scheme", [Normal(), Xavier(), ZeroProjections()], ids=str)
def test_every_parameter_is_initialized(scheme) -> None:
    decoder = model(scheme)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.fill_(torch.nan)
    initialize(decoder, scheme, seed=0)
    assert all(parameter.isfinite().all() for parameter in decoder.parameters())


@pytest.mark.parametrize("scheme", [Normal(), Xavier(), ZeroProjections()], ids=str)
def test_same_seed_gives_same_weights_for_any_global_generator_state(scheme) -> None:
    first = model(scheme, seed=5).state_dict()
    torch.rand(3)
    second, other_seed = model(scheme, seed=5).state_dict(), model(scheme, seed=6).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other_seed["embedding.weight"])


def test_initialization_does_not_change_the_global_generator() -> None:
    decoder = model(Normal())
    before = torch.get_rng_state()
    for scheme in (Normal(), Xavier(), ZeroProjections()):
        initialize(decoder, scheme, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_two_matrices_are_equal() -> None:
    weights = [weight for _, weight in matrices(model(Normal())).values()]
    for i, matrix in enumerate(weights):
        assert not any(matrix.shape == previous.shape and torch.equal(matrix, previous) for previous in weights[:i])


@pytest.mark.parametrize("scheme", [Normal(), Xavier(), ZeroProjections()], ids=str)
def test_tied_weights_stay_one_tensor_with_the_spread_of_the_embedding(scheme) -> None:
    decoder = model(scheme, tied=True)
    assert decoder.unembedding.weight is decoder.embedding.weight
    expected = expected_std(scheme, "embedding.weight", decoder.embedding)
    assert decoder.embedding.weight.std().item() == pytest.approx(expected, rel=0.06)
    names = [name for name, _ in decoder.named_parameters()]
    assert "embedding.weight" in names
    assert "unembedding.weight" not in names


def test_every_parameter_has_a_gradient() -> None:
    decoder = model(Normal())
    decoder(torch.randint(V, (2, 67))).logsumexp(-1).sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for n, p in decoder.named_parameters() if "key.bias" not in n
    )


def test_positions_without_parameters_add_none() -> None:
    assert not list(Rotary().build(d_model=24, d_head=6, n_heads=4, max_len=11).parameters())


def test_pytorch_scheme_matches_the_initial_weights_of_pytorchs_layers() -> None:
    torch.manual_seed(3)
    for name, (module, weight) in matrices(model(PyTorch())).items():
        if isinstance(module, nn.Embedding):
            assert weight.std().item() == pytest.approx(1.0, rel=0.06), name
            continue
        theirs = nn.Linear(module.in_features, module.out_features)
        bound = module.in_features**-0.5
        for ours, expected in ((weight, theirs.weight), (module.bias, theirs.bias)):
            if ours is None:  # the unembedding has no bias
                continue
            assert ours.abs().max() <= bound, name
            assert expected.abs().max() <= bound, name  # fails if PyTorch's initialization has changed
            assert ours.std().item() == pytest.approx(expected.std().item(), rel=0.25), name
            assert ours.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.25), name


def test_pytorch_scheme_treats_a_tied_matrix_as_an_embedding() -> None:
    tied = model(PyTorch(), tied=True)
    assert tied.unembedding.weight is tied.embedding.weight
    assert tied.embedding.weight.std().item() == pytest.approx(1.0, rel=0.05)
