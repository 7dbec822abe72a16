"""Costs in `tercet inspect`, recomputed from the shapes of the weights."""

import pytest

from tercet.inspect import model_table
from tercet.models import PRESETS, DecoderOnlySpec, StackSpec, build, model_spec
from tercet.nn import Rotary

SMALL = DecoderOnlySpec(
    vocab_size=13,
    max_len=7,
    tie_embeddings=True,
    stack=StackSpec(d_model=24, n_layers=2, n_heads=6, n_kv_heads=2, d_ff=31, gated=True, position=Rotary()),
)


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_and_flops_by_shapes(tied: bool) -> None:
    spec = DecoderOnlySpec(vocab_size=13, max_len=7, tie_embeddings=tied, stack=SMALL.stack)
    table, model = model_table(spec, length=5), build(spec)
    shapes = {id(weight): tuple(weight.shape) for weight in model.parameters()}
    assert table.parameters == sum(weight.numel() for weight in {id(w): w for w in model.parameters()}.values())
    assert table.parameters == sum(row.parameters for row in table.rows)
    matrices = sum(shape[0] * shape[1] for shape in shapes.values() if len(shape) == 2)
    n_multiplied = matrices - (0 if tied else 13 * 24)  # an untied embedding is looked up, not multiplied
    assert table.multiplied == n_multiplied
    attention = 2 * 2 * 5 * 24  # two layers; each query meets 5 keys and 5 values of 24 numbers
    assert table.flops_forward == 2 * n_multiplied + 2 * attention
    assert table.flops_training == 3 * table.flops_forward
    kv = 2 * 2 * 2 * 4  # layers, keys and values, heads, numbers per head
    assert (table.memory.cache_per_token_float32, table.memory.cache_per_token_bfloat16) == (4 * kv, 2 * kv)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["gpt2", "transformer-tiny", "bert-tiny"])
def test_bytes_are_those_of_the_weights(preset: str) -> None:
    stacks = ("encoder", "decoder") if hasattr(PRESETS[preset], "encoder") else ("stack",)
    sizes = {stack: {"d_model": 24, "n_heads": 3} for stack in stacks}
    table = model_table(model_spec({"preset": preset, "vocab_size": 13, "max_len": 9, **sizes}))
    n, memory = table.parameters, table.memory
    assert (memory.weights_float32, memory.weights_bfloat16) == (4 * n, 2 * n)
    assert (memory.gradients, memory.optimizer, memory.training) == (4 * n, 8 * n, 16 * n)
