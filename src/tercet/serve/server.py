"""The server of trained models: a socket, uvicorn with the application, and a graceful shutdown.

A signal makes the server not ready. After `shutdown_delay` seconds it accepts no more requests; accepted requests are
finished for at most `grace` seconds. The order is that of `BoundedServer.shutdown`.
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
SWITCH_SECONDS = (
    0.0005  # after which a computing thread releases the interpreter lock to a waiting one; by default 0.005
)


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
    """Serve models over HTTP until a signal; print the address on stdout, and write the log to stderr.

    The environment variable TERCET_API_KEY contains the key that requests must send.

    Args:
        models: Models by the names that clients use.
        host: Name or address of this machine; one that other machines can reach requires a key.
        port: TCP port; 0 chooses a free one.
        limits: Limits of each model's workers.
        max_body: Maximum size of a request body in bytes.
        grace: Seconds, at most a day, to finish accepted requests after new ones are rejected.
        shutdown_delay: Seconds, at most a day, for which requests are still accepted after a signal. During this time
            /ready returns 503, so that load balancers choose another server.
        hosts: Host names under which the server may be addressed, in addition to those of this machine; "*" allows any.
        origins: Origins of web pages that may send requests and read responses; "*" allows any.
        allow_no_key: If True, no key is required, although other machines can reach the server.
        json_log: If True, write the log as JSON.
        quiet: If True, do not log requests.

    Raises:
        UserError: If the address cannot be opened, or other machines could use it without a key.
    """
    rules = _access_rules(host, os.environ.get(KEY), hosts, origins, max_body, allow_no_key)
    _check_seconds(grace=grace, shutdown_delay=shutdown_delay)
    limits = Limits() if limits is None else limits
    listening = open_socket(host, port, send_timeout=limits.seconds)
    warm_up()  # requests wait until this is done
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
            log.note(f"{model.name}: {model.kind}; endpoints {' and '.join(model.endpoints)}")
        with tuned_interpreter():
            print(f"http://{host_in_url}:{listening.getsockname()[1]}/", flush=True)
            server.run(sockets=[listening])
    finally:
        listening.close()
        registry.close(seconds=0)


@contextmanager
def tuned_interpreter() -> Generator[None]:
    """Tune the interpreter for many clients during computation; enter it after the models are loaded.

    The connection thread releases the interpreter lock at each system call, and then waits for it behind the worker
    threads. The garbage collector stops all threads: it takes 150 ms to search the present objects, none of which is
    garbage.
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
    """Return the folders by model name, which is the name of the folder.

    Raises:
        UserError: If two models have the same name.
    """
    paths = dict[str, Path]()
    for folder in map(Path, folders):
        name = folder.resolve().name or "model"
        if name in paths:
            raise UserError(f"{paths[name]} and {folder} have the same name {name}; rename one of them")
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
            f"{host} is reachable from other machines, which could use the models without a key; set {KEY} to a key of "
            "your choice, or pass --no-key"
        )
    if urls := [name for name in hosts if "/" in name]:
        raise UserError(
            f"--allow-host {urls[0][:100]} is not a host name; pass a name such as example.org, or * for any"
        )
    if malformed := [origin for origin in origins if origin != "*" and "://" not in origin]:
        raise UserError(
            f"--cors-origin {malformed[0]} is not an origin; pass one such as https://example.org, or * for any"
        )
    try:
        names = AllowedNames(local=local, hosts=(*map(host_name, hosts), *extra_hosts), origins=origins)
        return AccessRules(key=key, names=names, max_body=max_body)
    except ValueError as error:
        name, flag = (KEY, f"; unset it for none: {error}") if "key" in str(error) else ("--max-body", f": {error}")
        raise UserError(f"invalid {name}{flag}") from None


class ModelServer(BoundedServer):
    """A server whose models accept work until the grace period is over, as running requests may need it."""

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
        taking = f"accepting requests for {self._shutdown_delay:g} more seconds, then " if self._shutdown_delay else ""
        self._note(f"shutting down; {taking}waiting up to {self._grace:g} seconds for running requests")

    def on_grace_over(self) -> None:
        threading.Thread(target=self._registry.close, kwargs={"seconds": 0}, daemon=True).start()
