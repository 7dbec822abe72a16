"""The gain of continuous batching, and the latency of clients: with the engine in this process, and over HTTP.

    python benchmarks/load/serving.py runs/nanogpt                      # a run, or any model folder
    python benchmarks/load/serving.py random:12x768 --clients 1,8  # or random weights of this many layers and width
    python benchmarks/load/serving.py runs/nanogpt --http --out f.json  # over a socket too

First, eight prompts of different lengths run one after another by `generate`, which does not batch them; then the same
prompts run concurrently in the engine. The tokens must be equal, and the target is three times the rate. Rounds
alternate, so that changes of the machine's speed affect both equally. Then several clients, each of which sends a new
request as soon as its last one is completed, run for some seconds: time to first token, and time between tokens, as a
client measures them.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tercet.checkpoint import TrainedModel, load_model
from tercet.generation import Sampling, generate
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.serve.engine import GenerationRequest, Limits, Scheduler, TokenEvent
from tercet.tokens import BPE, Tokenizer

MIN_SPEEDUP = 3.0  # target: minimum speedup for eight concurrent prompts
PROMPT_LENGTHS = (3, 61, 17, 34, 5, 90, 23, 47)
OnTokens = Callable[[int], None]  # called for each piece with its number of tokens
Client = Callable[[str, Sampling, OnTokens], None]  # sends a request, and returns when it is completed


@dataclass
class Waits:
    """Latencies that the clients measured, in seconds."""

    first: list[float] = field(default_factory=list)
    between_tokens: list[float] = field(default_factory=list)
    tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, client: Client, prompt: str, sampling: Sampling) -> None:
        began = last = time.perf_counter()
        first = True

        def on_tokens(count: int) -> None:
            nonlocal last, first
            now = time.perf_counter()
            with self.lock:
                (self.first if first else self.between_tokens).append(
                    (now - (began if first else last)) / max(1, count)
                )
                self.tokens += count
            last, first = now, False

        client(prompt, sampling, on_tokens)


def percentiles(times: list[float]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    if len(times) < 2:
        times = [*times, *times] or [0.0, 0.0]
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {f"p{n}": round(1000 * cuts[n - 1], 1) for n in (50, 95, 99)}


def open_model(name: str) -> TrainedModel:
    if not name.startswith("random:"):
        return load_model(Path(name))
    layers, width = map(int, name.removeprefix("random:").split("x"))
    tokenizer = Tokenizer.train(BPE(vocab_size=400), [Path(__file__).read_text()])
    stack = StackSpec(n_layers=layers, d_model=width, n_heads=width // 64)
    # As many logits as a typical vocabulary has, since their cost counts too.
    model = DecoderOnly(DecoderOnlySpec(vocab_size=8192, max_len=1024, stack=stack)).eval()
    return TrainedModel.wrap(model, tokenizer, folder=Path())


def prompts(trained_model: TrainedModel) -> list[str]:
    """Return eight prompts of different lengths, of tokens that the model knows."""
    tokenizer = trained_model.tokenizer
    plain = [token for token in range(tokenizer.vocab_size) if tokenizer.decode([token]).isalpha()]
    return [tokenizer.decode([plain[(7 * n + at) % len(plain)] for at in range(n)]) for n in PROMPT_LENGTHS]


def engine_client(scheduler: Scheduler, tokenizer: Tokenizer) -> Client:
    def client(prompt: str, sampling: Sampling, on_tokens: OnTokens) -> None:
        over = threading.Event()

        def on_event(event: TokenEvent | Exception) -> None:
            if isinstance(event, Exception):
                print(f"rejected: {event}", file=sys.stderr)
            elif event.token is not None and event.token.finish != "eos":
                on_tokens(1)
            if isinstance(event, Exception) or event.finish is not None:
                over.set()

        scheduler.submit(GenerationRequest(ids=tuple(tokenizer.encode(prompt)), sampling=sampling), on_event)
        over.wait()

    return client


def run_in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run `work` in a temporary thread, whose OpenMP team ends with it: idle teams would slow down the engine's."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *arguments).result()


def serve(name: str, limits: Limits, threads: int, listening: socket.socket) -> None:
    """Serve in a separate process, so that clients and server do not share an interpreter lock."""
    import uvicorn

    from tercet.serve.http.app import application
    from tercet.serve.registry import LoadedModel, ModelRegistry

    torch.set_num_threads(threads)
    registry = ModelRegistry([LoadedModel(run_in_thread(open_model, name), name="it", limits=limits)])
    config = uvicorn.Config(application(registry), log_level="error", ws="none", lifespan="off")
    uvicorn.Server(config).run(sockets=[listening])
    registry.close(seconds=1)


@contextmanager
def http_client(name: str, limits: Limits) -> Generator[Client]:
    """Yield a client of the OpenAI completions route; each token is an event."""
    import httpx

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(512)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        arguments = (name, limits, torch.get_num_threads(), listening)
        process = multiprocessing.get_context("spawn").Process(target=serve, args=arguments)
        process.start()

    def client(prompt: str, sampling: Sampling, on_tokens: OnTokens) -> None:
        body = {
            "model": "it", "prompt": prompt, "max_tokens": sampling.max_new_tokens, "stream": True, "logprobs": 0,
            "temperature": sampling.temperature, "seed": sampling.seed,
        }  # fmt: skip
        with http.stream("POST", f"{address}/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                print(f"rejected: {answer.read().decode()}", file=sys.stderr)
            for line in answer.iter_lines():
                event_data = json.loads(line[6:]) if line.startswith("data: {") else {}
                if "error" in event_data:
                    print(f"rejected: {event_data['error']}", file=sys.stderr)
                if (choices := event_data.get("choices")) and (logprobs := choices[0].get("logprobs")):
                    on_tokens(len(logprobs["tokens"]))

    # One client for all threads, with a connection each: creating one takes longer than a request.
    http = httpx.Client(verify=False, timeout=600, limits=httpx.Limits(max_connections=None))
    try:
        http.get(f"{address}/health")
        yield client
    finally:
        http.close()
        process.terminate()
        process.join()


def run_concurrently(client: Client, requests: list[tuple[str, Sampling]]) -> tuple[float, Waits]:
    """Return the seconds until all concurrent requests are completed, and their latencies."""
    waits = Waits()
    threads = [threading.Thread(target=waits.send, args=(client, *request)) for request in requests]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began, waits


def compare_with_sequential(trained_model: TrainedModel, client: Client, new: int, rounds: int) -> dict[str, float]:
    requests = [(prompt, Sampling(max_new_tokens=new, seed=n)) for n, prompt in enumerate(prompts(trained_model))]
    sequential_rates, concurrent_rates = [], []
    for _ in range(rounds):
        began, tokens = time.perf_counter(), 0
        for prompt, sampling in requests:
            (answer,) = run_in_thread(generate, trained_model.model, trained_model.tokenizer, [prompt], sampling)
            tokens += len(answer.ids) - (answer.finish == "eos")  # which is not sent over HTTP
        sequential_rates.append(tokens / (time.perf_counter() - began))
        seconds, waits = run_concurrently(client, requests)
        assert waits.tokens == tokens, f"{waits.tokens} tokens at once, {tokens} one after another"
        concurrent_rates.append(waits.tokens / seconds)
    pairs = zip(concurrent_rates, sequential_rates, strict=True)
    return {
        "one_after_another": round(statistics.median(sequential_rates), 1),
        "eight_at_once": round(statistics.median(concurrent_rates), 1),
        "times": round(statistics.median(mine / theirs for mine, theirs in pairs), 2),
    }


def measure_load(trained_model: TrainedModel, client: Client, count: int, new: int, seconds: float) -> dict[str, Any]:
    waits, texts = Waits(), prompts(trained_model)
    until = time.perf_counter() + seconds

    def send_requests(number: int) -> None:
        for n in range(number, 10**9, count):
            waits.send(client, texts[n % len(texts)], Sampling(max_new_tokens=new, seed=n))
            if time.perf_counter() >= until:
                return

    threads = [threading.Thread(target=send_requests, args=(number,)) for number in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "clients": count,
        "answers": len(waits.first),
        "tokens_per_second": round(waits.tokens / (time.perf_counter() - began), 1),
        "first_token_ms": percentiles(waits.first),
        "token_ms": percentiles(waits.between_tokens),
    }


def measure_client(trained_model: TrainedModel, client: Client, args: argparse.Namespace) -> dict[str, Any]:
    waits = Waits()
    waits.send(client, prompts(trained_model)[0], Sampling(max_new_tokens=4))  # one-time work is done here
    results: dict[str, Any] = compare_with_sequential(trained_model, client, args.new, args.rounds)
    results["load"] = [measure_load(trained_model, client, count, args.new, args.seconds) for count in args.clients]
    return results


def print_results(name: str, results: dict[str, Any]) -> None:
    print(
        f"{name}: one after another {results['one_after_another']:.0f} tokens/s, eight at once "
        f"{results['eight_at_once']:.0f}, {results['times']:.2f} x"
    )
    print("  clients  answers  tokens/s   first token ms: p50    p95    p99    each token ms: p50    p95    p99")
    for load in results["load"]:
        first_times, token_times = (
            "".join(f"{value:7.0f}" for value in load[key].values()) for key in ("first_token_ms", "token_ms")
        )
        print(
            f"  {load['clients']:7} {load['answers']:8} {load['tokens_per_second']:9.0f} "
            f"{'':15}{first_times} {'':15}{token_times}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run, a model folder, or random:LAYERSxWIDTH")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--new", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of load for each number of clients")
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32, 128])
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    trained_model = run_in_thread(open_model, args.model)
    if not isinstance(trained_model.model, DecoderOnly):
        sys.exit(f"{args.model} is not a language model; pass a model that generates text")
    limits = Limits(slots=args.slots, waiting=512, seconds=600.0)
    results: dict[str, Any] = {
        "model": args.model,
        "parameters": sum(weight.numel() for weight in trained_model.model.parameters()),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "slots": args.slots,
        "new": args.new,
    }
    with Scheduler(trained_model.model, trained_model.tokenizer, limits) as scheduler:
        results["in_process"] = measure_client(trained_model, engine_client(scheduler, trained_model.tokenizer), args)
    print_results("in process", results["in_process"])
    if args.http:
        with http_client(args.model, limits) as client:
            results["http"] = measure_client(trained_model, client, args)
        print_results("over HTTP", results["http"])
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(1 if results["in_process"]["times"] < MIN_SPEEDUP else 0)


if __name__ == "__main__":
    main()
