"""A reranker's run: it learns an exact rule that no word search knows, and is evaluated on its held-out queries."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import tiny_labels_recipe

import tercet
from tercet.cli.main import main
from tercet.config import UserError
from tercet.encoding import rerank
from tercet.evaluate import RerankEvaluation, RetrievalScores, evaluation_of
from tercet.training import train

SOUNDS = {"cat": "meows", "dog": "barks", "cow": "moos", "bee": "hums", "duck": "quacks", "mouse": "squeaks"}
PLACES = ("here", "there", "inside", "outside", "today", "now", "often", "again")
ANIMALS = tuple(SOUNDS)


def write_queries(path: Path) -> Path:
    """Write queries that share no word with their document, the sound of the animal in the query."""
    rows = [
        {
            "query": f"which {animal} is {place}",
            "document": f"it {sound}",
        }
        for place in PLACES
        for animal, sound in SOUNDS.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("bm25s")
    folder = tmp_path_factory.mktemp("reranker")
    changes: dict[str, Any] = {
        "task": {"best_by": "f1", "batch_size": 32, "micro_batch_size": 32},
        "data": {
            "source": str(write_queries(folder / "queries.jsonl")), "text_field": "query", "pair_field": "document",
            "negatives": 3, "problem_type": "multi_label_classification", "label_fields": ["relevant"],
            "validation": {"kind": "drawn", "count": 40},
        },
        "model": {"max_len": 12, "stack": {"d_model": 32, "n_layers": 1, "n_heads": 2, "d_ff": 64}},
    }  # fmt: skip
    recipe = tiny_labels_recipe(
        folder, changes, max_steps=300, validate_every=150, save_every=300, optimizer={"kind": "adamw", "lr": 1e-2}
    )
    return train(recipe, folder / "run", quiet=True)


@pytest.mark.slow
def test_it_learns_a_rule_that_bm25_does_not_know(reranker: Path) -> None:
    run = tercet.load(reranker)
    documents = [f"it {sound}" for sound in SOUNDS.values()]
    model = run.trained_model.require("classify").model
    for number, animal in enumerate(ANIMALS):
        ranking = rerank(model, run.tokenizer, f"which {animal} is here", documents)
        assert ranking[0].index == number
        assert ranking[0].score > 0.8
        assert ranking[1].score < 0.2
    evaluation = evaluation_of(run.trained_model)
    assert isinstance(evaluation, RerankEvaluation)
    scores = evaluation.evaluate()
    assert isinstance(scores, RetrievalScores)
    assert scores.bm25 is not None
    assert scores.recall_at_1 > scores.bm25["recall_at_1"] + 0.3


@pytest.mark.slow
def test_evaluate_reads_the_flags_of_a_reranker(reranker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, data = str(reranker), str(reranker.parent / "queries.jsonl")
    assert main(["evaluate", name, "--data", data, "--candidates", "4", "--json", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["queries"], scores["reranked"]) == (len(PLACES) * len(SOUNDS), 4)
    assert main(["evaluate", name, "--data", data, "--encoding", "utf-88"]) == 2
    assert "unknown encoding 'utf-88'" in capsys.readouterr().err
    assert main(["evaluate", name, "--mask-rate", "0.1", "--device", "cpu"]) == 2
    assert "available: --data, --candidates" in capsys.readouterr().err


@pytest.mark.slow
def test_classify_prints_the_most_relevant_documents(
    reranker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "found.csv"
    table.write_text("id,text\n" + "".join(f"{animal},it {sound}\n" for animal, sound in SOUNDS.items()))
    command = ["classify", str(reranker), "--query", "which dog is now", "--input", str(table), "--device", "cpu"]
    assert main([*command, "--top", "2"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines[0][1:] == ["dog", "it barks"]
    assert len(lines) == 2
    assert float(lines[0][0]) > float(lines[1][0])
    assert main([*command, "--query", "which bee is now", "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["documents"][0]["id"] for answer in answers] == ["dog", "bee"]
    assert [answer["documents"][0]["index"] for answer in answers] == [1, 3]
    assert all(len(answer["documents"]) == len(SOUNDS) for answer in answers)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_classify_reads_pairs(form: str, reranker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"query": "which dog is now", "document": f"it {sound}"} for sound in SOUNDS.values()]
    path = tmp_path / f"pairs.{form}"
    if form == "csv":
        path.write_text("document,query\n" + "".join(f"{row['document']},{row['query']}\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["classify", str(reranker), "--input", str(path), "--text-field", "query", "--device", "cpu", "--json"]
    assert main([*command, "--pair-field", "document"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["pair"] for answer in answers] == [row["document"] for row in rows]
    assert [bool(answer["labels"]) for answer in answers] == [sound == "barks" for sound in SOUNDS.values()]
    assert main(command) == 2
    message = "was trained on pairs of texts; pass --input FILE with --pair-field document"
    assert message in capsys.readouterr().err
    assert main([*command, "--pair-field", "missing"]) == 2
    assert "missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top", "3"], "--top requires --query TEXT"),
        (["a text", "--query", "b"], "--query sorts the texts of --input or stdin"),
        (["--query", "b", "--scores"], "--scores does not apply to --query"),
        (["--query", "-"], "stdin cannot contain both queries and texts"),
        (["--query", "a", "--input", "missing.txt"], "missing.txt"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", "runs/none", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_data_without_a_relevant_pair_is_rejected(reranker: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"query": "a", "document": ""}) + "\n")
    evaluation = evaluation_of(tercet.load(reranker).trained_model)
    with pytest.raises(UserError, match="has no relevant pair to search for"):
        evaluation.evaluate(path)
