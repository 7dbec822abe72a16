"""Pairs in named columns: training, evaluation and scoring read the same pairs from every format."""

import csv
import json
from pathlib import Path

import pytest
from tiny_runs import PAIRS, tiny_pairs_recipe

from tercet.cli.main import main
from tercet.data import ParallelCorpus
from tercet.settings_yaml import write_yaml
from tercet.training import train
from tercet.training.tasks.open_task import task_of

COLUMNS = ("german", "english")


def write(path: Path) -> Path:
    with path.open("w", newline="") as file:
        if path.suffix == ".json":
            json.dump([dict(zip(COLUMNS, pair, strict=True)) for pair in PAIRS], file)
        elif path.suffix == ".csv":
            csv.writer(file).writerows([COLUMNS, *PAIRS])
        else:
            file.writelines("\t".join(row) + "\n" for row in [COLUMNS, *PAIRS])
    return path


@pytest.mark.slow
def test_all_verbs_read_the_same_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {"source": str(write(tmp_path / "named.tsv")), "source_language": COLUMNS[0], "target_language": COLUMNS[1]}
    recipe = tiny_pairs_recipe(tmp_path, {"data": data}, max_steps=2, validate_every=2, save_every=2)
    assert "german" in write_yaml(recipe)
    corpus = task_of(recipe, progress=False).corpus
    assert isinstance(corpus, ParallelCorpus)
    assert len(corpus.train) + len(corpus.validation) == len(PAIRS)
    run = str(train(recipe, tmp_path / "run", quiet=True))
    outputs = list[list[str]]()
    for name in ("named.tsv", "other.CSV", "array.json"):
        path = str(write(tmp_path / name.lower()).rename(tmp_path / name))
        assert main(["evaluate", run, "--source", path, "--beam", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["sentences"] == len(PAIRS)
        assert main(["evaluate", run, "--per-line", "--source", path]) == 0
        outputs.append(capsys.readouterr().out.splitlines())
    assert len(outputs[0]) == len(PAIRS)
    assert outputs[0] == outputs[1] == outputs[2]
