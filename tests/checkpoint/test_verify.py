"""Every file written for a run or a model is checked, and any damage is detected."""

import json
import shutil
from pathlib import Path

import pytest

import tercet
from tercet.cli.main import main
from tercet.config import UserError

OLD_VERSION = Path(__file__).with_name("version_before")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    text = folder / "text.txt"
    text.write_text("3 times 4 is 12.\n" * 40)
    settings = {"training.max_steps": 4, "training.save_every": 2, "training.validate_every": 2}
    return tercet.train("demo", data=text, changes=settings, out=folder / "run", quiet=True).folder.parent


@pytest.mark.slow
def test_every_file_of_a_run_is_checked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    visible = [path for path in run.rglob("*") if path.is_file() and path.name[0] != "."]
    hashed_files = [path for path in visible if path.name not in ("manifest.json", "run.json")]
    assert tercet.verify(run).files == len(hashed_files)
    assert main(["doctor", "--verify", str(run)]) == 0
    assert "no damage" in capsys.readouterr().out
    assert main(["doctor", "--verify", str(run / "best"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["damaged"] == []


@pytest.mark.slow
def test_each_damaged_file_is_reported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, original in enumerate(sorted(run.rglob("*"))):
        if not original.is_file() or original.name.startswith("."):
            continue
        copy = shutil.copytree(run, tmp_path / str(number))
        path = copy / original.relative_to(run)
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 4
        path.write_bytes(data)
        assert main(["doctor", "--verify", str(copy)]) == 1, path
        assert f"{path} is damaged" in capsys.readouterr().out
        path.unlink()
        if path.name not in ("manifest.json", "run.json"):  # the remaining files are unchanged
            assert main(["doctor", "--verify", str(copy)]) == 1, path
            assert f"{path} is missing" in capsys.readouterr().out


def test_folder_without_a_manifest_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run\.json and no manifest\.json: nothing to compare"):
        tercet.verify(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        tercet.verify(tmp_path / "none")
