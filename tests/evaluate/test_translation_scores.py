"""BLEU and chrF equal those of the sacrebleu program, and are always reported with their signature."""

import gzip
import io
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tercet.config import UserError
from tercet.evaluate import Protocol, bleu, score_translations
from tercet.evaluate.protocols import looks_tokenized, prepare_texts

WORDS = [
    "Der",
    "kleine",
    "Hund",
    "läuft,",
    "der",
    "„große“",
    "(alte)",
    "Mann",
    "sieht's",
    "nicht",
    "-",
    "über",
    "3.5",
    "Straßen",
    "hinweg",
    ".",
    "&",
    "so",
]


def sentences(seed: int, n: int = 61) -> list[str]:
    draws = np.random.default_rng(seed)
    return [" ".join(draws.choice(WORDS, draws.integers(4, 17))) for _ in range(n)]


REFERENCES = sentences(1)
DRAWS = np.random.default_rng(2)
TRANSLATIONS = [" ".join(word for word in text.split() if DRAWS.random() < 0.8) for text in REFERENCES]
TRANSLATIONS[5] = ""


def run_sacrebleu(translations: list[str], references: list[str], folder: Path, *flags: str) -> list[dict[str, Any]]:
    for name, lines in (("written", translations), ("references", references)):
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    command = ["references", "-i", "written", "-m", "bleu", "chrf", "-w", "4", "--confidence", *flags]
    process = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *command], cwd=folder, capture_output=True, text=True, check=True
    )
    return json.loads(process.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["detokenized", "lc-tok"])
def test_scores_match_the_sacrebleu_program(protocol: Protocol, tmp_path: Path) -> None:
    scores = score_translations(TRANSLATIONS, REFERENCES, protocol=protocol, language="de")
    texts = [prepare_texts(texts, protocol, "de") for texts in (TRANSLATIONS, REFERENCES)]
    words, characters = run_sacrebleu(*texts, tmp_path, *(["-tok", "none", "-lc"] if protocol == "lc-tok" else []))
    assert scores.bleu == pytest.approx(words["score"], abs=0.01)
    assert scores.chrf == pytest.approx(characters["score"], abs=0.01)
    for (low, high), interval in ((scores.bleu_interval, words), (scores.chrf_interval, characters)):
        assert (low + high) / 2 == pytest.approx(interval["confidence_mean"], abs=0.01)
        assert (high - low) / 2 == pytest.approx(interval["confidence_var"], abs=0.01)
    if protocol == "detokenized":
        assert scores.signature == words["signature"]
        assert scores.chrf_signature == characters["signature"]
        assert bleu(TRANSLATIONS, REFERENCES) == scores.bleu
    else:
        assert scores.signature.startswith(words["signature"] + "|prep:lc.norm.tok-de|sacremoses:")


def test_scores_are_reproducible_and_within_their_interval() -> None:
    scores = score_translations(TRANSLATIONS, REFERENCES)
    assert scores == score_translations(TRANSLATIONS, REFERENCES)
    assert scores.bleu_interval[0] < scores.bleu < scores.bleu_interval[1]
    assert scores.chrf_interval[0] < scores.chrf < scores.chrf_interval[1]
    assert "bs:1000|seed:" in scores.signature


def test_worse_translation_scores_lower() -> None:
    worse = [" ".join(reversed(text.split())) for text in TRANSLATIONS]
    assert bleu(worse, REFERENCES) < bleu(TRANSLATIONS, REFERENCES) - 5


def test_reference_has_the_word_count_of_the_literature() -> None:
    """test_2016_flickr has 12,103 German words, the reference length that papers report."""
    data_folder = os.environ.get("TERCET_DATA")
    path = Path(data_folder or "", "multi30k", "test_2016_flickr.de.gz")
    if not data_folder or not path.is_file():
        pytest.skip("TERCET_DATA has no multi30k/test_2016_flickr.de.gz")
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]
    assert sum(len(line.split()) for line in prepare_texts(lines, "lc-tok", "de")) == 12_103


