"""The bundle for a machine with a GPU: wheels with verified hashes, data, and nanoGPT with its ids."""

import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
from benchmarks.gpu.bundle import PACKAGES, copy_nanogpt, locked_requirements

TEXT = "to be or not to be"


def checkout(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.py").write_text("print('training')\n")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_text(TEXT)
    return path


def test_wheels_have_the_hashes_of_the_locks() -> None:
    lines = locked_requirements(PACKAGES).splitlines()
    assert [line.partition("==")[0] for line in lines if "==" in line] == list(PACKAGES)
    assert sum("--hash=sha256:" in line for line in lines) >= len(PACKAGES)
    with pytest.raises(SystemExit, match=r"nothing: in none of requirements\.lock"):
        locked_requirements(["nothing"])


def test_nanogpt_of_a_checkout_has_shakespeares_ids(tmp_path: Path, text: Path) -> None:
    copy_nanogpt(checkout(tmp_path / "checkout"), tmp_path / "copy", text)
    assert (tmp_path / "copy" / "train.py").is_file()
    data = tmp_path / "copy" / "data" / "shakespeare_char"
    ids = [np.fromfile(data / f"{part}.bin", dtype=np.uint16) for part in ("train", "val")]
    assert [len(part) for part in ids] == [16, 2]
    itos = pickle.loads((data / "meta.pkl").read_bytes())["itos"]
    assert "".join(itos[number] for part in ids for number in part.tolist()) == TEXT


@pytest.mark.slow
def test_nanogpt_of_a_bare_repository_has_no_pictures(tmp_path: Path, text: Path) -> None:
    source = checkout(tmp_path / "checkout")
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "All"]):
        subprocess.run([*git, *words], check=True)
    bare = tmp_path / "bare"
    subprocess.run(["git", "clone", "-q", "--bare", str(source), str(bare)], check=True)
    copy_nanogpt(bare, tmp_path / "copy", text)
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"train.py", "data"}
    with pytest.raises(SystemExit, match="no checkout with a train"):
        copy_nanogpt(tmp_path / "none", tmp_path / "other", text)
