"""An adapter's two files: each weight gets alpha / r B A added in float32, with the layer's own alpha and r."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted_models import MODELS, randomize
from torch import nn

from tercet.checkpoint.adapter import Adapter, LowRank, adapter_of, merge_adapter, read_adapter, write_adapter
from tercet.config import parse
from tercet.models import SPECS, build
from tercet.nn.lora import add_lora, lora_layers
from tercet.nn.specs import LoRA


def low(rank: int, scaling: float) -> LowRank:
    return LowRank(A=torch.randn(rank, 5), B=torch.randn(7, rank), scaling=scaling)


def test_adapter_is_read_back_unchanged(tmp_path: Path) -> None:
    layers = {"one": low(4, 0.5), "two": low(4, 0.5), "three": low(2, 3.0), "a.four": low(4, 0.25)}
    whole = {"head.weight": torch.randn(3, 2)}
    write_adapter(tmp_path, Adapter(base="../base", layers=layers, full_weights=whole))
    adapter = read_adapter(tmp_path)
    assert adapter.base == "../base"
    assert {name: layer.scaling for name, layer in adapter.layers.items()} == {
        n: layer.scaling for n, layer in layers.items()
    }
    for name, layer in layers.items():
        assert torch.equal(adapter.layers[name].product(), layer.product())
    assert torch.equal(adapter.full_weights["head.weight"], whole["head.weight"])
    assert json.loads((tmp_path / "adapter_config.json").read_text())["lora_alpha"] == 2  # 0.5 * 4, as in most layers


@pytest.mark.parametrize(
    ("change", "scalings"),
    [
        ({"lora_alpha": 3}, (0.75, 0.75)),
        ({"lora_alpha": None, "drop": "lora_alpha"}, (2.0, 2.0)),  # the default of peft is 8
        ({"lora_alpha": 3, "use_rslora": True}, (1.5, 1.5)),
        ({"lora_alpha": 3, "alpha_pattern": {"one": 6}}, (1.5, 0.75)),
        ({"lora_alpha": 3, "alpha_pattern": {"one": 6}, "use_rslora": True}, (3.0, 1.5)),
    ],
)
def test_scaling_is_that_of_the_config(change: dict[str, Any], scalings: tuple[float, float], tmp_path: Path) -> None:
    layers = {"deep.one": low(4, 1.0), "gone": low(4, 1.0)}
    write_adapter(tmp_path, Adapter(base="", layers=layers, full_weights={}))
    path = tmp_path / "adapter_config.json"
    config = {**json.loads(path.read_text()), "alpha_pattern": {}, **change}
    if removed_key := config.pop("drop", None):
        del config[removed_key]
    path.write_text(json.dumps(config))
    assert tuple(layer.scaling for layer in read_adapter(tmp_path).layers.values()) == scalings


def test_adapter_of_model_has_the_trained_parameters() -> None:
    plain = parse(SPECS["decoder-only"], {**MODELS["gpt2"], "vocab_size": 13})
    model, merged = (randomize(build(plain, seed=1), 2) for _ in range(2))
    add_lora(model, LoRA(rank=3, alpha=6.0, targets=("query", "down")))
    model.get_parameter("stack.final_norm.bias").requires_grad_(True).data.add_(1)
    for layer in lora_layers(model).values():
        nn.init.normal_(layer.lora_B)
    adapter = adapter_of(model)
    parts = ("feedforward.down", "self_attention.query")
    assert sorted(adapter.layers) == [f"stack.blocks.{n}.{part}" for n in (0, 1) for part in parts]
    assert {low_rank.scaling for low_rank in adapter.layers.values()} == {2.0}
    assert list(adapter.full_weights) == ["stack.final_norm.bias"]
    merge_adapter(merged, adapter, Path())
    tokens = torch.arange(10).view(2, 5)
    torch.testing.assert_close(merged(tokens), model(tokens), rtol=1e-4, atol=1e-4)
