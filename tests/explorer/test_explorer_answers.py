"""Queries of the explorer: valid ones, errors, and size and time of answers."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from explored import (
    ALL_MODELS,
    BERTS,
    GPTS,
    SCRIPT,
    SOURCE_TOKENIZER,
    TEXT,
    TOKENIZER,
    TRANSLATORS,
    default_query,
    numbers,
    trained_model,
)

from tercet.config import UserError, parse, to_plain
from tercet.data import TextSpec, prepare
from tercet.explorer import Answers, Query, opening_query
from tercet.explorer.queries import OverviewQuery, parse_query, query_to_plain
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec

GPT, BERT, TRANSLATOR = next(iter(GPTS)), next(iter(BERTS)), next(iter(TRANSLATORS))


@pytest.mark.parametrize("name", ALL_MODELS)
def test_repeating_the_returned_query_gives_the_same_answer(name: str) -> None:
    answers = Answers(trained_model(name))
    first = answers.answer("look", {"ask": default_query(name)})
    second = Answers(answers.trained_model).answer("look", {"ask": first["ask"], "at": first["at"]})
    assert json.dumps(first) == json.dumps(second)
    assert set(first["ask"]) == {"text", "target", "ids", "target_ids", "original_ids", "edits"}
    assert first["ask"]["ids"] == [token["id"] for token in first["sides"][0]["tokens"]]


def test_a_query_survives_a_round_trip() -> None:
    query = {
        "text": "a", "target": None, "ids": [1, 2], "target_ids": None, "original_ids": None,
        "edits": [{"name": "stack.blocks.1.self_attention.heads", "heads": [3], "positions": None}],
    }  # fmt: skip
    read = parse_query(OverviewQuery, {"ask": query, "at": 1})
    assert json.loads(json.dumps(query_to_plain(read.ask))) == query
    assert hash(read) == hash(parse_query(OverviewQuery, json.loads(json.dumps(to_plain(read)))))


def test_a_look_and_its_blocks_need_one_pass() -> None:
    answers = Answers(trained_model(GPT))
    passes: list[int] = []
    answers.trained_model.model.embedding.register_forward_hook(lambda *_: passes.append(1))
    look = answers.answer("look", {"ask": {"text": TEXT}})
    for name in ("stack", "stack.blocks.0", "stack.blocks.1"):
        answers.answer("block", {"ask": look["ask"], "name": name})
    answers.answer("logits", {"ask": look["ask"], "at": 0})
    assert len(passes) == 1


def test_the_cache_of_passes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.explorer.passes.MAX_CACHE_BYTES", 100_000)
    answers = Answers(trained_model(GPT))
    for text in ("a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg"):
        answers.answer("look", {"ask": {"text": text}})
    cached = answers.passes._passes.values()
    assert 2 <= len(cached) < 14
    assert next(reversed(cached)).query.text == "abcdefg"


@pytest.mark.parametrize(
    ("name", "can"),
    [(GPT, {"sample"}), (BERT, {"mask"}), (TRANSLATOR, {"sample", "translate"})],
)
def test_the_model_lists_its_abilities(name: str, can: set[str]) -> None:
    answers = Answers(trained_model(name), start=Query(text="a"))
    model = answers.answer("model", {})
    assert {verb for verb, does in model["can"].items() if does} == can
    assert (model["mask_id"] is not None) == (name == BERT)
    assert (model["name"], model["folder"], model["live"]) == ("tiny", "tiny", True)
    assert model["parameters"] == len(
        torch.cat([parameter.flatten() for parameter in answers.trained_model.model.parameters()])
    )
    assert model["start"]["text"] == "a"
    assert [stack["name"] for stack in model["stacks"]] == (["encoder", "decoder"] if name == TRANSLATOR else ["stack"])


def test_a_long_text_is_truncated_and_reported() -> None:
    look = Answers(trained_model(GPT, max_len=5)).answer("look", {"ask": {"text": "abcdefghij"}})
    assert look["truncated"] is True
    assert "".join(token["text"] for token in look["sides"][0]["tokens"]) == "fghij"
    second = Answers(trained_model(GPT, max_len=5)).answer("look", {"ask": look["ask"]})
    assert second["truncated"] is False


def test_the_page_opens_at_a_mask() -> None:
    answers = Answers(trained_model(BERT))
    look = answers.answer("look", {"ask": {"text": "ab [MASK] c"}})
    assert look["sides"][0]["tokens"][look["at"]]["text"] == "<mask>"
    assert [token["special"] for token in look["sides"][0]["tokens"]] == [
        token["id"] in TOKENIZER.special_ids for token in look["sides"][0]["tokens"]
    ]
    assert look["loss"] is None
    assert answers.answer("look", {"ask": {"text": "abc"}})["at"] == 0


def test_the_page_of_a_decoder_opens_at_the_last_token() -> None:
    look = Answers(trained_model(GPT)).answer("look", {"ask": {"text": "abc"}})
    assert look["at"] == len(look["sides"][0]["tokens"]) - 1 > 0


def test_a_token_that_looks_like_markup_is_text() -> None:
    look = Answers(trained_model(GPT, max_len=40)).answer("look", {"ask": {"text": SCRIPT}})
    assert "".join(token["text"] for token in look["sides"][0]["tokens"]) == SCRIPT


@pytest.mark.slow
def test_a_translator_without_a_target_reads_its_translation() -> None:
    from tercet.generation import Beam, translate

    loaded_model = trained_model(TRANSLATOR)
    look = Answers(loaded_model).answer("look", {"ask": {"text": "be"}})
    translation = translate(loaded_model.model, loaded_model.tokenizer, ["be"], Beam(size=1))[0][0]  # type: ignore[arg-type]
    ids = [token for token in translation.ids if token != TOKENIZER.eos_id][:22]
    assert look["ask"]["target_ids"] == [TOKENIZER.bos_id, *ids]


MISTAKES: list[tuple[str, str, dict[str, Any], str]] = [
    (GPT, "looks", {}, "unknown query: 'looks'; did you mean 'look'?"),
    (GPT, "look", {"ask": {"txt": "a"}}, "ask: unknown key 'txt'; did you mean 'text'?"),
    (GPT, "look", {}, "the key 'ask' is missing"),
    (GPT, "look", {"ask": {"text": 5}}, "ask.text: input should be a valid string, got 5"),
    (GPT, "look", {"ask": {"text": ""}, "att": 1}, "unknown key 'att'; did you mean 'at'?"),
    (GPT, "look", {"ask": {"ids": [1, 99]}}, "the vocabulary has no id 99; ids are 0 to "),
    (GPT, "look", {"ask": {"ids": []}}, "the list of ids is empty"),
    (GPT, "look", {"ask": {"ids": [1] * 24}}, "24 ids do not fit into the context of 23 tokens; pass fewer"),
    (GPT, "look", {"ask": {"text": "Ü"}}, "the vocabulary has no 'Ü'"),
    (GPT, "look", {"ask": {"text": "ab"}, "at": 2}, "at=2 is not a row; rows are 0 to 1"),
    (GPT, "look", {"ask": {"text": "ab"}, "at": -1}, "at=-1 must be at least 0"),
    (GPT, "look", {"ask": {"text": "ab", "target": "c"}}, "a target is for translators"),
    (GPT, "look", {"ask": {"text": "ab", "original_ids": [1, 2]}}, "are for masked language models; omit them"),
    (BERT, "look", {"ask": {"text": "ab", "original_ids": [1]}}, "1 original_ids for 4 ids; pass one per id"),
    (BERT, "look", {"ask": {"text": "", "original_ids": [1, 99]}}, "the vocabulary has no id 99; ids are 0 to "),
    (GPT, "look", {"ask": {"text": "a", "edits": [{"nam": "x"}]}}, "edit 0: unknown key 'nam'; did you mean 'name'?"),
    (GPT, "look", {"ask": {"text": "a", "edits": ["x"]}}, 'edit 0: expected an object such as {"name": ...}'),
    (GPT, "look", {"ask": {"text": "a", "edits": [{"name": "stack.block.0"}]}}, "did you mean 'stack.blocks.0'?"),
    (
        GPT, "look", {"ask": {"text": "a", "edits": [{"name": "stack.blocks.0.self_attention.heads", "heads": [4]}]}},
        "stack.blocks.0.self_attention.heads has no head 4; it has 4, 0 to 3",
    ),
    (
        GPT, "look", {"ask": {"text": "ab", "edits": [{"name": "stack.blocks.0", "positions": [2]}]}},
        "stack.blocks.0 has no position 2; it has 2, 0 to 1",
    ),
    (GPT, "block", {"ask": {"text": "a"}, "name": "stack.blocks.2"}, "no block 'stack.blocks.2'; did you mean"),
    (GPT, "logits", {"ask": {"text": "a"}, "at": 1}, "at=1 is not a row"),
    (GPT, "sample", {"ask": {"text": "a"}, "at": 0, "sampling": {"top_p": 2}}, "top_p=2.0 must be above 0 and at"),
    (GPT, "sample", {"ask": {"text": "a"}, "at": 0, "sampling": {"tempratur": 2}}, "did you mean 'temperature'?"),
    (GPT, "attribution", {"ask": {"text": "a"}, "at": 0, "id": 99}, "id 99 is out of range"),
    (BERT, "attribution", {"ask": {"text": "a"}, "at": 0, "id": 9}, "transform is not linear"),
    (GPT, "beams", {"ask": {"text": "a"}}, "beam search requires a translator"),
    (TRANSLATOR, "beams", {"ask": {"text": "a"}, "size": 0}, "size=0 must be at least 1"),
    (
        TRANSLATOR, "beams", {"ask": {"text": "a", "edits": [{"name": "decoder.blocks.0", "positions": [0]}]}},
        "cannot edit single positions in a beam search",
    ),
    (TRANSLATOR, "look", {"ask": {"text": ""}}, "the text is empty; pass at least one word"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "route", "body", "message"), MISTAKES, ids=[message[:40] for *_, message in MISTAKES])
def test_errors_are_one_line(name: str, route: str, body: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        Answers(trained_model(name)).answer(route, body)
    assert message in str(error.value)


@pytest.mark.parametrize("body", [None, [], "look", 5])
def test_a_query_must_be_an_object(body: Any) -> None:
    with pytest.raises(UserError, match="expected a JSON object"):
        Answers(trained_model(GPT)).answer("look", body)


def test_a_diverged_model_is_reported() -> None:
    diverged_model = trained_model(GPT)
    with torch.no_grad():
        diverged_model.model.get_submodule("stack.blocks.1.feedforward.up").weight.fill_(float("nan"))  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"not finite .*its training diverged"):
        Answers(diverged_model).answer("look", {"ask": {"text": "abc"}})


@pytest.mark.slow
def test_a_beam_search_with_edits_differs_and_leaves_no_trace() -> None:
    answers = Answers(trained_model(TRANSLATOR))
    query = {"text": "be", "target": "a"}
    queries = query, {**query, "edits": [{"name": "decoder.blocks.1.cross_attention"}]}, query
    base, off, second = (answers.answer("beams", {"ask": beam_query, "size": 2}) for beam_query in queries)
    assert [node["logprob"] for node in off["nodes"]] != [node["logprob"] for node in base["nodes"]]
    assert second == base


def test_an_encoder_without_a_head_has_no_logits() -> None:
    from explored import wrap_model

    from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec

    spec = EncoderOnlySpec(
        vocab_size=TOKENIZER.vocab_size, stack=StackSpec(d_model=24, n_layers=2, n_heads=4), masked_head=None,
        classifier=Classifier(labels=("a", "b")),
    )  # fmt: skip
    answers = Answers(wrap_model(EncoderOnly(spec)))
    look = answers.answer("look", {"ask": {"text": "abc"}})
    assert [look[key] for key in ("lens", "logits", "loss", "top", "texts")] == [None, None, None, None, {}]
    assert len(look["maps"]) == 2
    assert "unembedding" not in answers.answer("block", {"ask": look["ask"], "name": "stack"})
    assert all(row["ablation"] is None for row in answers.answer("heads", {"ask": look["ask"]})["rows"])
    for name, body in (("logits", {"at": 0}), ("sample", {"at": 0}), ("attribution", {"at": 0, "id": 1})):
        with pytest.raises(UserError, match="no language-model head"):
            answers.answer(name, {"ask": look["ask"], **body})


def test_a_context_too_short_for_repetition_has_no_scores() -> None:
    row = Answers(trained_model(GPT, max_len=3)).answer("heads", {"ask": {"text": "ab"}})["rows"][0]
    assert (row["previous"], row["induction"]) == (None, None)
    assert len(row["ablation"]) == 4


@pytest.mark.parametrize("name", ALL_MODELS)
def test_every_model_has_an_opening_query(name: str) -> None:
    loaded_model = trained_model(name)
    query = opening_query(loaded_model)
    look = Answers(loaded_model).answer("look", {"ask": query_to_plain(query)})
    assert name in TRANSLATORS or not look["truncated"]
    if name in BERTS:
        assert look["loss"]["tokens"][look["at"]] is not None  # one token is masked, and its original is known
    assert opening_query(loaded_model, "abc").text == "abc"
    # The tokenizer has no letter of the sentence.
    assert opening_query(replace(loaded_model, source_tokenizer=SOURCE_TOKENIZER)).text


@pytest.mark.parametrize("text", ["a\n", "", "\n\n"])
def test_a_run_without_its_data_opens_too(text: str, tmp_path: Any) -> None:
    from tercet.checkpoint import Card

    (tmp_path / "text.txt").write_text(text)
    for source in (str(tmp_path / "text.txt"), str(tmp_path / "gone.txt")):
        loaded_model = replace(trained_model(GPT), card=Card(recipe={"data": {"source": source}}))
        assert Answers(loaded_model).answer("look", {"ask": query_to_plain(opening_query(loaded_model))})


def test_a_run_opens_with_a_held_out_line(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tercet.checkpoint import Card

    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("abc def\n" * 50)
    (tmp_path / "held.txt").write_text("\nbad\n  cafe hide\n" * 5)
    data = {
        "source": str(tmp_path / "text.txt"),
        "validation": {"kind": "held_out", "source": str(tmp_path / "held.txt")},
    }
    card = Card(recipe={"data": data}, data_hash=prepare(parse(TextSpec, data), tokenizer=TOKENIZER).hash)
    assert opening_query(replace(trained_model(GPT), card=card)).text == "cafe hide"
    for data_hash in ("", "0" * 64):  # another file with the name of the training file
        assert opening_query(replace(trained_model(GPT), card=replace(card, data_hash=data_hash))).text != "cafe hide"


def big(length: int) -> Answers:
    stack = StackSpec(d_model=384, n_layers=6, n_heads=6)
    spec = DecoderOnlySpec(vocab_size=TOKENIZER.vocab_size, max_len=length, stack=stack)
    big_model = replace(trained_model(GPT), model=DecoderOnly(spec).eval())
    return Answers(big_model)


@pytest.mark.slow
def test_an_answer_for_six_layers_and_64_tokens_is_small_and_fast() -> None:
    answers = big(64)
    began = time.process_time()
    look = answers.answer("look", {"ask": {"ids": [7] * 64}})
    size = len(json.dumps(look, ensure_ascii=False))
    took = time.process_time() - began
    assert len(look["maps"]) == 6
    assert size < 2_000_000
    assert took < 1.0


@pytest.mark.slow
def test_256_tokens_come_block_by_block() -> None:
    answers = big(256)
    look = answers.answer("look", {"ask": {"ids": [7] * 256}})
    assert look["maps"] == {}
    assert len(json.dumps(look)) < 2_000_000
    block = answers.answer("block", {"ask": look["ask"], "name": "stack.blocks.5"})
    weights = block["tensors"]["stack.blocks.5.self_attention.weights"]
    assert (weights["shape"], weights["type"]) == ([6, 256, 256], "uint16")
    assert numbers(weights).sum(-1).max() == pytest.approx(1, abs=256 * weights["step"])
