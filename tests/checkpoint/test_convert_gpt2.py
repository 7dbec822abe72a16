"""Language models are exported as GPT-2, and `transformers` loads them without Tercet, with the same outputs."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import export_model, load_in_transformers, round_trip, save_folder, tensors
from folders_of_others import generate_greedily, seeds, shaken, words

from tercet.checkpoint import convert, load_model
from tercet.checkpoint.foreign import gpt2
from tercet.checkpoint.foreign.gpt2 import NAMES, to_gpt2
from tercet.config import UserError
from tercet.models import DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.nn import ALiBi, Learned, NoPosition, Sinusoidal

SPEC = DecoderOnlySpec(vocab_size=23, max_len=37, stack=StackSpec(d_model=12, n_layers=2, n_heads=3, d_ff=29))


def ours(seed: int = 0, stack: dict[str, Any] | None = None, **spec: Any) -> DecoderOnly:
    return shaken(DecoderOnly(replace(SPEC, stack=replace(SPEC.stack, **(stack or {})), **spec), seed=seed), seed)


def random_model(seed: int) -> DecoderOnly:
    draw = random.Random(seed)
    heads, bias = draw.choice([1, 2, 3, 5]), draw.random() < 0.6
    tied = draw.random() < 0.6
    stack: dict[str, Any] = {
        "n_heads": heads, "d_model": heads * draw.choice([4, 8]), "n_layers": draw.choice([1, 2, 3]),
        "d_ff": draw.choice([None, 31, 50]), "bias": bias, "norm_bias": bias or draw.random() < 0.5,
        "position": draw.choice([Learned(), Learned(), Sinusoidal(), Sinusoidal(base=100.0), NoPosition()]),
        "activation": draw.choice(["gelu", "gelu_tanh", "relu", "silu", "relu_squared"]),
        "norm_eps": draw.choice([1e-5, 1e-3]), "n_kv_heads": draw.choice([None, heads]),
    }  # fmt: skip
    return ours(
        seed, stack, vocab_size=draw.choice([17, 65]), pad_vocab_to=draw.choice([1, 8, 64]), tie_embeddings=tied,
        scale_embedding=not tied and draw.random() < 0.5, max_len=draw.choice([37, 41]),
    )  # fmt: skip


@torch.no_grad()
def furthest(model: DecoderOnly, theirs: Any) -> float:
    tokens = torch.randint(model.vocab_size, (2, 30), generator=torch.Generator().manual_seed(1))
    expected = model(tokens)
    found = theirs(input_ids=tokens, use_cache=False).logits
    assert found.shape == expected.shape
    return (found - expected).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=2))
def test_logits_and_greedy_tokens_match(seed: int, tmp_path: Path) -> None:
    model = random_model(seed)
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForCausalLM)
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    assert furthest(model, theirs) < 1e-4
    prompt = torch.randint(model.vocab_size, (2, 5))
    generated = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=17, min_new_tokens=17,
        eos_token_id=None,
    )  # fmt: skip
    assert torch.equal(generate_greedily(model, prompt, 17), generated[:, 5:])


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
def test_round_trip_keeps_every_tensor(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    heads = draw.choice([1, 2, 3])
    config = transformers.GPT2Config(
        vocab_size=draw.choice([17, 31]), n_positions=19, n_embd=heads * 4, n_head=heads, n_layer=draw.choice([1, 2]),
        n_inner=draw.choice([None, 13]), tie_word_embeddings=draw.random() < 0.5, attn_pdrop=0.2, embd_pdrop=0.3,
        activation_function=draw.choice(["gelu_new", "gelu", "relu", "silu"]), layer_norm_epsilon=1e-3,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    folder = tmp_path / "theirs"
    shaken(transformers.GPT2LMHeadModel(config), seed).save_pretrained(folder)
    words(config.vocab_size).save(str(folder / "tokenizer.json"))
    before, after = round_trip(tmp_path, folder)
    changed_keys = {key for key in after if key in before and after[key] != before[key]}
    assert changed_keys <= {"n_inner"}  # our config contains the default that follows from n_embd


def test_tied_tensor_is_stored_once(tmp_path: Path) -> None:
    model = ours()
    stored = tensors(export_model(tmp_path, model))
    assert "lm_head.weight" not in stored
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())
    assert torch.equal(stored["transformer.wte.weight"], model.embedding.weight)


def test_dropout_rates_and_special_ids_are_exported(tmp_path: Path) -> None:
    model = ours(stack={"dropout": Dropout(embedding=0.1, attention=0.2, residual=0.3)})
    config = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForCausalLM).config
    assert (config.embd_pdrop, config.attn_pdrop, config.resid_pdrop) == (0.1, 0.2, 0.3)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 1, 2)
    assert config.dtype == torch.float32


@pytest.mark.slow
def test_vocabulary_padding_rows_are_left_out(tmp_path: Path) -> None:
    model = ours(pad_vocab_to=8)
    assert len(model.embedding.weight) == 24
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForCausalLM)
    assert theirs.get_input_embeddings().weight.shape == (23, 12)
    assert furthest(model, theirs) < 1e-5


@pytest.mark.parametrize(
    ("stack", "spec", "message"),
    [
        ({"position": ALiBi()}, {}, r"stack\.position is alibi, which GPT-2 .*stack\.position: learned or sinus"),
        ({"placement": "branch"}, {}, r"stack\.placement is branch, which GPT-2 .* a model with stack\.placement: pre"),
        ({"placement": "sandwich"}, {}, r"stack\.placement is sandwich"),
        ({"norm": "rms", "norm_bias": False}, {}, r"stack\.norm is rms, .* a model with stack\.norm: layer can be"),
        ({"gated": True}, {}, r"stack\.gated is true, which GPT-2 .* a model with stack\.gated: false can be"),
        ({"qk_norm": True}, {}, r"stack\.qk_norm is true"),
        ({"n_kv_heads": 1}, {}, r"stack\.n_kv_heads is 1, .* a model with stack\.n_kv_heads: 3 can be converted"),
        ({"d_head": 6}, {}, r"stack\.d_head is 6, .* a model with stack\.d_head: 4 can be converted"),
        ({"n_heads": 5, "d_head": 2}, {}, r"stack\.n_heads is 5, .* a model with stack\.n_heads: 4 can be"),
        ({}, {"embedding_norm": True}, r"embedding_norm is true, .* a model with embedding_norm: false"),
        ({}, {"logit_softcap": 15.0}, r"logit_softcap is 15\.0, .* a model with logit_softcap: null"),
        ({}, {"scale_embedding": True}, r"scale_embedding is true, .* a model with scale_embedding: false"),
        (
            {"gated": True, "qk_norm": True},
            {"logit_softcap": 9.0},
            r"stack\.gated is true, stack\.qk_norm is true and logit_softcap is 9\.0, which GPT-2 .* a model with "
            r"stack\.gated: false, stack\.qk_norm: false and logit_softcap: null can be converted",
        ),
    ],
)
def test_unsupported_options_are_rejected_by_name(
    stack: dict[str, Any], spec: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = save_folder(tmp_path / "ours", ours(0, stack, **spec))
    with pytest.raises(UserError, match=message) as error:
        convert(folder, tmp_path / "deep" / "theirs", "hf")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.mark.parametrize("fault", ["queries and keys", "norms", "none"])
def test_swapped_weights_are_detected(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norms = [name for name in NAMES if name.endswith(".before")]
    if fault == "queries and keys":
        monkeypatch.setattr(gpt2, "FUSED_PARTS", ("key", "query", "value"))
    if fault == "norms":
        monkeypatch.setattr(gpt2, "NAMES", NAMES | {norms[0]: NAMES[norms[1]], norms[1]: NAMES[norms[0]]})
    model = ours()
    config, state = to_gpt2(model)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config)).eval()
    assert theirs.load_state_dict(state, strict=False).missing_keys == ["lm_head.weight"]  # tied
    assert (furthest(model, theirs) > 1e-2) == (fault != "none")


def test_model_is_not_changed(tmp_path: Path) -> None:
    model = ours(tie_embeddings=False, scale_embedding=True, pad_vocab_to=8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()
    to_gpt2(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    reloaded = load_model(export_model(tmp_path, model)).model
    assert (reloaded.spec.scale_embedding, reloaded.spec.pad_vocab_to) == (False, 1)
