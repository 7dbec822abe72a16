"""A socket, and uvicorn around an ASGI application, in the bounds of `connections`; and no more of them than files.

How a server ends, in stages, is `BoundedServer.shutdown`.
"""

import asyncio
import errno
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from tercet.config import UserError
from tercet.limits import MAX_CONNECTIONS, MAX_HEAD_BYTES, RESERVED_FILES
from tercet.web.connections import BoundedProtocol, ConnectionLimits

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
SECONDS_BETWEEN_NOTES = 60.0
LONGEST_QUEUE = 1024  # connections that the kernel keeps until they are taken
LARGEST_BATCH = 512  # connections that are taken in one go
CLOSE_HEADER = (b"connection", b"close")
LAST_ANSWER_SECONDS = 3.0  # for those to be told whose requests could not be finished
TICK_SECONDS = 0.05  # between two looks at what a drain waits for
TURNS = 4  # of the event loop, from a connection that is taken to the end of the one that made room for it


class BoundedServer(uvicorn.Server):
    """uvicorn's; its connections are bounded in number and time.

    Args:
        app: an ASGI application.
        note: gets what is to be told of the server itself, a line each.
        grace: seconds for which what was asked may be finished at the end.
        shutdown_delay: seconds for which it can still be asked once a signal came.
        connections: at most; fewer where the process may open fewer files.
    """

    def __init__(
        self,
        app: Any,
        *,
        note: Callable[[str], None],
        grace: float,
        shutdown_delay: float = 0,
        connections: int = MAX_CONNECTIONS,
    ) -> None:
        capacity, batch = connection_capacity(connections)
        self.limits = ConnectionLimits(capacity)
        config = uvicorn.Config(
            app,
            http=partial(BoundedProtocol, limits=self.limits),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_level="error",  # what others make of their requests is told to them
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=batch,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_graceful_shutdown=1,  # `shutdown` has waited before
        )
        super().__init__(config)
        self._grace, self._shutdown_delay = grace, shutdown_delay
        self._note, self._last_note = note, float("-inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        await super().startup(sockets)
        for listening in sockets or ():  # asyncio lets only so many wait as it takes in one go
            listening.listen(LONGEST_QUEUE)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A first signal begins the end, a second one of any kind makes it short; for uvicorn's it must be Ctrl-C."""
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The order of a drain. A second signal ends the waiting in 2 and 4."""
        # 1. Balancers are told, and clients, with each answer, that it is the last on their connection.
        self.on_drain()
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE_HEADER]
        for connection in self._connections:
            connection.set_default_headers(self.server_state.default_headers)
        # 2. Until they know, requests are taken.
        await self._wait(self._shutdown_delay)
        # 3. No more are: nothing listens, and connections end, idle ones now, the others with their answer.
        for server in self.servers:
            server.close()
        for connection in self._connections:
            connection.shutdown()
        # 4. Those that were taken are finished,
        if not await self._wait(self._grace, until_closed=True):
            # 5. or told that they are not,
            self.on_grace_over()
            await self._wait(LAST_ANSWER_SECONDS, until_closed=True, interruptible=False)
        # 6. or cut off.
        for connection in self._connections:
            connection.transport.abort()
        await super().shutdown(sockets)

    def on_drain(self) -> None:
        """It is about to end: balancers should send no more."""

    def on_grace_over(self) -> None:
        """No more time for what is not finished; where all is, this is not called."""

    @property
    def _connections(self) -> list[BoundedProtocol]:
        return [connection for connection in self.server_state.connections if isinstance(connection, BoundedProtocol)]

    async def _wait(self, seconds: float, *, until_closed: bool = False, interruptible: bool = True) -> bool:
        """At most so long: until no connection is left (True), if for them; until a second signal, if hurried."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (interruptible and self.force_exit):
            await asyncio.sleep(TICK_SECONDS)  # first: what was just accepted is a connection by then
            if until_closed and not self._connections and not self.server_state.tasks:
                return True
        return False

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio tells each connection that it cannot take, many times a second; one line a minute is enough."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES and "socket" in context):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._last_note > SECONDS_BETWEEN_NOTES:
            self._last_note = time.monotonic()
            self._note(f"no connection can be taken now: {error.strerror}; those that there are go on (see ulimit -n)")


def connection_capacity(limit: int = MAX_CONNECTIONS) -> tuple[int, int]:
    """How many connections may be open, and how many may be taken in one go, so that files are left for other things.

    Each is a file before it is counted, and the one that makes room for it is a file until it has ended.
    """
    if sys.platform == "win32":  # sockets are no files there
        return limit, LARGEST_BATCH
    import resource

    free = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _open_files() - RESERVED_FILES
    batch = max(1, min(LARGEST_BATCH, free // (2 * TURNS)))
    return max(1, min(limit, free - TURNS * batch)), batch


def _open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return RESERVED_FILES


def open_socket(host: str, port: int, *, send_timeout: float, ports_tried: int = 1) -> socket.socket:
    """A listening socket at the first free port from `port` on; 0 takes any that is free.

    Args:
        send_timeout: seconds after which the kernel cuts off a reader who takes nothing.

    Raises:
        UserError: where nothing can be opened there.
    """
    last = port if port == 0 else min(port + ports_tried - 1, 65535)
    for candidate in range(port, last + 1):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Named TCP, or asyncio leaves Nagle's algorithm on: 40 ms for each answer on a connection that is kept.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if sys.platform != "win32":  # there it would let two programs share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * min(send_timeout, 1e6)))
        try:
            listening.bind((host, candidate))
            listening.listen(LONGEST_QUEUE)
            return listening
        except (OSError, UnicodeError) as error:  # a name that no DNS can hold is a UnicodeError
            listening.close()
            if not isinstance(error, OSError) or isinstance(error, socket.gaierror) or candidate == last:
                why = getattr(error, "strerror", None) or error
                raise UserError(
                    f"cannot open {host[:100]} at port {port}: {why}; give another --host or --port "
                    "(0 takes any that is free)"
                ) from None
        except OverflowError:
            listening.close()
            break
    raise UserError(f"--port {port} must be 0 to 65535; 0 takes any that is free")
