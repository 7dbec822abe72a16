"""LoRA matches its formula, starts as the base model, trains only its two matrices, and can be merged."""

from dataclasses import replace

import pytest
import torch

from tercet.models import DecoderOnlySpec, StackSpec, build
from tercet.nn import Linear
from tercet.nn.lora import LoRALinear, add_lora, lora_layers, match_layers, merge_lora
from tercet.nn.specs import LoRA

B, T, K, N, R = 2, 5, 7, 11, 3
SPEC = DecoderOnlySpec(vocab_size=13, max_len=8, stack=StackSpec(d_model=12, n_layers=2, n_heads=3, d_ff=17))
NAMES = [f"stack.blocks.{n}.self_attention.{part}" for n in range(2) for part in ("query", "key")]


def random_(layer: LoRALinear, seed: int = 3) -> LoRALinear:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.lora_A.normal_(generator=generator)
        layer.lora_B.normal_(generator=generator)
    return layer


def test_lora_matches_the_formula() -> None:
    base = Linear(K, N)
    layer = random_(LoRALinear(base, LoRA(rank=R, alpha=6.0)))
    x = torch.randn(B, T, K)
    low = torch.einsum("btk,rk->btr", x, layer.lora_A)
    expected = base(x) + 6.0 / R * torch.einsum("btr,nr->btn", low, layer.lora_B)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer.merge()(x), expected)


def test_lora_starts_as_the_base_and_trains_only_its_matrices() -> None:
    model, ids = build(SPEC, seed=1), torch.arange(B * T).reshape(B, T) % 13
    before = model(ids)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    add_lora(model, LoRA(rank=R, targets=("query", "feedforward.down")), seed=5)
    assert torch.equal(model(ids), before)
    for layer in lora_layers(model).values():  # A is initialized like PyTorch's linear layers
        assert 0.8 < float(layer.lora_A.detach().abs().max()) * layer.in_features**0.5 <= 1
    model(ids).sum().backward()
    trainable_names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert {name for name, p in model.named_parameters() if p.grad is not None} == set(trainable_names)
    assert len(trainable_names) == 2 * 2 * 2
    assert all(
        name.endswith(("query.lora_A", "query.lora_B", "down.lora_A", "down.lora_B")) for name in trainable_names
    )
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_model_is_the_same(dtype: torch.dtype) -> None:
    model, ids = build(SPEC, seed=1).to(dtype), torch.arange(B * T).reshape(B, T) % 13
    kinds = {name: type(module) for name, module in model.named_modules()}
    tied = model.unembedding.weight is model.embedding.weight
    add_lora(model, LoRA(rank=R, targets=("all",)))
    for layer in lora_layers(model).values():
        random_(layer)
    expected = model.eval()(ids)
    merge_lora(model)
    assert {name: type(module) for name, module in model.named_modules()} == kinds
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert (model.unembedding.weight is model.embedding.weight) == tied
    bound = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.2, "atol": 0.5}
    torch.testing.assert_close(model(ids), expected, **bound)


def test_merging_in_bfloat16_rounds_once() -> None:
    layer = random_(LoRALinear(Linear(K, N).bfloat16(), LoRA(rank=R, alpha=6.0)))
    exact = layer.weight.double() + 6.0 / R * layer.lora_B.double() @ layer.lora_A.double()
    assert torch.equal(layer.merge().weight, exact.bfloat16())


def test_seed_determines_only_a() -> None:
    def matrices(seed: int) -> list[torch.Tensor]:
        model = build(SPEC, seed=1)
        state = torch.get_rng_state()
        add_lora(model, LoRA(), seed=seed)
        assert torch.equal(torch.get_rng_state(), state)  # the global generator is not used
        return [layer.lora_A for layer in lora_layers(model).values()]

    first, same_seed, other_seed = matrices(1), matrices(1), matrices(2)
    assert all(torch.equal(a, b) for a, b in zip(first, same_seed, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other_seed, strict=True))
    assert not torch.equal(first[0], first[1])


def test_dropout_acts_on_the_adapters_input_only_in_training() -> None:
    layer, x = random_(LoRALinear(Linear(K, N), LoRA(rank=R, dropout=0.5))), torch.randn(B, K)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
    torch.testing.assert_close(layer.merge()(x), layer(x))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("query", NAMES[::2]),
        ("self_attention.key", NAMES[1::2]),
        ("stack.blocks.1.*", NAMES[2:]),
        ("all", NAMES),
        (NAMES[2], NAMES[2:3]),
    ],
)
def test_targets(target: str, expected: list[str]) -> None:
    assert match_layers(target, NAMES) == expected


@pytest.mark.parametrize("target", ["querry", "uery", "unembedding", "blocks"])
def test_unknown_target_is_rejected(target: str) -> None:
    with pytest.raises(ValueError, match=rf"no linear layer matches '{target}'; choose from query, key, .*or 'all'"):
        add_lora(build(SPEC), LoRA(targets=(target,)))


def test_adapted_model_decodes_step_by_step() -> None:
    """Fused decode steps support only plain layers and would omit the two matrices."""
    sizes = StackSpec(d_model=32, n_layers=2, n_heads=2, d_ff=64)  # sizes that the fused step supports
    model, ids = build(replace(SPEC, stack=sizes), seed=1).eval(), torch.tensor([[1, 2, 3]])
    add_lora(model, LoRA(rank=R, targets=("value",)))
    for layer in lora_layers(model).values():
        random_(layer)
    with torch.no_grad():
        first, cache = model.start(ids[:, :1], torch.tensor([1]), capacity=8)
        logits = torch.stack([first, model.step(ids[:, 1], cache), model.step(ids[:, 2], cache)], 1)
        torch.testing.assert_close(logits, model(ids), rtol=1e-4, atol=1e-4)
