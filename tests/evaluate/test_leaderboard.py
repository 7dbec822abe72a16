"""A leaderboard's order, its ranking metric, and its message if nothing can be ranked."""

import csv
import io
import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tercet.evaluate.held_out import HeldOutScores, text_pieces
from tercet.evaluate.leaderboard import Leaderboard, RunResult, SeedSpread, leaderboard
from tercet.evaluate.leaderboard_files import leaderboard_csv, leaderboard_dict
from tercet.evaluate.tasks.evaluation import digest


def result(name: str, nats: float | None, seed: int = 1, trained_model: int = 640, **fields: Any) -> RunResult:
    """Return a language model's run; nats=None means that it diverged."""
    held_out: dict[str, Any] = {
        "kind": "language model", "scores": {"nats_per_token": nats, "bits_per_byte": 1.5 * (nats or 0)},
        "parameters": 1000, "text": "t", "tokenizer": "k", "tokens": 7,
    }  # fmt: skip
    mine = {key: fields.pop(key) for key in list(fields) if key in held_out}
    scores = None if nats is None else HeldOutScores(**{**held_out, **mine})
    return RunResult(name=name, seed=seed, scores=scores, tokens=trained_model, **{"seconds": 2.0, **fields})


def print_board(board: Leaderboard) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(board.view())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@given(st.lists(st.floats(0.1, 9), min_size=2, max_size=9, unique=True))
def test_best_result_comes_first(losses: list[float]) -> None:
    board = leaderboard([result(f"v{number}", loss) for number, loss in enumerate(losses)])
    assert [row.scores["nats_per_token"].mean for row in board.rows] == sorted(losses)
    assert [row.rank for row in board.rows] == list(range(1, len(losses) + 1))
    assert [row.best for row in board.rows] == [True] + [False] * (len(losses) - 1)


def test_equal_results_share_a_rank() -> None:
    board = leaderboard([result("a", 2.0), result("b", 1.0), result("c", 1.0), result("d", 3.0)])
    assert [(row.name, row.rank) for row in board.rows] == [("b", 1), ("c", 1), ("a", 3), ("d", 4)]


def test_mean_over_seeds_determines_the_rank() -> None:
    runs = [result("lucky", 1.0, 1), result("lucky", 4.0, 2), result("steady", 2.0, 1), result("steady", 2.2, 2)]
    board = leaderboard(runs)
    assert [row.name for row in board.rows] == ["steady", "lucky"]
    assert board.rows[1].scores["nats_per_token"] == SeedSpread(mean=2.5, low=1.0, high=4.0)
    assert any(note.startswith("the seeds of steady, the best, and of lucky overlap") for note in board.notes)
    distinct = leaderboard([result("a", 1.0, 1), result("a", 1.1, 2), result("b", 1.2, 1), result("b", 1.3, 2)])
    assert not any("overlap" in note for note in distinct.notes)


def test_single_seed_is_reported() -> None:
    board = leaderboard([result("a", 1.0), result("b", 2.0)])
    assert any(note.startswith("no variance estimate") for note in board.notes)
    assert ".." not in print_board(board)
    two = leaderboard([result("a", 1.0, 1), result("a", 1.5, 2), result("b", 2.0)])
    assert any("the smallest to the largest" in note for note in two.notes)
    assert "1.2500  1.0000 .. 1.5000" in print_board(two)


def test_one_text_with_several_tokenizers_is_ranked_by_bits_per_byte() -> None:
    board = leaderboard([result("a", 3.0, tokenizer="other", scores={"nats_per_token": 3.0, "bits_per_byte": 1.0}),
                         result("b", 2.0, scores={"nats_per_token": 2.0, "bits_per_byte": 1.1})])  # fmt: skip
    assert [row.name for row in board.rows] == ["a", "b"]
    assert board.ranked_by == {"language model": "bits_per_byte"}
    assert any("ranked by bits per byte" in note for note in board.notes)


def test_different_texts_are_not_ranked() -> None:
    board = leaderboard([result("b", 3.0, text="other"), result("a", 2.0)])
    assert [(row.name, row.rank) for row in board.rows] == [("b", None), ("a", None)]
    assert board.ranked_by == {"language model": None}
    assert board.notes[0] == ("language models not ranked: their validation data differs")
    assert "*" not in print_board(board)


def masked_result(name: str, nats: float, **fields: Any) -> RunResult:
    scores = {"nats_per_masked_token": nats, "accuracy": 0.25, "pseudo_bits_per_byte": nats / 2}
    return result(name, nats, kind="masked language model", scores=scores, **fields)


