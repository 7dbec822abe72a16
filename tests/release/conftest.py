"""Fixtures: the wheels, built once, and environments that contain only one of them."""

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from wheels import ANY, MACHINE, ROOT, SDIST, copy_project, install

Build = Callable[..., Path]  # kind and place to path


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
def build_wheel(release: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a function that builds each kind at the first request, in a folder of that name.

    Compiling the kernels takes half a minute.
    """

    @cache
    def build(kind: str, place: str = "a") -> Path:
        folder = tmp_path_factory.mktemp("built") / place
        umask, time = PLACES[place]
        old_umask = os.umask(umask)
        try:
            source = copy_project(folder / "source")
            for path in source.rglob("*"):
                os.utime(path, (time, time))
            make = release.build_with_kernels if kind == MACHINE else release.build
            make(source, folder / "dist", epoch=1_600_000_000)
        finally:
            os.umask(old_umask)
        [result] = (folder / "dist").glob("*.tar.gz" if kind == SDIST else "*.whl")
        return result

    return build


@pytest.fixture(scope="session")
def installed(build_wheel: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(build_wheel(ANY), tmp_path_factory.mktemp("installed") / "environment")


@pytest.fixture(scope="session")
def installed_with_kernels(build_wheel: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(build_wheel(MACHINE), tmp_path_factory.mktemp("installed-with-kernels") / "environment")
