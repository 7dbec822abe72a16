"""Translators are exported as T5Gemma, and its folders are read; `transformers` gives the same logits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import export_model, load_in_transformers, tensors
from families_of_others import FAMILIES
from folders_of_others import edit_folder, generate_greedily, shaken, write_folder

from sampled_cases import sampled
from tercet.checkpoint import convert, load_model, read_spec
from tercet.checkpoint.adapter import Adapter, LowRank
from tercet.checkpoint.foreign import t5gemma
from tercet.checkpoint.foreign.peft_folder import import_adapter
from tercet.checkpoint.foreign.t5gemma import t5gemma_spec, to_t5gemma
from tercet.config import UserError
from tercet.models import Biases, Dropout, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import Rotary

STACK = StackSpec(
    d_model=20, n_layers=2, n_heads=4, n_kv_heads=2, d_head=6, d_ff=29, position=Rotary(base=500.0), norm="rms",
    norm_bias=False, placement="sandwich", bias=False, activation="silu", gated=True,
)  # fmt: skip
TOKENS = torch.arange(3, 23).view(2, 10)
MASK = torch.arange(10) < torch.tensor([[10], [4]])


def translator(stack: dict[str, Any] | None = None, **spec: Any) -> EncoderDecoder:
    encoder = replace(STACK, **(stack or {}))
    base = {"vocab_size": 23, "max_len": 31, "encoder": encoder, "decoder": replace(encoder, n_layers=1, n_heads=2)}
    return shaken(EncoderDecoder(EncoderDecoderSpec(**base | spec)), 3)


@torch.no_grad()
def furthest(model: EncoderDecoder, theirs: Any) -> float:
    """Return the largest difference of logits, with padding in the second source."""
    ids = {"input_ids": TOKENS, "decoder_input_ids": TOKENS.flip(1), "decoder_attention_mask": torch.ones_like(TOKENS)}
    logits = theirs(**ids, attention_mask=MASK.long()).logits
    return (logits - model(TOKENS, TOKENS.flip(1), source_token_mask=MASK)).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stack", "spec", "n_tables"),
    sampled(
        [
            ({}, {"scale_embedding": True}, 2),
            ({}, {}, 3),
            ({}, {"scale_embedding": True, "tie_embeddings": False}, 3),
            ({}, {"embedding_norm": True, "pad_vocab_to": 16}, 3),
            ({"activation": "gelu"}, {"embedding_norm": True, "scale_embedding": True, "share_embeddings": False}, 3),
            ({"activation": "relu_squared", "gated": False}, {"embedding_norm": True, "logit_softcap": 5.0}, 3),
            ({"bias": Biases(qkv=True, out=False, feedforward=False)}, {"tie_embeddings": False}, 3),
            ({"attention_softcap": 0.3}, {"scale_embedding": True}, 2),
            ({}, {"source_vocab_size": 29, "share_embeddings": False, "embedding_norm": True}, 3),
        ],
        keep=(0, 3, 5, 8),
    ),
)
def test_equivalent_forms_have_the_same_outputs(
    stack: dict[str, Any], spec: dict[str, Any], n_tables: int, tmp_path: Path
) -> None:
    model = translator(stack, **spec)
    folder = export_model(tmp_path, model, model.spec.source_vocab_size)
    theirs = load_in_transformers(folder, transformers.AutoModelForSeq2SeqLM)
    assert type(theirs).__name__ == "T5GemmaForConditionalGeneration"
    assert furthest(model, theirs) < 1e-5
    assert len([name for name in tensors(folder) if "embed_tokens" in name or "lm_head" in name]) == n_tables
    back = load_model(folder).model
    assert isinstance(back, EncoderDecoder)
    assert back.spec.tie_embeddings == (n_tables == 2)
    torch.testing.assert_close(back(TOKENS, TOKENS), model(TOKENS, TOKENS), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_exported_folder_translates_the_same_tokens(tmp_path: Path) -> None:
    """With the ids, the start token and the cache that are the defaults of the exported folder."""
    model = translator(embedding_norm=True)
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForSeq2SeqLM)
    start = torch.full((2, 1), theirs.config.decoder_start_token_id)
    expected = generate_greedily(model, start, 12, source=TOKENS)
    settings = {"do_sample": False, "max_new_tokens": 12, "min_new_tokens": 12, "eos_token_id": None}
    found = theirs.generate(TOKENS, attention_mask=torch.ones_like(TOKENS), suppress_tokens=None, **settings)
    assert torch.equal(found[:, 1:], expected)


def test_each_side_has_the_ids_of_its_tokenizer(tmp_path: Path) -> None:
    folder = export_model(tmp_path, translator(source_vocab_size=29, share_embeddings=False), 29)
    config = json.loads((folder / "config.json").read_text())
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    for part in (config, config["encoder"], config["decoder"]):
        assert {key: part[key] for key in ids} == ids
    assert (config["encoder"]["vocab_size"], config["decoder"]["vocab_size"]) == (29, 23)


def test_dropout_rates_and_sizes_survive_both_ways() -> None:
    dropout = Dropout(embedding=0.1, attention=0.2, activation=0.1, residual=0.1)
    spec = replace(
        translator({"dropout": dropout}).spec, scale_embedding=True, share_embeddings=False, logit_softcap=7.0
    )
    config, state = to_t5gemma(EncoderDecoder(spec))
    assert t5gemma_spec(config, state) == spec
    assert t5gemma_spec(config, state, n_ids=20) == replace(spec, vocab_size=20, pad_vocab_to=23)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder": {"placement": "pre"}}, r"encoder\.placement is pre, which T5Gemma of transformers .*: sandwich"),
        ({"decoder": {"qk_norm": True}}, r"decoder\.qk_norm is true, .*decoder\.qk_norm: false can be converted"),
        ({"decoder": {"norm": "layer"}}, r"decoder\.norm is layer"),
        ({"decoder": {"gated": False}}, r"decoder\.gated is false"),
        ({"encoder": {"position": Rotary(share=0.7)}}, r"encoder\.position\.share is 0\.7"),
        ({"encoder": {"bias": True}}, r"encoder\.bias\.feedforward is true"),
        ({"decoder": {"n_heads": 6}}, r"decoder\.n_heads is 6, .*decoder\.n_heads: 5"),
        ({"logit_bias": True}, "logit_bias is true"),
    ],
)
def test_unsupported_options_are_rejected_by_name(change: dict[str, Any], message: str) -> None:
    sides = {side: replace(STACK, **change.pop(side, {})) for side in ("encoder", "decoder")}
    with pytest.raises(UserError, match=message):
        to_t5gemma(EncoderDecoder(EncoderDecoderSpec(vocab_size=23, **sides, **change)))


def theirs_as_folder(folder: Path, side: str = "decoder", change: dict[str, Any] | None = None) -> Path:
    """Write a random T5Gemma folder in which one side's config has some other values."""
    write_folder(folder, FAMILIES["T5Gemma"].draw(1))
    config = json.loads((folder / "config.json").read_text())
    config[side] |= change or {}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("side", "change", "message"),
    [
        ("encoder", {"attn_logit_softcapping": "far"}, "encoder: config.json has 'far' as attn_logit_softcapping"),
        ("decoder", {"query_pre_attn_scalar": 0}, "decoder: query_pre_attn_scalar is 0, but must be at least 1"),
        ("decoder", {"hidden_size": None}, "decoder: config.json has no hidden_size; put back the int"),
        ("decoder", {"hidden_size": 36}, "config of this T5Gemma is inconsistent: encoder and decoder must have the"),
        ("encoder", {"rope_parameters": {"rope_type": "yarn"}}, "encoder: the rotation of this T5Gemma is scaled"),
        ("encoder", {"hidden_activation": "sin"}, "encoder: hidden_activation is 'sin', which Tercet does not"),
        ("decoder", {"head_dim": 2}, r"q_proj\.weight has shape .*, but the config requires"),
        ("decoder", {"final_logit_softcapping": "far"}, "has 'far' as final_logit_softcapping"),
        ("decoder", {"quantization_config": {"bits": 4}}, r"config\.json \(decoder\): quantization_config is"),
    ],
)
def test_wrong_folder_is_rejected_in_one_line(side: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = theirs_as_folder(tmp_path / "theirs", side, change)
    with pytest.raises(UserError, match=message) as error:
        load_model(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


def test_missing_config_of_a_side_is_rejected(tmp_path: Path) -> None:
    folder = theirs_as_folder(tmp_path / "theirs")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"encoder": [1]}))
    with pytest.raises(UserError, match=r"has \[1\] as encoder; put back the config of the encoder"):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "context"),
    sampled(
        [
            ({"layer_types": None, "sliding_window": 13}, 13),
            ({"layer_types": None, "sliding_window": 40}, 31),
            ({"layer_types": ["full_attention"] * 3, "sliding_window": 13}, 31),
            ({"layer_types": ["full_attention"] * 3, "max_position_embeddings": 19}, 19),
        ],
        keep=(0, 2),
    ),
)
def test_context_ends_with_the_window_with_a_notice(
    change: dict[str, Any], context: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = FAMILIES["T5Gemma"].draw(1)
    theirs.config.encoder.layer_types = ["full_attention"] * 2
    folder = write_folder(tmp_path / "theirs", theirs)
    config = json.loads((folder / "config.json").read_text())
    config["decoder"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    assert load_model(folder).model.spec.max_len == read_spec(folder).max_len == context
    assert capsys.readouterr().err.count("the sliding_window of this T5Gemma, instead of 31") == (context == 13)


def test_adapter_has_the_scale_of_the_base_models_queries(tmp_path: Path) -> None:
    """`transformers` divides scores by the root of `query_pre_attn_scalar`, which Tercet's spec does not contain."""
    folder = theirs_as_folder(tmp_path / "theirs", change={"query_pre_attn_scalar": 7})
    config = json.loads((folder / "config.json").read_text())
    model = load_model(folder).model
    name = "model.decoder.layers.0.self_attn.q_proj"
    weight = tensors(folder)[f"{name}.weight"]
    low_rank = LowRank(A=torch.randn(2, weight.shape[1]), B=torch.randn(len(weight), 2), scaling=3.0)
    adapter = Adapter(base="", layers={name: low_rank}, full_weights={})
    (native,) = import_adapter(adapter, model, folder, config).layers.values()
    merged: dict[str, torch.Tensor | None] = {f"{name}.weight": weight + low_rank.scaling * low_rank.B @ low_rank.A}
    expected = load_model(edit_folder(folder, merged)).model.get_parameter(
        "decoder.blocks.0.self_attention.query.weight"
    )
    found = model.get_parameter("decoder.blocks.0.self_attention.query.weight") + native.scaling * native.B @ native.A
    assert config["decoder"]["query_pre_attn_scalar"] != config["decoder"]["head_dim"]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("part", "suffixes"), sampled([("NORMS", ("before.weight", "final_norm.weight")), ("QUERIES", ("value.weight",))])
)
def test_fault_is_detected(
    part: str, suffixes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = FAMILIES["T5Gemma"].draw(1)
    folder = write_folder(tmp_path / "theirs", theirs)
    model = load_model(folder).model
    assert isinstance(model, EncoderDecoder)
    assert furthest(model, theirs) < 1e-5
    monkeypatch.setattr(t5gemma, part, suffixes)
    model = load_model(folder).model
    assert isinstance(model, EncoderDecoder)
    assert furthest(model, theirs) > 1e-3


@pytest.mark.slow
def test_round_trip_keeps_the_outputs_of_a_converted_folder(tmp_path: Path) -> None:
    model = translator(embedding_norm=True)
    ours = convert(export_model(tmp_path, model), tmp_path / "back")
    again = load_in_transformers(convert(ours, tmp_path / "again", "hf"), transformers.AutoModelForSeq2SeqLM)
    assert furthest(model, again) < 1e-5
