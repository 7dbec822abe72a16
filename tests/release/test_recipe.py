"""The files of a release for other tools: conda's recipe, the README on PyPI, and the machine type of a wheel."""

import hashlib
import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from wheels import ROOT

from tercet.settings_yaml import parse_yaml

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def test_the_recipe_has_the_requirements_of_the_package(release: ModuleType, tmp_path: Path) -> None:
    sdist = tmp_path / "tercet-0.1.0.tar.gz"
    sdist.write_bytes(b"sources")
    recipe = parse_yaml(release.conda_recipe(PYPROJECT, sdist), name="recipe.yaml")
    assert recipe["package"] == {"name": PROJECT["name"], "version": PROJECT["version"]}
    assert recipe["source"] == {"path": sdist.name, "sha256": hashlib.sha256(b"sources").hexdigest()}
    required = {
        name: SpecifierSet(versions)
        for name, _, versions in (line.partition(" ") for line in recipe["requirements"]["run"])
    }
    assert required.pop("python") == SpecifierSet(PROJECT["requires-python"])
    names = {conda: name for name, conda in release.CONDA_NAMES.items()}
    expected = {parsed.name.lower(): parsed.specifier for parsed in map(Requirement, PROJECT["dependencies"])}
    assert {names.get(name, name): versions for name, versions in required.items()} == expected
    assert recipe["build"]["python"]["entry_points"] == ["tercet = tercet.cli.main:entry"]
    assert (ROOT / recipe["about"]["license_file"]).is_file()


def test_each_renamed_package_is_required(release: ModuleType) -> None:
    assert {*release.CONDA_NAMES} <= {Requirement(line).name.lower() for line in PROJECT["dependencies"]}


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    pytest.importorskip("hatchling", reason="hatchling is not installed: no build hook")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


README = (
    "![An image](docs/a.png)\n[`code`](src/b) and [page](docs/c.md#part), [web](https://example.org) and [here](#d)\n"
)


def test_links_of_the_readme_are_absolute(hook: ModuleType) -> None:
    assert hook.replace_relative_links(README, "https://example.org/blob/v1") == (
        "![An image](https://example.org/blob/v1/docs/a.png?raw=true)\n"
        "[`code`](https://example.org/blob/v1/src/b) and [page](https://example.org/blob/v1/docs/c.md#part), "
        "[web](https://example.org) and [here](#d)\n"
    )


def test_links_of_the_readme_become_text_without_a_repository(hook: ModuleType) -> None:
    expected = "\n`code` and page, [web](https://example.org) and [here](#d)\n"
    assert hook.replace_relative_links(README, None) == expected
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/" in text
    assert "](docs/" not in hook.replace_relative_links(text, None)


@pytest.mark.parametrize(
    ("triple", "expected"),
    [
        ("x86_64-linux-gnu", ("linux", "x86_64")),
        ("x86_64-pc-linux-gnu", ("linux", "x86_64")),
        ("aarch64-unknown-linux-gnu", ("linux", "aarch64")),
        ("arm64-apple-darwin23.1.0", ("apple-darwin23.1.0", "arm64")),
        ("x86_64-w64-mingw32", ("w64-mingw32", "x86_64")),
    ],
)
def test_the_target_of_a_cross_compiler(
    triple: str, expected: tuple[str, str], hook: ModuleType, tmp_path: Path
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\n[ $1 = -dumpmachine ] && echo {triple}\n")
    compiler.chmod(0o755)
    assert hook.target_of(str(compiler)) == expected
