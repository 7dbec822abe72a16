"""Load test of the server: measures how faulty requests affect honest clients.

    python -m tests.hostile.service_load --requests 20000 --faults 0.1 --rate 40 --connections 9000
    python -m tests.hostile.service_load --requests 840 --faults 0.2857 --rate 30 --kinds deaf --control

The server is a child process with the tiny models of the service tests. The same number of honest requests is sent
without and with faults, and each answer must equal that of the model without other requests. `--faults` is the share of
each kind of fault among all requests. Faults are sent from a separate process; those that request work request as much
as the honest ones.

With `--rate`, requests arrive at random times (a Poisson process), whether or not earlier ones are answered, and their
times count from when they were due. Faults arrive at the rate given by their share. Without it, each of a few clients
sends its next request as soon as it gets an answer, so the server is always busy. This measures how its time is shared,
since faults that wait for no answer arrive without limit.

Clients, faults and server share the cores of the machine. `--control` measures the effect of that: in a third run the
same faults are sent to another server, which serves no honest clients.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "serve"), str(ROOT / "tests" / "hostile")]

from http_served import LIMITS, registry, trained_model  # noqa: E402
from raw_http import post  # noqa: E402

from tercet.generation import Sampling, generate, translate  # noqa: E402
from tercet.serve.http.app import application  # noqa: E402
from tercet.serve.server import tuned_interpreter  # noqa: E402
from tercet.web.server import BoundedServer, open_socket  # noqa: E402

HONEST_CLIENTS = 4
FAULTY_CLIENTS = 2
TOKENS = 8
SECONDS = 30.0  # timeout of an answer
PROMPTS = [
    "the cat",
    "a dog ran",
    "the mat was worn",
    "unbelievable",
    "the dog and the cat",
    "a",
    "sat on",
    "until the",
]


@dataclass(frozen=True)
class HonestRequest:
    """Bytes of a request, and the text that the command line writes for it."""

    data: bytes
    expected: str
    read: Callable[[Any], str]


def honest_requests() -> list[HonestRequest]:
    gpt, translator = trained_model("gpt").require("generate"), trained_model("translator").require("translate")
    requests = list[HonestRequest]()
    for number, prompt in enumerate(PROMPTS):
        sampling = Sampling(max_new_tokens=TOKENS, temperature=0.7, seed=number)
        body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0.7, "seed": number}
        expected = generate(gpt.model, gpt.tokenizer, [prompt], sampling)[0].text
        requests.append(
            HonestRequest(post("/v1/completions", body), expected, lambda response: response["choices"][0]["text"])
        )
    for prompt in PROMPTS[:3]:
        expected = translate(translator.model, translator.tokenizer, [prompt])[0][0].text
        requests.append(
            HonestRequest(
                post("/translate", {"text": prompt}),
                expected,
                lambda response: response["answers"][0]["translations"][0]["text"],
            )
        )
    return requests


# Faults take the port and a random generator and return the status of the answer, or 0 if there is none.


async def read_status(reader: asyncio.StreamReader) -> int:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
        async with asyncio.timeout(SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            return int(head.split()[1])
    return 0


@contextlib.asynccontextmanager
async def connection(port: int) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def send(port: int, data: bytes) -> int:
    async with connection(port) as (reader, writer):
        writer.write(data)
        return await read_status(reader)


async def cut(port: int, rng: random.Random) -> int:
    """Cut the request at a random byte."""
    data = rng.choice(HONEST).data
    async with connection(port) as (_, writer):
        writer.write(data[: rng.randrange(len(data))])
        await writer.drain()
        if rng.random() < 0.5:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return 0


async def leave(port: int, rng: random.Random) -> int:
    """Disconnect at a random token of a stream."""
    body = {"prompt": "the cat", "max_tokens": TOKENS, "temperature": 0, "stream": True}
    async with connection(port) as (reader, writer):
        writer.write(post("/v1/completions", body))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(rng.randrange(TOKENS)):
                await reader.readuntil(b"\n\n")
    return 0


async def odd_value(port: int, rng: random.Random) -> int:
    path = rng.choice(["/v1/completions", "/v1/embeddings", "/translate", "/fill-mask", "/classify", "/nothing"])
    odd = rng.choice([None, -1, 10**400, 1e308, "\ud800", "\0", [], {}, [[]], ["a"] * 3000, {"a": 1}, "a" * 9999])
    field = rng.choice(["prompt", "text", "input", "alpha", "temperature", "n", "max_tokens", "stop", "seed", "beam"])
    return await send(port, post(path, {"prompt": "a", field: odd}))


async def no_json(port: int, rng: random.Random) -> int:
    bodies = (b"", b"[" * 10**5, b"\xff\xfe", b'{"prompt": NaN}', b"9" * 10**5, b"{}{}", b'{"a":' * 10**5)
    return await send(port, post("/v1/completions", rng.choice(bodies)))


async def bad_head(port: int, rng: random.Random) -> int:
    heads = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 10**6 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 10**5 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    )
    return await send(port, rng.choice(heads))


async def wrong_length(port: int, rng: random.Random) -> int:
    data = rng.choice(HONEST).data
    head, _, body = data.partition(b"\r\n\r\n")
    length = len(body) - rng.randrange(1, 9)
    head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
    return await send(port, head + b"\r\nContent-Length: %d\r\n\r\n" % length + body)


async def slow(port: int, rng: random.Random) -> int:
    """Send part of a request and leave the connection open. At most a few hundred stay open."""
    data = rng.choice(HONEST).data
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data[: rng.randrange(1, len(data))])
    SLOW.append(writer)
    if len(SLOW) > 300:
        SLOW.pop(rng.randrange(len(SLOW))).transport.abort()
    return 0


async def deaf(port: int, rng: random.Random) -> int:
    """Request a stream or many pages and read nothing."""
    request = post("/v1/completions", {"prompt": "a", "max_tokens": TOKENS, "stream": True})
    data = request if rng.random() < 0.5 else b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(data)
    SLOW.append(writer)
    if len(SLOW) > 300:
        SLOW.pop(0).transport.abort()
    return 0


FAULTS: dict[str, Callable[[int, random.Random], Awaitable[int]]] = {
    fault.__name__: fault for fault in (cut, leave, odd_value, no_json, bad_head, wrong_length, slow, deaf)
}
SLOW: list[asyncio.StreamWriter] = []
HONEST: list[HonestRequest] = []


@dataclass
class Figures:
    """Results of the honest clients, and the memory of the server."""

    seconds: list[float] = field(default_factory=list)
    n_wrong: int = 0
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def send_honest_request(
    port: int, number: int, due_time: float, idle_connections: list[Streams], figures: Figures
) -> None:
    """Send one request, on a persistent connection if one is free.

    If the server has closed that connection because it was idle, the request is sent on another one, as HTTP libraries
    do.
    """
    request, is_reused = HONEST[number % len(HONEST)], bool(idle_connections)
    streams = idle_connections.pop() if is_reused else await asyncio.open_connection("127.0.0.1", port)
    reader, writer = streams
    writer.write(request.data)
    try:
        async with asyncio.timeout(SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            body = await reader.readexactly(length)
    except (ConnectionError, asyncio.IncompleteReadError, TimeoutError, ValueError) as error:
        if is_reused and (isinstance(error, ConnectionError) or getattr(error, "partial", None) == b""):
            await send_honest_request(port, number, due_time, idle_connections, figures)
        else:
            figures.statuses["honest", 0] += 1
        return
    idle_connections.append(streams)
    status = int(head.split()[1])
    figures.seconds.append(time.perf_counter() - due_time)
    figures.statuses["honest", status] += 1
    figures.n_wrong += status == 200 and request.read(json.loads(body)) != request.expected


async def send_faulty_request(port: int, name: str, number: int, figures: Figures) -> None:
    try:
        status = await FAULTS[name](port, random.Random(number))
    except OSError:
        status = 0
    figures.statuses[name, status] += 1


async def send_requests(
    requests: Iterable[Callable[[float], Awaitable[None]]], clients: int, rate: float | None
) -> None:
    """Call each request with the time at which it is due: at `rate` per second, or when a client is free."""
    if rate is None:
        remaining = iter(requests)

        async def send_remaining() -> None:
            for request in remaining:
                await request(time.perf_counter())

        await asyncio.gather(*(send_remaining() for _ in range(clients)))
        return
    chance, due_time, running = random.Random(0), time.perf_counter(), set[asyncio.Task[None]]()
    for request in requests:
        due_time += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, due_time - time.perf_counter()))
        running.add(task := asyncio.create_task(request(due_time)))
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)


async def watch_memory(server: psutil.Process, figures: Figures) -> None:
    while True:
        figures.memory.append(server.memory_info().rss)
        await asyncio.sleep(1)


async def load(
    server: "Server",
    honest: int,
    faults: list[tuple[str, int]],
    rate: float | None,
    *,
    attacked_server: "Server | None" = None,
) -> Figures:
    """Send honest requests to `server`, and faults to it or to `attacked_server`."""
    figures, idle_connections, port = Figures(), list[Streams](), server.port
    watching = asyncio.create_task(watch_memory(server.process, figures))
    clients = HONEST_CLIENTS if faults else HONEST_CLIENTS + FAULTY_CLIENTS
    requests = (
        partial(lambda number, due_time: send_honest_request(port, number, due_time, idle_connections, figures), number)
        for number in range(honest)
    )
    rate_of_faults = None if rate is None else rate * len(faults) / honest
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        attacked_port = (attacked_server or server).port
        sending = asyncio.get_running_loop().run_in_executor(pool, send_faults, attacked_port, faults, rate_of_faults)
        await send_requests(requests, clients, rate)
        figures.statuses.update(await sending)
    watching.cancel()
    for _, writer in idle_connections:
        writer.close()
    return figures


def send_faults(port: int, faults: list[tuple[str, int]], rate: float | None) -> Counter[tuple[str, int]]:
    figures = Figures()

    async def send() -> None:
        requests = (
            partial(lambda name, number, due_time: send_faulty_request(port, name, number, figures), *fault)
            for fault in faults
        )
        await send_requests(requests, FAULTY_CLIENTS, rate)
        while SLOW:
            SLOW.pop().transport.abort()

    asyncio.run(send())
    return figures.statuses


async def crowd(port: int, size: int) -> tuple[int, Counter[int]]:
    """Open this number of connections at the same time, then send a request on each."""
    streams = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
    with contextlib.suppress(OSError):
        while len(streams) < size:
            streams += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(100)))
    for _, writer in streams:
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    statuses = Counter(await asyncio.gather(*(read_status(reader) for reader, _ in streams)))
    for _, writer in streams:
        writer.transport.abort()
    return len(streams), statuses


def serve(socket_: socket.socket, control: Connection) -> None:
    with registry("gpt", "bert", "texts", "translator", limits=LIMITS) as models, tuned_interpreter():
        notes = list[str]()
        server = BoundedServer(application(models), note=notes.append, grace=1)
        server.limits.head_seconds = 60.0  # so that a large crowd has time to connect
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket_]})
        thread.start()
        while control.recv() == "busy":
            busy = {name: (w.running, w.waiting) for m in models.models.values() for name, w in m.workers.items()}
            control.send((busy, len(server.server_state.connections), notes))
        server.should_exit = True
        thread.join()


@dataclass(frozen=True)
class Server:
    """A process that serves the tiny models."""

    port: int
    process: psutil.Process
    control: Connection

    def busy(self) -> tuple[dict[str, tuple[int, int]], int, list[str]]:
        """Return running and waiting requests per worker, the number of connections, and the notes."""
        self.control.send("busy")
        return self.control.recv()


@contextlib.contextmanager
def started_server() -> Iterator[Server]:
    listening = open_socket("127.0.0.1", 0, send_timeout=30)
    context = get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=serve, args=(listening, theirs), daemon=True)
    child.start()
    try:
        yield Server(listening.getsockname()[1], psutil.Process(child.pid), ours)
    finally:
        with contextlib.suppress(OSError):
            ours.send("end")
        child.join(10)


def report(name: str, figures: Figures) -> None:
    statuses = {status: count for (kind, status), count in figures.statuses.items() if kind == "honest"}
    print(
        f"{name}: {len(figures.seconds):,} honest requests {statuses}, {figures.n_wrong} wrong, "
        f"p50 {1000 * figures.percentile(0.5):.1f} ms, p99 {1000 * figures.percentile(0.99):.1f} ms; "
        f"RSS {figures.memory[0] / 2**20:.0f} to {figures.memory[-1] / 2**20:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--faults", type=float, default=0.1, help="share of each kind of fault (default: 0.1)")
    parser.add_argument("--kinds", nargs="+", choices=FAULTS, default=[*FAULTS], help="kinds of faults (default: all)")
    parser.add_argument("--rate", type=float, help="honest requests per second (default: as fast as they are answered)")
    parser.add_argument("--connections", type=int, default=0, help="simultaneous connections at the end (default: 0)")
    parser.add_argument(
        "--control", action="store_true", help="add a run in which the faults are sent to another server"
    )
    args = parser.parse_args()
    HONEST.extend(honest_requests())
    count = int(args.requests * args.faults)
    faults = [(name, number) for name in args.kinds for number in range(count)]
    random.Random(0).shuffle(faults)
    honest = args.requests - len(faults)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started_server())
        control_server = stack.enter_context(started_server()) if args.control else None
        for running_server in filter(None, (server, control_server)):
            asyncio.run(load(running_server, honest // 8, faults[: len(faults) // 8], args.rate))  # warmup
        runs = {"without faults": asyncio.run(load(server, honest, [], args.rate))}
        if control_server is not None:
            runs["with faults at another server"] = asyncio.run(
                load(server, honest, faults, args.rate, attacked_server=control_server)
            )
        runs["with faults"] = asyncio.run(load(server, honest, faults, args.rate))
        for name, figures in runs.items():
            report(name, figures)
        faulty_figures = runs["with faults"]
        for name, figures in runs.items():
            if figures is not faulty_figures:
                print(
                    f"p99 with faults is {faulty_figures.percentile(0.99) / figures.percentile(0.99):.2f} x that {name}"
                )
        for (kind, status), number in sorted(faulty_figures.statuses.items()):
            print(f"  {kind:14} {status or 'none':>5} {number:6,}")
        if args.connections:
            n_connections, statuses = asyncio.run(crowd(server.port, args.connections))
            print(f"{n_connections:,} connections at once: {dict(statuses)}")
        time.sleep(1)
        busy, connections, notes = server.busy()
        print(f"afterwards: running and waiting {busy}, {connections} connections, notes {notes}")
        print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
