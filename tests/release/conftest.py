"""Fixtures: the wheels, built once, and environments that contain only one of them."""

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from wheels import ANY, MACHINE, ROOT, SDIST, copied, install

Built = Callable[..., Path]  # kind and place to path


@pytest.fixture(scope="session")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLACES = {"a": (0o022, 1_500_000_000), "another-folder": (0o077, 1_700_000_000)}  # umasks and times of sources


@pytest.fixture(scope="session")
def built(release: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a function that builds each kind at the first request, in a folder of that name.

    Compiling the kernels takes half a minute.
    """

    @cache
    def build(kind: str, place: str = "a") -> Path:
        folder = tmp_path_factory.mktemp("built") / place
        umask, time = PLACES[place]
        before = os.umask(umask)
        try:
            source = copied(folder / "source")
            for path in source.rglob("*"):
                os.utime(path, (time, time))
            make = release.build_with_kernels if kind == MACHINE else release.build
            make(source, folder / "dist", epoch=1_600_000_000)
        finally:
            os.umask(before)
        [result] = (folder / "dist").glob("*.tar.gz" if kind == SDIST else "*.whl")
        return result

    return build


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(built(ANY), tmp_path_factory.mktemp("installed") / "environment")


@pytest.fixture(scope="session")
def installed_with_kernels(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(built(MACHINE), tmp_path_factory.mktemp("installed-with-kernels") / "environment")
