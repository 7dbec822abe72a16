"""What these tests prepare goes with them, and nothing waits for the disk: processes die here, power does not."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("TERCET_CACHE", str(folder))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return folder
