"""From models to a running server: a socket, uvicorn around the application, and an orderly end.

A signal makes it not ready, and after `shutdown_delay` seconds stops the taking of requests; those that were taken are
finished, for `grace` seconds at most. The order is that of `BoundedServer.shutdown`.
"""

import gc
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.kernel import warm_up
from tercet.limits import MAX_BODY_BYTES, MAX_CONNECTIONS
from tercet.loopback import LOOPBACK, host_name, is_loopback
from tercet.serve.engine import Limits
from tercet.serve.http.app import application
from tercet.serve.http.guard import AccessRules
from tercet.serve.http.log import ServerLog
from tercet.serve.registry import LoadedModel, ModelRegistry
from tercet.spec import Seconds, check_range
from tercet.web.access import AllowedNames
from tercet.web.server import BoundedServer, open_socket

KEY = "TERCET_API_KEY"
PORT = 8000
SWITCH_SECONDS = 0.0005  # after which a thread that computes hands Python's lock to one that waits; by default 0.005


def serve(
    models: Mapping[str, TrainedModel],
    *,
    host: str = LOOPBACK,
    port: int = PORT,
    limits: Limits | None = None,
    max_body: int = MAX_BODY_BYTES,
    grace: float = 30.0,
    shutdown_delay: float = 0.0,
    hosts: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
    allow_no_key: bool = False,
    json_log: bool = False,
    quiet: bool = False,
) -> None:
    """Answer until a signal ends it; the address is the one line on stdout, the log goes to stderr.

    The environment's TERCET_API_KEY is the key that requests must bring.

    Args:
        models: by the names that clients ask for.
        host: a name or an address of this machine; one that others can reach needs a key.
        port: 0 takes any that is free.
        max_body: bytes of a request.
        grace: seconds, a day at most, in which what was asked may be finished, once requests are no longer taken.
        shutdown_delay: seconds, a day at most, for which they still are, once a signal came: while /ready says 503,
            and balancers learn that they should ask another.
        hosts: names under which it may be asked, beside this machine's own; "*" is any.
        origins: of pages in browsers that may ask, and read the answers; "*" is any.
        allow_no_key: no key is needed, though others can reach it.
        json_log: the log's lines are JSON.
        quiet: no line for each request.

    Raises:
        UserError: where it cannot be opened there, or would be open to others without a key.
    """
    rules = _access_rules(host, os.environ.get(KEY), hosts, origins, max_body, allow_no_key)
    _check_seconds(grace=grace, shutdown_delay=shutdown_delay)
    limits = Limits() if limits is None else limits
    listening = open_socket(host, port, send_timeout=limits.seconds)
    warm_up()  # whoever asks meanwhile waits for it
    log = ServerLog(quiet=quiet, use_json=json_log)
    registry = ModelRegistry(
        LoadedModel(trained_model, name=name, limits=limits) for name, trained_model in models.items()
    )
    try:
        server = ModelServer(
            application(registry, rules, log=log), registry,
            note=log.note, grace=grace, shutdown_delay=shutdown_delay,
        )  # fmt: skip
        host_in_url = f"[{host}]" if ":" in host else host
        for model in registry.models.values():
            log.note(f"{model.name}: {model.kind}, at {' and '.join(model.endpoints)}")
        with tuned_interpreter():
            print(f"http://{host_in_url}:{listening.getsockname()[1]}/", flush=True)
            server.run(sockets=[listening])
    finally:
        listening.close()
        registry.close(seconds=0)


@contextmanager
def tuned_interpreter() -> Generator[None]:
    """For answering many clients while something is computed; entered once the models are loaded.

    The thread of the connections lets go of Python's lock at each call of the system, and waits for it behind the
    workers' threads. And the collector stops everyone: of what is there now nothing is garbage, and it takes 150 ms to
    search it.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(usual)


def name_models(folders: Sequence[str | Path]) -> dict[str, Path]:
    """The name of each model: that of its folder.

    Raises:
        UserError: where two are called alike.
    """
    paths = dict[str, Path]()
    for folder in map(Path, folders):
        name = folder.resolve().name or "model"
        if name in paths:
            raise UserError(f"{paths[name]} and {folder} are both called {name}; give one of them another name")
        paths[name] = folder
    return paths


def _check_seconds(**seconds: float) -> None:
    for name, value in seconds.items():
        try:
            check_range(name, value, Seconds)
        except ValueError as error:
            raise UserError(str(error)) from None


def _access_rules(
    host: str, key: str | None, hosts: tuple[str, ...], origins: tuple[str, ...], max_body: int, allow_no_key: bool
) -> AccessRules:
    local = is_loopback(host)
    extra_hosts = () if local else (host.lower(),)
    if key is None and not local and not allow_no_key:
        raise UserError(
            f"{host} is more than this machine: whoever reaches it could use the models; set {KEY} to a key of your "
            "choice, or say --no-key"
        )
    if urls := [name for name in hosts if "/" in name]:
        raise UserError(f"--allow-host {urls[0][:100]} is no name; write it as example.org, or * for any")
    if malformed := [origin for origin in origins if origin != "*" and "://" not in origin]:
        raise UserError(f"--cors-origin {malformed[0]} is no origin; write it as https://example.org, or * for any")
    try:
        names = AllowedNames(local=local, hosts=(*map(host_name, hosts), *extra_hosts), origins=origins)
        return AccessRules(key=key, names=names, max_body=max_body)
    except ValueError as error:
        name, flag = (KEY, f"; unset it for none: {error}") if "key" in str(error) else ("--max-body", f": {error}")
        raise UserError(f"{name} is not as it should be{flag}") from None


class ModelServer(BoundedServer):
    """Its models take questions for as long as one that was taken in may have more of them: until the grace is over."""

    def __init__(
        self,
        app: object,
        registry: ModelRegistry,
        *,
        note: Callable[[str], None],
        grace: float,
        shutdown_delay: float = 0,
        connections: int = MAX_CONNECTIONS,
    ) -> None:
        super().__init__(app, note=note, grace=grace, shutdown_delay=shutdown_delay, connections=connections)
        self._registry = registry

    def on_drain(self) -> None:
        self._registry.is_ready = False
        taking = f"requests are taken for {self._shutdown_delay:g} more seconds, and " if self._shutdown_delay else ""
        self._note(f"closing; {taking}what runs has {self._grace:g} seconds")

    def on_grace_over(self) -> None:
        threading.Thread(target=self._registry.close, kwargs={"seconds": 0}, daemon=True).start()
