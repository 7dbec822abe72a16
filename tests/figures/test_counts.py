"""Counts of datasets and values of a comparison, recomputed."""

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import DOCUMENTS, HELD_OUT, PAIRS

from sampled_cases import sampled
from tercet.checkpoint import load_model
from tercet.checkpoint.metrics import read_metrics, training_time
from tercet.cli.main import main
from tercet.evaluate import evaluation_of
from tercet.evaluate.held_out import PIECE_BYTES, score_held_out, text_pieces
from tercet.evaluate.leaderboard import RunResult, SeedSpread, leaderboard
from tercet.evaluate.leaderboard_files import leaderboard_csv
from tercet.generation import Beam
from tercet.inspect import mean_loss, read, token_losses

SmallRun = Callable[[str], Path]


def facts(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["data", *arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_documents_bytes_and_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    n_bytes, characters = sum(len(text.encode()) for text in DOCUMENTS), sum(map(len, DOCUMENTS))
    assert n_bytes > characters + 30
    expected = f"documents {len(DOCUMENTS)} bytes {n_bytes} (UTF-8) characters {characters} begins"
    assert facts([str(path)], capsys).startswith(expected)


def test_pairs_and_their_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in [*PAIRS, ("🙂", ""), ("", "雨")]))
    source, target = (sum(len(pair[side]) for pair in PAIRS) for side in (0, 1))
    output = facts([str(path)], capsys)
    assert output.startswith(
        f"pairs {len(PAIRS)}; {source:,} characters of source and {target:,} of target; 2 more with an empty side"
    )


def test_labeled_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text that occurs three times with two labels has a conflicting label once."""
    rows = [("雨", "a"), ("雨", "a"), ("雨", "b"), ("🙂🙂", "b"), ("e\u0301te\u0301", "b"), ("", "a")]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    output = facts([str(path), "--label-field", "label"], capsys)
    assert output.startswith(
        "texts 5; half have at most 1 characters, the longest 5; 2 duplicates; 1 with other labels than their "
        "first occurrence; 1 more without text labels 2 b 3 60.0% a 2 40.0%"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["documents", "pairs", "labels", "left", "masked"], keep=(0, 1, 2)))
def test_comparison_scores_equal_evaluation_scores(name: str, small_run: SmallRun) -> None:
    run = small_run(name) / "last"
    [held_out] = score_held_out([run])
    trained_model = load_model(run)
    settings = {"part": "validation", "search": Beam(size=1)} if name == "pairs" else {}
    scores = asdict(evaluation_of(trained_model).evaluate(**settings))
    expected = {
        "documents": {"nats_per_token": "loss_nats_per_token", "bits_per_byte": "bits_per_byte"},
        "left": {"nats_per_token": "loss_nats_per_token", "bits_per_byte": "bits_per_byte"},
        "masked": {"nats_per_masked_token": "masked_loss", "accuracy": "masked_accuracy"},
        "labels": {"accuracy": "accuracy", "f1": "f1"},
        "pairs": {"nats_per_target_token": "nll_nats_per_token", "bleu": "bleu", "chrf": "chrf"},
    }[name]
    for measure, field in expected.items():
        assert held_out.scores[measure] == scores[field]
    assert held_out.tokens == scores["count" if name == "labels" else "tokens"]
    metrics = {column: points[-1][1] for column, points in read_metrics(run.parent / "metrics.csv").items() if points}
    loss = {"documents": "nats_per_token", "left": "nats_per_token", "masked": "nats_per_masked_token",
            "pairs": "nats_per_target_token", "labels": "nats_per_label"}[name]  # fmt: skip
    assert held_out.scores[loss] == pytest.approx(metrics["val/loss"], rel=1e-5)
    if name == "pairs":
        assert held_out.scores["bleu"] == pytest.approx(metrics["val/bleu"])
    assert held_out.parameters == sum(p.numel() for p in trained_model.model.parameters())


@pytest.mark.slow
def test_pseudo_bits_are_over_bytes(small_run: SmallRun) -> None:
    """The score is comparable across two kinds of models, since it is per byte, not per character."""
    runs = [small_run("masked") / "last", small_run("packed") / "last"]
    score = score_held_out(runs)[0].scores["pseudo_bits_per_byte"]
    trained_model = load_model(runs[0]).require("fill")
    model, tokenizer = trained_model.model.eval(), trained_model.tokenizer
    pieces = text_pieces("\n".join(HELD_OUT), 8, max_bytes=min(PIECE_BYTES, 14 - 2))
    nats = 0.0
    for piece in pieces:
        ids = [tokenizer.bos_id, *tokenizer.encode(piece), tokenizer.eos_id]
        starts = tokenizer.word_starts(np.array(ids)).tolist()
        for place in range(1, len(ids) - 1):
            row = torch.tensor([ids])
            end = next((i for i in range(place + 1, len(ids)) if starts[i]), len(ids))
            row[0, place:end] = tokenizer.mask_id  # the rest of its word is masked as well
            with torch.no_grad():
                nats -= float(model.logits(model.hidden(row))[0, place].double().log_softmax(-1)[ids[place]])
    n_bytes = sum(len(piece.encode()) for piece in pieces)
    assert n_bytes > sum(map(len, pieces))
    assert score == pytest.approx(nats / math.log(2) / n_bytes, rel=1e-4)


@pytest.mark.slow
def test_costs_on_a_leaderboard_are_those_of_the_runs(small_run: SmallRun) -> None:
    names = ["documents", "right"]
    runs = [small_run(name) for name in names]
    results = list[RunResult]()
    for name, run, scores in zip(names, runs, score_held_out([run / "last" for run in runs]), strict=True):
        time = training_time(read_metrics(run / "metrics.csv"))
        assert time is not None
        assert time.tokens == load_model(run / "last").card.tokens_seen
        assert time.seconds == read_metrics(run / "metrics.csv")["seconds"][-1][1]
        assert time.steps == 9
        results.append(
            RunResult(
                name=name, scores=scores, seconds=time.seconds, tokens_per_second=time.tokens_per_second,
                steps=time.steps, tokens=time.tokens,
            )
        )  # fmt: skip
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(leaderboard_csv(leaderboard(results))))}
    for result in results:
        row = rows[result.name]
        assert float(row["seconds"]) == result.seconds
        assert float(row["tokens_per_second"]) == result.tokens_per_second
        assert result.scores is not None
        assert int(row["parameters"]) == result.scores.parameters
        assert float(row["bits_per_byte"]) == result.scores.scores["bits_per_byte"]


def test_a_spread_is_a_mean_and_its_ends() -> None:
    spread = SeedSpread.of([3.0, 1.0, 8.0])
    assert (spread.mean, spread.low, spread.high) == (4.0, 1.0, 8.0)


def test_inspected_losses_equal_those_of_the_model(small_run: SmallRun) -> None:
    trained_model = load_model(small_run("packed") / "last").require("generate")
    text = "Zoë 雨"
    recording = read(trained_model, text)
    ids = trained_model.tokenizer.encode(text)
    with torch.no_grad():
        logits = trained_model.model.eval()(torch.tensor([ids]))[0]
    expected = [-float(logits[i].double().log_softmax(-1)[ids[i + 1]]) for i in range(len(ids) - 1)]
    losses = token_losses(recording, logits)
    assert losses[:-1] == pytest.approx(expected, rel=1e-5)
    assert losses[-1] is None
    assert mean_loss(losses) == pytest.approx(sum(expected) / len(expected), rel=1e-5)
