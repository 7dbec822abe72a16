"""Encoders as GGUF files: names and values of the tensors, settings and tokenizer. The log compares llama.cpp."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from folders_of_others import shaken
from gguf_models import BYTES, LLAMA, TEXT
from torch import nn

from tercet.checkpoint import Card, convert, load_model, save_model
from tercet.checkpoint.foreign.gguf_encoder import BERT_NAMES, EUROBERT_NAMES, to_gguf_encoder
from tercet.checkpoint.foreign.gguf_file import GgufFile
from tercet.checkpoint.foreign.gguf_folder import gguf_writer
from tercet.checkpoint.foreign.state_dict import foreign_name
from tercet.checkpoint.sentence_settings import SentenceSettings
from tercet.config import UserError
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.nn import ALiBi
from tercet.tokens import Tokenizer, WordPiece
from tercet.tokens.gguf import to_settings

PIECES = Tokenizer.train(WordPiece(vocab_size=90), [TEXT])
POST = StackSpec(d_model=24, n_layers=2, n_heads=4, d_ff=29, placement="post", norm_eps=1e-12, activation="gelu")
GROUPED = replace(LLAMA, d_head=None)
EUROBERT = EncoderOnlySpec(vocab_size=BYTES.vocab_size, max_len=37, tie_embeddings=False, stack=GROUPED)
BERT = EncoderOnlySpec(
    vocab_size=PIECES.vocab_size, max_len=37, n_segments=2, embedding_norm=True, stack=POST, pooler=True,
    masked_head=MaskedHead(transform=True, bias=True),
)  # fmt: skip


def encoder(spec: EncoderOnlySpec, stack: dict[str, Any] | None = None, **changes: Any) -> EncoderOnly:
    return shaken(EncoderOnly(replace(spec, stack=replace(spec.stack, **(stack or {})), **changes), seed=0), 0)


def export(tmp_path: Path, model: EncoderOnly, tokenizer: Tokenizer) -> Path:
    save_model(tmp_path / "ours", model, tokenizer, Card(name="small"))
    return convert(tmp_path / "ours", tmp_path / "theirs", "gguf") / "model.gguf"


@pytest.mark.parametrize("kind", ["eurobert", "bert"])
def test_every_tensor_of_llama_cpp_is_written(kind: str, tmp_path: Path) -> None:
    spec, tokenizer, names = (EUROBERT, BYTES, EUROBERT_NAMES) if kind == "eurobert" else (BERT, PIECES, BERT_NAMES)
    model = encoder(spec)
    file = GgufFile(export(tmp_path, model, tokenizer))
    config_names = {part for name in file.locations for part in [".".join(name.split(".")[:-1]).replace(".0.", ".N.")]}
    assert {name for name in config_names if ".1." not in name} == set(names.values())
    known_tensors = gguf.constants.MODEL_TENSORS[getattr(gguf.constants.MODEL_ARCH, kind.upper())]
    known = {gguf.constants.TENSOR_NAMES[tensor].replace("{bid}", "N") for tensor in known_tensors}
    assert set(names.values()) <= known
    settings = {key.removeprefix(f"{kind}."): value for key, value in file.settings.items()}
    assert settings["general.architecture"] == kind
    assert settings["attention.causal"] is False
    assert settings["pooling_type"] == gguf.PoolingType.MEAN
    assert (settings["context_length"], settings["embedding_length"], settings["block_count"]) == (37, 24, 2)
    assert settings["attention.head_count"] == 4
    if kind == "bert":
        assert settings["tokenizer.ggml.token_type_count"] == 2
        assert settings["attention.layer_norm_epsilon"] == pytest.approx(1e-12)
    else:
        assert (settings["attention.head_count_kv"], settings["rope.freq_base"]) == (2, 500.0)


def test_values_are_those_of_the_model(tmp_path: Path) -> None:
    """EuroBERT's queries and keys rotate in pairs (i, i + K/2) in both, so that no row is moved."""
    model = encoder(EUROBERT)
    file, state = GgufFile(export(tmp_path, model, BYTES)), model.state_dict()
    pairs = {
        "token_embd.weight": "embedding.weight",
        "output_norm.weight": "stack.final_norm.weight",
        "blk.1.attn_q.weight": "stack.blocks.1.self_attention.query.weight",
        "blk.0.attn_k.weight": "stack.blocks.0.self_attention.key.weight",
        "blk.1.attn_output.weight": "stack.blocks.1.self_attention.out.weight",
        "blk.0.ffn_gate.weight": "stack.blocks.0.feedforward.gate.weight",
        "blk.0.ffn_norm.weight": "stack.blocks.0.feedforward_residual.before.weight",
    }
    assert all(torch.equal(file.tensor(name), state[native]) for name, native in pairs.items())


