"""Serve trained models over HTTP: open a socket, run the application in uvicorn, and shut down gracefully.

After a signal, /ready reports that the server is not ready. After another `shutdown_delay` seconds no new requests are
accepted, and running requests have at most `grace` seconds to finish. `BoundedServer.shutdown` lists all stages.
"""

import gc
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.encoding.search_index import SearchIndex
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
# Time after which a computing thread must pass the interpreter lock to a waiting thread; Python's default is 0.005.
SWITCH_SECONDS = 0.0005


def serve(
    models: Mapping[str, TrainedModel],
    *,
    host: str = LOOPBACK,
    port: int = PORT,
    index: SearchIndex | Callable[[], SearchIndex] | None = None,
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
    """Serve models over HTTP until a signal arrives; print the address on stdout, and write the log to stderr.

    If the environment variable TERCET_API_KEY is set, requests must send its value as a bearer token.

    Args:
        models: Models by the names that clients use.
        host: Host name or address to listen on. One that other machines can reach requires a key.
        port: TCP port; 0 chooses a free one.
        index: Documents that /v1/search searches, with vectors of the first model; or a function that returns them,
            which is called when the address is open; None for no documents.
        limits: Limits of each model's workers; None for the defaults of `Limits`.
        max_body: Maximum size of a request body in bytes.
        grace: Seconds, at most a day, to finish running requests after new ones are rejected.
        shutdown_delay: Seconds, at most a day, for which requests are still accepted after a signal. During this time
            /ready returns 503, so that load balancers choose another server.
        hosts: Host names that clients may use, in addition to the names of this machine; "*" allows any.
        origins: Origins of web pages that may send requests and read responses; "*" allows any.
        allow_no_key: If True, `host` may be reachable from other machines although TERCET_API_KEY is not set.
        json_log: If True, write the log as JSON.
        quiet: If True, do not log requests.

    Raises:
        UserError: If no model is passed, there are documents and the first model is not an encoder, a value or key is
            invalid, a key is missing, or the address cannot be opened.
    """
    rules = _access_rules(host, os.environ.get(KEY), hosts, origins, max_body, allow_no_key)
    _check_seconds(grace=grace, shutdown_delay=shutdown_delay)
    limits = Limits() if limits is None else limits
    with closing(open_socket(host, port, send_timeout=limits.seconds)) as listening:
        warm_up()  # connections that arrive in the meantime wait in the queue of the socket
        log = ServerLog(quiet=quiet, use_json=json_log)
        registry = _make_registry(models, index() if callable(index) else index, limits)
        try:
            server = ModelServer(
                application(registry, rules, log=log), registry,
                note=log.note, grace=grace, shutdown_delay=shutdown_delay,
            )  # fmt: skip
            for model in registry.models.values():
                log.note(f"{model.name}: {model.kind}; endpoints {' and '.join(model.endpoints)}")
            with tuned_interpreter():
                print(f"http://{url_host(host)}:{listening.getsockname()[1]}/", flush=True)
                server.run(sockets=[listening])
        finally:
            registry.close(seconds=0)


def _make_registry(models: Mapping[str, TrainedModel], index: SearchIndex | None, limits: Limits) -> ModelRegistry:
    """Return the models with their workers; the first one has the documents."""
    return ModelRegistry(
        LoadedModel(trained_model, name=name, limits=limits, index=None if number else index)
        for number, (name, trained_model) in enumerate(models.items())
    )


@contextmanager
def tuned_interpreter() -> Generator[None]:
    """Reduce interruptions by worker threads and garbage collection; enter the context after loading the models.

    The thread that serves connections releases the interpreter lock at each system call, and then has to wait until a
    worker thread passes the lock on: a shorter switch interval reduces this time. A garbage collection stops all
    threads. Searching the objects that exist after loading takes 150 ms, and none of them is garbage, so they are
    excluded from later collections.
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
    """Return a name for each model folder, which is the last part of its path. A symbolic link keeps its own name.

    Raises:
        UserError: If two models have the same name.
    """
    paths = dict[str, Path]()
    for folder in map(Path, folders):
        name = Path(os.path.abspath(folder)).name or "model"
        if name in paths:
            raise UserError(f"{paths[name]} and {folder} have the same name {name}; rename one of them")
        paths[name] = folder
    return paths


def url_host(host: str) -> str:
    """Return the host for a URL of this machine: a browser cannot open the addresses that stand for all interfaces."""
    host = {"0.0.0.0": LOOPBACK, "": LOOPBACK, "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


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
        name, flag = (KEY, f": {error}; unset it for no key") if "key" in str(error) else ("--max-body", f": {error}")
        raise UserError(f"invalid {name}{flag}") from None


class ModelServer(BoundedServer):
    """A server that closes its models at the end of the grace period.

    Until then, running requests may submit further items to the workers.

    Args:
        app: ASGI application.
        registry: Models that the application serves.
        note, grace, shutdown_delay, connections: See `BoundedServer`.
    """

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
