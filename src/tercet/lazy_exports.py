"""Packages whose names are imported on first access, so that reading a recipe does not import torch.

    if TYPE_CHECKING:
        from tercet.nn.attention import Attention as Attention
    else:
        export_lazily(__name__)

The names are listed only once, as imports: type checkers and `export_lazily` read the same lines.
"""

import gc
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, cast


class LazyPackage(ModuleType):
    """A package that imports each exported name on first access.

    Attributes:
        __exports__: For each exported name, the module that defines it.
    """

    __exports__: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self.__exports__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with paused_collector():
            value = getattr(import_module(self.__exports__[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Python assigns each imported submodule to its package. An exported function of the same name takes precedence.
        if not (isinstance(value, ModuleType) and name in self.__exports__):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """Return the public names, without imports and imported submodules."""
        return sorted({*self.__exports__, *(name for name in super().__dir__() if name.startswith("__"))})


@contextmanager
def paused_collector() -> Generator[None]:
    """Pause garbage collection in a `with` block that may import torch.

    If the block imports torch, all objects are then frozen, so that later collections skip them. Importing torch
    creates no garbage, but the collector would search its objects repeatedly, which takes a sixth of the import time,
    and search them again in each later full collection.
    """
    was_enabled, had_torch = gc.isenabled(), "torch" in sys.modules
    gc.disable()
    try:
        yield
    finally:
        if not had_torch and "torch" in sys.modules:
            gc.freeze()
        if was_enabled:
            gc.enable()


def export_lazily(package: str) -> None:
    """Make a package a `LazyPackage`; called by its `__init__.py`.

    The exported names are those of the indented lines `from module import name as name` in that file.

    Args:
        package: Name of the package, which is being imported.
    """
    module = sys.modules[package]
    source = cast(Any, module.__spec__).loader.get_source(package)
    exports = {
        name: source_module
        for source_module, name in re.findall(r"^    from (\S+) import (\w+) as \2$", source, re.MULTILINE)
    }
    vars(module).update(__exports__=exports, __all__=sorted(exports))
    module.__class__ = LazyPackage
