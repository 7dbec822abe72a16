"""Rolling restart of several replicas behind HAProxy, as in examples/haproxy: no request fails under load."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_served import ROOM, STACK, TEXTS, scale_weights

from tercet.checkpoint import Card, save_model
from tercet.models import DecoderOnly, DecoderOnlySpec
from tercet.tokens import BPE, Tokenizer

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "haproxy" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
FLAGS = ("--shutdown-delay", "5", "--grace", "120")
SHORT, LONG = 20, 2000  # tokens of a completion, and of a stream that takes some seconds
COMPLETING, STREAMING = 4, 3  # clients


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "condition not met in time"
        time.sleep(0.05)


@dataclass
class Replica:
    """`tercet serve` on a port. Successive processes append to one log."""

    folder: Path
    port: int
    flags: tuple[str, ...]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tercet", "serve", str(self.folder), "--port", str(self.port), "--json-log"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--max-tokens", str(LONG), *self.flags],
                env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        until(self.is_ready)

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        with suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{self.port}/ready").status_code == 200
        return False

    def entries(self) -> list[dict[str, Any]]:
        """Return the log entries of completions and of shutdowns."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line.get("path") == "/v1/completions" or "closing" in line.get("message", "")]

    def replace(self) -> None:
        """Stop the process, start another, and wait until it gets requests."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=150) == 143
        n_entries = len(self.entries())
        self.start()
        until(lambda: len(self.entries()) > n_entries)


@dataclass
class Load:
    """Clients that send requests without a pause.

    Attributes:
        failures: Wrong answers and connection errors.
    """

    address: str
    completions: int = 0
    streams: int = 0
    failures: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        return f"{self.completions} completions and {self.streams} streams, {len(self.failures)} failed"

    def complete(self, client: httpx.Client) -> None:
        body = {"prompt": "the cat", "max_tokens": SHORT, "seed": self.completions}
        answer = client.post("/v1/completions", json=body)
        self.completions += 1
        if answer.status_code != 200 or answer.json()["usage"]["completion_tokens"] != SHORT:
            self.failures.append(f"{answer.status_code} {answer.text[:200]}")

    def stream(self, client: httpx.Client) -> None:
        body = {"prompt": "the cat", "max_tokens": LONG, "stream": True, "stream_options": {"include_usage": True}}
        self.streams += 1
        began, first = time.monotonic(), None
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = list[str]()
            for line in filter(None, answer.iter_lines()):
                first = first or time.monotonic() - began
                lines.append(line)
        if lines[-1] != "data: [DONE]" or f'"completion_tokens":{LONG}' not in lines[-2]:
            self.failures.append(f"{answer.status_code} {lines[-2:]}")
        elif first is None or first > (time.monotonic() - began) / 2:
            self.failures.append(f"the first of a stream came after {first} s: it was held back")

    def repeat(self, send_request: Callable[[httpx.Client], None]) -> None:
        """Send requests on a persistent connection until `stop` is set."""
        with httpx.Client(base_url=self.address, timeout=120) as client:
            while not self.stop.is_set():
                try:
                    send_request(client)
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(COMPLETING + STREAMING) as pool:
            clients = [pool.submit(self.repeat, self.complete) for _ in range(COMPLETING)]
            clients += [pool.submit(self.repeat, self.stream) for _ in range(STREAMING)]
            try:
                yield
            finally:
                self.stop.set()
            for future in clients:
                future.result()


def free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for free_socket in sockets:
            free_socket.bind(("127.0.0.1", 0))
        return [free_socket.getsockname()[1] for free_socket in sockets]


@contextmanager
def replicas_behind_haproxy(folder: Path, flags: tuple[str, ...]) -> Iterator[tuple[str, list[Replica]]]:
    """Yield the address of HAProxy with the example's settings but other ports, and the replicas."""
    if HAPROXY is None:
        pytest.skip("haproxy is not installed: apt-get install haproxy")
    tokenizer = Tokenizer.train(BPE(vocab_size=300, eos=False), TEXTS)  # no text ends before the requested length
    model = DecoderOnly(DecoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=ROOM, stack=STACK))
    save_model(folder / "mine", scale_weights(model), tokenizer, Card(name="mine"))
    settings = EXAMPLE.read_text()
    example_ports = re.findall(r"127\.0\.0\.1:(\d+)", re.sub(r"#.*", "", settings))
    ports = dict(zip(example_ports, free_ports(len(example_ports)), strict=True))
    for name, port in ports.items():
        settings = settings.replace(f"127.0.0.1:{name}", f"127.0.0.1:{port}")
    (folder / "haproxy.cfg").write_text(settings)
    balancer_port, *replica_ports = ports.values()
    replicas = [Replica(folder / "mine", port, flags, folder / f"{port}.log") for port in replica_ports]
    balancer = None
    try:
        with ThreadPoolExecutor(len(replicas)) as pool:
            list(pool.map(Replica.start, replicas))
        with (folder / "haproxy.log").open("w") as log:
            balancer = subprocess.Popen([HAPROXY, "-f", str(folder / "haproxy.cfg")], stdout=log, stderr=log)
        address = f"http://127.0.0.1:{balancer_port}"
        until(lambda: answers(address))
        yield address, replicas
    finally:
        for process in (balancer, *(replica.process for replica in replicas)):
            if process is not None:
                process.kill()
                process.wait()


def answers(address: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{address}/ready").status_code == 200
    return False


@pytest.mark.exhaustive  # uses every core for half a minute; test_http_drain.py runs always
def test_a_rolling_restart_loses_no_request(tmp_path: Path) -> None:
    with replicas_behind_haproxy(tmp_path, FLAGS) as (address, replicas):
        load = Load(address)
        with load.running():
            for replica in replicas:
                replica.replace()
        print(load)
        assert load.failures == []
        # Each request was answered by exactly one replica, and a stream from its beginning to its end.
        expected = [(200, SHORT)] * load.completions + [(200, LONG)] * load.streams
        until(lambda: sorted(answer for replica in replicas for answer in logged_answers(replica)) == expected)
        # This includes a replica that was shutting down.
        assert any(map(streams_across_the_signal, replicas))


def logged_answers(replica: Replica) -> list[tuple[int, int]]:
    """Return status and length of each answer in the log."""
    return [(entry["status"], entry["wrote"]) for entry in replica.entries() if "path" in entry]


def streams_across_the_signal(replica: Replica) -> list[dict[str, Any]]:
    entries = replica.entries()
    (closing,) = [entry["time"] for entry in entries if "message" in entry]
    streams = [entry for entry in entries if entry.get("wrote") == LONG]
    return [entry for entry in streams if entry["time"] - entry["seconds"] < closing < entry["time"]]


@pytest.mark.exhaustive
def test_without_a_drain_requests_are_lost(tmp_path: Path) -> None:
    """The count of the test above is not always zero."""
    with replicas_behind_haproxy(tmp_path, ("--grace", "0")) as (address, replicas):
        load = Load(address)
        with load.running():
            until(lambda: load.streams >= STREAMING)
            for replica in replicas:
                replica.replace()
                if load.failures:
                    break
        print(load)
        assert any("closing" in failure for failure in load.failures), load.failures


@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed: apt-get install haproxy")
def test_haproxy_accepts_the_example() -> None:
    assert HAPROXY is not None
    subprocess.run([HAPROXY, "-c", "-f", str(EXAMPLE)], check=True, capture_output=True)
    assert EXAMPLE.read_text().count(" ".join(FLAGS[:2])) == 3
