"""With more connections than open files allowed, existing ones work, one line is logged, and the server recovers."""

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from attack import Outcome, attack_function
from http_served import registry
from raw_http import RawConnection, post, request_once

from tercet.serve.http.app import application
from tercet.web.server import BoundedServer, connection_capacity, open_socket

VALID_REQUEST = post("/v1/completions", {"prompt": "the cat", "max_tokens": 3, "temperature": 0})
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def served_process(
    before: Callable[[], None], commands: dict[bytes, Callable[[], None]]
) -> Iterator[tuple[str, Callable[[bytes], None], Future[Outcome]]]:
    """Yield the address of a service in a child process, a function to send it commands, and its outcome.

    Args:
        before: Called in the child before the server is created.
        commands: Functions to call in the child, by command.
    """
    listening = open_socket("127.0.0.1", 0, send_timeout=30)
    reading, writing = os.pipe()
    done_reading, done_writing = os.pipe()

    def serve() -> None:
        os.close(writing)
        before()
        with registry("gpt") as models:
            server = BoundedServer(application(models), note=lambda line: print(line, flush=True), grace=1)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            while command := os.read(reading, 1):
                commands[command]()
                os.write(done_writing, command)
            server.should_exit = True
            thread.join()

    def send_command(command: bytes) -> None:
        os.write(writing, command)
        assert os.read(done_reading, 1) == command

    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(attack_function, serve, seconds=60)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            assert request_once(address, HEALTH).status == 200
            yield address, send_command, outcome
        finally:
            os.close(writing)
            outcome.result()
            for number in (reading, done_reading, done_writing):
                os.close(number)
            listening.close()


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


def limit_files(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@pytest.mark.slow
def test_more_connections_than_files() -> None:
    """The server accepts up to its limit, and new connections replace those that have been idle longest."""
    with served_process(lambda: limit_files(open_files() + 100), {}) as (address, _, outcome):
        crowd = [RawConnection(address) for _ in range(300)]
        assert [request_once(address, VALID_REQUEST).status for _ in range(3)] == [200] * 3
        for connection in crowd:
            connection.socket.close()
        assert request_once(address, VALID_REQUEST).status == 200
    assert (outcome.result().code, outcome.result().stderr, outcome.result().stdout) == (0, "", "")


@pytest.mark.slow
def test_exhausted_file_descriptors_are_survived() -> None:
    """Other code in the process has used up the files. Without the bounds asyncio logs this thousands of times."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    commands = {
        b"-": lambda: limit_files(open_files()),
        b"+": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
    }
    with served_process(lambda: None, commands) as (address, send_command, outcome), RawConnection(address) as first:
        assert first.send(VALID_REQUEST).answer().status == 200
        send_command(b"-")
        crowd = [RawConnection(address).send(HEALTH) for _ in range(100)]
        for _ in range(2):  # asyncio retries during this second
            assert first.send(VALID_REQUEST).answer().status == 200
            time.sleep(0.6)
        send_command(b"+")
        assert [connection.answer().status for connection in crowd] == [200] * 100
        for connection in crowd:
            connection.socket.close()
    result = outcome.result()
    assert (result.code, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 1
    assert "Too many open files" in result.stdout


def test_the_connection_limit_fits_the_file_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for files in (1, 40, 100, 1024, 20_000, 10**6):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        connections, accepted_at_once = connection_capacity()
        assert connections >= 1
        assert accepted_at_once >= 1
        if files >= 1024:
            assert connections + accepted_at_once + open_files() < files
    assert connections == 10_000


def test_a_socket_accepts_a_huge_timeout() -> None:
    with open_socket("127.0.0.1", 0, send_timeout=1e300) as listening:
        assert listening.family == socket.AF_INET
