"""The page of all metrics has exactly one row for each metric of the code, and its tests exist."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tercet.checkpoint.metrics import COLUMNS
from tercet.encoding import Neighbors
from tercet.evaluate import (
    AnswerScores,
    Comparison,
    LabelScores,
    LanguageScores,
    MaskedScores,
    MultiLabelScores,
    PairScore,
    RegressionScores,
    RetrievalScores,
    TranslationScores,
)
from tercet.evaluate.leaderboard import MEASURES, RunResult
from tercet.inspect import LayerRow, MemoryCost, ModelTable
from tercet.serve.http.responses import Usage
from tercet.training.planning.ranks import RankMemory
from tercet.training.planning.run_plan import RunPlan, RunTime
from tercet.training.planning.throughput import Throughput

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
WORDS = {  # descriptive fields without a number
    "signature", "chrf_signature", "protocol", "references", "search", "notes", "labels", "name", "settings", "seed",
    "fold", "folder", "scores", "precision", "rows", "unit", "memory", "kind", "tied_to", "recipe", "cluster",
    "strategy", "length_from", "checkpointing", "fits", "time", "throughput", "basis", "described",
}  # fmt: skip


def result_fields(*specs: type) -> set[str]:
    return {field.name for spec in specs for field in fields(spec)} - WORDS


SECTIONS: dict[str, set[str]] = {
    "`metrics.csv`": set(COLUMNS),
    "Model card": {"step", "tokens_seen", "metrics", "parameters"},
    "`evaluate`: language models": result_fields(LanguageScores) | {"baselines"},
    "`evaluate`: masked language models": result_fields(MaskedScores) | {"seed", "plateau", "pseudo_perplexity"},
    "`evaluate`: translators": result_fields(TranslationScores, Comparison),
    "`evaluate`: chat models": result_fields(AnswerScores),
    "`evaluate`: classifiers": result_fields(LabelScores),
    "`evaluate`: several labels per text": result_fields(MultiLabelScores),
    "`evaluate`: regression": result_fields(RegressionScores),
    "`evaluate`: text vectors and rerankers": result_fields(RetrievalScores),
    "`evaluate --per-line`": result_fields(PairScore) - {"truncated"} | {"nats_per_token"},
    "`embed --query`": {field.name for field in fields(Neighbors)},
    "`compare`": result_fields(RunResult) | set(MEASURES) | {"parameters"},
    "`inspect`": result_fields(ModelTable, LayerRow, MemoryCost),
    "`train --plan`": result_fields(RunPlan, RankMemory, RunTime, Throughput),
    "`serve`": set(Usage.model_fields),
}


def table_rows(section: str) -> list[list[str]]:
    text = PAGE.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_metric_has_a_row(section: str) -> None:
    rows = table_rows(section)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]
    assert len(names) == len(set(names))
    assert set(names) == SECTIONS[section]
    assert all(len(row) == 4 for row in rows)


def test_every_named_test_exists() -> None:
    tests = set(re.findall(r"`(\w+/test_\w+\.py)`", PAGE))
    assert len(tests) > 8
    assert [name for name in sorted(tests) if not (ROOT / "tests" / name).is_file()] == []
    assert all(re.search(r"`\w+/test_\w+\.py`", row[3]) for section in SECTIONS for row in table_rows(section))
