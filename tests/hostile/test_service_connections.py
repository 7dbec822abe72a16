"""Connections that are slow, silent, cut off, too many, or never read.

Each of them ends, every slot is freed, and the answers of other clients do not change by a byte.
"""

import io
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from http_served import LIMITS, PacedWorker, on_a_socket, registry
from raw_http import RawAnswer, RawConnection, post, request_once
from report import count_inputs

from tercet.generation import Sampling, generate
from tercet.limits import MAX_HEAD_BYTES
from tercet.serve.http.guard import AccessRules
from tercet.serve.http.log import ServerLog
from tercet.serve.registry import ModelRegistry

SCALE = int(os.environ.get("TERCET_HOSTILE", "1"))
COMPLETE = "/v1/completions"
TOKENS = 16
BODY = {"prompt": "the cat", "max_tokens": TOKENS, "temperature": 0}
VALID_REQUEST = post(COMPLETE, BODY)
STREAM = post(COMPLETE, {**BODY, "stream": True})


@pytest.fixture(scope="module")
def models() -> Iterator[ModelRegistry]:
    with registry("gpt") as model_registry:
        yield model_registry


@pytest.fixture(scope="module")
def address(models: ModelRegistry) -> Iterator[str]:
    with on_a_socket(models, head_seconds=0.6) as server_address:
        yield server_address


@pytest.fixture(scope="module")
def expected(models: ModelRegistry) -> str:
    """Return the text that the command line writes."""
    trained_model = models.get("gpt").trained_model.require("generate")
    sampling = Sampling(max_new_tokens=TOKENS, temperature=0)
    return generate(trained_model.model, trained_model.tokenizer, ["the cat"], sampling)[0].text


@pytest.fixture(autouse=True)
def nothing_is_left(models: ModelRegistry, address: str, expected: str) -> Iterator[None]:
    """Check after each test that every slot is free and requests are answered correctly."""
    yield
    scheduler = models.get("gpt").scheduler
    until(lambda: (scheduler.running, scheduler.waiting) == (0, 0))  # type: ignore[attr-defined]
    assert text(request_once(address, VALID_REQUEST)) == expected


