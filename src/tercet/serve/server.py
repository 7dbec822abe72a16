"""From models to a running server: a socket, uvicorn around the application, and an orderly end.

A signal stops the taking of requests; what runs and waits is finished, for `grace` seconds at most.
"""

import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvicorn

from tercet.checkpoint import Trained
from tercet.config import UserError
from tercet.kernel import warm_up
from tercet.loopback import LOOPBACK, is_loopback
from tercet.serve.engine import Limits
from tercet.serve.http.app import application
from tercet.serve.http.guard import AccessRules
from tercet.serve.http.log import ServerLog
from tercet.serve.registry import LoadedModel, ModelRegistry

KEY = "TERCET_API_KEY"
PORT = 8000


def serve(
    models: Mapping[str, Trained],
    *,
    host: str = LOOPBACK,
    port: int = PORT,
    limits: Limits | None = None,
    max_body: int = 1 << 20,
    grace: float = 30.0,
    origins: tuple[str, ...] = (),
    open_to_all: bool = False,
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
        grace: seconds in which what runs may be finished, once a signal came.
        origins: of pages in browsers that may read the answers.
        open_to_all: no key is needed, though others can reach it.
        json_log: the log's lines are JSON.
        quiet: no line for each request.

    Raises:
        UserError: where it cannot be opened there, or would be open to others without a key.
    """
    rules = _access_rules(host, os.environ.get(KEY), origins, max_body, open_to_all)
    if not grace >= 0:
        raise UserError(f"--grace {grace:g} must be 0 or more seconds")
    limits = Limits() if limits is None else limits
    listening = _listen(host, port, patience=limits.seconds)
    warm_up()  # whoever asks meanwhile waits for it
    log = ServerLog(quiet=quiet, as_json=json_log)
    registry = ModelRegistry(LoadedModel(trained, name=name, limits=limits) for name, trained in models.items())
    try:
        server = _Server(_config(application(registry, rules, log=log), grace), registry, grace, log)
        host_in_url = f"[{host}]" if ":" in host else host
        for model in registry.models.values():
            log.note(f"{model.name}: {model.kind}, at {' and '.join(model.endpoints)}")
        print(f"http://{host_in_url}:{listening.getsockname()[1]}/", flush=True)
        server.run(sockets=[listening])
    finally:
        listening.close()
        registry.close(seconds=0)


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


def _access_rules(
    host: str, key: str | None, origins: tuple[str, ...], max_body: int, open_to_all: bool
) -> AccessRules:
    local = is_loopback(host)
    if key is None and not local and not open_to_all:
        raise UserError(
            f"{host} is more than this machine: whoever reaches it could use the models; set {KEY} to a key of your "
            "choice, or say --no-key"
        )
    if malformed := [origin for origin in origins if origin != "*" and "://" not in origin]:
        raise UserError(f"--cors-origin {malformed[0]} is no origin; write it as https://example.org, or * for any")
    try:
        return AccessRules(key=key, local=local, origins=origins, max_body=max_body)
    except ValueError as error:
        name, flag = (KEY, f"; unset it for none: {error}") if "key" in str(error) else ("--max-body", f": {error}")
        raise UserError(f"{name} is not as it should be{flag}") from None


def _config(app: object, grace: float) -> uvicorn.Config:
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,  # ours says more
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=int(grace) + 3,  # the workers end what is left before
        lifespan="off",
    )


class _Server(uvicorn.Server):
    """uvicorn's, whose models stop taking questions when it does."""

    def __init__(self, config: uvicorn.Config, registry: ModelRegistry, grace: float, log: ServerLog) -> None:
        super().__init__(config)
        self._registry, self._grace, self._log = registry, grace, log

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._log.note(f"closing; what runs has {self._grace:g} seconds")
        closing = threading.Thread(target=self._registry.close, kwargs={"seconds": self._grace}, daemon=True)
        self._registry.closing = True
        closing.start()
        await super().shutdown(sockets)


def _listen(host: str, port: int, *, patience: float) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    if sys.platform != "win32":  # there it would let two programs share a port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a reader who takes nothing for so long is cut off by the kernel
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * patience))
    try:
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot open {host} at port {port}: {error.strerror or error}; give another --host or --port "
            "(0 takes any that is free)"
        ) from None
    except OverflowError:
        listening.close()
        raise UserError(f"--port {port} must be 0 to 65535; 0 takes any that is free") from None
    return listening
