"""Connections with a timeout for every wait.

uvicorn's own timeout applies only between two requests, and any received byte ends it. Here a timer runs whenever no
request is being answered. A connection is closed if its client does not send a complete request head in time, or does
not read the response. If a new connection exceeds the maximum number, the one that has waited longest for a request is
closed; if none is waiting, the new one.
"""

import asyncio
import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tercet.limits import HEAD_SECONDS, MAX_HEAD_BYTES, MIN_READ_BYTES, READING_SECONDS

RETRY_SECONDS = 1  # sent as Retry-After if there are too many connections
MAY_RESPOND = (h11.IDLE, h11.SEND_RESPONSE)


@dataclass
class ConnectionLimits:
    """Limits and state that the connections of a server share.

    Attributes:
        capacity: Maximum number of open connections.
        head_seconds: Timeout for a complete request head, in seconds.
        reading_seconds: Time in which a client must read MIN_READ_BYTES of a pending response, in seconds.
        idle: Connections that wait for a request, the one that has waited longest first; the values are unused.
    """

    capacity: int
    head_seconds: float = HEAD_SECONDS
    reading_seconds: float = READING_SECONDS
    idle: dict["BoundedProtocol", None] = field(default_factory=dict)


class StrictConnection(h11.Connection):
    """h11's connection, which also rejects requests with both Transfer-Encoding and Content-Length.

    A proxy in front of the server might use the other header to find the end of the body (request smuggling).
    """

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"transfer-encoding", b"content-length"} <= names:
                raise h11.RemoteProtocolError("both Transfer-Encoding and Content-Length")
        return event


class BoundedProtocol(H11Protocol):
    """uvicorn's h11 protocol with a timeout for each wait; its error responses have OpenAI's format.

    Args:
        limits: Limits and state that all connections of the server share.
        args, kwargs: Arguments of `H11Protocol`.
    """

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = StrictConnection(h11.SERVER, self.config.h11_max_incomplete_event_size or MAX_HEAD_BYTES)
        self._limits = limits
        self._head_timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.capacity:
            longest = next(
                (connection for connection in self._limits.idle if not connection.transport.is_closing()), self
            )
            longest.reject(
                503, "too many connections; try again in a second", "too_many_connections", retry_after=RETRY_SECONDS
            )
        if not transport.is_closing():
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # starts the next request if it has already been received
        if not self._is_answering:
            self._wait_for_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def set_default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Set the default headers of the current request; they have no effect if its response has started."""
        if self._is_answering:
            self.cycle.default_headers = headers

    def shutdown(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self.reject(400, f"invalid HTTP/1.1 request, or its head is too large ({msg})", "invalid_http")

    def reject(self, status: int, message: str, code: str, *, retry_after: int | None = None) -> None:
        """Close the connection, after an error response if one can still be sent.

        Args:
            status: HTTP status.
            message: Reason for the client.
            code: Machine-readable reason.
            retry_after: Seconds after which the client may try again; None if that would not help.
        """
        if self.transport.is_closing():
            return
        self._stop_waiting()
        if self.conn.our_state in MAY_RESPOND and self.conn.their_state is not h11.MUST_CLOSE:
            kind = "server_error" if status >= 500 else "invalid_request_error"
            error = {"message": message, "type": kind, "param": None, "code": code}
            body = json.dumps({"error": error}).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
                *([("retry-after", str(retry_after))] if retry_after is not None else []),
            ]
            response = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase)
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self._is_answering:  # the application must not respond as well
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._close()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self._limits.idle[self] = None
        self._head_timer = self.loop.call_later(self._limits.head_seconds, self._on_timeout)

    def _stop_waiting(self) -> None:
        self._limits.idle.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_timeout(self) -> None:
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            message = f"the request's head was not complete within {self._limits.head_seconds:g} seconds; send it again"
            self.reject(408, message, "timeout")
        else:
            self._stop_waiting()
            self._close()

    def _close(self) -> None:
        """Close the connection once the client has read the response, or abort it if the client stops reading."""
        self.transport.close()
        self._watch_reader()

    def _watch_reader(self) -> None:
        self._stop_watching()
        unread = self.transport.get_write_buffer_size()
        self._reading_timer = self.loop.call_later(self._limits.reading_seconds, self._check_reader, unread)

    def _stop_watching(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None

    def _check_reader(self, previous_unread: int) -> None:
        """Abort the connection if the client has read less than MIN_READ_BYTES since the last check.

        Nothing is written between two checks, so the amount of unread data can only decrease.
        """
        if previous_unread - self.transport.get_write_buffer_size() >= MIN_READ_BYTES:
            self._watch_reader()
        else:
            self.transport.abort()
