"""Graceful shutdown: the server reports not ready, rejects new requests, and finishes or fails accepted ones."""

import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from http_served import PacedWorker, client, registry, server_on_a_socket
from test_http_faults import until

from tercet.serve.engine import Batcher, Limits, queue_worker

COMPLETE = "/v1/completions"
BODY = {"prompt": "a", "max_tokens": 3}
ENDLESS = {"prompt": "a", "max_tokens": 10**6, "temperature": 0}


def is_refused(address: str) -> bool:
    """Return True if the server no longer accepts connections."""
    try:
        httpx.get(address + "/health")
    except httpx.ConnectError:
        return True
    except (httpx.RemoteProtocolError, httpx.ReadError):
        return False  # the system accepted the connection just before the server closed its socket
    return False


@pytest.mark.slow
def test_requests_are_accepted_during_the_shutdown_delay() -> None:
    notes = list[str]()
    with (
        registry("gpt") as models,
        server_on_a_socket(models, shutdown_delay=60, notes=notes) as (server, address),
        httpx.Client(base_url=address) as connection,
    ):
        before = connection.get("/ready")
        assert (before.status_code, before.json()) == (200, {"status": "ready", "models": 1})
        assert "connection" not in before.headers
        server.handle_exit(signal.SIGTERM, None)
        until(lambda: httpx.get(address + "/ready").status_code == 503)
        assert httpx.get(address + "/ready").json() == {"status": "closing", "models": 1}
        assert httpx.get(address + "/health").json() == {"status": "alive"}
        for _ in range(2):  # on the existing connection, and on a new one
            answer = connection.post(COMPLETE, json=BODY)
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert not is_refused(address)
        server.handle_exit(signal.SIGTERM, None)
        until(lambda: is_refused(address))
    note = "shutting down; accepting requests for 60 more seconds, then waiting up to 3 seconds for running requests"
    assert notes == [note]


@pytest.mark.slow
def test_an_accepted_request_is_finished_completely() -> None:
    """This includes texts of the request that are still waiting, since they are submitted one at a time."""
    worker = PacedWorker(room=2)
    with (
        registry("gpt", scheduler=worker, limits=Limits(slots=2)) as models,
        ThreadPoolExecutor(1) as pool,
        server_on_a_socket(models) as (server, address),
        httpx.Client(base_url=address) as idle,
    ):
        idle.get("/health")
        answer = pool.submit(httpx.post, address + COMPLETE, json={**BODY, "n": 6})
        until(lambda: worker.running == 2)
        server.handle_exit(signal.SIGTERM, None)
        until(lambda: is_refused(address))
        worker.go.set()
        assert [choice["text"] for choice in answer.result().json()["choices"]] == ["aaa"] * 6
        assert answer.result().headers.get("connection") == "close"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "stream"),
    [
        (1, False),
        (2, True),
        pytest.param(1, True, marks=pytest.mark.exhaustive),
        pytest.param(2, False, marks=pytest.mark.exhaustive),
    ],
)
def test_unfinished_requests_get_an_error(signals: int, stream: bool) -> None:
    """Requests fail after the grace period, or immediately at a second signal."""
    limits = Limits(slots=1, max_new_tokens=10**6)
    grace = 0.1 if signals == 1 else 60
    with registry("gpt", limits=limits) as models, ThreadPoolExecutor(2) as pool:
        with server_on_a_socket(models, grace=grace, shutdown_delay=60 * (signals - 1)) as (server, address):
            body = {**ENDLESS, "stream": stream}
            futures = [pool.submit(httpx.post, address + COMPLETE, json=body, timeout=20) for _ in range(2)]
            scheduler = models.get("gpt").scheduler
            until(lambda: (scheduler.running, scheduler.waiting) == (1, 1))
            for _ in range(signals):
                server.handle_exit(signal.SIGTERM, None)
            began = time.monotonic()
            answers = [future.result() for future in futures]
        assert time.monotonic() - began < 3
    assert [answer.status_code for answer in answers] in ([503, 503], [200, 503], [503, 200])
    assert all('"code":"closing"' in answer.text for answer in answers)
    if stream:
        assert any(
            re.search(r'"text":".+?".*"code":"closing".*\[DONE\]\n\n$', future.text, re.DOTALL) for future in answers
        )


@pytest.mark.slow
def test_a_hanging_model_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_worker, "STALLED_SECONDS", 0.1)
    release = threading.Event()
    with client("bert", limits=Limits(seconds=0.05)) as test_client:
        batcher: Batcher[object, object, object] = test_client.app.state.service.registry.get("bert").batcher("fill")  # type: ignore[attr-defined]
        batcher._call = lambda items, key: [release.wait(20) for _ in items]  # type: ignore[assignment]
        time.sleep(0.15)
        assert test_client.get("/health").status_code == 200  # the request only waits
        assert test_client.post("/fill-mask", json={"text": "[MASK]"}).status_code == 504
        until(lambda: test_client.get("/health").status_code == 503)
        assert test_client.get("/health").json() == {"status": "stalled"}
        assert test_client.get("/ready").status_code == 200
        release.set()
        until(lambda: test_client.get("/health").status_code == 200)
