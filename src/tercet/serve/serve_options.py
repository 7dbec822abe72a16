"""The keywords of `serve`, beside the models: known without the packages that serving needs."""

from typing import TypedDict

from tercet.serve.engine.limits import Limits


class ServeOptions(TypedDict, total=False):
    """As in `tercet.serve.server.serve`, which says what each means."""

    host: str
    port: int
    limits: Limits | None
    max_body: int
    grace: float
    shutdown_delay: float
    hosts: tuple[str, ...]
    origins: tuple[str, ...]
    allow_no_key: bool
    json_log: bool
    quiet: bool