def test_protocols_differ_and_are_named() -> None:
    texts = ["Der Hund; die „Katze“."]
    assert prepare_texts(texts, "detokenized", None) == texts
    assert prepare_texts(texts, "lc-tok", "de") == ["der hund ; die &quot; katze &quot; ."]
    output = io.StringIO()
    scores = score_translations(TRANSLATIONS, REFERENCES, protocol="lc-tok", language="de")
    Console(file=output, width=150).print(scores.view())
    assert "BLEU (lc-tok)" in output.getvalue()
    assert scores.signature in output.getvalue()
    assert scores.chrf_signature in output.getvalue()


def test_tokenized_text_is_detected() -> None:
    tokenized = ["ein Hund ."] * 100
    assert looks_tokenized([*tokenized, ""])
    assert not looks_tokenized(tokenized[1:])
    assert not looks_tokenized(["ein Hund."] * 200)
    assert "look tokenized" in score_translations(tokenized, tokenized).notes[0]
    assert not score_translations(tokenized, tokenized, protocol="lc-tok", language="de").notes


def test_sacrebleu_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    score_translations(["ein Hund ."] * 100, ["ein Hund ."] * 100)
    assert not caplog.records


def test_resamples_without_a_right_character_are_handled() -> None:
    scores = score_translations(["", "", "ab", "cd ab"], ["ab cd"] * 4)
    assert 0 <= scores.chrf_interval[0] < scores.chrf < scores.chrf_interval[1]


def test_empty_translations_score_zero() -> None:
    scores = score_translations([""] * 3, ["ein Hund", "zwei", "drei"])
    assert (scores.bleu, scores.chrf, scores.exact) == (0, 0, 0)
    assert scores.bleu_interval == (0, 0)
    json.dumps(scores.to_dict(), allow_nan=False)


@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=4).map(" ".join), min_size=1, max_size=5))
def test_reference_itself_is_perfect(texts: list[str]) -> None:
    assert bleu(texts, texts) == pytest.approx(100)


def test_exact_match_counts_sentences() -> None:
    translations = ["eins", "zwei ", "drei vier"]
    assert score_translations(translations, ["eins", "zwei", "vier"]).exact == pytest.approx(2 / 3)
    assert score_translations(["EINS"], ["eins"], protocol="lc-tok", language="de").exact == 1


def test_references_have_distinct_hashes() -> None:
    hashes = [score_translations(["a"], [reference]).references for reference in ("a", "b", "a")]
    assert hashes[0] == hashes[2] != hashes[1]


def test_infinity_is_none_in_json() -> None:
    scores = replace(score_translations(["a"], ["a"]), perplexity=math.inf, nll_nats_per_token=800.0)
    json_scores = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert json_scores["perplexity"] is None
    assert json_scores["nll_nats_per_token"] == 800


def test_scores_have_a_text_form(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no sentences to score"):
        score_translations([], [])
    with pytest.raises(ValueError, match="expected 2 references, one per translation, got 1"):
        score_translations(["a", "b"], ["a"])
    with pytest.raises(UserError, match=r"lc-tok requires the language .* --language de"):
        score_translations(["a"], ["a"], protocol="lc-tok")
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError, match=r"requires sacremoses: pip install 'tercet\[moses\]'"):
        score_translations(["a"], ["a"], protocol="lc-tok", language="de")


def test_scores_by_length_are_those_of_each_part() -> None:
    sources = ["x" * length for length in (49, 50, 99, 250)]
    references = [f"reference number {number} of a few words" for number in range(4)]
    translations = [references[0], "reference number 1", references[2], "something else"]
    scores = score_translations(translations, references, sources=sources)
    limits = [(row.shortest, row.longest, row.sentences) for row in scores.by_length]
    assert limits == [(0, 49, 1), (50, 99, 2), (200, None, 1)]
    middle = score_translations(translations[1:3], references[1:3])
    assert (scores.by_length[1].bleu, scores.by_length[1].chrf) == (middle.bleu, middle.chrf)
    assert scores.by_length[0].bleu == pytest.approx(100)
    assert middle.by_length == ()
    with pytest.raises(ValueError, match="expected 4 sources, one per translation, got 1"):
        score_translations(translations, references, sources=sources[:1])
