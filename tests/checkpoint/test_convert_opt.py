"""OPT models are read and written, with norms before or after each sublayer, and without a final norm."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import export_model, load_in_transformers, round_trip, tensors
from families_of_others import FAMILIES
from folders_of_others import shaken, write_folder

from sampled_cases import sampled
from tercet.checkpoint.foreign.opt import from_opt, to_opt
from tercet.config import UserError
from tercet.models import Biases, DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.nn import Rotary, Sinusoidal

STACK = StackSpec(d_model=12, n_layers=2, n_heads=3, d_ff=29, placement="post", activation="relu")
SPEC = DecoderOnlySpec(vocab_size=23, max_len=31, tie_embeddings=False, stack=STACK)


def ours(stack: dict[str, Any] | None = None, **spec: Any) -> DecoderOnly:
    return shaken(DecoderOnly(replace(SPEC, stack=replace(STACK, **(stack or {})), **spec)), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stack", "spec"),
    sampled(
        [
            ({}, {"scale_embedding": True, "pad_vocab_to": 8}),
            ({"placement": "pre", "final_norm": False, "bias": Biases(qkv=True, out=False, feedforward=False)}, {}),
            ({"bias": False, "norm_bias": False, "position": Sinusoidal()}, {"tie_embeddings": True}),
        ],
        keep=(0, 1),
    ),
)
@torch.no_grad()
def test_tercet_model_is_exported_as_opt(stack: dict[str, Any], spec: dict[str, Any], tmp_path: Path) -> None:
    model = ours(stack, **spec)
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForCausalLM)
    assert type(theirs).__name__ == "OPTForCausalLM"
    tokens = torch.randint(23, (2, 30))
    assert (theirs(tokens, use_cache=False).logits - model(tokens)).abs().max() < 1e-5


@pytest.mark.slow
def test_round_trip_keeps_every_used_tensor(tmp_path: Path) -> None:
    name = "model.decoder.embed_positions.weight"
    theirs = write_folder(tmp_path / "theirs", FAMILIES["OPT, norms after"].draw(5))
    before, after = round_trip(tmp_path, theirs, unread=(name,))
    keys = ("hidden_size", "ffn_dim", "do_layer_norm_before", "enable_bias", "word_embed_proj_dim")
    assert {key: before[key] for key in keys} == {key: after[key] for key in keys}
    first, second = (tensors(folder)[name] for folder in (theirs, tmp_path / "out"))
    assert torch.equal(first[2:], second[2:])
    assert not second[:2].any()  # no forward pass reads these two rows


def test_dropout_rates_are_exported() -> None:
    dropout = Dropout(attention=0.2, residual=0.1)
    config, state = to_opt(ours({"dropout": dropout}))
    assert (config["dropout"], config["attention_dropout"]) == (0.1, 0.2)
    assert from_opt(config, state).spec.stack.dropout == dropout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"word_embed_proj_dim": 6}, "word_embed_proj_dim is 6, but hidden_size is 12; Tercet does not support proj"),
        ({"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is false, which Tercet does not"),
        ({"activation_function": "sin"}, "activation_function is 'sin', which Tercet does not support"),
        ({"do_layer_norm_before": True}, r"OPT: decoder\.final_layer_norm\.weight.* missing"),
        ({"max_position_embeddings": 30}, r"embed_positions\.weight has shape 33x12, but the config requires 32x12"),
        ({"enable_bias": False}, r"OPT: .*bias.* unknown"),
    ],
)
def test_wrong_config_is_rejected_by_name(change: dict[str, Any], message: str) -> None:
    config, state = to_opt(ours())
    assert from_opt(config, state).spec.stack == replace(STACK, norm_eps=1e-5)
    with pytest.raises(UserError, match=message):
        from_opt(config | change, state)


@pytest.mark.parametrize(
    ("stack", "spec", "message"),
    [
        ({"placement": "sandwich", "final_norm": False}, {}, r"stack\.placement is sandwich"),
        ({"final_norm": True}, {}, r"stack\.final_norm is true, which OPT of transformers does not support"),
        ({"position": Rotary(share=0.5)}, {}, r"stack\.position is rotary"),
        ({"norm_eps": 1e-3}, {}, r"stack\.norm_eps is 0\.001"),
        ({"gated": True}, {}, r"stack\.gated is true"),
        ({"parallel": True}, {}, r"stack\.parallel is true"),
        ({}, {"embedding_norm": True}, "embedding_norm is true"),
    ],
)
def test_unsupported_options_are_rejected_by_name(stack: dict[str, Any], spec: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        to_opt(ours(stack, **spec))
