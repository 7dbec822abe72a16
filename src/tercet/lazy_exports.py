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
    """A package whose `__exports__` map each name to the module that defines it."""

    __exports__: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self.__exports__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with paused_collector():
            value = getattr(import_module(self.__exports__[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Python sets an imported module in its package. An exported function of the same name takes precedence.
        if not (isinstance(value, ModuleType) and name in self.__exports__):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """Return the public names, without imports and imported submodules."""
        return sorted({*self.__exports__, *(name for name in super().__dir__() if name.startswith("__"))})


@contextmanager
def paused_collector() -> Generator[None]:
    """Pause garbage collection while torch is imported, and then freeze all objects.

    Importing torch creates no garbage. The collector would still search these objects repeatedly, which takes a sixth
    of the import time, and again in each later full collection.
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
    """Make `package`, which is being imported, a `LazyPackage`.

    Its names are those that its `__init__.py` imports for the type checker.
    """
    module = sys.modules[package]
    source = cast(Any, module.__spec__).loader.get_source(package)
    exports = {
        name: source_module
        for source_module, name in re.findall(r"^    from (\S+) import (\w+) as \2$", source, re.MULTILINE)
    }
    vars(module).update(__exports__=exports, __all__=sorted(exports))
    module.__class__ = LazyPackage
