"""The guide of a tokenizer: its package trains; the model opens without it; the cache depends on its source."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_of_guides import ALLOW, forget, importable_package

import tercet
from tercet.cli.main import main
from tercet.custom_code import ALLOWED

CODE = "my_package.code_bpe:CodeBPE"
TINY = (
    "data.validation=tail", "model.max_len=16", "model.stack.d_model=24", "model.stack.n_layers=1",
    "model.stack.n_heads=2", "task.batch_size=3", "training.max_steps=2", "training.validate_every=2",
    "training.save_every=2", "task.sample_tokens=5", "training.precision=fp32", "training.compile=never",
)  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    site = tmp_path_factory.mktemp("site")
    with importable_package(site):
        yield site


@pytest.fixture(autouse=True)
def no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "")
    forget()


def train(folder: Path, out: str, *words: str, size: int = 300) -> int:
    text = folder / "code.txt"
    text.write_text("".join(f"def readFile{n}(path): return openFile{n + 1}(path)\n" for n in range(99)))
    tokenizer = f"data.tokenizer={{kind: {CODE!r}, vocab_size: {size}}}"
    sets = [word for change in (*TINY, tokenizer) for word in ("--set", change)]
    return main(["train", "demo", "--data", str(text), "--out", str(folder / out), "--quiet", *sets, *words])


def test_run_with_a_tokenizer_is_recorded_and_opens_without_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "run") == 2
    assert f"{CODE} is code of the package my_package, which is not allowed" in capsys.readouterr().err
    assert train(tmp_path, "run", *ALLOW) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["code"] == {CODE: None}
    os.environ[ALLOWED] = ""
    forget()
    run = tercet.load(tmp_path / "run")
    assert run.generate("def ", max_new_tokens=3)
    encode = run.tokenizer.encode
    assert encode("readFile") == [*encode("read"), *encode("File")]
    assert "my_package" not in sys.modules
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert "which is not allowed" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run"), *ALLOW]) == 0
    assert train(tmp_path, "run", "--set", "training.max_steps=4", *ALLOW) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["saved"] == 4


def test_tokenizer_is_trained_again_only_if_its_source_has_changed(tmp_path: Path, site: Path) -> None:
    path = site / "my_package" / "code_bpe.py"
    source = path.read_text()
    assert train(tmp_path, "first", *ALLOW, size=310) == 0
    forget()
    try:
        path.write_text(source.replace('"<mask>")', '"<mask>", "<x>")'))
        assert train(tmp_path, "second", *ALLOW, size=310) == 0
    finally:
        path.write_text(source)
    forget()
    first, second = (tercet.load(tmp_path / name).tokenizer.hash for name in ("first", "second"))
    assert first != second
    assert train(tmp_path, "third", *ALLOW, size=310) == 0
    assert tercet.load(tmp_path / "third").tokenizer.hash == first
