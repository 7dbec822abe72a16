"""The guides of custom parts: their packages train, resume and decode, and open only with a permission."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tercet
from tercet.cli.main import main
from tercet.config import UserError
from tercet.custom_code import ALLOWED

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
FOURIER = "my_package.fourier:Fourier"
TINY = (
    "data.validation=tail", "data.tokenizer={kind: characters}", "model.max_len=16", "model.stack.d_model=24",
    "model.stack.n_layers=1", "model.stack.n_heads=2", "task.batch_size=3", "training.max_steps=4",
    "training.validate_every=4", "training.save_every=4", "task.sample_tokens=5", "task.sample_prompt=is",
    "training.precision=fp32", "training.compile=never",
)  # fmt: skip
ALLOW = ("--allow-code", "my_package")
pytestmark = pytest.mark.slow


def blocks(page: str) -> tuple[dict[str, str], list[str]]:
    """Return the files of the package that a guide writes, by their paths, and its other Python code."""
    code = PYTHON.findall((GUIDES / page).read_text(encoding="utf-8"))
    files = {block.split("\n")[0].removeprefix("# "): block for block in code if block.startswith("# my_package/")}
    assert all(sum(1 for line in block.splitlines() if line.strip()) <= 60 for block in files.values())
    return files, [block for block in code if block not in files.values()]


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write `my_package` as the guides do, and add its folder to the path."""
    site = tmp_path_factory.mktemp("site")
    for page in ("add-a-position-scheme.md",):
        for path, code in blocks(page)[0].items():
            (site / path).parent.mkdir(exist_ok=True)
            (site / path).write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield
    forget()


@pytest.fixture(autouse=True)
def no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test without a permission and without the imports of earlier tests."""
    monkeypatch.setenv(ALLOWED, "")
    forget()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("".join(f"{number} is followed by {number + 1}.\n" for number in range(99)))
    position = f"model.stack.position={{kind: {json.dumps(FOURIER)}, waves: 5}}"
    sets = [word for change in (*TINY, position) for word in ("--set", change)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOWED, "")
        words = ["train", "demo", "--data", str(folder / "text.txt"), "--out", str(folder / "run"), "--quiet"]
        assert main([*words, *sets]) == 2
        assert not (folder / "run").exists()
        assert main([*words, *sets, *ALLOW]) == 0
    return folder / "run"


def test_run_with_a_custom_position_is_recorded_and_resumed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads((run / "run.json").read_text())["code"] == {FOURIER: None}
    assert json.loads((run / "best" / "config.json").read_text())["stack"]["position"] == {"kind": FOURIER, "waves": 5}
    assert main(["inspect", str(run), "--json", *ALLOW]) == 0
    model = tercet.load(run).model
    assert json.loads(capsys.readouterr().out)["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert {name for name in model.state_dict() if "position" in name} == {
        "stack.position.mix.weight", "stack.position.mix.bias",
    }  # fmt: skip
    assert main(["train", str(run), "--quiet", "--set", "training.max_steps=6", *ALLOW]) == 0
    record = json.loads((run / "run.json").read_text())
    assert (record["saved"], record["code"]) == (6, {FOURIER: None})


@pytest.mark.parametrize(
    "words",
    [
        "train RUN --set training.max_steps=8", "generate RUN", "evaluate RUN", "inspect RUN", "explore RUN",
        "serve RUN", "convert RUN hf --to hf", "plot model RUN", "train RUN --plan",
    ],
)  # fmt: skip
def test_commands_reject_code_that_is_not_allowed(
    run: Path, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.replace("RUN", str(run)).split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{FOURIER} is code of the package my_package, which is not allowed; if you trust it, pass" in error
    assert "my_package" not in sys.modules


def test_load_takes_the_permission_as_an_argument(run: Path) -> None:
    with pytest.raises(UserError, match="which is not allowed"):
        tercet.load(run)
    assert tercet.load(run, allow_code="my_package").generate("1 is", max_new_tokens=3)


def test_export_rejects_a_custom_position_by_its_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("hf", "gguf", "ctranslate2"):
        assert main(["convert", str(run), str(tmp_path / form), "--to", form, *ALLOW]) == 2
        assert f"stack.position is {FOURIER}" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["add-a-position-scheme.md"])
def test_python_of_the_guide_runs(page: str) -> None:
    code = blocks(page)[1]
    assert code
    exec(compile("\n".join(code), page, "exec"), {"__name__": "__main__"})
    assert torch.is_grad_enabled()
