"""`tercet watch --export` on the command line: its output and its errors."""

import shutil
from pathlib import Path

import pytest

import tercet
from tercet.cli.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("to be or not to be, that is the question\n" * 20)
    settings = {
        "model.stack.d_model": 16, "model.stack.n_layers": 1, "model.stack.n_heads": 2, "model.max_len": 8,
        "training.max_steps": 4, "training.warmup_steps": 0, "training.validate_every": 2, "training.precision": "fp32",
        "training.compile": "never", "task.batch_size": 8, "task.sample_tokens": 6, "task.sample_prompt": None,
        "data.tokenizer": {"kind": "characters"},
    }  # fmt: skip
    tercet.train("demo", data=folder / "text.txt", out=folder / "mine", changes=settings, quiet=True)
    return folder / "mine"


@pytest.mark.exhaustive
def test_the_path_of_the_page_is_printed(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = tercet.report(run).read_bytes()
    assert main(["watch", str(run), "--export", str(tmp_path / "page.html"), "--device", "cpu"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").read_bytes() == first
    (tmp_path / "page.html").write_text("old")
    assert main(["watch", str(run), "--export", str(tmp_path / "page.html"), "--evaluate"]) == 0
    assert "bigram" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_a_training_writes_it_when_it_ends(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    shutil.copytree(run, tmp_path / "runs/mine")
    report = tmp_path / "runs/mine/report.html"
    report.unlink(missing_ok=True)
    assert main(["train", str(report.parent), "--until", "6", "--report", "--quiet"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1] == f"Its report is {report}."
    assert "Next:" in out[2:4]  # after a warning, since the model has hardly been trained
    assert "Finished after 6 steps" in report.read_text()
    report.unlink()
    tercet.train(report.parent, report=True, quiet=True)
    assert "Finished after 6 steps" in report.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch", "--export", "a.html"], "no such folder: nosuch"),
        ([".", "--export", "a.html"], "no model in .: it has no config.json, best/ or last/"),
        (["nosuch", "--export", "."], "--export . is a folder; pass a file name, such as page.html"),
        (["nosuch", "--export", "no/page.html"], "--export no/page.html: no such folder: no; create it first"),
        (["nosuch", "--export", "a.html", "--device", "nosuch"], "unknown device: nosuch"),
        (["one", "two", "--export", "a.html"], "--export writes the report of one run; leave two out"),
        (["nosuch", "--export", "a.html", "--text"], "--text and --export exclude each other; pass one of them"),
        (["nosuch", "--export", "a.html", "--open"], "--open applies to a served page; leave it out"),
        (["nosuch", "--evaluate"], "--evaluate requires --export PAGE.html; add it"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["watch", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"tercet: error: {message}")
    assert captured.err.count("\n") == 1
