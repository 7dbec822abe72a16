"""Specs from other packages, which recipes and model folders select by import path.

    position: {kind: "my_package.fourier:Fourier", waves: 8}

A recipe or folder may come from anyone, and an import runs code. A module is therefore imported only if the user has
allowed its package by name, with `--allow-code`, `allow_code=` or the environment variable `TERCET_ALLOW_CODE`. A class
that the program has already imported needs no permission. Modules are found on `sys.path`, which is never changed.
"""

import dataclasses
import hashlib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tercet.messages import describe_error, show
from tercet.spec import Custom

ALLOWED = "TERCET_ALLOW_CODE"  # an environment variable, which processes of the same run inherit


def allow_code(packages: str | Iterable[str]) -> None:
    """Allow this process, and those that it starts, to import code of packages that a recipe or folder names.

    Args:
        packages: Names of packages, such as "my_package", or several names separated by commas. A name with dots allows
            only that module and those in it.

    Raises:
        ValueError: If a name is not a name of a package.
    """
    names = check_packages(packages)
    if names:
        os.environ[ALLOWED] = ",".join(dict.fromkeys([*_allowed_packages(), *names]))


def check_packages(packages: str | Iterable[str]) -> list[str]:
    """Return the names in an argument of `allow_code`; raises like it."""
    names = [name.strip() for name in (packages.split(",") if isinstance(packages, str) else packages)]
    for name in names:
        if not _is_module(name):
            raise ValueError(f"{show(name)} is not the name of a package; use one such as my_package")
    return names


def load_class(path: str, base: type[Custom]) -> type[Custom]:
    """Return the class at an import path such as "my_package.fourier:Fourier".

    Args:
        path: Name of the module and name of the class.
        base: Required base class, such as `CustomPosition`.

    Raises:
        ValueError: If the package is not allowed or not installed, or the class does not exist, is not a spec with this
            base class, or has a method that cannot be called with the arguments of the base class's method.
    """
    module_name, _, class_name = path.partition(":")
    package = module_name.partition(".")[0]
    if not is_import_path(path):
        raise ValueError(f"{show(path)} is not an import path; use one such as my_package.fourier:Fourier")
    module = sys.modules.get(module_name)
    if module is None:
        _check_allowed(path, module_name, package)
        try:
            module = import_module(module_name)
        except ImportError as error:
            raise ValueError(f"cannot import {module_name} for {path}: {describe_error(error)}") from error
    # Only names in the module's dictionary: its `__getattr__` could import other modules.
    found = vars(module).get(class_name)
    if not isinstance(found, type):
        raise ValueError(f"the module {module_name} has no class {class_name}")
    if not issubclass(found, base):
        raise ValueError(f"{path} must be a subclass of {base.__name__}")
    if "__settings__" not in vars(found):
        raise ValueError(f"{path} requires the decorator tercet.spec.spec; write @spec before its class")
    _check_methods(path, found)
    return found


def is_import_path(text: str) -> bool:
    """Return True if a text has the form of an import path, such as "my_package.fourier:Fourier"."""
    module_name, _, class_name = text.partition(":")
    return _is_module(module_name) and class_name.isidentifier()


def suggest_import_path(path: str) -> str:
    """Return the error for an import path without a colon, with the form that has one if the path has several names."""
    module, _, name = path.rpartition(".")
    example = f"{module}:{name}" if module and _is_module(path) else "my_package.fourier:Fourier"
    return f"{path} is not an import path, which has a colon before the class; write {example}"


def _check_methods(path: str, part: type[Custom]) -> None:
    """Check that the methods of a part accept the arguments with which Tercet calls them.

    Raises:
        ValueError: If a method does not; the message contains its file and line, and the signature that is required.
    """
    base = next(cls for cls in part.__mro__ if Custom in cls.__bases__)
    for name, method in vars(base).items():
        found = inspect.getattr_static(part, name)
        if name.startswith("_") or found is method or not inspect.isfunction(found):
            continue
        required = inspect.signature(method)
        parameters = required.parameters.values()
        positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        keywords = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        try:
            inspect.signature(found).bind(*positional, **dict.fromkeys(keywords))
        except TypeError as error:
            code = inspect.unwrap(found).__code__
            parts = [*positional, *(["*"] if keywords else []), *keywords]
            raise ValueError(
                f"{path}: {name} in {code.co_filename} line {code.co_firstlineno}: {error}; define it as "
                f"{name}({', '.join(parts)})"
            ) from None


def custom_parts(spec: Any) -> Iterator[Custom]:
    """Yield all specs of other packages in a spec, itself included."""
    if isinstance(spec, Custom):
        yield spec
    if isinstance(spec, tuple):
        for item in spec:  # pyright: ignore[reportUnknownVariableType]
            yield from custom_parts(item)
    elif dataclasses.is_dataclass(spec):
        for field in dataclasses.fields(spec):
            yield from custom_parts(getattr(spec, field.name))


def code_versions(spec: Any) -> dict[str, str | None]:
    """Return the version of the package of each custom part in a spec, by import path; None if it has no version."""
    return {part.kind: _version(part.kind) for part in custom_parts(spec)}


def source_hash(part: Custom) -> str:
    """Return the SHA-256 of the source file that defines a part; empty if there is no such file."""
    source = getattr(sys.modules.get(type(part).__module__), "__file__", None)
    try:
        return "" if source is None else hashlib.sha256(Path(source).read_bytes()).hexdigest()
    except OSError:
        return ""


def _version(path: str) -> str | None:
    from importlib.metadata import packages_distributions, version  # takes some milliseconds

    package = path.partition(":")[0].partition(".")[0]
    distributions = packages_distributions().get(package, ())
    return ", ".join(f"{name} {version(name)}" for name in sorted(set(distributions))) or None


def _allowed_packages() -> list[str]:
    return [name for name in map(str.strip, os.environ.get(ALLOWED, "").split(",")) if name]


def _check_allowed(path: str, module: str, package: str) -> None:
    """Check that a module may be imported, and that its package exists; nothing is imported.

    Raises:
        ValueError: If it may not, or does not.
    """
    if not any(f"{module}.".startswith(f"{name}.") for name in _allowed_packages()):
        raise ValueError(
            f"{path} is code of the package {package}, which is not allowed; if you trust it, pass --allow-code "
            f"{package} or set {ALLOWED}={package}"
        )
    if find_spec(package) is None:
        raise ValueError(
            f"{path} requires the package {package}, which is not installed; install it, or add the folder that "
            f"contains {package} to PYTHONPATH"
        )


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
