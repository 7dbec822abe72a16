"""Every packaged recipe builds, and takes a step at reduced sizes."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import (
    tiny_labels_recipe,
    tiny_numbers_recipe,
    tiny_pairs_recipe,
    tiny_recipe,
    tiny_sets_recipe,
    tiny_vectors_recipe,
)

from tercet.checkpoint import load_model
from tercet.config import UserError
from tercet.data import PAIR_DATASETS
from tercet.models import DecoderOnly, build
from tercet.settings_yaml import parse_yaml, write_yaml
from tercet.training import Recipe, load_recipe, parse_recipe, recipe_names, recipe_text, train
from tercet.training.loop.metrics_logger import COLUMNS
from tercet.training.recipe.files import recipes_from_scratch
from tercet.training.recipe.recipe import LabelsRecipe

ONE_STEP: dict[str, Any] = {
    "max_steps": 1,
    "max_epochs": None,
    "max_hours": None,
    "batch_ramp": None,
    "accelerator": "cpu",
}
STACK = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16}
SMALL: dict[str, Any] = {
    "data": {"tokenizer": {"kind": "characters", "byte_fallback": True, "pad": True}, "validation": {"kind": "tail"}},
    "model": {"max_len": 8, "stack": STACK},
    "task": {"batch_size": 2, "micro_batch_size": 1, "validation_tokens": 64, "sample_tokens": 3},
    "training": ONE_STEP,
    "logging": {"tracker": "none"},
}
SMALL_TRANSLATOR: dict[str, Any] = {
    "model": {"max_len": 32, "encoder": STACK, "decoder": STACK},
    "task": {"batch_tokens": 64, "validation_sentences": 2},
    "training": {**ONE_STEP, "devices": 1},
}
SMALL_CLASSIFIER: dict[str, Any] = {
    "data": {"tokenizer": {"kind": "wordpiece", "vocab_size": 100}, "validation": {"kind": "drawn", "count": 10}},
    "model": {"max_len": 12, "stack": STACK},
    "task": {"batch_size": 2, "micro_batch_size": 1},
    "training": ONE_STEP,
}
# Fine-tuning recipes are tested in test_finetuning.py.
RECIPES = recipes_from_scratch()
ENCODERS = [name for name in RECIPES if load_recipe(name).model.family == "encoder-only"]
CLASSIFIERS = [name for name in ENCODERS if load_recipe(name).task.kind == "labels"]
SEARCHERS = [name for name in ENCODERS if load_recipe(name).task.kind == "vectors"]
RERANKERS = [name for name in CLASSIFIERS if getattr(load_recipe(name).data, "negatives")]  # noqa: B009
TRANSLATORS = [name for name in RECIPES if load_recipe(name).task.kind == "translation"]
REGRESSIONS = [name for name in CLASSIFIERS if getattr(load_recipe(name).data, "problem_type") == "regression"]  # noqa: B009
WRITERS = {
    "single_label_classification": tiny_labels_recipe,
    "multi_label_classification": tiny_sets_recipe,
    "regression": tiny_numbers_recipe,
}
# A tokenizer trained on the toy's sixty words has fewer tokens.
WORDS = {"kind": "words", "min_count": 1, "vocab_size": 32_000}


def small(name: str, folder: Path) -> Recipe:
    """Return the recipe with its own choices, at toy sizes and on toy data."""
    if name in CLASSIFIERS:
        kind = load_recipe(name).data.problem_type  # pyright: ignore[reportAttributeAccessIssue]
        write = tiny_vectors_recipe if name in RERANKERS else WRITERS[kind]
        source = write(folder).data.source  # writes the texts
        data = {**SMALL_CLASSIFIER["data"], "source": source}
        return load_recipe(name, {**SMALL_CLASSIFIER, "data": data})
    if name in SEARCHERS:
        data = {**SMALL_CLASSIFIER["data"], "source": tiny_vectors_recipe(folder).data.source}
        return load_recipe(name, {**SMALL_CLASSIFIER, "data": data, "task": {"batch_size": 2}})
    if name not in TRANSLATORS:
        tiny_recipe(folder)  # writes the text
        tokenizer = SMALL["data"]["tokenizer"]
        if name in ENCODERS:
            tokenizer = {**tokenizer, "bos": True, "mask": True}
        data = {**SMALL["data"], "tokenizer": tokenizer, "source": str(folder / "text.txt")}
        return load_recipe(name, {**SMALL, "data": data})
    tiny_pairs_recipe(folder)
    data = {
        "source": str(folder / "pairs.tsv"),
        "target": None,
        "source_language": None,
        "target_language": None,
        "validation": {"kind": "drawn", "count": 6},
        "tokenizer": WORDS,
    }
    if load_recipe(name).data.source_tokenizer:  # pyright: ignore[reportAttributeAccessIssue]
        data["source_tokenizer"] = WORDS
    return load_recipe(name, {**SMALL_TRANSLATOR, "data": data})


@pytest.mark.parametrize("name", RECIPES)
def test_it_builds_at_its_own_size(name: str) -> None:
    recipe = load_recipe(name)
    assert parse_recipe(parse_yaml(write_yaml(recipe), name=name), name=name) == recipe
    assert recipe_names()[name]  # its first line is a description
    assert recipe_text(name).startswith("# ")
    source_size: dict[str, Any] = {"source_size": 100} if getattr(recipe.data, "source_tokenizer", None) else {}
    if isinstance(recipe, LabelsRecipe):
        recipe = recipe.with_labels(("a", "b", "c")[: 1 if name in REGRESSIONS else 3])
    with torch.device("meta"):
        build(recipe.with_vocabulary(recipe.model.vocab_size or 100, **source_size).model)


# One of each task and kind of label, and those with settings that no other recipe has
USUAL = (
    "demo", "grokking", "induction", "nanogpt-cpu-modern", "original-decoder", "numbers", "multi30k-de-en",
    "bert-shakespeare", "cramming", "animals", "classify-docstring-code", "regress-docstring-lines",
    "rerank-docstrings", "vectors-docstrings",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.exhaustive) for name in RECIPES]
)
def test_it_takes_a_step(name: str, tmp_path: Path) -> None:
    out = train(small(name, tmp_path), tmp_path / "run", quiet=True)
    assert load_model(out).card.step == 1
    with (out / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1"]
    assert list(rows[0]) == list(COLUMNS)
    assert all(float(rows[0][name]) > 0 for name in ("train/loss", "val/loss", "lr", "grad_norm", "seconds"))
    spec = load_recipe(name).training
    assert bool(rows[0]["val/bleu"]) == (name in TRANSLATORS)
    assert bool(rows[0]["val/accuracy"]) == (name in ENCODERS and name not in (*REGRESSIONS, *SEARCHERS))
    assert bool(rows[0]["val/f1"]) == (name in CLASSIFIERS and name not in REGRESSIONS)
    assert bool(rows[0]["val/spearman"]) == (name in REGRESSIONS)
    assert bool(rows[0]["val/ndcg_at_10"]) == (name in SEARCHERS)
    assert bool(rows[0]["val/unigram_entropy"]) == (name in ENCODERS and name not in (*CLASSIFIERS, *SEARCHERS))
    assert bool(rows[0]["train/nll"]) == bool(spec.label_smoothing)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_translator_takes_a_step_on_its_own_data(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(name, SMALL_TRANSLATOR)
    monkeypatch.setenv("TERCET_OFFLINE", "1")
    if recipe.data.source != "numbers" and not os.environ.get("TERCET_DATA"):
        pytest.skip(f"TERCET_DATA is not set: no {recipe.data.source} to read")
    if recipe.data.source not in PAIR_DATASETS:
        pytest.skip(f"{recipe.data.source} is the reader's to bring")
    out = train(recipe, tmp_path / "run", quiet=True)
    assert load_model(out).card.step == 1
    text = (out / "samples" / "step-000001.txt").read_text()
    assert text.count("reference") == 5


def test_an_unknown_recipe() -> None:
    with pytest.raises(UserError, match="unknown recipe 'animal'; did you mean 'animals'"):
        load_recipe("animal")


def test_its_own_gpt2_parameters() -> None:
    recipe = load_recipe("gpt2-124m")
    assert recipe.model.vocab_size == 50257
    with torch.device("meta"):
        model = DecoderOnly(recipe.model)
    padded = 47 * 768  # 50,257 rows rounded up to a multiple of 64
    assert sum(p.numel() for p in model.parameters()) == 124_439_808 + padded
