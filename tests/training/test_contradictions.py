"""Contradictory settings are rejected in one line with the key and the remedy."""

import re
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import NO_SAMPLES, TINY, tiny_pairs_recipe

from tercet.config import UserError
from tercet.training import parse_recipe, train
from tercet.training.tasks.open_task import task_of


def check_rejected(recipe: Any, folder: Path, words: str) -> None:
    """Check that `train` rejects the recipe before it creates a folder."""
    with pytest.raises(UserError, match=words) as error:
        train(recipe, folder / "run", quiet=True)
    assert "\n" not in str(error.value)
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"micro_batch_tokens": 60}, "batch_tokens=192 must be a multiple of micro_batch_tokens=60"),
        ({"micro_batch_tokens": 384}, "batch_tokens=192 must be a multiple of micro_batch_tokens=384"),
        ({"batch_tokens": 0, "micro_batch_tokens": None}, "batch_tokens=0 must be at least 1"),
        ({"devices": 193, "micro_batch_tokens": None}, "must be at least the number of devices: 193"),
        ({"devices": 2}, "192 in micro-batches of 64: 3 micro-batches cannot be shared evenly by 2 devices; set task"),
        ({"label_smoothing": 1.0}, r"label_smoothing=1\.0 must be at least 0 and below 1"),
        ({"label_smoothing": -0.1}, r"label_smoothing=-0\.1 must be at least 0 and below 1"),
        ({"ema": 0.0}, r"ema=0\.0 must be above 0 and below 1, or null"),
        ({"ema": 1.0}, r"ema=1\.0 must be above 0 and below 1"),
        ({"strategy": "fsdp"}, "ema requires the whole model on one device, but strategy=fsdp splits it; set strategy"),
        (
            {"strategy": "fsdp", "ema": None},
            r"task\.best_by=bleu requires the whole model on one device, but training\.strategy=fsdp",
        ),
        ({"strategy": "fsdp", "best_by": "loss"}, "ema requires the whole model on one device"),
        ({"validation_sentences": 0}, "best_by=bleu requires translations; leave out validation_sentences, or set it"),
        ({"warmup_steps": 0}, "the inverse_square_root schedule requires warmup_steps; set it, for example to 4000"),
        ({"best_by": "blue"}, "task.best_by: .*'loss' or 'bleu'"),
        ({"validation_sentences": -1}, "validation_sentences=-1 must be at least 0"),
    ],
)
def test_by_the_recipe(tmp_path: Path, training: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        tiny_pairs_recipe(tmp_path, **training)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("family", "kind", "words"),
    [
        ("pairs", "language", "task language trains decoder-only models, but this model is encoder-decoder; .*transla"),
        (
            "text",
            "masked",
            "task masked trains encoder-only models, but this model is decoder-only; set task to langua",
        ),
        (
            "labels",
            "language",
            "this model is encoder-only; set task to masked or labels or vectors, or choose another model",
        ),
    ],
)
def test_a_task_and_a_model_of_another(tmp_path: Path, family: str, kind: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        TINY[family](tmp_path, {"task": {"kind": kind}})


def test_a_recipe_needs_a_task() -> None:
    settings = {"data": {"source": "animals"}, "training": {"max_steps": 1}}
    with pytest.raises(
        UserError, match="mine requires a task: language, masked, translation, labels, chat, vectors; for example"
    ):
        parse_recipe(settings, name="mine")
    with pytest.raises(UserError, match="mine: task: unknown kind 'langauge'; did you mean 'language'"):
        parse_recipe({**settings, "task": "langauge"}, name="mine")
    assert parse_recipe({**settings, "task": "language"}, name="mine").model.family == "decoder-only"


def test_two_vocabularies_cannot_share_an_embedding(tmp_path: Path) -> None:
    changes = {"data": {"source_tokenizer": {"kind": "characters"}}}
    words = "model.share_embeddings requires one vocabulary; set it to false, or leave out source_tokenizer"
    check_rejected(tiny_pairs_recipe(tmp_path, changes), tmp_path, words)
    with pytest.raises(UserError, match="share_embeddings requires one vocabulary for both sides; set it to false"):
        tiny_pairs_recipe(tmp_path, {"model": {"source_vocab_size": 50}})


@pytest.mark.parametrize(
    ("training", "words"),
    [
        (
            {"batch_tokens": 14, "micro_batch_tokens": 7},
            "a pair may have 8 tokens per side, more than the 7 of a batch",
        ),
        (
            {"devices": 2, "micro_batch_tokens": None, "batch_tokens": 14},
            "8 tokens per side, more than the 7 of a batch",
        ),
    ],
)
def test_of_pairs_with_their_data(tmp_path: Path, training: dict[str, Any], words: str) -> None:
    check_rejected(tiny_pairs_recipe(tmp_path, **training), tmp_path, words)


def test_sentences_that_do_not_fit(tmp_path: Path) -> None:
    words = "every pair is longer than max_len=4 tokens, .*; set model.max_len higher"
    check_rejected(tiny_pairs_recipe(tmp_path, {"model": {"max_len": 4}}), tmp_path, words)
    task = task_of(tiny_pairs_recipe(tmp_path, {"model": {"max_len": 6}}), progress=False)
    assert "left out for exceeding max_len" in task.describe()


def test_any_number_of_devices_may_share_tokens(tmp_path: Path) -> None:
    """The default `batch_size` cannot be divided by three devices, but pairs do not use it."""
    recipe = tiny_pairs_recipe(tmp_path, devices=3)
    assert len(task_of(recipe, progress=False).batches(0, 1, 3)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [name if name in ("text", "pairs") else pytest.param(name, marks=pytest.mark.exhaustive) for name in TINY]
)
def test_post_norm_without_a_warm_up_is_warned_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    changes = {"decoder" if family == "pairs" else "stack": {"placement": "post"}}
    short: dict[str, Any] = {"max_steps": 1, "schedule": "constant", **NO_SAMPLES[family]}
    warning = "post-norm without warm-up seldom learns .*; set training.warmup_steps, such as 400"
    for model, warmup in ((changes, 0), (changes, 2), ({}, 0)):
        recipe = TINY[family](tmp_path, {"model": model}, **short, warmup_steps=warmup)
        out = train(recipe, tmp_path / f"{family} {warmup} {len(model)}")
        warnings = [line for line in capsys.readouterr().err.splitlines() if "post-norm" in line]
        assert len(warnings) == (model == changes and not warmup)
        if warnings:
            assert re.search(warning, warnings[0])
            train(recipe, out)
            assert "post-norm" not in capsys.readouterr().err
