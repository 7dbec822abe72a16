"""FASTA as input of trained models: letters are changed as in the training."""

import gzip
import json
from pathlib import Path

import pytest

from tercet.cli.main import main

TRAIN = (
    "train classify-docstrings --data train.fa --out run --label-field family --set data.tokenizer.kind=characters "
    "--set data.sequence_case=upper --set data.sequence_ambiguous=unknown --set data.group_field=species "
    "--set training.max_steps=2 --set training.validate_every=2 --set training.precision=fp32 "
    "--set training.compile=never --set model.stack.d_model=16 --set model.stack.n_layers=1 "
    "--set model.stack.n_heads=2 --set model.stack.d_ff=16 --set model.max_len=16 --set task.batch_size=8"
)


@pytest.mark.slow
def test_soft_masked_input_of_a_model_that_was_trained_on_capitals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    records = (f">s{n} family={'xy'[n % 2]} species=sp{n % 12}\nacgRTT{'AG' * (n % 3)}\n" for n in range(48))
    Path("train.fa").write_text("".join(records))
    Path("new.fa").write_text(">n1\nacgYt\n>n2\nACGNT\n")
    assert main(TRAIN.split()) == 0
    capsys.readouterr()
    assert main(["classify", "run", "--input", "new.fa", "--json"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["text"] for result in results] == ["ACGNT", "ACGNT"]
    assert results[0]["probability"] == results[1]["probability"]
    assert main(["evaluate", "run", "--data", "train.fa", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["embed", "run", "--input", "new.fa", "--output", "vectors.jsonl"]) == 0
    assert [json.loads(line)["id"] for line in Path("vectors.jsonl").read_text().splitlines()] == ["n1", "n2"]
    capsys.readouterr()
    Path("odd.fa").write_text(">n1\nACGT\n>n2 b\nAC-T\n")
    for command in ("classify run --input odd.fa", "embed run --input odd.fa --output odd.jsonl"):
        assert main(command.split()) == 2
        assert "odd.fa, record 'n2': " in capsys.readouterr().err


@pytest.mark.slow
def test_malformed_records_are_left_out_as_in_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    Path("train.fa").write_text("".join(f">s{n} family={'xy'[n % 2]} species=sp{n % 12}\nACGT\n" for n in range(48)))
    data = ">n1\nacgt\n>n2\nAC9T\n>n3\nACGGT\n"
    Path("new.fa").write_text(data)
    Path("new.fa.gz").write_bytes(gzip.compress(data.encode()))
    assert main(TRAIN.split()) == 0
    assert main(["classify", "run", "--input", "new.fa"]) == 2
    assert main([*TRAIN.split(), "--set", "data.sequence_errors=skip", "--restart"]) == 0
    capsys.readouterr()
    for name in ("new.fa", "new.fa.gz"):
        assert main(["classify", "run", "--input", name, "--json"]) == 0
        out, err = capsys.readouterr()
        assert [json.loads(line)["text"] for line in out.splitlines()] == ["ACGT", "ACGGT"]
        assert f"{name}: left out: 1 of 3 records cannot be read: record 'n2', line 4: '9' in a sequence" in err
        assert main(["embed", "run", "--input", name, "--output", "vectors.jsonl"]) == 0
        assert [json.loads(line)["id"] for line in Path("vectors.jsonl").read_text().splitlines()] == ["n1", "n3"]
