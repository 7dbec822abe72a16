"""kpu/kenlm#67, neubig/modlm#4: a smaller vocabulary scores better, because unknown words cost nothing.

The share of unknown words is reported with the score, and scores are not compared if it is not negligible.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.cli.main import main
from tercet.data import Corpus, Tail, TextSpec, prepare
from tercet.evaluate import LanguageScores
from tercet.evaluate.leaderboard import RunResult, leaderboard
from tercet.evaluate.scores import MAX_UNKNOWN_SHARE
from tercet.evaluate.tasks.evaluation import HeldOutScores
from tercet.notebook import Table
from tercet.tokens import Characters, TokenizerSpec, Words

TEXT = "the cat and the dog and the hen met a fox in a wood " * 40
TINY = [
    "data.validation=tail", "model.max_len=8", "model.stack.d_model=16", "model.stack.n_layers=1",
    "model.stack.n_heads=2", "task.batch_size=4", "training.max_steps=1", "task.sample_tokens=0",
    "training.precision=fp32", "training.compile=never",
]  # fmt: skip


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def corpus(tokenizer: TokenizerSpec) -> Corpus:
    return prepare(TextSpec(source="text.txt", validation=Tail(fraction=0.3), tokenizer=tokenizer))


def held_out(name: str, unknown: float, **fields: Any) -> RunResult:
    scores: dict[str, Any] = {
        "kind": "language model", "scores": {"nats_per_token": 1.0, "bits_per_byte": 2.0}, "parameters": 1, "text": "t",
        "tokenizer": "same", "tokens": 7, "unknown_share": unknown,
    }  # fmt: skip
    return RunResult(name=name, seed=1, scores=HeldOutScores(**{**scores, **fields}))


def test_unknown_share_is_counted_without_special_tokens() -> None:
    corpus_with_unknown = corpus(Words(vocab_size=6))
    ids, tokenizer = np.asarray(corpus_with_unknown.validation).tolist(), corpus_with_unknown.tokenizer
    text_ids = [number for number in ids if number not in tokenizer.special_ids]
    assert len(text_ids) < len(ids)  # the end token of the document is not counted
    assert corpus_with_unknown.unknown_share == ids.count(tokenizer.unk_id) / len(text_ids)
    assert 0.3 < corpus_with_unknown.unknown_share < 1
    assert corpus(Words()).unknown_share == 0
    assert corpus(Characters()).unknown_share == 0  # characters have no unknown token


@pytest.mark.parametrize(
    ("share", "ending"),
    [
        (0.0, ""),
        (MAX_UNKNOWN_SHARE, "; 0.10% of the tokens are unknown"),
        (0.4, "unknown, so bits per byte are not comparable"),
    ],
)
def test_unknown_share_is_next_to_the_score(share: float, ending: str) -> None:
    sums: dict[str, Any] = {"nats": 9.0, "text_nats": 9.0, "tokens": 5, "n_bytes": 9, "context": 3, "stride": 3}
    scores = replace(LanguageScores.from_sums(**sums), unknown_share=share)
    (table,) = scores.view().parts
    assert isinstance(table, Table)
    caption = table.caption
    assert caption.endswith(ending)
    assert ("unknown" in caption) == (share > 0)
    assert scores.to_dict()["unknown_share"] == share


def test_models_with_unknown_tokens_are_not_ranked_across_tokenizers() -> None:
    board = leaderboard([held_out("a", 0.0), held_out("b", 0.25, tokenizer="other")])
    assert [row.rank for row in board.rows] == [None, None]
    assert any("25.00% of the tokens are unknown, so bits per byte are not comparable" in n for n in board.notes)
    assert any(note.startswith("b: 25.00% of the tokens are unknown") for note in board.notes)
    assert not any(note.startswith("a: ") for note in board.notes)


@pytest.mark.parametrize(
    ("share", "tokenizer", "measure"),
    [(MAX_UNKNOWN_SHARE, "other", "bits_per_byte"), (0.25, "same", "nats_per_token")],
)
def test_models_with_few_unknown_tokens_or_one_tokenizer_are_ranked(share: float, tokenizer: str, measure: str) -> None:
    board = leaderboard([held_out("a", 0.0), held_out("b", share, tokenizer=tokenizer)])
    assert board.ranked_by == {"language model": measure}
    assert all(row.rank for row in board.rows)


@pytest.mark.slow
def test_compressors_are_left_out_and_reports_contain_the_share(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for size in (6, 30):
        keys = [*TINY, f"data.tokenizer={{kind: words, vocab_size: {size}}}"]
        sets = [word for key in keys for word in ("--set", key)]
        assert main(["train", "demo", "--data", "text.txt", "--out", f"w{size}", "--quiet", *sets]) == 0
        capsys.readouterr()
        assert main(["evaluate", f"w{size}", "--json", "--device", "cpu"]) == 0
        scores = json.loads(capsys.readouterr().out)
        names = {"unigram", "bigram"} if size == 6 else {"unigram", "bigram", "gzip -9", "xz -9e"}
        assert set(scores["baselines"]) == names
        assert (scores["unknown_share"] > 0) == (size == 6)
        assert scores["baselines"]["bigram"]["unknown_share"] == scores["unknown_share"]
    assert main(["watch", "w6", "--export", "w6.html"]) == 0
    assert "of the tokens are unknown" in Path("w6.html").read_text()
    capsys.readouterr()
    assert main(["compare", "w6", "w30", "--out", "c", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "not ranked" in " ".join(out.split())
