"""Translators are exported as Marian, and `transformers` gives the same translations without Tercet."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import auto_tokenizer, export_model, load_in_transformers, round_trip, save_folder, tensors
from folders_of_others import seeds, shaken, words

from sampled_cases import sampled
from tercet.checkpoint import convert, load_model
from tercet.checkpoint.foreign import marian as writer
from tercet.checkpoint.foreign.marian import to_marian
from tercet.config import UserError
from tercet.generation import Beam, translate
from tercet.models import EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import Rotary, Sinusoidal

STACK = StackSpec(
    d_model=12, n_layers=2, n_heads=3, d_ff=29, position=Sinusoidal(), placement="post", activation="relu"
)  # fmt: skip
SPEC = EncoderDecoderSpec(vocab_size=23, max_len=31, encoder=STACK, decoder=replace(STACK, n_layers=1, n_heads=2))


def ours(seed: int = 0, stack: dict[str, Any] | None = None, **spec: Any) -> EncoderDecoder:
    sides = {side: replace(getattr(SPEC, side), **(stack or {})) for side in ("encoder", "decoder")}
    return shaken(EncoderDecoder(replace(SPEC, **sides | spec), seed=seed), seed)


def random_model(seed: int) -> EncoderDecoder:
    draw = random.Random(seed)
    bias = draw.random() < 0.7
    shared: dict[str, Any] = {
        "d_model": 12 * draw.choice([1, 2, 3]), "bias": bias, "norm_bias": bias,
        "activation": draw.choice(["relu", "silu", "gelu"]),
    }  # fmt: skip
    sides = {
        side: replace(
            STACK,
            **shared,
            n_layers=draw.choice([1, 2, 3]),
            n_heads=draw.choice([1, 2, 3]),
            d_ff=draw.choice([None, 17]),
        )
        for side in ("encoder", "decoder")
    }
    separate = draw.random() < 0.3
    return ours(
        seed, **sides, tie_embeddings=draw.random() < 0.7, share_embeddings=not separate and draw.random() < 0.7,
        source_vocab_size=29 if separate else None, scale_embedding=draw.random() < 0.6, logit_bias=draw.random() < 0.5,
        vocab_size=draw.choice([17, 53]), pad_vocab_to=draw.choice([1, 64]),
    )  # fmt: skip


@torch.no_grad()
def furthest(model: EncoderDecoder, theirs: Any) -> float:
    """Return the largest difference of logits for padded sources and targets of different lengths."""
    draw = torch.Generator().manual_seed(1)
    sources = model.spec.source_vocab_size or model.vocab_size
    source, target = (torch.randint(n, (3, m), generator=draw) for n, m in ((sources, 13), (model.vocab_size, 29)))
    real = torch.arange(13) < torch.tensor([[13], [1], [7]])
    found = theirs(input_ids=source, attention_mask=real.long(), decoder_input_ids=target, use_cache=False).logits
    expected = model(source, target, source_token_mask=real)
    assert found.shape == expected.shape
    return (found - expected).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
def test_logits_and_greedy_translations_match(seed: int, tmp_path: Path) -> None:
    model = random_model(seed)
    folder = export_model(tmp_path, model, model.spec.source_vocab_size)
    theirs = load_in_transformers(folder, transformers.AutoModelForSeq2SeqLM)
    assert type(theirs).__name__ == "MarianMTModel"
    assert furthest(model, theirs) < 1e-4
    trained_model = load_model(tmp_path / "ours")
    line = "w5 w9 w3 w11"
    ids = torch.tensor([[*trained_model.source_tokenizer.encode(line), 2]])
    generated = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=15, min_new_tokens=12)
    search = Beam(size=1, max_ratio=0, max_extra=15, min_extra=12)
    answer = translate(
        trained_model.model, trained_model.tokenizer, [line], search, source_tokenizer=trained_model.source_tokenizer
    )[0][0]  # fmt: skip
    assert len(answer.ids) >= 12
    assert list(answer.ids) == generated[0, 1:].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
def test_round_trip_keeps_every_tensor(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    share, tied = draw.random() < 0.6, draw.random() < 0.7
    config = transformers.MarianConfig(
        vocab_size=23, decoder_vocab_size=23 if share else draw.choice([23, 31]), d_model=12,
        max_position_embeddings=19, encoder_layers=draw.choice([1, 2]), encoder_attention_heads=3, encoder_ffn_dim=17,
        decoder_layers=draw.choice([1, 2]), decoder_attention_heads=2, decoder_ffn_dim=19, pad_token_id=0,
        decoder_start_token_id=0, eos_token_id=2, bos_token_id=None, forced_eos_token_id=None,
        scale_embedding=draw.random() < 0.5, activation_function=draw.choice(["relu", "gelu"]), dropout=0.2,
        share_encoder_decoder_embeddings=share, tie_word_embeddings=tied,
    )  # fmt: skip
    folder = tmp_path / "theirs"
    shaken(transformers.MarianMTModel(config), seed).save_pretrained(folder)
    words(config.decoder_vocab_size).save(str(folder / "tokenizer.json"))
    if not share:
        words(23).save(str(folder / "source_tokenizer.json"))
    unread = ("model.shared.weight",) if share and not tied else ()  # this library then has three matrices
    before, after = round_trip(tmp_path, folder, unread=unread)
    common_keys = set(before) & set(after) - {"bos_token_id", *(["share_encoder_decoder_embeddings"] if unread else [])}
    assert {key for key in common_keys if after[key] != before[key]} == set()


def test_tied_tensor_is_stored_once(tmp_path: Path) -> None:
    model = ours(logit_bias=True)
    stored = tensors(export_model(tmp_path, model))
    assert [name for name in stored if len(stored[name]) == 23] == ["model.shared.weight"]
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("share", "tied"), sampled([(True, True), (False, False), (True, False), (False, True)], keep=(0, 1))
)
def test_embeddings_may_be_shared_or_separate(share: bool, tied: bool, tmp_path: Path) -> None:
    model = ours(share_embeddings=share, tie_embeddings=tied)
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForSeq2SeqLM)
    assert furthest(model, theirs) < 1e-5
    source, target = theirs.model.encoder.embed_tokens.weight, theirs.model.decoder.embed_tokens.weight
    out = theirs.lm_head.weight
    assert (target.data_ptr() == out.data_ptr()) == tied
    assert (source.data_ptr() == target.data_ptr()) == (share and tied)


def test_separate_source_vocabulary_is_exported(tmp_path: Path) -> None:
    model = ours(share_embeddings=False, source_vocab_size=29)
    folder = export_model(tmp_path, model, 29)
    assert auto_tokenizer(folder).vocab_size == 23
    source = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "source_tokenizer.json"))
    assert source("w28 w4").input_ids == [28, 4, 2]
    readme = (folder / "README.md").read_text()
    assert "The source has its own vocabulary, in source_tokenizer.json" in readme
    assert "pad_token='<pad>'" in readme


@pytest.mark.parametrize(
    ("stack", "spec", "message"),
    [
        ({"position": Rotary()}, {}, r"encoder\.placement is post, .* T5Gemma .* encoder\.placement: sandwich"),
        ({"position": Sinusoidal(base=100.0)}, {}, r"encoder\.position\.base is 100\.0 and .*base: 10000\.0 can"),
        ({"placement": "pre"}, {}, r"encoder\.placement is pre and .* encoder\.placement: post"),
        ({"norm": "rms", "norm_bias": False}, {}, r"encoder\.norm is rms"),
        ({"norm_eps": 1e-6}, {}, r"encoder\.norm_eps is 1e-06 and .* encoder\.norm_eps: 1e-05 and"),
        ({"gated": True}, {}, r"encoder\.gated is true"),
        ({"qk_norm": True}, {}, r"encoder\.qk_norm is true"),
        ({"n_kv_heads": 1}, {}, r"encoder\.n_kv_heads is 1"),
        ({"d_head": 8}, {}, r"encoder\.d_head is 8"),
        ({}, {"decoder": replace(STACK, placement="pre")}, r"decoder\.placement is pre"),
        ({}, {"decoder": replace(STACK, activation="gelu")}, r"decoder\.activation is gelu, .*activation: relu"),
        ({}, {"logit_softcap": 15.0}, r"logit_softcap is 15\.0"),
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


@pytest.mark.parametrize("part", sampled([None, *writer.INPUT_WEIGHTS, *writer.OUTPUT_WEIGHTS], keep=(0, 1, 5, 6)))
def test_missing_permutation_in_one_part_is_detected(part: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("INPUT_WEIGHTS", "OUTPUT_WEIGHTS"):
        monkeypatch.setattr(writer, table, tuple(name for name in getattr(writer, table) if name != part))
    model = ours(tie_embeddings=False, share_embeddings=False)
    config, state = to_marian(model)
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**config, pad_token_id=0)).eval()
    theirs.load_state_dict(state, strict=False)
    assert (furthest(model, theirs) > 1e-3) == (part is not None)
