"""Failures: full queues, timeouts, broken weights, and clients that disconnect, stall or send endlessly.

Each gets the right status, other requests are not affected, and nothing is left behind.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
from http_served import LIMITS, PacedWorker, client, fill_with_nan, on_a_socket, registry, trained_model

from tercet.generation.sampling import DIVERGENCE_MESSAGE
from tercet.serve.engine import Limits, QueueFull
from tercet.serve.http.guard import AccessRules
from tercet.serve.http.worker_answers import MAX_ANSWERS_PER_BATCH, worker_answers

COMPLETE = "/v1/completions"
SHORT = Limits(slots=3, waiting=64, max_new_tokens=50, seconds=0.3)


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "condition not met in time"
        time.sleep(0.01)


def error(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def test_a_full_queue_is_a_429_with_a_retry_time() -> None:
    worker = PacedWorker(room=2)
    with client("gpt", scheduler=worker) as test_client, ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(test_client.post, COMPLETE, json={"prompt": "a", "max_tokens": 3}) for _ in range(2)]
        until(lambda: worker.running == 2)
        answer = test_client.post(COMPLETE, json={"prompt": "a", "max_tokens": 3})
        assert error(answer, 429)["code"] == "queue_full"
        assert answer.headers["retry-after"] == "7"
        assert error(test_client.post(COMPLETE, json={"prompt": "a", "max_tokens": 3, "stream": True}), 429)
        worker.go.set()
        assert [future.result().json()["choices"][0]["text"] for future in futures] == ["aaa", "aaa"]
    assert worker.running == worker.cancelled == 0


@pytest.mark.slow
def test_a_long_list_goes_through_a_short_queue() -> None:
    """Its texts wait for each other and leave the queue to other requests."""
    worker = PacedWorker(room=2)
    worker.go.set()
    with client("gpt", scheduler=worker) as test_client:
        response = test_client.post(COMPLETE, json={"prompt": ["a"] * 20, "n": 2, "max_tokens": 2}).json()
    assert [choice["text"] for choice in response["choices"]] == ["aa"] * 40
    with client("bert", limits=Limits(slots=2, waiting=1)) as test_client:
        texts = [f"the {'cat ' * (n % 5)}" for n in range(100)]
        assert len(test_client.post("/v1/embeddings", json={"input": texts}).json()["data"]) == 100


@pytest.mark.slow
def test_a_timeout_is_a_504_and_frees_the_slot() -> None:
    worker = PacedWorker()
    with client("gpt", scheduler=worker, limits=SHORT) as test_client:
        for stream in (False, True):
            response = error(test_client.post(COMPLETE, json={"prompt": "a", "stream": stream}), 504)
            assert response["type"] == "timeout_error"
            assert "0.3 seconds" in response["message"]
            assert worker.running == 0
    with client("gpt", limits=Limits(seconds=0.05, max_new_tokens=10**6)) as test_client:
        endless = {"prompt": "a", "max_tokens": 10**5, "temperature": 0}  # a sampled text may end before the timeout
        response = error(test_client.post(COMPLETE, json=endless), 504)
        assert "0.05 seconds" in response["message"]


@pytest.mark.slow
def test_a_timeout_during_a_stream_is_an_event() -> None:
    worker = PacedWorker(pause=0.05)
    worker.go.set()
    with registry("gpt", scheduler=worker, limits=SHORT) as models, on_a_socket(models) as address:
        body = {"prompt": "a", "max_tokens": 50, "stream": True}
        with httpx.stream("POST", address + COMPLETE, json=body) as answer:
            assert answer.status_code == 200
            lines = [line for line in answer.iter_lines() if line]
    assert json.loads(lines[0].removeprefix("data: "))["choices"][0]["text"] == "a"
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout"
    assert lines[-1] == "data: [DONE]"


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        ("gpt", COMPLETE, {"prompt": "a"}),
        ("gpt", COMPLETE, {"prompt": "a", "stream": True}),
        ("gpt", COMPLETE, {"prompt": "a cat", "max_tokens": 0, "echo": True, "logprobs": 1}),
        ("bert", "/v1/embeddings", {"input": "a"}),
        ("bert", "/fill-mask", {"text": "[MASK]"}),
        ("bert", "/fill-mask", {"text": "[MASK]", "only": ["cat"]}),
        ("texts", "/classify", {"text": "a"}),
        ("words", "/classify", {"text": "a cat"}),
        ("pairs", "/v1/rerank", {"query": "a cat", "documents": ["a dog"]}),
        ("translator", "/translate", {"text": "a"}),
        ("translator", "/translate", {"text": "a", "sample": True}),
    ],
)
def test_nan_weights_are_an_error_for_every_route(kind: str, path: str, body: dict[str, Any]) -> None:
    with client(models={kind: fill_with_nan(trained_model(kind))}) as test_client:
        response = error(test_client.post(path, json=body), 500)
        assert response["message"] == DIVERGENCE_MESSAGE
        assert response["code"] == "not_numbers"
        assert test_client.get("/health").status_code == 200


def test_an_internal_error_hides_its_details() -> None:
    worker = PacedWorker(fails=ZeroDivisionError("secret insides"))
    worker.go.set()
    with client("gpt", scheduler=worker) as test_client:
        response = error(test_client.post(COMPLETE, json={"prompt": "a"}), 500)
    assert response["type"] == "server_error"
    assert "secret" not in response["message"]


@pytest.mark.slow
def test_an_invalid_text_does_not_affect_concurrent_requests() -> None:
    with client("bert") as test_client, ThreadPoolExecutor(8) as pool:
        bodies = [
            {"text": text, "only": ["cat"]} for text in ("[MASK]", "no gap", "the [MASK]", "mat " * 99 + "[MASK]")
        ]
        answers = list(pool.map(lambda body: test_client.post("/fill-mask", json=body), bodies * 5))
    assert [answer.status_code for answer in answers] == [200, 400, 200, 400] * 5


@pytest.mark.slow
def test_requests_during_shutdown_are_rejected() -> None:
    with registry("gpt", "bert") as models:
        models.close(seconds=0)
        with on_a_socket(models) as address:
            answer = httpx.post(address + COMPLETE, json={"prompt": "a"})
            assert error(answer, 503)["code"] == "closing"
            assert "retry-after" in answer.headers
            assert error(httpx.post(address + "/v1/embeddings", json={"input": "a"}), 503)
            assert httpx.get(address + "/ready").json() == {"status": "closing", "models": 2}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnecting_client_frees_its_slot(stream: bool) -> None:
    worker = PacedWorker(room=3)
    with registry("gpt", scheduler=worker) as models, on_a_socket(models) as address:
        for _ in range(5):
            sockets = [send_request(address, stream=stream, max_tokens=50, n=1) for _ in range(3)]
            until(lambda: worker.running == 3)
            for client_socket in sockets:
                client_socket.close()
            until(lambda: worker.running == 0)
    assert worker.cancelled == 15


@pytest.mark.slow
def test_many_disconnects_mid_stream_leave_nothing() -> None:
    with (
        registry("gpt", limits=Limits(slots=3, waiting=200, max_new_tokens=10**5)) as models,
        on_a_socket(models) as address,
    ):
        expected = httpx.post(address + COMPLETE, json={"prompt": "the", "seed": 3, "max_tokens": 30}).json()
        _disconnects(address, 10)
        before = len(psutil.Process().net_connections()), threading.active_count()
        with ThreadPoolExecutor(4) as pool:
            future = pool.submit(
                lambda: [
                    httpx.post(address + COMPLETE, json={"prompt": "the", "seed": 3, "max_tokens": 30}, timeout=60)
                    for _ in range(4)
                ]
            )
            _disconnects(address, 40)
            texts = [answer.json()["choices"][0]["text"] for answer in future.result()]
        scheduler = models.get("gpt").scheduler
        until(lambda: scheduler.running == scheduler.waiting == 0)
        assert texts == [expected["choices"][0]["text"]] * 4
        until(lambda: len(psutil.Process().net_connections()) <= before[0])
        assert threading.active_count() <= before[1] + 4
        metrics = httpx.get(address + "/metrics").text
    assert 'tercet_running{model="gpt",task="write"} 0.0' in metrics


def _disconnects(address: str, n: int) -> None:
    for _ in range(n):
        with send_request(address, stream=True, max_tokens=10**5, n=1) as client_socket:
            assert b"data: " in _read_until(client_socket, b"data: ")


def send_request(address: str, **body: Any) -> socket.socket:
    """Return a socket that has sent a request and not yet read the answer."""
    content = json.dumps({"prompt": "the", **body}).encode()
    client_socket = connect(address)
    head = f"POST {COMPLETE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client_socket.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return client_socket


def connect(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20)


def _read_until(client_socket: socket.socket, end: bytes) -> bytes:
    content = b""
    while end not in content:
        received = client_socket.recv(4096)
        if not received:
            break
        content += received
    return content


@pytest.mark.slow
def test_a_stalled_reader_does_not_delay_others() -> None:
    """The worker keeps serving others, and the stalled request is dropped at its timeout."""
    limits = Limits(slots=2, waiting=10, max_new_tokens=10**6, seconds=1.5)
    with registry("gpt", limits=limits) as models, on_a_socket(models) as address:
        with socket.socket() as client_socket:
            client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client_socket.connect(("127.0.0.1", int(address.rpartition(":")[2])))
            content = json.dumps({"prompt": "the", "stream": True, "max_tokens": 10**6, "logprobs": 20}).encode()
            head = f"POST {COMPLETE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client_socket.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            until(lambda: models.get("gpt").scheduler.running == 1)
            for _ in range(3):
                assert httpx.post(address + COMPLETE, json={"prompt": "a", "max_tokens": 5}).status_code == 200
            until(lambda: models.get("gpt").scheduler.running == 0)
        assert httpx.get(address + "/health").status_code == 200


@pytest.mark.slow
def test_a_stalled_sender_is_disconnected() -> None:
    with (
        registry("bert") as models,
        on_a_socket(models, AccessRules(body_seconds=0.2)) as address,
        connect(address) as client_socket,
    ):
        head = "POST /fill-mask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client_socket.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        response = _read_until(client_socket, b"}}")
    assert response.startswith(b"HTTP/1.1 408 ")
    assert b"was not received within 0.2 seconds" in response
    assert b"connection: close" in response.lower()


@pytest.mark.slow
def test_an_endless_sender_is_disconnected() -> None:
    n_bytes = 0
    with registry("bert") as models, on_a_socket(models, AccessRules(max_body=10_000)) as address:
        with connect(address) as client_socket:
            head = "POST /fill-mask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client_socket.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            with suppress(OSError):
                while n_bytes < 10**7:
                    client_socket.sendall(b"400\r\n" + b" " * 0x400 + b"\r\n")
                    n_bytes += 0x400
        big = httpx.post(address + "/fill-mask", content=b" " * 100_000, headers={"Content-Type": "application/json"})
        assert big.status_code == 413  # a request that ends gets an answer
    assert n_bytes < 10**7


@pytest.mark.slow
@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"A" * 100_000, b"\r\n\r\n\r\n"]
)
def test_invalid_http_does_not_affect_others(garbage: bytes) -> None:
    with registry("bert") as models, on_a_socket(models) as address:
        with connect(address) as client_socket:
            client_socket.sendall(garbage)
        assert httpx.get(address + "/health").status_code == 200


@pytest.mark.slow
def test_a_job_is_cancelled_however_its_reader_ends() -> None:
    class Job:
        cancelled = 0

        def cancel(self) -> None:
            Job.cancelled += 1

    async def run() -> None:
        listeners: list[Callable[[int | Exception], None]] = []

        def submit(on_part: Callable[[int | Exception], None]) -> Job:
            if len(listeners) == 3:
                raise QueueFull(3, 1)
            listeners.append(on_part)
            return Job()

        answers = worker_answers([submit] * 5, max_running=5, seconds=0.1, is_last=lambda part: part == 9)
        first_answer = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0)
        listeners[1](9)
        assert await first_answer == (1, 9)
        await answers.aclose()
        assert Job.cancelled == 2  # the finished job is not cancelled
        listeners[0](1)  # arrives too late and is dropped
        answers = worker_answers([submit], max_running=1, seconds=0.1, is_last=bool)
        with pytest.raises(QueueFull):
            await anext(answers)
        listeners.clear()
        answers = worker_answers([submit], max_running=1, seconds=0.05, is_last=bool)
        with pytest.raises(TimeoutError, match=r"longer than 0\.05 seconds"):
            await anext(answers)
        assert Job.cancelled == 3
        listeners.clear()
        answers = worker_answers([submit], max_running=1, seconds=5, is_last=lambda part: part == 99)
        arriving = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0)
        for part in range(MAX_ANSWERS_PER_BATCH - 1):
            listeners[0](part)
        await asyncio.sleep(0.05)
        assert not arriving.done()  # a few answers do not wake the reader
        listeners[0](MAX_ANSWERS_PER_BATCH - 1)
        assert await arriving == (0, 0)
        listeners[0](99)
        assert [part async for _, part in answers] == [*range(1, MAX_ANSWERS_PER_BATCH), 99]
        listeners.clear()
        answers = worker_answers([submit], max_running=1, seconds=5, is_last=bool, is_streamed=True)
        arriving = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0)
        listeners[0](0)
        assert await arriving == (0, 0)
        await answers.aclose()

    asyncio.run(run())
    assert LIMITS.slots == 3
