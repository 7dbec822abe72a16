"""The report on the validation part at the start of a run, and the equality of validation loss and evaluation."""

import json
from pathlib import Path
from typing import Any

import pytest
from by_hand import validation_batches
from tiny_runs import tiny_chat_recipe, tiny_labels_recipe, tiny_pairs_recipe, tiny_recipe

from tercet.evaluate.pairs import score_pairs
from tercet.models import EncoderDecoder, build
from tercet.training.tasks.open_task import task_of
from tercet.training.tasks.translation import TranslationTask

LONG = "the red cat is here again and sleeps and eats and sings well and is here again"
HELD_OUT = [
    ("the red cat sleeps", "die rote Katze schläft"),
    *[(LONG + " cow" * n, LONG + " Kuh" * n) for n in range(3)],
]


def held_out_file(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path = folder / "held_out.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"data": {"validation": {"kind": "held_out", "source": str(path)}}}


def pairs_task(folder: Path, **changes: Any) -> TranslationTask:
    (folder / "held_out.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in HELD_OUT))
    data = {"validation": {"kind": "held_out", "source": str(folder / "held_out.tsv")}, **changes}
    model = {"share_embeddings": "source_tokenizer" not in changes}
    task = task_of(tiny_pairs_recipe(folder, {"data": data, "model": model}), progress=False)
    assert isinstance(task, TranslationTask)
    return task


@pytest.mark.parametrize("changes", [{}, {"source_bos": True, "source_tokenizer": {"kind": "words"}}])
def test_pairs_longer_than_the_context_count_in_the_validation_loss_as_in_evaluate(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    task = pairs_task(tmp_path, **changes)
    model = build(task.recipe.model, seed=3).eval()
    assert isinstance(model, EncoderDecoder)
    losses = [task.validate_batch(model, batch)[0] for batch in validation_batches(task)]
    count = sum(int(loss.count) for loss in losses)
    nats = sum(float(loss.plain) for loss in losses) / count
    scores = score_pairs(model, task.corpus.tokenizer, HELD_OUT, source_tokenizer=task.corpus.source_tokenizer)
    assert [score.truncated for score in scores] == [False, True, True, True]
    assert count == sum(score.tokens for score in scores)
    assert nats == pytest.approx(-sum(score.logprob for score in scores) / count, rel=1e-5)


def test_pairs_that_are_cut_are_counted(tmp_path: Path) -> None:
    task = pairs_task(tmp_path)
    assert task.describe().endswith(
        "padding, 4 validation pairs (3 truncated to max_len, 1 near duplicate of training pairs)"
    )


def test_texts_that_are_cut_are_counted(tmp_path: Path) -> None:
    rows = [{"text": "the Red cat, sleeps", "label": "cat"}, {"text": LONG, "label": "cat"}]
    task = task_of(tiny_labels_recipe(tmp_path, held_out_file(tmp_path, rows)), progress=False)
    assert task.describe().endswith("2 validation texts (1 truncated to max_len, 1 near duplicate of training texts)")


def test_conversations_that_are_cut_or_left_out_are_counted(tmp_path: Path) -> None:
    def turns(prompt: str, answer: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]}

    rows = [turns("mouse", "Maus"), turns("cat", f"{LONG} {LONG}"), turns(f"{LONG} {LONG} {LONG}", "Katze")]
    task = task_of(tiny_chat_recipe(tmp_path, held_out_file(tmp_path, rows)), progress=False)
    expected_report = (
        "3 validation conversations (1 left out for answers that start after max_len, 1 truncated to max_len)"
    )
    assert expected_report in task.describe()


def test_validation_documents_in_training_are_counted(tmp_path: Path) -> None:
    changes = {"data": {"validation": {"kind": "held_out", "source": str(tmp_path / "text.txt")}}}
    task = task_of(tiny_recipe(tmp_path, changes), progress=False)
    assert task.describe().endswith("1 validation document (1 near duplicate of training documents)")
    assert "validation" not in task_of(tiny_recipe(tmp_path), progress=False).describe()
