"""Encoders as GGUF files: names and values of the tensors, settings and tokenizer. The log compares llama.cpp."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from folders_of_others import shaken
from gguf_models import BYTES, LLAMA, TEXT
from torch import nn

from tercet.checkpoint import Card, convert, load_model, save_model
from tercet.checkpoint.foreign.gguf_encoder import ENCODER_NAMES, EUROBERT_NAMES, to_gguf_encoder
from tercet.checkpoint.foreign.gguf_file import GgufFile
from tercet.checkpoint.foreign.gguf_folder import gguf_writer
from tercet.checkpoint.foreign.state_dict import foreign_name
from tercet.checkpoint.sentence_settings import SentenceSettings
from tercet.config import UserError
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.nn import ALiBi, Rotary
from tercet.nn.specs import Window
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
MODERNBERT = EncoderOnlySpec(
    vocab_size=BYTES.vocab_size, max_len=37, embedding_norm=True,
    stack=StackSpec(
        d_model=24, n_layers=4, n_heads=4, d_ff=29, position=Rotary(base=500.0), norm_eps=1e-6, norm_bias=False,
        bias=False, gated=True, first_norm=False,
    ),
)  # fmt: skip
WINDOW: dict[str, Any] = {
    "position": Rotary(base=500.0, local_base=7.0),
    "window": Window(size=5, global_layers=(0, 3)),
}
KINDS = {"eurobert": (EUROBERT, BYTES), "modern-bert": (MODERNBERT, BYTES), "bert": (BERT, PIECES)}


def encoder(spec: EncoderOnlySpec, stack: dict[str, Any] | None = None, **changes: Any) -> EncoderOnly:
    return shaken(EncoderOnly(replace(spec, stack=replace(spec.stack, **(stack or {})), **changes), seed=0), 0)


def export(tmp_path: Path, model: EncoderOnly, tokenizer: Tokenizer) -> Path:
    save_model(tmp_path / "ours", model, tokenizer, Card(name="small"))
    return convert(tmp_path / "ours", tmp_path / "theirs", "gguf") / "model.gguf"


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_of_llama_cpp_is_written(kind: Any, tmp_path: Path) -> None:
    (spec, tokenizer), names = KINDS[kind], ENCODER_NAMES[kind]
    file = GgufFile(export(tmp_path, encoder(spec), tokenizer))
    config_names = {name.rpartition(".")[0].replace("blk.1.", "blk.N.") for name in file.locations}
    assert {name for name in config_names if "blk." not in name or "blk.N." in name} == set(names.values())
    architecture = getattr(gguf.constants.MODEL_ARCH, kind.upper().replace("-", "_"))
    known_tensors = gguf.constants.MODEL_TENSORS[architecture]
    known = {gguf.constants.TENSOR_NAMES[tensor].replace("{bid}", "N") for tensor in known_tensors}
    assert set(names.values()) <= known
    settings = {key.removeprefix(f"{kind}."): value for key, value in file.settings.items()}
    assert settings["general.architecture"] == kind
    assert settings["attention.causal"] is False
    assert settings["pooling_type"] == gguf.PoolingType.MEAN
    assert (settings["context_length"], settings["embedding_length"], settings["block_count"]) == (
        37, 24, spec.stack.n_layers,
    )  # fmt: skip
    assert settings["attention.head_count"] == 4
    if kind == "bert":
        assert settings["tokenizer.ggml.token_type_count"] == 2
        assert settings["attention.layer_norm_epsilon"] == pytest.approx(1e-12)
    elif kind == "modern-bert":
        assert settings["attention.layer_norm_epsilon"] == pytest.approx(1e-6)
        assert not any("sliding_window" in key or "swa" in key for key in settings)
        assert "blk.0.attn_norm.weight" not in file.locations
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


def modernbert_of_file(path: Path) -> Any:
    """Return the model of `transformers` for a file, as the gguf package reads its settings and tensors."""
    reader = gguf.GGUFReader(path)
    settings = {
        key.removeprefix("modern-bert."): field.contents() for key, field in reader.fields.items() if "GGUF" not in key
    }
    n_layers, window = settings["block_count"], settings.get("attention.sliding_window")
    pattern = settings.get("attention.sliding_window_pattern", 1)
    is_local = pattern if isinstance(pattern, list) else [layer % pattern != 0 for layer in range(n_layers)]
    bases = {"full_attention": settings["rope.freq_base"], "sliding_attention": settings.get("rope.freq_base_swa", 9.0)}
    config = transformers.AutoConfig.for_model(
        "modernbert",
        vocab_size=settings["vocab_size"],
        hidden_size=settings["embedding_length"],
        intermediate_size=settings["feed_forward_length"],
        num_hidden_layers=n_layers,
        num_attention_heads=settings["attention.head_count"],
        hidden_activation=settings["hidden_activation"],
        norm_eps=settings["attention.layer_norm_epsilon"],
        layer_types=["sliding_attention" if local else "full_attention" for local in is_local],
        local_attention=window or 2,
        rope_parameters={kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        pad_token_id=0,
    )
    model = transformers.AutoModel.from_config(config, attn_implementation="eager")
    tensors = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
    names = {foreign_name(name, ENCODER_NAMES["modern-bert"]): name for name in model.state_dict()}
    model.load_state_dict({names[name]: tensor for name, tensor in tensors.items()})
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    "stack",
    [
        {},
        {"activation": "gelu_tanh"},
        {"activation": "silu"},
        WINDOW,
        WINDOW | {"window": Window(size=4, global_layers=(1, 2))},
        WINDOW | {"window": Window(size=4)},
    ],
)
@torch.no_grad()
def test_modernbert_of_the_file_has_the_same_hidden_states(stack: dict[str, Any], tmp_path: Path) -> None:
    model = encoder(MODERNBERT, stack, scale_embedding=True, pad_vocab_to=64, masked_head=MaskedHead())
    theirs = modernbert_of_file(export(tmp_path, model, BYTES))
    ids = torch.randint(BYTES.vocab_size, (2, 17), generator=torch.Generator().manual_seed(1))
    expected = theirs(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    assert torch.allclose(model.hidden(ids), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "pattern"), [((0, 3), 3), ((0, 2), 2), ((0,), 4), ((3,), [True, True, True, False]), ((), [True] * 4)]
)
def test_interval_of_layers_without_a_window_is_written(layers: tuple[int, ...], pattern: Any) -> None:
    model = encoder(MODERNBERT, WINDOW | {"position": Rotary(), "window": Window(size=5, global_layers=layers)})
    settings, _ = to_gguf_encoder(model, SentenceSettings())
    assert settings["modern-bert.attention.sliding_window_pattern"] == pattern


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
            encoder(MODERNBERT, {"activation": "relu"}),
            r"activation is relu, which ModernBERT of llama\.cpp .*or silu can",
        ),
        (encoder(MODERNBERT, {"bias": True}), r"stack\.bias\.qkv is true, .* which ModernBERT of llama\.cpp"),
        (encoder(MODERNBERT, {"norm_bias": True}), r"norm_bias is true, which ModernBERT of llama\.cpp"),
        (encoder(MODERNBERT, {"first_norm": True}), r"first_norm is true, which ModernBERT of llama\.cpp"),
        (encoder(MODERNBERT, embedding_norm=False), r"embedding_norm is false, which ModernBERT of llama\.cpp"),
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