def until(condition: Any, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "condition not met in time"
        time.sleep(0.01)


def text(answer: RawAnswer) -> str:
    assert answer.status == 200, answer
    return answer.json()["choices"][0]["text"]


def error(answer: RawAnswer, status: int) -> dict[str, Any]:
    assert answer.status == status, answer
    response = answer.json()
    assert set(response) == {"error"}
    assert set(response["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in response["error"]["message"]
    return response["error"]


def test_a_request_may_be_cut_at_any_byte(address: str) -> None:
    step = 1 if SCALE > 1 else 5
    for end in range(0, len(VALID_REQUEST), step):
        connection = RawConnection(address).send(VALID_REQUEST[:end])
        connection.reset() if end % 2 else connection.socket.close()
        count_inputs(taken=1)


@pytest.mark.slow
def test_a_client_may_disconnect_at_any_token(address: str, expected: str) -> None:
    """The answers of concurrent requests do not change."""
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(request_once, address, VALID_REQUEST) for _ in range(8)]
        for events in range(TOKENS + 2):
            connection = RawConnection(address).send(STREAM)
            for _ in range(events):
                connection.read_until(b"\n\n\r\n")
            connection.reset() if events % 2 else connection.socket.close()
        assert [text(future.result()) for future in futures] == [expected] * 8


@pytest.mark.slow
def test_a_slow_request_head_times_out(address: str) -> None:
    with RawConnection(address) as slow, RawConnection(address) as silent, RawConnection(address) as persistent:
        text(persistent.send(VALID_REQUEST).answer())
        persistent.send(b"P")  # the first byte of a second request must not stop the timeout
        for byte in VALID_REQUEST[:4]:  # a byte after the answer would reset the connection
            slow.send(bytes([byte]))
            time.sleep(0.1)
        details = error(slow.answer(), 408)
        assert (details["type"], details["code"]) == ("invalid_request_error", "timeout")
        assert "within 0.6 seconds" in details["message"]
        assert silent.seconds_to_end() < 2
        assert silent.buffer == b""
        assert persistent.answer().status in (0, 408)


@pytest.mark.slow
def test_a_slow_body_after_its_answer_is_disconnected(address: str) -> None:
    """The answer does not wait for the body, and the connection is closed although bytes arrive."""
    with RawConnection(address) as connection:
        connection.send(b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: x\r\nContent-Length: 900\r\n\r\n")
        assert connection.answer().status == 415
        deadline = time.monotonic() + 5
        connection.socket.settimeout(0.1)
        while time.monotonic() < deadline:
            connection.send(b"a")
            try:
                if not connection._receive():
                    break
            except TimeoutError:
                continue
        assert time.monotonic() < deadline, "the connection was never closed"


@pytest.mark.slow
def test_a_client_that_never_reads_is_disconnected(models: ModelRegistry) -> None:
    """This includes a client that keeps sending requests without reading answers."""
    with on_a_socket(models, reading_seconds=0.3) as address, RawConnection(address, receive_buffer=4096) as deaf:
        request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        deaf.socket.settimeout(0.2)

        def is_cut_off() -> bool:
            try:
                deaf.socket.sendall(request * 50)
            except TimeoutError:
                return False
            except ConnectionError:
                return True
            return False

        until(is_cut_off)


def test_pipelined_requests_are_answered_in_order(address: str) -> None:
    with RawConnection(address) as connection:
        lengths = [1, 5, 2, 9, 1, 3] * 3
        connection.send(b"".join(post(COMPLETE, {**BODY, "max_tokens": length}) for length in lengths))
        assert [connection.answer().json()["usage"]["completion_tokens"] for _ in lengths] == lengths


@pytest.mark.slow
def test_the_longest_idle_connection_is_replaced(models: ModelRegistry, expected: str) -> None:
    with on_a_socket(models, connections=20) as address:
        idle = [RawConnection(address) for _ in range(40)]
        assert [text(request_once(address, VALID_REQUEST)) for _ in range(8)] == [expected] * 8
        answer = idle[0].answer()
        assert error(answer, 503)["code"] == "too_many_connections"
        assert answer.headers["retry-after"] == "1"
        for connection in idle:
            connection.socket.close()


@pytest.mark.slow
def test_a_new_connection_is_rejected_if_all_are_busy() -> None:
    worker = PacedWorker(room=9)
    with registry("gpt", scheduler=worker) as models, on_a_socket(models, connections=3) as address:
        busy = [RawConnection(address).send(STREAM) for _ in range(3)]
        until(lambda: worker.running == 3)
        assert error(request_once(address, b""), 503)["code"] == "too_many_connections"
        worker.go.set()
        assert all(b"[DONE]" in connection.read_until(b"[DONE]") for connection in busy)
        for connection in busy:
            connection.socket.close()
        until(lambda: request_once(address, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 200)


HEADS: dict[str, bytes] = {
    "a header of 1 MB": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 10**6 + b"\r\n\r\n",
    "100,000 headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 10**5 + b"\r\n",
    "an endless address": b"GET /" + b"a" * 10**6 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "NULs": b"\0" * 1000 + b"\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a negative length": b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length of words": b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: ten\r\n\r\n",
    "a length of 10^99": b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1" + b"0" * 99 + b"\r\n\r\n",
    "an unknown coding": b"POST /classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n",
    "a bare line end": b"GET / HTTP/1.1\nHost: localhost\rX: y\n\n",
}


@pytest.mark.parametrize("name", HEADS)
def test_invalid_heads_are_rejected(address: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with RawConnection(address) as connection:
        began = time.monotonic()
        answer = connection.send(HEADS[name]).answer()
        # A reset may overtake the answer if more was sent than read.
        long = len(HEADS[name]) > MAX_HEAD_BYTES
        assert answer.status in ((400, 0, 408) if long else (400, 403)), answer
        if answer.status == 400:
            assert error(answer, 400)["code"] == "invalid_http"
        assert time.monotonic() - began < 5
    assert "Traceback" not in capfd.readouterr().err


CHUNKED_HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: KIND\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize("kind", [b"application/json", b"x"])
@pytest.mark.parametrize(
    "chunk", [b"zz\r\n", b"5\r\nab\r\n", b"-1\r\n", b"f" * 99 + b"\r\n", b"1\r\na", b"0\r\nX" + b"a" * 99999]
)
def test_invalid_chunks_are_rejected(
    address: str, kind: bytes, chunk: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with RawConnection(address) as connection:
        connection.send(CHUNKED_HEAD.replace(b"KIND", kind))
        if kind == b"x":
            assert connection.answer().status == 415
        connection.send(b"1\r\n{\r\n" + chunk)
        if kind != b"x" and chunk not in (b"1\r\na", b"5\r\nab\r\n"):  # these may still continue
            assert connection.answer().status in (0, 400)
    time.sleep(0.05)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_wrong_content_length_is_rejected(address: str) -> None:
    body = json.dumps(BODY).encode()
    head = CHUNKED_HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d")
    head = head.replace(b"KIND", b"application/json")
    with RawConnection(address) as short:
        assert error(short.send(head % (len(body) - 1) + body).answer(), 400)["code"] == "invalid_json"
        assert short.answer().status in (0, 400, 408)  # the remaining byte is not a request
    with RawConnection(address) as long:
        long.send(head % (len(body) + 1) + body).socket.shutdown(1)
        assert long.answer().status in (0, 400)


def test_a_request_with_two_lengths_is_rejected(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A proxy may use the other length and treat the rest of the body as a request."""
    head = CHUNKED_HEAD.replace(b"KIND", b"application/json").replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n")
    with RawConnection(address) as connection:
        assert error(connection.send(head + b"0\r\n\r\n").answer(), 400)["code"] == "invalid_http"
        assert connection.answer().status == 0
    assert capfd.readouterr().err == ""


def test_upgrades_are_ignored(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert request_once(address, request).status == 200
    assert error(request_once(address, b"CONNECT a:80 HTTP/1.1\r\nHost: localhost\r\n\r\n"), 404)
    assert capfd.readouterr().err == ""


KEY = "sesame-0123456789"
WRONG_PLACES = [
    f"GET /v1/models/{KEY} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}",
    f"GET /{KEY}?key={KEY} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {KEY}",
    f"GET /v1/models?api_key={KEY} HTTP/1.1\r\nHost: {KEY}\r\nOrigin: http://{KEY}",
    f"{KEY.upper()} / HTTP/1.1\r\nHost: localhost",
    f"{KEY} /health HTTP/1.1\r\nHost: localhost",
    f"GET / HTTP/1.1\r\nHost: localhost\r\n{KEY}: x\r\nUser-Agent: {KEY}\r\nCookie: {KEY}\r\nReferer: http://{KEY}/",
    f"GET / HTTP/1.1\r\nHost: localhost\r\n{KEY}",
    f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: {KEY}",
    f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}x",
    f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}",
]


@pytest.mark.slow
@pytest.mark.parametrize("use_json", [False, True])
def test_the_key_is_in_no_log(
    models: ModelRegistry, use_json: bool, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = io.StringIO()
    with on_a_socket(models, AccessRules(key=KEY), ServerLog(use_json=use_json, file=log)) as address:
        statuses = [request_once(address, f"{head}\r\n\r\n".encode()).status for head in WRONG_PLACES]
        body = {"prompt": KEY, KEY: KEY, "model": KEY}
        statuses.append(request_once(address, post(COMPLETE, body, f"Authorization: Bearer {KEY}")).status)
        statuses.append(request_once(address, post(f"/x/{KEY}", body, f"Authorization: Bearer {KEY}")).status)
    assert statuses == [404, 401, 403, 405, 405, 200, 400, 401, 401, 200, 400, 404]
    output = log.getvalue() + "".join(capfd.readouterr()) + caplog.text
    assert len(log.getvalue().splitlines()) == len(statuses) - 1  # invalid HTTP is not logged
    assert KEY.lower() not in output.lower()


@pytest.mark.slow
def test_keys_are_compared_in_constant_time(models: ModelRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared_types = []

    def spy(first: bytes, second: bytes) -> bool:
        compared_types.append((type(first), type(second)))
        return compare(first, second)

    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", spy)
    with on_a_socket(models, AccessRules(key=KEY)) as address:
        for key in (KEY[:-1], "", "é", KEY):
            request = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
            assert request_once(address, request).status == (200 if key == KEY else 401)
    assert compared_types == [(bytes, bytes)] * 4


@contextmanager
def crowd(address: str, size: int) -> Iterator[list[RawConnection]]:
    connections = [RawConnection(address) for _ in range(size)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.socket.close()


@pytest.mark.slow
def test_many_concurrent_requests_are_answered_or_rejected(models: ModelRegistry, address: str, expected: str) -> None:
    """With more requests than the queue can hold, each is answered correctly, or rejected with a 429."""
    with crowd(address, 100 * SCALE) as connections:
        for connection in connections:
            connection.send(VALID_REQUEST)
        answers = [connection.answer() for connection in connections]
    assert {answer.status for answer in answers} <= {200, 429}
    assert all(text(answer) == expected for answer in answers if answer.status == 200)
    assert sum(answer.status == 200 for answer in answers) >= LIMITS.slots + LIMITS.waiting
    assert threading.active_count() < 100
