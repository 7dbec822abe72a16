"""Runs of text vectors: learning, evaluation, embedding, export, and rejected settings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import NO_DROPOUT, PAIRS, tiny_vectors_recipe

from tercet.checkpoint import load_model
from tercet.checkpoint.conversion import convert
from tercet.checkpoint.metrics import read_metrics
from tercet.config import UserError
from tercet.encoding import encode_texts
from tercet.evaluate import VectorsEvaluation, evaluation_of
from tercet.evaluate.retrieval import MEASURES
from tercet.run import Run
from tercet.serve.engine.batch_tasks import BatchTasks, EncodedRow, PoolingOptions
from tercet.training import train
from tercet.training.loop.out_of_memory import remedies
from tercet.training.planning.micro_batch import smallest_micro_batch
from tercet.training.recipe.recipe import VectorsRecipe
from tercet.training.tasks.vectors import VectorsTask

FinishedRun = Callable[[str], Path]


def evaluate(folder: Path, **settings: Any) -> Any:
    evaluation = evaluation_of(load_model(folder))
    assert isinstance(evaluation, VectorsEvaluation)
    return evaluation.evaluate(**settings)


@pytest.mark.slow
def test_vectors_learn_to_find_translations(tmp_path: Path) -> None:
    changes = {"model": {"stack": {"dropout": NO_DROPOUT}}}
    steps = {"max_steps": 150, "validate_every": 150, "save_every": 150}
    recipe = tiny_vectors_recipe(tmp_path, changes, pooling="mean", **steps)
    out = train(recipe, tmp_path / "run", quiet=True)
    scores = evaluate(out)
    assert (scores.queries, scores.documents) == (10, 14)  # 10 documents and 4 hard negatives
    assert scores.recall_at_1 > 0.7  # by chance 0.07
    metrics = read_metrics(out / "metrics.csv")
    for name in MEASURES:
        assert metrics[f"val/{name}"][-1] == (150, pytest.approx(getattr(scores, name), abs=1e-6))
    assert "closest" in next((out / "samples").iterdir()).read_text(encoding="utf-8")


@pytest.mark.slow
def test_finished_run_embeds_with_its_pooling_and_sizes(finished_run: FinishedRun, tmp_path: Path) -> None:
    folder = finished_run("vectors")
    trained_model = load_model(folder)
    assert (trained_model.task, trained_model.verbs) == ("vectors", ("embed", "evaluate"))
    assert (trained_model.sentence.pooling, trained_model.sentence.sizes) == ("first", (8,))
    run = Run(trained_model=trained_model)
    texts = [document for _, document in PAIRS[:5]]
    vectors = run.embed(texts)
    assert np.array_equal(vectors, run.embed(texts, pooling="first"))
    assert not np.allclose(vectors, run.embed(texts, pooling="mean"))
    small = vectors[:, :8] / np.linalg.norm(vectors[:, :8], axis=1, keepdims=True)
    assert np.allclose(run.embed(texts, size=8), small, atol=1e-6)
    encoder = trained_model.require("embed")
    rows = [
        EncodedRow(tuple(ids)) for ids in encode_texts(encoder.tokenizer, texts, max_len=encoder.model.max_len).rows
    ]
    served = np.stack(BatchTasks(trained_model).embed(rows, PoolingOptions(pooling="first", size=8)))
    assert np.allclose(served / np.linalg.norm(served, axis=1, keepdims=True), small, atol=1e-6)
    convert(folder, tmp_path / "copy")
    assert load_model(tmp_path / "copy").sentence == trained_model.sentence


@pytest.mark.slow
def test_other_data_is_evaluated_with_the_fields_of_training(finished_run: FinishedRun, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("query,document,negative\n" + "".join(f"{a},{b},\n" for a, b in PAIRS[:30]))
    scores = evaluate(finished_run("vectors"), data=path)
    assert (scores.queries, scores.documents) == (30, 30)
    assert set(scores.ndcg_by_size) == {"8"}
    assert json.loads(json.dumps(scores.to_dict()))["queries"] == 30
    path.write_text("query,document\na,b\n")
    with pytest.raises(UserError, match="negative"):
        evaluate(finished_run("vectors"), data=path)


@pytest.mark.slow
def test_imported_encoders_need_data(finished_run: FinishedRun, tmp_path: Path) -> None:
    folder = finished_run("vectors")
    card = folder / "best" / "card.json"
    recipe = json.loads(card.read_text())
    trained_model = load_model(folder)
    object.__setattr__(trained_model.card, "recipe", {})
    try:
        with pytest.raises(UserError, match="does not contain its training data settings"):
            evaluation_of(trained_model).evaluate()
    finally:
        object.__setattr__(trained_model.card, "recipe", recipe["recipe"])


def test_a_micro_batch_has_the_negatives_of_its_pairs(tmp_path: Path) -> None:
    recipe = tiny_vectors_recipe(tmp_path)
    assert isinstance(recipe, VectorsRecipe)
    task = VectorsTask(recipe)
    batches = task.batches(0, rank=0, world=1)
    assert [len(batch.queries) for batch in batches] == [8, 8]
    assert all(len(batch.documents) >= 8 for batch in batches)
    assert sum(len(batch.documents) for batch in batches) > 16
    halves = [task.batches(0, rank=rank, world=2)[0] for rank in (0, 1)]
    for whole, half in zip(batches, halves, strict=True):
        assert torch.equal(whole.documents, half.documents)
    tokens = sum(
        len(part.flatten()) if mask is None else int(mask.sum())
        for batch in batches
        for part, mask in ((batch.queries, batch.query_mask), (batch.documents, batch.document_mask))
    )
    assert task.tokens_before(1) == tokens


def test_micro_batches_are_never_halved(tmp_path: Path) -> None:
    recipe = tiny_vectors_recipe(tmp_path)
    assert smallest_micro_batch(recipe) == 8
    assert "task.micro_batch_size" in remedies(recipe)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": {"sizes": [16]}}, r"task\.sizes: 16 must be below the width of the model, d_model=16"),
        ({"task": {"sizes": [8, 4]}}, "in ascending order"),
        ({"task": {"micro_batch_size": 1}}, "needs the document of another query"),
        ({"task": {"micro_batch_size": "auto"}}, "micro_batch_size"),
        ({"task": {"temperature": 0}}, "temperature"),
        ({"training": {"label_smoothing": 0.1}}, "label_smoothing does not apply"),
        ({"training": {"strategy": "fsdp"}}, "best_by=ndcg_at_10 requires the whole model"),
        ({"model": {"max_len": 2}}, "max_len=2 is too small"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        VectorsTask(tiny_vectors_recipe(tmp_path, changes))  # type: ignore[arg-type]
