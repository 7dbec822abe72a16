"""GPT-NeoX models are read and written, also with a shared norm, without some biases and with older names."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import export_model, load_in_transformers, round_trip, tensors
from families_of_others import FAMILIES
from folders_of_others import edit_folder, shaken, write_folder

from sampled_cases import sampled
from tercet.checkpoint import load_model, read_spec
from tercet.checkpoint.foreign.neox import from_neox, to_neox
from tercet.config import UserError
from tercet.models import Biases, DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.nn import Block, Learned, Rotary

STACK = StackSpec(
    d_model=24, n_layers=2, n_heads=3, d_ff=29, parallel="separate_norms", position=Rotary(base=37.0, share=0.5)
)
SPEC = DecoderOnlySpec(vocab_size=23, max_len=31, tie_embeddings=False, stack=STACK)


def ours(stack: dict[str, Any] | None = None, **spec: Any) -> DecoderOnly:
    return shaken(DecoderOnly(replace(SPEC, stack=replace(STACK, **(stack or {})), **spec)), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stack", "spec"),
    sampled(
        [
            ({}, {"scale_embedding": True, "pad_vocab_to": 8}),
            ({"parallel": False, "bias": Biases(qkv=True, out=False, feedforward=False)}, {"embedding_norm": True}),
            ({"parallel": True, "bias": False, "norm_bias": False}, {"tie_embeddings": True}),
            ({"bias": Biases(qkv=False, out=False, feedforward=True), "activation": "relu_squared"}, {}),
        ],
        keep=(0, 1),
    ),
)
@torch.no_grad()
def test_tercet_model_is_exported_as_neox(stack: dict[str, Any], spec: dict[str, Any], tmp_path: Path) -> None:
    model = ours(stack, **spec)
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForCausalLM)
    assert type(theirs).__name__ == "GPTNeoXForCausalLM"
    tokens = torch.randint(23, (2, 30))
    assert (theirs(tokens, use_cache=False).logits - model(tokens)).abs().max() < 1e-5
    exported = read_spec(tmp_path / "theirs")
    assert isinstance(exported, DecoderOnlySpec)
    assert exported.stack.parallel == ("separate_norms" if model.spec.stack.parallel else False)
    assert exported.stack.position == STACK.position


@pytest.mark.slow
def test_round_trip_keeps_every_tensor(tmp_path: Path) -> None:
    theirs = write_folder(tmp_path / "theirs", FAMILIES["GPT-NeoX"].draw(5))
    before, after = round_trip(tmp_path, theirs)
    keys = ("hidden_size", "rope_parameters", "use_parallel_residual", "attention_bias", "hidden_dropout")
    assert {key: before[key] for key in keys} == {key: after[key] for key in keys}


def test_dropout_rates_are_exported() -> None:
    dropout = Dropout(embedding=0.1, attention=0.2, residual=0.1)
    config, state = to_neox(ours({"dropout": dropout}))
    assert (config["hidden_dropout"], config["attention_dropout"]) == (0.1, 0.2)
    assert from_neox(config, state).spec.stack.dropout == dropout


def test_each_head_has_its_own_rows_of_the_fused_matrix() -> None:
    model = ours()
    state = to_neox(model)[1]
    block = model.stack.blocks[1]
    assert isinstance(block, Block)
    attention = block.self_attention
    fused = state["gpt_neox.layers.1.attention.query_key_value.weight"].view(3, 3, 8, 24)  # head, part, row, column
    assert torch.equal(fused[2, 1], attention.key.weight[16:24])  # the third head's key
    assert torch.equal(fused[0, 2], attention.value.weight[:8])


def test_files_of_other_versions_have_other_names_and_buffers(tmp_path: Path) -> None:
    theirs = FAMILIES["GPT-NeoX"].draw(5)
    folder = write_folder(tmp_path / "theirs", theirs)
    expected = load_model(folder).model.state_dict()
    state = tensors(folder)
    attention = "gpt_neox.layers.0.attention"
    changes: dict[str, torch.Tensor | None] = {
        f"{attention}.bias": torch.ones(1, 1, 31, 31), f"{attention}.masked_bias": torch.tensor(-1e9),
        f"{attention}.rotary_emb.inv_freq": torch.ones(2),
    }  # fmt: skip
    changes |= {"embed_out.weight": None, "lm_head.weight": state["embed_out.weight"]}
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    old_names = {"rotary_pct": rope["partial_rotary_factor"], "rotary_emb_base": int(rope["rope_theta"])}
    path.write_text(json.dumps(config | old_names))
    model = load_model(edit_folder(folder, changes)).model
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_parameters": {"rope_type": "yarn"}}, "the rotation of this GPT-NeoX is scaled by 'yarn', which"),
        ({"rope_parameters": [1]}, r"has \[1\] as rope_parameters; put back"),
        ({"rope_parameters": {"partial_rotary_factor": "all"}}, "has 'all' as partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 3.0}}, "of this GPT-NeoX is inconsistent: share=3.0"),
        ({"hidden_act": "sin"}, "hidden_act is 'sin', which Tercet does not support"),
        ({"num_attention_heads": 5}, "head_dim times num_attention_heads=5 must be hidden_size=24 in a GPT-NeoX"),
        ({"num_attention_heads": 0}, "head_dim times num_attention_heads=0 must be hidden_size=24"),
        ({"head_dim": 4}, "head_dim times num_attention_heads=3 must be hidden_size=24"),
        ({"use_parallel_residual": "no"}, "has 'no' as use_parallel_residual"),
    ],
)
def test_wrong_config_is_rejected_by_name(change: dict[str, Any], message: str) -> None:
    config, state = to_neox(ours())
    assert from_neox(config, state).spec.stack.parallel == "separate_norms"
    with pytest.raises(UserError, match=message):
        from_neox(config | change, state)


@pytest.mark.parametrize(
    ("stack", "spec", "message"),
    [
        ({"placement": "post"}, {}, r"stack\.placement is post"),
        ({"gated": True}, {}, r"stack\.gated is true"),
        ({"qk_norm": True}, {}, r"stack\.qk_norm is true"),
        ({"n_kv_heads": 1}, {}, r"stack\.n_kv_heads is 1"),
        ({"position": Learned()}, {}, r"stack\.position is learned"),
        ({"final_norm": False}, {}, r"stack\.final_norm is false"),
        ({}, {"logit_bias": True}, "logit_bias is true, which GPT-NeoX of transformers does not support"),
        ({}, {"logit_softcap": 3.0}, r"logit_softcap is 3\.0"),
        ({}, {"scale_embedding": True, "tie_embeddings": True}, "scale_embedding is true"),
    ],
)
def test_unsupported_options_are_rejected_by_name(stack: dict[str, Any], spec: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        to_neox(ours(stack, **spec))
