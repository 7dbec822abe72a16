"""A classifier's run: its metrics computed independently, its batches, and that easy labels are learned."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import accumulate_gradients, validation_batches
from tiny_runs import figures, tiny_labels_recipe

from tercet.checkpoint import load_model
from tercet.config import UserError, merge
from tercet.evaluate.labels import score_labels
from tercet.models import EncoderOnly, build
from tercet.objectives import LabeledBatch
from tercet.training import parse_recipe, read_recipe, train
from tercet.training.tasks.labels import LabelsTask
from tercet.training.tasks.open_task import task_of

FinishedRun = Callable[[str], Path]


def make_task(folder: Path, changes: dict[str, Any] | None = None, /, **training: Any) -> LabelsTask:
    task = task_of(tiny_labels_recipe(folder, changes, **training), progress=False)
    assert isinstance(task, LabelsTask)
    return task


def text_rows(batches: list[LabeledBatch]) -> list[tuple[tuple[int, ...], int]]:
    """Return the tokens without padding and the label of each text."""
    texts = list[tuple[tuple[int, ...], int]]()
    for batch in batches:
        real = torch.ones_like(batch.inputs, dtype=torch.bool) if batch.token_mask is None else batch.token_mask
        rows = zip(batch.inputs, real, batch.targets.tolist(), strict=True)
        texts += [(tuple(row[is_real].tolist()), label) for row, is_real, label in rows]
    return texts


def test_figures_are_those_of_evaluate(finished_run: FinishedRun) -> None:
    out = finished_run("labels")
    task, trained_model = make_task(out.parent), load_model(out / "last")
    assert isinstance(trained_model.model, EncoderOnly)
    assert trained_model.model.spec.classifier is not None
    assert trained_model.model.spec.classifier.labels == tuple(sorted(("cat", "mouse", "cow", "duck", "bee")))
    assert trained_model.model.spec.masked_head is None
    scores = score_labels(trained_model.model, trained_model.tokenizer, task.corpus.validation)
    last_values = {name: column[-1][1] for name, column in figures(out).items() if column}
    assert last_values["val/accuracy"] == pytest.approx(scores.accuracy)
    assert last_values["val/f1"] == pytest.approx(scores.f1)
    best = load_model(out / "best").card
    accuracies = dict(figures(out)["val/accuracy"])
    assert best.step == max(accuracies, key=lambda step: accuracies[step])
    assert read_recipe(out).model == trained_model.model.spec


def test_an_epoch_sees_each_text_once_with_its_label(tmp_path: Path) -> None:
    task = make_task(tmp_path, batch_size=6, micro_batch_size=3)
    tokenizer = task.corpus.tokenizer
    steps = len(task.corpus.train) // 6
    assert len(task.corpus.train) % 6 == 0
    texts = sorted(text for step in range(steps) for text in text_rows(task.batches(step, 0, 1)))
    expected = list[tuple[tuple[int, ...], int]]()
    for line in (tmp_path / "labels.jsonl").read_text().splitlines():
        example = json.loads(line)
        ids = (tokenizer.bos_id, *tokenizer.encode(example["text"])[:6], tokenizer.eos_id)
        expected.append((ids, task.corpus.labels.index(example["label"])))  # pyright: ignore[reportArgumentType]
    assert set(texts) <= set(expected)
    assert len(set(texts)) == len(texts) == len(task.corpus.train)
    assert task.tokens_before(steps) == sum(len(ids) for ids, _ in texts)


def test_devices_share_a_step(tmp_path: Path) -> None:
    task = make_task(tmp_path, batch_size=12, micro_batch_size=2)
    for step in (0, 7):
        whole = text_rows(task.batches(step, 0, 1))
        rank_texts = text_rows([batch for rank in range(3) for batch in task.batches(step, rank, 3)])
        assert sorted(rank_texts) == sorted(whole)
    held_out = text_rows(validation_batches(task))
    assert len(held_out) == len(task.corpus.validation)


@pytest.mark.parametrize("over", ["texts", "tokens"])
def test_accumulation_equals_one_big_batch(tmp_path: Path, over: str) -> None:
    gradients = list[list[torch.Tensor]]()
    for micro in (16, 3):
        task = make_task(tmp_path, words_and_tags(tmp_path) if over == "tokens" else {}, micro_batch_size=micro)
        model = build(task.recipe.model, seed=1).eval()
        gradients.append(accumulate_gradients(task, model))
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


def words_and_tags(folder: Path) -> dict[str, Any]:
    """Return settings for sentences with a label for each word."""
    rng, lines = random.Random(0), list[str]()
    for _ in range(60):
        words = [rng.choice(["red", "blue", "cat", "cow", "runs"]) for _ in range(rng.randint(1, 6))]
        tags = ["color" if word in ("red", "blue") else "verb" if word == "runs" else "animal" for word in words]
        lines.append(json.dumps({"text": words, "label": tags}) + "\n")
    (folder / "tags.jsonl").write_text("".join(lines))
    return {"data": {"source": str(folder / "tags.jsonl"), "over": "tokens"}}


@pytest.mark.slow
def test_words_can_be_labeled(tmp_path: Path) -> None:
    changes = words_and_tags(tmp_path)
    out = train(tiny_labels_recipe(tmp_path, changes, max_steps=60, validate_every=30), tmp_path / "run", quiet=True)
    spec = load_model(out).model.spec
    assert getattr(spec, "classifier").over == "tokens"  # noqa: B009
    assert figures(out)["val/accuracy"][-1][1] > 0.95
    assert "labels" in (out / "samples" / "step-000060.txt").read_text()


@pytest.mark.slow
def test_easy_labels_are_learned(tmp_path: Path) -> None:
    """The label is the word that occurs twice, at any position."""
    rng, lines = random.Random(0), list[str]()
    names = ["lion", "bear", "frog", "hare"]
    for _ in range(800):
        words = rng.sample(names, 3)
        label = rng.choice(words)
        words.append(label)
        rng.shuffle(words)
        lines.append(json.dumps({"text": " ".join(words), "label": label}) + "\n")
    (tmp_path / "twice.jsonl").write_text("".join(lines))
    stack = {"d_model": 32, "n_layers": 2, "n_heads": 2, "d_ff": 64}
    base = {
        "task": {"kind": "labels", "batch_size": 32, "best_by": "f1"},
        "data": {"source": str(tmp_path / "twice.jsonl"), "tokenizer": {"kind": "words"}},
        "model": {"preset": "modern-encoder", "max_len": 8, "stack": stack},
    }
    training = {
        "max_steps": 150, "optimizer": {"kind": "muon"}, "precision": "fp32", "compile": "never",
        "accelerator": "cpu", "validate_every": 50, "save_every": 150,
    }  # fmt: skip
    out = train(parse_recipe(merge(base, {"training": training}), name="twice"), tmp_path / "run", quiet=True)
    assert load_model(out / "best").card.metrics["val/accuracy"] > 0.98


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": {"best_by": "bleu"}}, r"task\.best_by: .*'loss', 'accuracy', 'f1', 'pearson' or 'spearman'"),
        ({"task": {"validation_tokens": 8}}, "task: unknown key 'validation_tokens'"),
        ({"task": {"masking": {"rate": 0.2}}}, "task: unknown key 'masking'"),
        ({"data": {"over": "text"}}, "data.over: .*'texts' or 'tokens'"),
    ],
)
def test_incompatible_settings_are_rejected(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_task(tmp_path, changes)
