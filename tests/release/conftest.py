"""The wheels, built once for all tests of this folder, and an environment with nothing but one of them."""

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from wheels import ANY, MACHINE, ROOT, SDIST, copied, install

Built = Callable[[str], list[Path]]


@pytest.fixture(scope="session")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def built(release: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Each kind, from two folders of other names, umasks and times."""

    @cache
    def build(kind: str) -> list[Path]:
        results = list[Path]()
        for name, umask, time in (("a", 0o022, 1_500_000_000), ("another-folder", 0o077, 1_700_000_000)):
            folder = tmp_path_factory.mktemp("built") / name
            before = os.umask(umask)
            try:
                source = copied(folder / "source")
                for path in source.rglob("*"):
                    os.utime(path, (time, time))
                make = release.build_with_kernels if kind == MACHINE else release.build
                make(source, folder / "dist", epoch=1_600_000_000)
            finally:
                os.umask(before)
            results += (folder / "dist").glob("*.tar.gz" if kind == SDIST else "*.whl")
        return results

    return build


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(built(ANY)[0], tmp_path_factory.mktemp("installed") / "environment")


@pytest.fixture(scope="session")
def installed_with_kernels(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(built(MACHINE)[0], tmp_path_factory.mktemp("installed-with-kernels") / "environment")
