"""Language models with rotary positions are exported as Llama, with the same outputs in `transformers`."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import export_model, load_in_transformers, round_trip, save_folder, tensors
from folders_of_others import generate_greedily, seeds, shaken, words

from sampled_cases import sampled
from tercet.checkpoint import convert, load_model
from tercet.config import UserError
from tercet.models import Biases, DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.nn import Rotary

STACK = StackSpec(
    d_model=20, n_layers=2, n_heads=4, n_kv_heads=2, d_head=6, d_ff=29, position=Rotary(base=500.0), norm="rms",
    norm_bias=False, norm_eps=1e-3, bias=False, activation="silu", gated=True,
)  # fmt: skip
SPEC = DecoderOnlySpec(vocab_size=23, max_len=37, tie_embeddings=False, stack=STACK)


def ours(seed: int = 0, stack: dict[str, Any] | None = None, **spec: Any) -> DecoderOnly:
    return shaken(DecoderOnly(replace(SPEC, stack=replace(STACK, **(stack or {})), **spec), seed=seed), seed)


def random_model(seed: int) -> DecoderOnly:
    draw = random.Random(seed)
    heads, tied = draw.choice([1, 2, 4, 6]), draw.random() < 0.5
    stack: dict[str, Any] = {
        "n_heads": heads, "n_kv_heads": draw.choice([None, *(n for n in (1, 2, 3) if heads % n == 0)]),
        "d_model": heads * 6, "d_head": draw.choice([None, 4, 10]), "n_layers": draw.choice([1, 2, 3]),
        "d_ff": draw.choice([None, 31]), "bias": draw.random() < 0.4, "activation": draw.choice(["silu", "gelu_tanh"]),
        "position": Rotary(base=draw.choice([10_000.0, 37.0])), "norm_eps": draw.choice([1e-6, 1e-3]),
    }  # fmt: skip
    return ours(
        seed, stack, vocab_size=draw.choice([17, 65]), pad_vocab_to=draw.choice([1, 64]), tie_embeddings=tied,
        scale_embedding=not tied and draw.random() < 0.5,
    )  # fmt: skip


@torch.no_grad()
def furthest(model: DecoderOnly, theirs: Any) -> float:
    tokens = torch.randint(model.vocab_size, (2, 31), generator=torch.Generator().manual_seed(1))
    return (theirs(input_ids=tokens, use_cache=False).logits - model(tokens)).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
def test_logits_and_greedy_tokens_match(seed: int, tmp_path: Path) -> None:
    model = random_model(seed)
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForCausalLM)
    assert type(theirs).__name__ == "LlamaForCausalLM"
    assert furthest(model, theirs) < 1e-4
    prompt = torch.randint(model.vocab_size, (2, 5))
    generated = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=17, min_new_tokens=17,
        eos_token_id=None,
    )  # fmt: skip
    assert torch.equal(generate_greedily(model, prompt, 17), generated[:, 5:])


SQUARED = {"activation": "relu_squared", "gated": False, "qk_norm": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stack", "spec", "kind"),
    sampled(
        [
            ({}, {"embedding_norm": True}, "Llama"),
            ({}, {"embedding_norm": True, "tie_embeddings": True}, "Llama"),
            (
                {},
                {"embedding_norm": True, "tie_embeddings": True, "scale_embedding": True, "pad_vocab_to": 16},
                "Llama",
            ),
            (SQUARED, {}, "Qwen3"),
            (SQUARED | {"d_ff": None}, {}, "Qwen3"),
            (SQUARED, {"embedding_norm": True, "pad_vocab_to": 16}, "Qwen3"),
            (SQUARED | {"bias": Biases(qkv=True, out=True, feedforward=False)}, {}, "Qwen3"),
            (SQUARED | {"qk_norm": False}, {"embedding_norm": True}, "Arcee"),
            (SQUARED | {"qk_norm": False, "bias": True}, {"tie_embeddings": True}, "Arcee"),
            (SQUARED | {"qk_norm": False, "activation": "gelu"}, {}, "Arcee"),
        ],
        keep=(0, 2, 3, 5, 7, 8),
    ),
)
def test_equivalent_forms_have_the_same_outputs(
    stack: dict[str, Any], spec: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    """A norm of the embeddings is in the table, and ReLU squared without a gate is a gated ReLU."""
    model = ours(3, stack, **spec)
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForCausalLM)
    assert type(theirs).__name__ == f"{kind}ForCausalLM"
    assert furthest(model, theirs) < 1e-5
    assert model.spec.embedding_norm == spec.get("embedding_norm", False)  # the original has not changed
    back = load_model(tmp_path / "theirs").model
    assert isinstance(back, DecoderOnly)
    tokens = torch.randint(model.vocab_size, (2, 31))
    torch.testing.assert_close(back(tokens), model(tokens), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
def test_round_trip_keeps_every_tensor(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=draw.choice([17, 31]), max_position_embeddings=19, hidden_size=24, intermediate_size=23,
        num_hidden_layers=draw.choice([1, 2]), num_attention_heads=4, num_key_value_heads=draw.choice([1, 2, 4]),
        head_dim=draw.choice([None, 10]), tie_word_embeddings=draw.random() < 0.5, attention_bias=seed % 3 == 0,
        mlp_bias=seed % 4 == 0, rms_norm_eps=1e-3, attention_dropout=0.2, bos_token_id=1, eos_token_id=2,
        pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": draw.choice([10_000.0, 37.0])},
    )  # fmt: skip
    folder = tmp_path / "theirs"
    shaken(transformers.LlamaForCausalLM(config), seed).save_pretrained(folder)
    words(config.vocab_size).save(str(folder / "tokenizer.json"))
    before, after = round_trip(tmp_path, folder)
    assert {key for key in after if key in before and after[key] != before[key]} == set()


def test_new_zero_biases_survive(tmp_path: Path) -> None:
    model = DecoderOnly(replace(SPEC, stack=replace(STACK, bias=True))).eval()
    assert not model.stack.blocks[0].self_attention.query.bias.any()
    stored = tensors(export_model(tmp_path, model))
    assert {"model.layers.0.self_attn.o_proj.bias", "model.layers.1.mlp.gate_proj.bias"} <= set(stored)


def test_tied_tensor_is_stored_once(tmp_path: Path) -> None:
    model = ours(tie_embeddings=True)
    stored = tensors(export_model(tmp_path, model))
    assert "lm_head.weight" not in stored
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("stack", "spec", "message"),
    [
        ({"norm": "layer"}, {}, r"stack\.gated is true, .* which GPT-NeoX .* a model with stack\.gated: false"),
        ({"gated": False, "qk_norm": True}, {}, r"stack\.gated is false, which Qwen3 .* stack\.gated: true can"),
        ({"placement": "branch"}, {}, r"stack\.qk_norm is false, which Olmo2 .* stack\.qk_norm: all_heads can"),
        (
            {"attention_softcap": 9.0},
            {},
            r"stack\.attention_softcap is 9\.0, which Llama .*attention_softcap: null can",
        ),
        ({"placement": "sandwich"}, {}, r"stack\.activation is silu, which Gemma2 .*: gelu_tanh can"),
        ({"qk_norm": "all_heads"}, {}, r"stack\.placement is pre, which Olmo2 .* stack\.placement: branch can"),
        ({"qk_norm": True, "bias": True}, {}, r"stack\.bias\.feedforward is true, which Qwen3 .*: false can"),
        (
            {"qk_norm": True, "norm_eps": 0.0},
            {},
            r"stack\.norm_eps is 0\.0, which Qwen3 .* stack\.norm_eps: 1e-12 can",
        ),
        ({"position": Rotary(share=0.67)}, {}, r"stack\.position\.share is 0\.67, .* stack\.position\.share: 1\.0"),
        ({"n_heads": 6, "d_head": 4}, {}, r"stack\.n_heads is 6, .* stack\.n_heads: 5 can"),
        ({}, {"logit_softcap": 15.0}, r"logit_softcap is 15\.0"),
        (
            {"activation": "gelu"},
            {"scale_embedding": True, "tie_embeddings": True},
            r"stack\.activation is gelu, which Gemma .* stack\.activation: .*gelu_tanh can",
        ),
    ],
)
def test_unsupported_options_are_rejected_by_name(
    stack: dict[str, Any], spec: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = save_folder(tmp_path / "ours", ours(0, stack, **spec))
    with pytest.raises(UserError, match=message) as error:
        convert(folder, tmp_path / "theirs", "hf")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.mark.parametrize(
    "change", sampled([{}, {"rms_norm_eps": 1e-5}, {"hidden_act": "gelu"}, {"rope_parameters": None}], keep=(0, 1))
)
def test_changed_config_changes_outputs(change: dict[str, Any], tmp_path: Path) -> None:
    model = ours()
    folder = export_model(tmp_path, model)
    config = transformers.AutoConfig.from_pretrained(folder).to_dict() | change
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    theirs.load_state_dict(tensors(folder))
    assert (furthest(model, theirs) < 1e-5) == (not change)
