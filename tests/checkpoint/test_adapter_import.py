"""An adapter with the names of `transformers` changes an imported model as it changes the original weights.

The reference needs neither library: the product B A is added to the exported weights, which are then read again.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from adapted_models import DISTILBERT, EUROBERT, GEMMA, MODELS, MODERNBERT, UMT5, randomize
from torch import nn

from tercet.checkpoint.adapter import Adapter, LowRank, merge_adapter
from tercet.checkpoint.foreign.peft_folder import _export_adapter, import_adapter
from tercet.checkpoint.foreign.readers import READERS
from tercet.checkpoint.foreign.transformers_folder import to_transformers
from tercet.config import parse
from tercet.models import SPECS, build
from tercet.nn import Linear

NOT_ADAPTED = ("embed", "wte", "wpe", "shared", "lm_head", "relative_attention_bias", "classifier", "pooler")


@pytest.mark.slow
@pytest.mark.parametrize(
    "plain",
    [*MODELS.values(), DISTILBERT, EUROBERT, MODERNBERT, GEMMA, UMT5],
    ids=[*MODELS, "distilbert", "eurobert", "modernbert", "gemma", "umt5"],
)
def test_imported_adapter_equals_the_change_of_the_original_weights(plain: dict[str, Any]) -> None:
    model = randomize(build(parse(SPECS[plain["family"]], {**plain, "vocab_size": 13}), seed=1), 2)
    config, state = to_transformers(model)
    transposed = config["model_type"] == "gpt2"
    layers, changed_state = dict[str, LowRank](), dict(state)
    for name, weight in state.items():
        if (
            weight.ndim == 2
            and name.endswith(".weight")
            and not (name in ("dense.weight", "head.dense.weight") or any(part in name for part in NOT_ADAPTED))
        ):
            rows, columns = weight.T.shape if transposed else weight.shape
            low = LowRank(A=torch.randn(3, columns), B=torch.randn(rows, 3), scaling=0.3 + 0.1 * len(layers))
            layers[name.removesuffix(".weight")] = low
            changed_state[name] = weight + (low.product().T if transposed else low.product())
    read = READERS[config["model_type"]].model
    expected, base = read(config, changed_state).state_dict(), read(config, state)
    imported = import_adapter(Adapter(base="", layers=layers, full_weights={}), base, Path("adapter"), {})
    merge_adapter(base, imported, Path("adapter"))
    for name, tensor in base.state_dict().items():
        assert torch.allclose(tensor, expected[name], rtol=1e-4, atol=1e-4), name
    exported = _export_adapter(imported, base, config["model_type"], state)
    assert exported.layers.keys() == layers.keys()
    for name, low in exported.layers.items():
        assert torch.allclose(low.product(), layers[name].product(), rtol=1e-4, atol=1e-4), name


def test_parts_of_one_matrix_keep_their_rank_and_scale() -> None:
    """GPT-2 has one matrix for queries, keys and values: adapters of two of them become block diagonal."""
    model = build(parse(SPECS["decoder-only"], {**MODELS["gpt2"], "vocab_size": 13}), seed=1)
    config, state = to_transformers(model)
    parts = {
        part: LowRank(A=torch.randn(rank, 20), B=torch.randn(20, rank), scaling=scaling)
        for part, rank, scaling in (("value", 2, 0.5), ("query", 3, 2.0))
    }
    layers = {f"stack.blocks.1.self_attention.{part}": low for part, low in parts.items()}
    exported = _export_adapter(Adapter(base="", layers=layers, full_weights={}), model, config["model_type"], state)
    ((name, low),) = exported.layers.items()
    assert name == "transformer.h.1.attn.c_attn"
    expected = torch.cat([parts["query"].product(), torch.zeros(20, 20), parts["value"].product()])
    assert torch.allclose(low.product(), expected, atol=1e-5)


def test_merged_in_bfloat16_the_sum_is_rounded_once() -> None:
    model = nn.Sequential(Linear(7, 11).bfloat16())
    weight, a, b = model[0].weight.detach().double(), torch.randn(3, 7).bfloat16(), torch.randn(11, 3).bfloat16()
    adapter = Adapter(base="", layers={"0": LowRank(A=a, B=b, scaling=2.0)}, full_weights={})
    merge_adapter(model, adapter, Path("adapter"))
    assert torch.equal(model[0].weight, (weight + 2.0 * b.double() @ a.double()).bfloat16())
