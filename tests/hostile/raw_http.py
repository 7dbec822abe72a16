"""Raw HTTP connections that send what no client library would, byte by byte."""

import json
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

SECONDS = 20.0  # timeout of an answer


@dataclass(frozen=True)
class RawAnswer:
    """Answer of the server, with status 0 if the connection ended without one."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RawConnection:
    """Connection to `address`, closed at the end of the `with` block.

    Args:
        receive_buffer: Bytes that the kernel buffers for this end.
    """

    def __init__(self, address: str, *, receive_buffer: int | None = None) -> None:
        place = urlsplit(address)
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(SECONDS)
        self.socket.connect((place.hostname, place.port))
        self.buffer = b""

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> "RawConnection":
        with suppress(ConnectionError):  # the server has already answered and closed
            self.socket.sendall(data)
        return self

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def read_until(self, mark: bytes) -> bytes:
        """Return data up to and including `mark`, or all data if the connection ends earlier."""
        while mark not in self.buffer and self._receive():
            pass
        end = self.buffer.find(mark) + len(mark) if mark in self.buffer else len(self.buffer)
        data, self.buffer = self.buffer[:end], self.buffer[end:]
        return data

    def answer(self) -> RawAnswer:
        """Return the next answer."""
        head = self.read_until(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 "):
            return RawAnswer(0, {}, head)
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        if "content-length" in headers:
            length = int(headers["content-length"])
            while len(self.buffer) < length and self._receive():
                pass
            body, self.buffer = self.buffer[:length], self.buffer[length:]
        else:
            body = self.read_until(b"\r\n0\r\n\r\n")
        return RawAnswer(int(status.split()[1]), headers, body)

    def seconds_to_end(self) -> float:
        """Return the seconds until the server closes the connection."""
        began = time.monotonic()
        while self._receive():
            pass
        return time.monotonic() - began

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            return False
        self.buffer += data
        return bool(data)


def post(path: str, body: Any, *headers: str) -> bytes:
    """Return a valid request; further headers are given as `Name: value`."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode("latin-1") + data


def request_once(address: str, data: bytes) -> RawAnswer:
    with RawConnection(address) as connection:
        return connection.send(data).answer()
