"""The keyword arguments of `serve`, importable without the packages that serving requires."""

from collections.abc import Callable
from typing import TypedDict

from tercet.encoding.search_index import SearchIndex
from tercet.serve.engine.limits import Limits


class ServeOptions(TypedDict, total=False):
    """Keyword arguments of `tercet.serve.server.serve`, which documents them."""

    host: str
    port: int
    index: SearchIndex | Callable[[], SearchIndex] | None
    limits: Limits | None
    max_body: int
    grace: float
    shutdown_delay: float
    hosts: tuple[str, ...]
    origins: tuple[str, ...]
    allow_no_key: bool
    json_log: bool
    quiet: bool
