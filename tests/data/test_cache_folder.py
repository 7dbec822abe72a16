"""The cache folder of a user with or without a home folder."""

from pathlib import Path
from unittest import mock

import platformdirs
import pytest

from tercet.cache_dir import cache_dir
from tercet.cli.main import main
from tercet.config import UserError


def test_variable_replaces_the_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", mock.Mock(return_value=str(tmp_path / "tercet")))
    monkeypatch.setenv("TERCET_CACHE", "relative")
    assert cache_dir() == Path("relative")
    for unset in (lambda: monkeypatch.setenv("TERCET_CACHE", ""), lambda: monkeypatch.delenv("TERCET_CACHE")):
        unset()
        assert cache_dir() == tmp_path / "tercet"


@pytest.mark.parametrize("is_error", [True, False])  # versions of platformdirs differ
def test_user_without_a_home_gets_no_folder_in_the_current_one(
    is_error: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def user_cache_dir(name: str) -> str:
        if is_error:
            raise RuntimeError("Could not determine home directory.")
        return f"~/.cache/{name}"

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TERCET_CACHE", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_dir", user_cache_dir)
    with pytest.raises(UserError, match="no home folder for cached files; set TERCET_CACHE to a folder"):
        cache_dir()
    Path("mine.txt").write_text("a b\n" * 500)
    assert main(["train", "mine.txt", "--out", "run"]) == 2
    assert "set TERCET_CACHE to a folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_tokenizer_of_an_unknown_user_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("a b\n")
    assert main(["data", "look", str(tmp_path / "mine.txt"), "--tokenizer", "~no such user/folder"]) == 2
    assert "'~no such user/folder' cannot be the path of a file" in capsys.readouterr().err
