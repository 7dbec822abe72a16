"""A uvicorn server with bounded connections, and the socket that it listens on.

`BoundedServer.shutdown` lists the stages of a shutdown.
"""

import asyncio
import errno
import os
import signal
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
LONGEST_QUEUE = 1024  # connections that wait in the kernel until they are accepted
LARGEST_BATCH = 512  # connections accepted at once
CLOSE_HEADER = (b"connection", b"close")
LAST_ANSWER_SECONDS = 3.0  # to send error responses for unfinished requests at the end of the grace period
TICK_SECONDS = 0.05  # between two checks during a shutdown
TURNS = 4  # iterations of the event loop from accepting a connection to closing the one that it replaces


class BoundedServer(uvicorn.Server):
    """A uvicorn server whose connections are bounded in number and time.

    Args:
        app: ASGI application.
        note: Function that logs a message about the server itself.
        grace: Seconds to finish running requests at shutdown.
        shutdown_delay: Seconds for which new requests are accepted after a signal.
        connections: Maximum number of connections; reduced if the process may not open enough files.
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
            log_level="error",  # clients receive the errors of their requests
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=batch,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_graceful_shutdown=1,  # seconds; `shutdown` has already waited for the requests
        )
        super().__init__(config)
        self._grace, self._shutdown_delay = grace, shutdown_delay
        self._note, self._last_note = note, float("-inf")
        self._signals = list[int]()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        await super().startup(sockets)
        for listening in sockets or ():  # asyncio sets the length of the queue to `backlog`
            listening.listen(LONGEST_QUEUE)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal arrives.

        Raises:
            KeyboardInterrupt: If it is SIGINT, also if the process ignores SIGINT outside of this function, as a
                background job of a shell script does.
        """
        super().run(sockets)
        if signal.SIGINT in self._signals:
            raise KeyboardInterrupt

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the shutdown; a second signal of any kind shortens it, whereas in uvicorn only Ctrl-C does."""
        self._signals.append(sig)
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down in six stages; a second signal ends the waiting in stages 2 and 4."""
        # 1. The hook `on_drain` runs, and further responses close their connections.
        self.on_drain()
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE_HEADER]
        for connection in self._connections:
            connection.set_default_headers(self.server_state.default_headers)
        # 2. Requests are still accepted, so that load balancers and clients have time to react.
        await self._wait(self._shutdown_delay)
        # 3. Stop listening. Idle connections are closed now, the others after their response.
        for server in self.servers:
            server.close()
        for connection in self._connections:
            connection.shutdown()
        # 4. Wait for running requests.
        if not await self._wait(self._grace, until_closed=True):
            # 5. Unfinished requests receive an error.
            self.on_grace_over()
            await self._wait(LAST_ANSWER_SECONDS, until_closed=True, interruptible=False)
        # 6. Abort the remaining connections.
        for connection in self._connections:
            connection.transport.abort()
        await super().shutdown(sockets)

    def on_drain(self) -> None:
        """Hook at the start of a shutdown, for example to report to load balancers that the server is not ready."""

    def on_grace_over(self) -> None:
        """Hook at the end of the grace period if requests are unfinished, to make them fail."""

    @property
    def _connections(self) -> list[BoundedProtocol]:
        return [connection for connection in self.server_state.connections if isinstance(connection, BoundedProtocol)]

    async def _wait(self, seconds: float, *, until_closed: bool = False, interruptible: bool = True) -> bool:
        """Wait for at most `seconds`; return True only if `until_closed` ended the waiting.

        Args:
            seconds: Maximum time to wait.
            until_closed: If True, stop waiting when no connection and no request is left.
            interruptible: If True, a second signal ends the waiting.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (interruptible and self.force_exit):
            await asyncio.sleep(TICK_SECONDS)  # before the check, so that new connections are counted
            if until_closed and not self._connections and not self.server_state.tasks:
                return True
        return False

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log exhausted file descriptors or memory at most once per minute; asyncio reports every failed accept."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES and "socket" in context):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._last_note > SECONDS_BETWEEN_NOTES:
            self._last_note = time.monotonic()
            self._note(f"cannot accept connections: {error.strerror}; open connections continue (see ulimit -n)")


def connection_capacity(limit: int = MAX_CONNECTIONS) -> tuple[int, int]:
    """Return the maximum number of connections, and how many of them may be accepted at once.

    Both are at least 1. If possible, RESERVED_FILES of the files that the process may open remain free. A new
    connection uses a file before it is counted, and the connection that it replaces uses one until it is closed.

    Args:
        limit: Maximum number of connections if enough files may be opened.
    """
    if sys.platform == "win32":  # sockets are not files on Windows
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
    """Return a listening socket at the first free port from `port` on.

    Args:
        host: Host name or address to listen on.
        port: First port to try; 0 takes any free port.
        send_timeout: Seconds after which the kernel disconnects a client that reads nothing (on Linux).
        ports_tried: Number of successive ports to try.

    Raises:
        UserError: If no port can be opened.
    """
    last = port if port == 0 else min(port + ports_tried - 1, 65535)
    for candidate in range(port, last + 1):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Without IPPROTO_TCP, asyncio does not disable Nagle's algorithm, which delays each further response by 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if sys.platform != "win32":  # on Windows, the option would let two programs share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * min(send_timeout, 1e6)))
        try:
            listening.bind((host, candidate))
            listening.listen(LONGEST_QUEUE)
            return listening
        except (OSError, UnicodeError) as error:  # UnicodeError: the name is invalid in DNS
            listening.close()
            if not isinstance(error, OSError) or isinstance(error, socket.gaierror) or candidate == last:
                why = getattr(error, "strerror", None) or error
                raise UserError(
                    f"cannot open {host[:100]} at port {port}: {why}; pass another --host or --port "
                    "(0 takes any free port)"
                ) from None
        except OverflowError:
            listening.close()
            break
    raise UserError(f"--port {port} must be 0 to 65535; 0 takes any free port")
