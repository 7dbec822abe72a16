"""Calls on a sealed part: the scores, the record of the calls, tampering, leaks, and two calls at once."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_translator import TOKENIZER, small

import tercet
from own_cache import fill_cache
from tercet.checkpoint import Card, load_model, save_model
from tercet.config import UserError
from tercet.data.sealing.seal_record import SEAL, read_seal
from tercet.evaluate import evaluation_of, paired_differences
from tercet.evaluate.sealed import evaluate_sealed as module
from tercet.evaluate.sealed.evaluate_sealed import evaluate_sealed, hash_weights
from tercet.models import Classifier, DecoderOnly, DecoderOnlySpec, EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.settings_yaml import write_yaml
from tercet.storage import lock_folder, read_sealed_json
from tercet.tokens import Characters, Tokenizer, WordPiece

TEXTS = [f"line {'abcde'[n % 5] * (n % 9 + 1)} of {n}" for n in range(60)]
STACK = StackSpec(d_model=24, n_layers=1, n_heads=2)
LINES = {"documents": "line"}


def save_gpt(name: str, source: str | None, *, seed: int = 0, eos: bool = False, **settings: Any) -> str:
    """Save a tiny language model in the folder of a run, whose recipe contains the source of its training data."""
    tokenizer = Tokenizer.train(Characters(eos=eos), ["".join(f"{text}\n" for text in TEXTS)])
    model = DecoderOnly(DecoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=32, stack=STACK), seed=seed)
    recipe = {} if source is None else {"data": {"source": source, **settings}}
    save_model(Path(name, "best"), model, tokenizer, Card(recipe=recipe))
    Path(name, "recipe.yaml").write_text(write_yaml(recipe))
    return name


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter a folder with a sealed part of lines, and two models that were trained on the rest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", fill_cache(tmp_path / "cache"))
    Path("all.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    tercet.seal_data("all.txt", "sealed", fraction=0.5, calls=3, settings=LINES)
    for seed, name in enumerate(("first", "second")):
        save_gpt(name, "sealed/train.txt", seed=seed, **LINES)


def calls() -> tuple[dict[str, Any], ...]:
    return read_seal(Path("sealed")).calls


def test_scores_are_those_of_the_test_file_and_differences_are_paired() -> None:
    result = evaluate_sealed(["first", "second"], "sealed")
    evaluations: list[Any] = [evaluation_of(load_model(Path(name))) for name in ("first", "second")]
    data = [evaluation.load("sealed/test.txt") for evaluation in evaluations]
    assert [model.scores for model in result.models] == [
        evaluation.score(part) for evaluation, part in zip(evaluations, data, strict=True)
    ]
    first, second = (evaluation.weighted(part) for evaluation, part in zip(evaluations, data, strict=True))
    assert result.models[0].compared == {}
    assert result.models[1].compared == paired_differences(second, first)
    assert len(result.models[1].compared["bits_per_byte"].interval) == 2
    assert (result.call, result.allowed_calls, result.models_scored, result.unit) == (1, 3, 2, "documents")
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict() | {
        "models": json.loads(json.dumps(result.to_dict()["models"]))
    }


def test_a_call_is_recorded_with_the_models_and_their_scores() -> None:
    result = evaluate_sealed(["first", "second"], "sealed")
    (call,) = calls()
    assert (call["number"], call["state"], call["date"][-1]) == (1, "complete", "Z")
    for model, scored, name in zip(call["models"], result.models, ("first", "second"), strict=True):
        assert model["model"] == name
        assert model["scores"]["bits_per_byte"] == scored.scores.to_dict()["bits_per_byte"]
        assert model["weights_sha256"] == hash_weights(load_model(Path(name)).model)
        assert model["parameters"] == load_model(Path(name)).n_parameters
        assert model["leaked"] == 0
    first, second = call["models"]
    assert first["weights_sha256"] != second["weights_sha256"]
    assert first["recipe_sha256"] == second["recipe_sha256"]


@pytest.mark.slow
def test_no_more_calls_than_allowed_are_made() -> None:
    scored = [evaluate_sealed(names, "sealed").models_scored for names in (["first"], ["first", "second"], ["second"])]
    assert scored == [1, 3, 4]
    with pytest.raises(
        UserError, match=r"sealed: all 3 allowed calls are used .*; seal new data with `tercet data seal`"
    ):
        evaluate_sealed(["first"], "sealed")
    assert len(calls()) == 3


def test_a_call_that_fails_before_the_first_score_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        assert [call["state"] for call in calls()] == ["started"]  # recorded first
        raise UserError("no memory")

    with pytest.raises(UserError, match="no such folder"):
        evaluate_sealed(["first", "frist"], "sealed")
    monkeypatch.setattr(module, "_score", fail)
    with pytest.raises(UserError, match="no memory"):
        evaluate_sealed(["first"], "sealed")
    assert calls() == ()


@pytest.mark.parametrize(("error", "state"), [(KeyboardInterrupt, "started"), (RuntimeError, "failed")])
def test_a_call_that_ends_after_a_score_counts(
    error: type[BaseException], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    score: Callable[..., Any] = module._score

    def fail_at_second(path: Path, *arguments: Any, **settings: Any) -> Any:
        if path.name == "second":
            raise error
        return score(path, *arguments, **settings)

    monkeypatch.setattr(module, "_score", fail_at_second)
    with pytest.raises(error):
        evaluate_sealed(["first", "second"], "sealed")
    (call,) = calls()
    assert call["state"] == state
    assert [model["scores"] is None for model in call["models"]] == [state == "started", True]


def test_a_changed_test_part_and_an_edited_record_are_rejected() -> None:
    record, test = Path("sealed", SEAL), Path("sealed/test.txt")
    original = record.read_bytes()
    evaluate_sealed(["first"], "sealed")
    edited = record.read_text().replace('"allowed_calls": 3', '"allowed_calls": 4')
    record.write_text(edited)
    with pytest.raises(UserError, match=r"sealed/seal.json was edited or is damaged"):
        evaluate_sealed(["first"], "sealed")
    record.write_bytes(original)
    test.write_text(test.read_text() + "another line\n")
    with pytest.raises(UserError, match=r"sealed/test.txt has changed since it was sealed; restore the original file"):
        evaluate_sealed(["first"], "sealed")
    test.unlink()
    with pytest.raises(UserError, match=r"cannot read sealed/test.txt"):
        evaluate_sealed(["first"], "sealed")
    with pytest.raises(UserError, match=r"first has no seal.json; pass a folder that `tercet data seal` has written"):
        evaluate_sealed(["first"], "first")
    assert calls() == ()


@pytest.mark.slow
def test_a_second_call_at_the_same_time_is_rejected_and_no_record_is_lost() -> None:
    with lock_folder(Path("sealed")), pytest.raises(UserError, match=r"in use by process .*; repeat this call when"):
        evaluate_sealed(["first"], "sealed")
    done, errors = list[int](), list[UserError]()

    def call() -> None:
        try:
            done.append(evaluate_sealed(["first"], "sealed").call)
        except UserError as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done
    assert len(done) + len(errors) == 3
    assert len(calls()) == len(done) == len({*done})


def leaks(name: str, folder: str = "sealed") -> tuple[int | None, str]:
    facts = evaluate_sealed([name], folder).models[0].facts
    return facts.leaked, " | ".join(facts.notes)


@pytest.mark.slow
def test_test_documents_in_the_training_data_are_counted() -> None:
    n_test = len(Path("sealed/test.txt").read_text().splitlines())
    save_gpt("whole", "all.txt")  # trained on the lines as one document
    expected = "whole was trained on all.txt, not on sealed/train.txt"
    assert leaks("whole") == (
        n_test,
        f"{expected} | whole was trained on data that contains {n_test} of the {n_test} documents of the test part",
    )
    copied = Path("sealed/train.txt").read_text() + Path("sealed/test.txt").read_text().partition("\n")[0]
    Path("copied.txt").write_text(copied)
    assert leaks(save_gpt("copied", "copied.txt", **LINES))[0] == 1
    held_out = {"validation": {"kind": "held_out", "source": "sealed/test.txt"}}
    assert leaks(save_gpt("held_out", "sealed/train.txt", **LINES, **held_out))[0] == n_test


@pytest.mark.slow
def test_models_of_unknown_data_have_a_note() -> None:
    assert leaks(save_gpt("unknown", None)) == (
        None, "unknown does not name its training data, which is therefore not compared with the test part"
    )  # fmt: skip
    leaked, note = leaks(save_gpt("gone", "gone.txt"))
    assert leaked is None
    assert "the training data of gone is not compared with the test part: no such file or folder: gone.txt" in note


@pytest.mark.slow
def test_a_running_text_is_compared_in_passages() -> None:
    Path("book.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    tercet.seal_data("book.txt", "running", fraction=0.4)
    assert leaks(save_gpt("honest", "running/train.txt"), "running") == (0, "")
    Path("shifted.txt").write_text("\n".join(["another line", *TEXTS[:-8]]))
    leaked, note = leaks(save_gpt("shifted", "shifted.txt"), "running")
    assert leaked == 3
    assert "contains 3 of the 4 passages of the test part" in note


@pytest.mark.slow
def test_models_must_fit_the_data_and_each_other() -> None:
    words = Tokenizer.train(WordPiece(vocab_size=80), TEXTS)
    masked = EncoderOnlySpec(vocab_size=words.vocab_size, max_len=24, stack=STACK)
    save_model(Path("bert"), EncoderOnly(masked), words, Card())
    labels = EncoderOnlySpec(
        vocab_size=words.vocab_size, max_len=24, stack=STACK, masked_head=None, classifier=Classifier(labels=("a", "b"))
    )
    save_model(Path("labels"), EncoderOnly(labels), words, Card())
    with pytest.raises(UserError, match="labels is a classifier, but sealed contains text; pass other models"):
        evaluate_sealed(["first", "labels"], "sealed")
    with pytest.raises(UserError, match="cannot compare a language model and a masked language model"):
        evaluate_sealed(["first", "bert"], "sealed")
    assert evaluate_sealed(["bert"], "sealed").models[0].scores.to_dict()["masked_loss"] > 0


@pytest.mark.slow
def test_classifiers_are_scored_and_compared() -> None:
    words = Tokenizer.train(WordPiece(vocab_size=80), TEXTS)
    labels = EncoderOnlySpec(
        vocab_size=words.vocab_size, max_len=24, stack=STACK, masked_head=None, classifier=Classifier(labels=("a", "b"))
    )
    save_model(Path("labels"), EncoderOnly(labels), words, Card())
    Path("labels.csv").write_text("text,label\n" + "".join(f"{text},{'ab'[n % 2]}\n" for n, text in enumerate(TEXTS)))
    tercet.seal_data("labels.csv", "labeled", count=20)
    result = evaluate_sealed(["labels", "labels"], "labeled")
    assert result.models[0].scores == evaluation_of(load_model(Path("labels"))).evaluate("labeled/test.csv")
    assert result.models[1].compared["accuracy"].difference == 0


@pytest.mark.slow
def test_models_with_other_tokens_have_scores_but_no_difference() -> None:
    Path("book.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    tercet.seal_data("book.txt", "running", fraction=0.4)
    save_gpt("eos", "running/train.txt", eos=True)
    result = evaluate_sealed(["first", "eos"], "running")
    assert result.models[1].compared == {}
    assert result.models[1].facts.notes[-1].startswith("eos has other tokens or labels than first")
    assert read_sealed_json(Path("running", SEAL))["calls"][0]["state"] == "complete"


@pytest.mark.slow
def test_translators_are_compared_by_likelihood_bleu_and_chrf() -> None:
    for name, letter in (("source.txt", "a"), ("target.txt", "b")):
        Path(name).write_text("".join(f"{letter * (n % 5 + 1)} {'cdefghij'[n % 8]}\n" for n in range(40)))
    tercet.seal_data("source.txt", "pairs", target="target.txt", count=4)
    for seed, name in enumerate(("one", "other")):
        save_model(Path(name), small(seed=seed), TOKENIZER, Card())
    result = evaluate_sealed(["one", "other"], "pairs")
    expected: Any = evaluation_of(load_model(Path("one"))).evaluate(
        source="pairs/test.source", target="pairs/test.target"
    )
    assert result.models[0].scores == expected
    assert result.models[0].translation is None
    other = result.models[1]
    assert {*other.compared} == {"nll_nats_per_token"}
    assert other.translation is not None
    assert other.translation.bleu == pytest.approx(other.scores.to_dict()["bleu"] - expected.bleu)