def test_embedding_norm_is_in_the_table(tmp_path: Path) -> None:
    model = encoder(EUROBERT, embedding_norm=True, tie_embeddings=True)
    table = GgufFile(export(tmp_path, model, BYTES)).tensor("token_embd.weight")
    ids = torch.arange(BYTES.vocab_size)
    expected = model.stack.embedding_norm(model.embedding(ids))
    assert torch.allclose(table, expected, atol=1e-6)


def test_classifier_is_left_out() -> None:
    classifier = Classifier(labels=("a", "b"))
    model = encoder(EUROBERT, masked_head=None, classifier=classifier)
    assert (
        to_gguf_encoder(model, SentenceSettings())[1].keys()
        == to_gguf_encoder(encoder(EUROBERT), SentenceSettings())[1].keys()
    )
    assert foreign_name("layers.1.mlp.up_proj.weight", EUROBERT_NAMES) == "blk.1.ffn_up.weight"


def test_pooling_of_the_model_is_exported() -> None:
    settings, _ = to_gguf_encoder(encoder(BERT), SentenceSettings(pooling="first"))
    assert settings["bert.pooling_type"] == gguf.PoolingType.CLS
    with pytest.raises(UserError, match=r"pooling is max, which llama\.cpp does not support; .*pooling: mean or first"):
        to_gguf_encoder(encoder(BERT), SentenceSettings(pooling="max"))


def test_projection_is_rejected(tmp_path: Path) -> None:
    save_model(tmp_path / "ours", encoder(BERT), PIECES, Card())
    model = replace(load_model(tmp_path / "ours"), projection=nn.Sequential(nn.Linear(24, 8)))
    with pytest.raises(UserError, match=r"dense layers after the pooling, which llama\.cpp does not support"):
        gguf_writer(model)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (encoder(EUROBERT, {"activation": "gelu"}), r"activation is gelu, which EuroBERT of llama\.cpp .*silu can"),
        (encoder(EUROBERT, {"d_head": 8}), r"d_head is 8, which EuroBERT of llama\.cpp .*d_head: 6"),
        (encoder(EUROBERT, {"bias": True}), r"stack\.bias\.qkv is true, .* which EuroBERT of llama\.cpp"),
        (encoder(EUROBERT, {"qk_norm": True}), r"qk_norm is true, which EuroBERT of llama"),
        (
            encoder(BERT, {"activation": "relu"}),
            r"activation is relu, which BERT of llama\.cpp .*gelu_tanh or gelu can",
        ),
        (encoder(BERT, {"position": ALiBi()}), r"position is alibi, which BERT"),
    ],
)
def test_unsupported_options_are_rejected_by_name(model: EncoderOnly, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        to_gguf_encoder(model, SentenceSettings())
    assert "\n" not in str(error.value)


def test_pieces_at_the_beginning_of_a_word_are_marked(tmp_path: Path) -> None:
    settings = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in GgufFile(export(tmp_path, encoder(BERT), PIECES)).settings.items()
    }
    assert (settings["model"], settings["normalizer.lowercase"], settings["normalizer.strip_accents"]) == (
        "bert",
        True,
        True,
    )
    assert (settings["cls_token_id"], settings["seperator_token_id"]) == (PIECES.bos_id, PIECES.eos_id)
    assert (settings["unknown_token_id"], settings["mask_token_id"]) == (PIECES.unk_id, PIECES.mask_id)
    for ours, theirs in zip(PIECES.tokens(list(range(PIECES.vocab_size))), settings["tokens"], strict=True):
        expected = (
            ours if ours.startswith("[") and len(ours) > 1 else ours[2:] if ours.startswith("##") else f"\u2581{ours}"
        )
        assert theirs == expected


def test_tokens_around_a_text_are_added() -> None:
    settings = to_settings(BYTES, framed=True)
    assert settings["tokenizer.ggml.add_bos_token"] is True
    assert settings["tokenizer.ggml.add_eos_token"] is True
    assert to_settings(BYTES)["tokenizer.ggml.add_eos_token"] is False
    with pytest.raises(UserError, match="not a byte-level BPE but WordPiece"):
        to_settings(PIECES)


def test_cased_pieces_are_not_changed_to_lower_case() -> None:
    cased = Tokenizer.train(WordPiece(vocab_size=90, lowercase=False), [TEXT])
    settings = to_settings(cased, framed=True)
    assert settings["tokenizer.ggml.normalizer.lowercase"] is False
    assert settings["tokenizer.ggml.normalizer.strip_accents"] is False


def test_file_of_an_encoder_is_not_opened(tmp_path: Path) -> None:
    file = export(tmp_path, encoder(BERT), PIECES)
    with pytest.raises(UserError, match="has a tokenizer of the kind 'bert'; supported: gpt2 and llama"):
        load_model(file)
    assert "Tercet opens the file" not in (file.parent / "README.md").read_text()
