"""BART and mBART are read and written, and translate with the same forced first token as in `transformers`."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import export_model, load_in_transformers, round_trip, tensors
from families_of_others import FAMILIES, bart
from folders_of_others import shaken, words
from tokenizers import processors

from sampled_cases import sampled
from tercet.checkpoint import Card, convert, load_model, read_spec, save_model
from tercet.checkpoint.foreign.bart import from_bart, to_bart
from tercet.checkpoint.trained_model import Translator
from tercet.config import UserError
from tercet.evaluate.pairs import score_pairs
from tercet.generation import Beam, translate
from tercet.models import Dropout, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import Rotary, Sinusoidal

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "en_XX", "ro_RO")
FRAMES = {
    "bart": processors.RobertaProcessing(("</s>", 2), ("<s>", 0)),
    "mbart": processors.TemplateProcessing(single="en_XX $A </s>", special_tokens=[("en_XX", 4), ("</s>", 2)]),
}
FORCED = {"bart": 0, "mbart": 5}
STACK = StackSpec(d_model=12, n_layers=2, n_heads=3, d_ff=29, placement="post", activation="relu")
SPEC = EncoderDecoderSpec(vocab_size=23, max_len=31, embedding_norm=True, encoder=STACK, decoder=STACK)


def write(folder: Path, kind: str, frame: Any = None, **ids: Any) -> tuple[Path, Any]:
    """Write a folder with a tokenizer that frames sources, and return it with its model."""
    family = FAMILIES["BART" if kind == "bart" else "mBART"]
    theirs = family.draw(6)
    theirs.generation_config.update(
        **{"decoder_start_token_id": 2, "forced_bos_token_id": FORCED[kind], "eos_token_id": 2, "pad_token_id": 1} | ids
    )
    theirs.save_pretrained(folder)
    library = words(23, SPECIAL)
    library.post_processor = FRAMES[kind] if frame is None else frame
    library.save(str(folder / "tokenizer.json"))
    return folder, theirs


def ours(**change: Any) -> EncoderDecoder:
    stack = change.pop("stack", {})
    sides = {side: replace(STACK, **stack | change.pop(side, {})) for side in ("encoder", "decoder")}
    return shaken(EncoderDecoder(replace(SPEC, **sides, **change)), 3)


def translated(trained_model: Any, line: str) -> list[int]:
    search = Beam(size=1, max_ratio=0, max_extra=15, min_extra=13)
    return list(translate(trained_model.model, trained_model.tokenizer, [line], search)[0][0].ids)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(["mbart", "bart"]))
@torch.no_grad()
def test_translation_begins_with_the_forced_token(kind: str, tmp_path: Path) -> None:
    folder, theirs = write(tmp_path / "theirs", kind)
    trained_model = load_model(folder)
    tokenizer, line = trained_model.tokenizer, "w9 w11 w7 w22"
    assert tokenizer.target_opening == [2, FORCED[kind]]
    source = [{"bart": 0, "mbart": 4}[kind], *tokenizer.encode(line), 2]
    assert tokenizer.frame(tokenizer.encode(line), max_len=30) == source
    ids = torch.tensor([source])
    expected = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=1, do_sample=False, max_new_tokens=16, min_new_tokens=14,
        bad_words_ids=[[number] for number in (0, 1, 3, 4, 5)] + [[tokenizer.unk_id]],
    )[0].tolist()  # fmt: skip
    assert expected[:2] == [2, FORCED[kind]]
    found = translated(trained_model, line)
    assert len(found) > 12
    assert found == expected[2:]
    save_model(tmp_path / "ours", trained_model.model, tokenizer, Card())
    assert translated(load_model(tmp_path / "ours"), line) == found
    again = convert(tmp_path / "ours", tmp_path / "again", "hf")
    exported = load_in_transformers(again, transformers.AutoModelForSeq2SeqLM)
    settings = {"num_beams": 1, "max_new_tokens": 16, "min_new_tokens": 14, "max_length": None}
    batch = transformers.AutoTokenizer.from_pretrained(again)([line], return_tensors="pt")
    assert exported.generate(**batch, **settings)[0].tolist() == expected
    beams = {**settings, "num_beams": 3, "num_return_sequences": 3}  # not only the forced token has a finite score
    assert {row[1] for row in exported.generate(**batch, **beams).tolist()} == {FORCED[kind]}
    assert translated(load_model(again), line) == found
    with pytest.raises(UserError, match=f"forced_bos_token_id is {FORCED[kind]}, which CTranslate2 does not support"):
        convert(again, tmp_path / "ct2", "ctranslate2")


@torch.no_grad()
def test_score_of_a_pair_is_that_of_the_tokens_after_the_forced_one(tmp_path: Path) -> None:
    trained_model = load_model(write(tmp_path / "theirs", "mbart")[0])
    assert isinstance(trained_model, Translator)
    model, tokenizer = trained_model.model, trained_model.tokenizer
    (score,) = score_pairs(model, tokenizer, [("w9 w11", "w7 w8 w10")])
    target = [*tokenizer.encode("w7 w8 w10"), 2]
    logits = model(torch.tensor([[4, *tokenizer.encode("w9 w11"), 2]]), torch.tensor([[2, 5, *target[:-1]]]))
    expected = logits.log_softmax(-1)[0, 1:].gather(1, torch.tensor(target)[:, None]).sum()
    assert score.logprob == pytest.approx(expected.item(), abs=1e-4)
    assert score.tokens == 4


@pytest.mark.parametrize(
    ("kind", "frame", "ids", "message"),
    [
        ("bart", None, {"forced_bos_token_id": None}, r"first token of a translation is not known; set forced_bos_t"),
        (
            "mbart",
            processors.TemplateProcessing(single="$A </s> en_XX", special_tokens=[("en_XX", 4), ("</s>", 2)]),
            {},
            "the tokenizer ends a source with </s>, en_XX; Tercet only supports its end token there",
        ),
    ],
)
def test_unsupported_frame_is_rejected(
    kind: str, frame: Any, ids: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder, _ = write(tmp_path / "theirs", kind, frame, **ids)
    with pytest.raises(UserError, match=message):
        load_model(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "name"),
    sampled(
        [
            ({"scale_embedding": True, "pad_vocab_to": 8}, "BartForConditionalGeneration"),
            (
                {"stack": {"position": Sinusoidal(), "bias": False}, "tie_embeddings": False},
                "BartForConditionalGeneration",
            ),
            (
                {"stack": {"placement": "pre", "norm_bias": False}, "share_embeddings": False, "tie_embeddings": False},
                "MBartForConditionalGeneration",
            ),
        ],
        keep=(0, 2),
    ),
)
@torch.no_grad()
def test_tercet_translator_is_exported_as_bart(change: dict[str, Any], name: str, tmp_path: Path) -> None:
    model = ours(**change)
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForSeq2SeqLM)
    assert type(theirs).__name__ == name
    tokens = torch.randint(3, 23, (2, 17))
    difference = theirs(input_ids=tokens, decoder_input_ids=tokens).logits - model(tokens, tokens)
    assert difference.abs().max() < 1e-5
    assert isinstance(read_spec(tmp_path / "theirs"), EncoderDecoderSpec)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(["bart", "mbart"]))
def test_round_trip_keeps_every_used_tensor(kind: str, tmp_path: Path) -> None:
    theirs, _ = write(tmp_path / "theirs", kind)
    names = tuple(f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
    before, after = round_trip(tmp_path, theirs, unread=names)
    keys = (*bart(random.Random(0)), "dropout", "attention_dropout", "activation_dropout")
    ids = ("pad_token_id", "decoder_start_token_id", "eos_token_id", "forced_eos_token_id")
    assert {key: before[key] for key in keys if key not in ids} == {key: after[key] for key in keys if key not in ids}
    for name in names:
        assert torch.equal(tensors(theirs)[name][2:], tensors(tmp_path / "out")[name][2:])


def test_dropout_rates_are_exported() -> None:
    dropout = Dropout(embedding=0.1, attention=0.2, activation=0.3, residual=0.1)
    config, state = to_bart(ours(stack={"dropout": dropout}))
    assert [config[key] for key in ("dropout", "attention_dropout", "activation_dropout")] == [0.1, 0.2, 0.3]
    assert from_bart(config, state).spec.decoder.dropout == dropout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_decoder": True}, "is_decoder is true, which Tercet does not support for Bart"),
        ({"activation_function": "sin"}, "activation_function is 'sin', which Tercet does not support"),
        ({"max_position_embeddings": 30}, r"embed_positions\.weight has shape 33x12, but the config requires 32x12"),
        ({"model_type": "mbart"}, r"MBart: .*layer_norm\.weight.* missing"),
        ({"decoder_layers": None}, "has no decoder_layers; put back the int"),
    ],
)
def test_wrong_config_is_rejected_by_name(change: dict[str, Any], message: str) -> None:
    config, state = to_bart(ours())
    assert from_bart(config, state).spec.embedding_norm
    with pytest.raises(UserError, match=message):
        from_bart(json.loads(json.dumps(config)) | change, state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": {"placement": "pre"}}, r"encoder\.placement is post, which MBart of transformers does not"),
        ({"stack": {"position": Rotary()}}, r"encoder\.position is rotary"),
        ({"stack": {"norm_eps": 1e-3}}, r"decoder\.norm_eps is 0\.001"),
        ({"stack": {"final_norm": True}}, r"encoder\.final_norm is true"),
        ({"decoder": {"activation": "gelu"}}, r"decoder\.activation is gelu"),
        ({"logit_softcap": 2.0}, r"logit_softcap is 2\.0"),
        ({"share_embeddings": False, "source_vocab_size": 9}, "source_vocab_size is 9"),
        ({"share_embeddings": False}, "share_embeddings is false, which Bart of transformers does not support"),
    ],
)
def test_unsupported_options_are_rejected_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        to_bart(ours(**change))
