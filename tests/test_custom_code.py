"""Specs of other packages are selected by import path, checked as Tercet's own, and imported only if allowed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest

from tercet.config import UserError, find_differences, merge, parse, to_plain
from tercet.custom_code import ALLOWED, allow_code, code_versions, custom_parts
from tercet.models.specs import StackSpec
from tercet.nn.specs import CustomPosition
from tercet.spec import Custom, Interval, spec

MODULE = """
from typing import Annotated
from tercet.nn.specs import CustomPosition
from tercet.spec import Interval, spec

with open(__file__ + ".imported", "a") as file:
    file.write("x")

@spec
class Waves:
    low: float = 1.0

@spec
class Fourier(CustomPosition):
    n: Annotated[int, Interval(ge=1, le=64)] = 16
    waves: Waves = Waves()

class Undecorated(CustomPosition):
    pass

@spec
class Other:
    pass

@spec
class FewArguments(CustomPosition):
    def build(self, *, d_model, max_len):
        return None

@spec
class MoreArguments(CustomPosition):
    def build(self, *, d_model, waves, **sizes):
        return None

@spec
class Inherits(FewArguments):
    def build(self, *, max_len, **sizes):
        return None

def function():
    pass

def __getattr__(name):
    with open(__file__ + ".imported", "a") as file:
        file.write("y")
    return Fourier
"""
KIND = "planted_package.fourier:Fourier"
LINE = MODULE[: MODULE.index("    def build(self, *, d_model, max_len)")].count("\n") + 1  # of an unsuitable method


@spec
class Local(CustomPosition):
    size: Annotated[int, Interval(ge=1, le=9)] = 3


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of a package that is installed but not allowed; it records its import in a file."""
    folder = tmp_path / "site" / "planted_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "fourier.py").write_text(MODULE)
    (folder / "broken.py").write_text("import a_missing_dependency")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv(ALLOWED, "")
    yield folder
    for name in [name for name in sys.modules if name.startswith("planted_package")]:
        del sys.modules[name]


def stack(position: object) -> StackSpec:
    return parse(StackSpec, {"d_model": 8, "n_layers": 1, "n_heads": 2, "position": position}, name="recipe")


@pytest.mark.parametrize("allowed", ["", "planted", "planted_package.other", "planted_packages,numpy"])
def test_code_that_is_not_allowed_is_not_imported(package: Path, allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, allowed)
    with pytest.raises(UserError) as error:
        stack({"kind": KIND})
    assert str(error.value) == (
        f"recipe: position: {KIND} is code of the package planted_package, which is not allowed; if you trust it, pass "
        "--allow-code planted_package or set TERCET_ALLOW_CODE=planted_package"
    )
    assert not any(name.startswith("planted_package") for name in sys.modules)
    assert not (package / "fourier.py.imported").exists()