def test_likelihood_and_pseudo_likelihood_have_separate_columns() -> None:
    board = leaderboard([result("gpt", 1.0), masked_result("bert", 2.0), result("gpt-2", 0.5)])
    assert [(row.name, row.rank) for row in board.rows] == [("gpt-2", 1), ("gpt", 2), ("bert", None)]
    assert sum("are not comparable" in note for note in board.notes) == 1
    lines = print_board(board).splitlines()
    (bert,) = (line for line in lines if "bert" in line)
    assert "1.0000" in bert  # pseudo-likelihood in bits
    assert "0.7500" in next(line for line in lines if "gpt-2" in line)


def test_masked_models_with_several_tokenizers_are_not_ranked() -> None:
    board = leaderboard([masked_result("a", 2.0, tokenizer="x"), masked_result("b", 1.0)])
    assert [row.rank for row in board.rows] == [None, None]
    assert any("is not comparable between tokenizers" in note for note in board.notes)
    contexts = leaderboard([masked_result("a", 2.0, tokens=9), masked_result("b", 1.0)])
    assert [row.name for row in contexts.rows] == ["b", "a"]
    assert any("masked tokens differ" in note for note in contexts.notes)


def test_translators_with_several_tokenizers_are_ranked_by_bleu() -> None:
    def translator(name: str, bleu: float, **fields: Any) -> RunResult:
        scores = {"nats_per_target_token": 1.0, "bleu": bleu, "chrf": 40.0}
        return result(name, 1.0, kind="translator", scores=scores, **fields)

    board = leaderboard([translator("a", 20.0), translator("b", 30.0, tokenizer="x")])
    assert [row.name for row in board.rows] == ["b", "a"]
    assert board.ranked_by == {"translator": "bleu"}


def test_diverged_variants_rank_last() -> None:
    board = leaderboard([result("a", 0.1, 1), result("a", None, 2), result("b", 5.0), result("c", None)])
    assert [(row.name, row.rank, row.diverged) for row in board.rows] == [("b", 1, 0), ("a", None, 1), ("c", None, 1)]
    assert "a is ranked last: 1 of 2 runs diverged" in board.notes
    assert print_board(board).count("diverged") >= 3
    nan = leaderboard([result("a", math.nan), result("b", 5.0)])
    assert [(row.name, row.rank) for row in nan.rows] == [("b", 1), ("a", None)]
    assert json.loads(json.dumps(leaderboard_dict(nan), allow_nan=False))["rows"][1]["nats_per_token"]["mean"] is None


def test_unequal_training_is_reported() -> None:
    notes = leaderboard([result("a", 1.0, trained_model=640), result("b", 2.0, trained_model=1280)]).notes
    assert "the language models were trained on different numbers of tokens: from 640 to 1,280" in notes
    notes = leaderboard([result("a", 1.0, precision="bf16"), result("b", 2.0, precision="fp32")]).notes
    assert "the models were trained in different precisions: bf16 and fp32" in notes
    assert not any("equally" in n or "precision" in n for n in leaderboard([result("a", 1.0), result("b", 2.0)]).notes)


def test_csv_has_one_line_per_variant() -> None:
    board = leaderboard(
        [*(result("p=1, q=x", 0.5 + seed / 2, seed, settings={"p": "1", "q": "x"}) for seed in (1, 2)),
         result("p=2, q=x", 0.5, settings={"p": "2", "q": "x"}, seconds=None)]
    )  # fmt: skip
    first, second = csv.DictReader(io.StringIO(leaderboard_csv(board)))
    assert (first["name"], first["p"], first["rank"], first["seeds"], first["seconds"]) == (
        "p=2, q=x",
        "2",
        "1",
        "1",
        "",
    )
    assert [float(second[f"nats_per_token{end}"]) for end in ("", "_min", "_max")] == [1.25, 1.0, 1.5]
    assert float(second["seconds"]) == 2.0


@given(st.text(max_size=400), st.integers(1, 8), st.integers(1, 64))
def test_pieces_are_whole_words_that_fit(text: str, count: int, max_bytes: int) -> None:
    pieces = text_pieces(text, count, max_bytes=max_bytes)
    assert len(pieces) <= count
    for piece in pieces:
        assert 0 < len(piece.encode()) <= max_bytes
        assert set(piece.split()) <= set(text.split())


def test_pieces_are_measured_in_bytes() -> None:
    pieces = text_pieces("ä öü ßäö " * 30, 3, max_bytes=9)
    assert len(pieces) == 3
    assert all(len(piece.encode()) <= 9 for piece in pieces)


def test_hash_of_documents_includes_their_boundaries() -> None:
    assert digest("ab", "c") == digest("ab", "c") != digest("a", "bc")


def test_pieces_are_spread_over_the_text() -> None:
    text = " ".join(str(number) for number in range(2000))
    starts = [int(piece.split()[0]) for piece in text_pieces(text, 4, max_bytes=40)]
    assert starts == sorted(starts)
    assert starts[0] < 10
    assert starts[-1] > 1400
