"""Tercet: Transformers from scratch on your own text. `tercet.train`, `tercet.load`, and the parts in `tercet.nn`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tercet.api import Engine as Engine
    from tercet.api import Run as Run
    from tercet.api import compare as compare
    from tercet.api import convert as convert
    from tercet.api import load as load
    from tercet.api import train as train

__all__ = ["Engine", "Run", "compare", "convert", "load", "train"]


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is asked for: importing torch takes a second."""
    if name in __all__:
        from tercet import api

        return getattr(api, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("tercet")
    raise AttributeError(f"module 'tercet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