@pytest.mark.parametrize("names", ["planted_package", "numpy, planted_package", "planted_package.fourier"])
def test_custom_spec_of_an_allowed_package_is_a_member_of_the_union(package: Path, names: str) -> None:
    allow_code(names)
    parsed = stack({"kind": KIND, "n": 5, "waves": {"low": 2.0}})
    plain = to_plain(parsed)
    assert plain["position"] == {"kind": KIND, "n": 5, "waves": {"low": 2.0}}
    assert parse(StackSpec, plain) == parsed
    assert stack(KIND) == stack({"kind": KIND})  # the kind is enough
    assert repr(parsed.position) == "Fourier(n=5, waves=Waves(low=2.0))"
    assert hash(parsed) == hash(parse(StackSpec, plain))
    assert find_differences(to_plain(stack(KIND)), plain)[0] == "position.n: 16 -> 5"
    assert merge(plain, {"position": {"n": 7}})["position"]["n"] == 7
    assert merge(plain, {"position": {"kind": "rotary"}})["position"] == {"kind": "rotary"}
    assert [part.kind for part in custom_parts(parsed)] == [KIND]
    assert code_versions(parsed) == {KIND: None}  # found in a folder, without a version


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ({"kind": KIND, "wave": {}}, "unknown key 'wave'; did you mean 'waves'?"),
        ({"kind": KIND, "n": 65}, "position.n=65 must be at least 1 and at most 64"),
        ({"kind": KIND, "n": "many"}, "position.n: input should be a valid integer"),
        ({"kind": KIND, "waves": {"lo": 1}}, "position.waves: unknown key 'lo'; did you mean 'low'?"),
        ("planted_package.fourier:Fouriers", "the module planted_package.fourier has no class Fouriers"),
        ("planted_package.fourier:function", "the module planted_package.fourier has no class function"),
        (
            "planted_package.fourier:Undecorated",
            "requires the decorator tercet.spec.spec; write @spec before its class",
        ),
        ("planted_package.fourier:Other", "must be a subclass of CustomPosition"),
        ("planted_package.missing:A", "cannot import planted_package.missing for planted_package.missing:A: "),
        ("planted_package.broken:A", "cannot import planted_package.broken for planted_package.broken:A: "),
        ("missing_package.part:A", "requires the package missing_package, which is not installed; install it"),
        ("planted_package.fourier:Four.ier", "is not an import path; use one such as my_package.fourier:Fourier"),
        (":Fourier", "is not an import path"),
        ("../up:Fourier", "is not an import path"),
        ("a..b:C", "is not an import path"),
        ("rotary:", "is not an import path"),
        (
            "planted_package.fourier.Fourier",
            "which has a colon before the class; write planted_package.fourier:Fourier",
        ),
        ({"kind": "planted_package.Fourier"}, "write planted_package:Fourier"),
        ("..Fourier", "write my_package.fourier:Fourier"),
        ("kind:rotary", "'kind:rotary' has no space after its colon; write kind: rotary"),
        (
            "planted_package.fourier:FewArguments",
            f"planted_package/fourier.py line {LINE}: got an unexpected keyword argument 'd_head'; define it as "
            "build(self, *, d_model, d_head, n_heads, n_layers, max_len, causal)",
        ),
        (
            "planted_package.fourier:MoreArguments",
            "'waves'; define it as build(",
        ),
    ],
)
def test_invalid_custom_settings_are_rejected_with_a_remedy(package: Path, position: object, message: str) -> None:
    allow_code(["planted_package", "missing_package"])
    with pytest.raises(UserError) as error:
        stack(position)
    assert message in str(error.value)
    assert not (package / "fourier.py.imported").exists() or "y" not in (package / "fourier.py.imported").read_text()


def test_import_path_is_unknown_in_a_setting_without_custom_specs(package: Path) -> None:
    allow_code("planted_package")
    with pytest.raises(UserError, match=r"unknown kind 'planted_package\.fourier:Fourier'; known: dynamic, linear"):
        stack({"kind": "rotary", "scaling": {"kind": KIND, "factor": 2.0}})


def test_class_that_is_already_imported_needs_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "")
    assert stack({"kind": Local.kind, "size": 4}).position == Local(size=4)
    with pytest.raises(UserError, match="which is not allowed"):
        stack("tercet.nn.a_module_that_is_not_imported:Part")
    with pytest.raises(UserError, match=r"os:system|has no class system"):
        stack("os:system")


def test_own_field_kind_is_rejected() -> None:
    with pytest.raises(TypeError, match="remove the field kind of Part: the kind of a custom part is its import path"):

        @spec
        class Part(Custom):
            kind: str = "part"  # pyright: ignore[reportIncompatibleVariableOverride]


@pytest.mark.parametrize("name", ["my-package", "a b", "", "a..b", "../x"])
def test_invalid_package_names_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a package; use one such as my_package"):
        allow_code([name])


@pytest.mark.slow
def test_current_folder_is_not_searched(tmp_path: Path) -> None:
    """A package in the current folder is found only if the user adds the folder to PYTHONPATH."""
    (tmp_path / "planted_package").mkdir()
    (tmp_path / "planted_package" / "fourier.py").write_text(MODULE)
    (tmp_path / "random.py").write_text("raise SystemExit('a file of the current folder was imported')")
    command = [
        sys.executable,
        "-m",
        "tercet",
        "train",
        "demo",
        "--print-config",
        "--allow-code",
        "planted_package",
        "--set",
    ]
    for path, code, words in ((None, 2, "is not installed"), (str(tmp_path), 2, "has no class Missing")):
        if path is not None:
            (tmp_path / "random.py").unlink()
        folders = [folder for folder in (path, os.environ.get("PYTHONPATH")) if folder]
        process = subprocess.run(
            [*command, "model.stack.position=planted_package.fourier:Missing"],
            cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        )  # fmt: skip
        assert (process.returncode, process.stderr.count("\n")) == (code, 1), process.stderr
        assert words in process.stderr


def test_method_with_other_names_for_settings_it_does_not_use_is_accepted(package: Path) -> None:
    allow_code("planted_package")
    assert stack("planted_package.fourier:Inherits").position
