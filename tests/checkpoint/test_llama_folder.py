"""A Llama written by `transformers` opens with the same outputs."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from folders_of_others import edit_folder, generate_greedily, seeds, shaken, write_folder
from torch import Tensor

from tercet.checkpoint import load_model
from tercet.checkpoint.foreign.llama import from_llama
from tercet.config import UserError
from tercet.models import DecoderOnly

SMALL = {
    "vocab_size": 23, "max_position_embeddings": 31, "hidden_size": 20, "intermediate_size": 29,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    "rms_norm_eps": 1e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


def theirs(seed: int = 0, kind: Any = transformers.LlamaForCausalLM, **config: Any) -> Any:
    torch.manual_seed(seed)
    return shaken(kind(transformers.LlamaConfig(**SMALL | config)), seed)


@cache
def usual() -> Any:
    """Return the model that most tests read; none may change it."""
    return theirs()


def random_model(seed: int) -> Any:
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 4, 6])
    return theirs(
        seed,
        hidden_size=heads * 5, num_attention_heads=heads,
        num_key_value_heads=draw.choice([n for n in (1, 2, 3, 4, 6) if heads % n == 0]),
        head_dim=draw.choice([4, 6, 10]), num_hidden_layers=draw.choice([1, 2, 3]),
        tie_word_embeddings=draw.random() < 0.5, attention_bias=seed % 3 == 0, mlp_bias=seed % 4 == 0,
        hidden_act=draw.choice(["silu", "gelu"]), rms_norm_eps=draw.choice([1e-6, 1e-3]),
        rope_parameters={"rope_type": "default", "rope_theta": draw.choice([10_000.0, 500_000.0, 37.0])},
    )  # fmt: skip


def open_model(folder: Path) -> DecoderOnly:
    model = load_model(folder).model
    assert isinstance(model, DecoderOnly)
    return model


def full_config(reference: Any) -> dict[str, Any]:
    return json.loads(reference.config.to_json_string(use_diff=False))


@torch.no_grad()
def furthest(ours: DecoderOnly, reference: Any) -> float:
    tokens = torch.randint(ours.vocab_size, (2, 29), generator=torch.Generator().manual_seed(1))
    return (ours(tokens) - reference(input_ids=tokens, use_cache=False).logits).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(10, fast=1))
def test_logits_and_greedy_tokens_match_transformers(seed: int, tmp_path: Path) -> None:
    reference = random_model(seed)
    ours = open_model(write_folder(tmp_path, reference, pickled=seed % 3 == 1))
    assert furthest(ours, reference) < 1e-4
    prompt = torch.randint(ours.vocab_size, (2, 5))
    mask = torch.ones_like(prompt)
    expected = reference.generate(prompt, attention_mask=mask, do_sample=False, max_new_tokens=17, min_new_tokens=17)
    assert torch.equal(generate_greedily(ours, prompt, 17), expected[:, 5:])


@pytest.mark.parametrize("biases", [(True, False), (False, True), (True, True), (False, False)])
def test_biases_of_only_one_part_are_read(biases: tuple[bool, bool]) -> None:
    reference = theirs(attention_bias=biases[0], mlp_bias=biases[1])
    ours = from_llama(full_config(reference), reference.state_dict())
    assert furthest(ours, reference) < 1e-5
    state = ours.state_dict()
    assert ("stack.blocks.0.self_attention.out.bias" in state) == biases[0]
    assert ("stack.blocks.0.feedforward.down.bias" in state) == biases[1]


@pytest.mark.parametrize(
    "base",
    [
        {"rope_theta": 500.0, "rope_parameters": None},
        {"rope_theta": 500.0, "rope_scaling": None, "rope_parameters": None},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 500.0}, "rope_parameters": None},
        {"rope_theta": 10.0},  # the newer key takes precedence
    ],
)
def test_rotary_base_is_read_from_three_places(base: dict[str, Any]) -> None:
    reference = usual()
    assert furthest(from_llama(full_config(reference) | base, reference.state_dict()), reference) < 1e-5


def test_early_llama_configs_lack_base_and_head_width() -> None:
    reference = theirs(hidden_size=24, num_key_value_heads=4, rope_parameters=None)
    config = full_config(reference)
    for key in ("rope_parameters", "head_dim", "num_key_value_heads", "attention_bias", "mlp_bias"):
        del config[key]
    assert furthest(from_llama(config, reference.state_dict()), reference) < 1e-5


@pytest.mark.parametrize("change", ["no prefix", "frequencies", "twin"])
def test_other_file_formats_change_nothing(change: str) -> None:
    reference = theirs(tie_word_embeddings=change == "twin")
    state = dict(reference.state_dict())
    match change:
        case "no prefix":
            state = {name.removeprefix("model."): tensor for name, tensor in state.items()}
        case "frequencies":
            state |= {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(3) for n in (0, 1)}
        case "twin":
            assert "lm_head.weight" in state
    assert furthest(from_llama(full_config(reference), state), reference) < 1e-5


@pytest.mark.parametrize(
    "change",
    [
        {"rms_norm_eps": 1e-5}, {"hidden_act": "gelu"}, {"rope_parameters": {"rope_theta": 10_000.0}},
    ],
)  # fmt: skip
def test_changed_config_changes_outputs(change: dict[str, Any]) -> None:
    reference = usual()
    assert furthest(from_llama(full_config(reference) | change, reference.state_dict()), reference) > 1e-4


@pytest.mark.parametrize(("part", "other_part"), [("q_proj", "o_proj"), ("gate_proj", "up_proj")])
def test_swapped_weights_are_detected(part: str, other_part: str) -> None:
    reference = theirs(num_attention_heads=4, num_key_value_heads=4, head_dim=4, hidden_size=16)
    state = {
        name.replace(part, "*").replace(other_part, part).replace("*", other_part): tensor
        for name, tensor in reference.state_dict().items()
    }
    assert furthest(from_llama(full_config(reference), state), reference) > 1e-2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layers.1.mlp.up_proj.weight": None}, r"layers\.1\.mlp\.up_proj\.weight missing"),
        ({"lm_head.weight": None}, r"lm_head\.weight missing"),
        ({"model.layers.0.self_attn.q_norm.weight": torch.ones(6)}, r"self_attn\.q_norm\.weight unknown"),
        ({"model.layers.0.self_attn.k_proj.weight": torch.ones(24, 20)}, r"shape 24x20, but the config requires 12x20"),
        ({"model.layers.0.self_attn.k_proj.bias": torch.ones(12)}, r"k_proj\.bias unknown"),
    ],
)
def test_wrong_weights_are_reported_by_name(change: dict[str, Tensor | None], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_model(edit_folder(write_folder(tmp_path, usual()), change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"type": "su", "factor": 2.0}, "rope_parameters": None}, "is scaled by 'su', which"),
        ({"rope_parameters": {"rope_type": "linear"}}, "has no factor; put back the float"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 0.5}}, r"factor=0\.5 must be at least 1"),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 0}}, "is 0; it must be at"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "has no low_freq_factor; put back the float"),
        ({"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}}, "partial_rotary_factor is not 1"),
        ({"rope_parameters": [1]}, r"has \[1\] as rope_parameters"),
        ({"rope_parameters": {"rope_theta": "high"}}, "has 'high' as rope_theta; put back the float"),
        ({"hidden_act": "sin"}, "hidden_act is 'sin', which Tercet does not support"),
        ({"mlp_bias": "no"}, "has 'no' as mlp_bias; put back the true or false"),
        ({"num_key_value_heads": 3}, "n_heads=4 must be divisible by n_kv_heads=3"),
        ({"rms_norm_eps": None}, "has no rms_norm_eps; put back the float"),
        ({"model_type": "mixtral"}, "model_type is 'mixtral'; expected 'llama' or 'mistral' or "),
    ],
)
def test_unsupported_config_is_rejected(change: dict[str, Any], message: str) -> None:
    reference = usual()
    with pytest.raises(UserError, match=message):
        from_llama(full_config(reference) | change, reference.state_dict())
