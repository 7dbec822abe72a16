"""Load and response times of the explorer's page: in Debian's Chromium, and over HTTP without a browser.

    python benchmarks/load/explorer.py runs/nanogpt  # a run, or any model folder
    python benchmarks/load/explorer.py runs/nanogpt --out f.json

First paint is measured cold: a new browser, the page and all its modules from the server, the model's first forward
pass. Requests are for texts that have not been requested before; each number is a median.
"""

import argparse
import json
import shutil
import socket
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import uvicorn

from tercet.checkpoint import TrainedModel, load_model
from tercet.explorer import Answers, opening_query
from tercet.explorer.server import application
from tercet.generation import Sampling, generate
from tercet.models import DecoderOnly

FIRST_PAINT, LOOK_SECONDS, LOOK_BYTES, SLIDER = 2.0, 1.0, 2_000_000, 50.0  # targets: upper limits
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
PAINT_SCRIPT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
SLIDER_SCRIPT = """
async (values) => {
  const slider = document.querySelector("[data-key=temperature]");
  const times = [];
  for (const value of values) {
    const redrawn = new Promise((resolve) => {
      // What is written may be what stood there before: the writing counts.
      const seen = new MutationObserver(() => (seen.disconnect(), resolve()));
      const box = document.querySelector(".entropy").parentElement;
      seen.observe(box, { childList: true, characterData: true, subtree: true });
    });
    const began = performance.now();
    slider.value = value;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await redrawn;
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - began);
  }
  return times;
}
"""


@contextmanager
def serve_app(answers: Answers) -> Generator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = uvicorn.Server(uvicorn.Config(application(answers), log_level="error", ws="none", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


def post(address: str, name: str, body: Any) -> tuple[float, bytes]:
    """Return the seconds of a request, and the response."""
    request = urllib.request.Request(
        f"{address}api/{name}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request) as answer:
        data = answer.read()
    return time.perf_counter() - began, data


def rows(trained_model: TrainedModel, length: int, count: int) -> list[list[int]]:
    """Return `count` different texts of `length` tokens: generated if the model is a decoder, else consecutive ids."""
    model, tokenizer = trained_model.model, trained_model.source_tokenizer
    if isinstance(model, DecoderOnly):
        start = [token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_ids][:1]
        sampling = Sampling(max_new_tokens=count + length + 8, temperature=0.9)
        ids = tokenizer.encode(generate(model, tokenizer, [tokenizer.decode(start)], sampling)[0].text)
        if len(ids) >= count + length:
            return [ids[n : n + length] for n in range(count)]
    plain = [token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_ids]
    return [[plain[(n + i) % len(plain)] for i in range(length)] for n in range(count)]


def measure_over_http(trained_model: TrainedModel, length: int, times: int) -> dict[str, float]:
    """Measure looks and blocks of texts of `length` tokens."""
    model = trained_model.model
    names = [name for name, _ in model.named_modules() if name.endswith(".blocks.0")]
    looks, blocks, sizes, block_sizes = [], [], [], []
    with serve_app(Answers(trained_model)) as address:
        post(address, "look", {"ask": {"ids": rows(trained_model, length, 1)[0]}})
        for ids in rows(trained_model, length, times + 1)[1:]:
            seconds, data = post(address, "look", {"ask": {"ids": ids}})
            looks.append(seconds)
            sizes.append(len(data))
            seconds, block = post(address, "block", {"ask": json.loads(data)["ask"], "name": names[-1]})
            blocks.append(seconds)
            block_sizes.append(len(block))
    return {
        "tokens": length,
        "look_seconds": statistics.median(looks),
        "look_slowest": max(looks),
        "look_bytes": statistics.median(sizes),
        "block_seconds": statistics.median(blocks),
        "block_bytes": statistics.median(block_sizes),
    }


def measure_in_browser(trained_model: TrainedModel, times: int) -> dict[str, float] | None:
    """Measure a cold first paint, the full first view, and a slider's response; None if Chromium is not available."""
    path = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        path = None
    if path is None:
        print("chromium or playwright is missing: skipping first paint", file=sys.stderr)
        return None
    paints, views, sliders = [], [], []
    with sync_playwright() as playwright:
        for _ in range(times):
            with serve_app(Answers(trained_model, start=opening_query(trained_model))) as address:
                browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
                page = browser.new_page(viewport={"width": 1280, "height": 720})
                began = time.perf_counter()
                page.goto(address)
                page.wait_for_selector(".candidate")
                page.wait_for_selector(".flow-body canvas")
                views.append(time.perf_counter() - began)
                paints.append(page.evaluate(PAINT_SCRIPT) / 1000)
                page.wait_for_timeout(300)
                sliders += page.evaluate(SLIDER_SCRIPT, [f"{value / 10}" for value in range(3, 20)])
                browser.close()
    return {
        "first_paint_seconds": statistics.median(paints),
        "first_view_seconds": statistics.median(views),
        "slider_milliseconds": statistics.median(sliders),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    trained_model = load_model(args.run)
    lengths = [length for length in (64, 256) if length <= trained_model.model.max_len]
    results: dict[str, Any] = {
        "run": str(args.run),
        "parameters": sum(weight.numel() for weight in trained_model.model.parameters()),
        "threads": torch.get_num_threads(),
        "lengths": [measure_over_http(trained_model, length, args.times) for length in lengths],
        "browser": measure_in_browser(trained_model, 3),
    }
    print(json.dumps(results, indent=2))
    for row in results["lengths"]:
        print(
            f"{row['tokens']} tokens: look {row['look_seconds']:.3f} s, {row['look_bytes'] / 1e6:.2f} MB; "
            f"block {row['block_seconds']:.3f} s, {row['block_bytes'] / 1e6:.2f} MB"
        )
    if results["browser"] is not None:
        figure: Callable[[str], float] = results["browser"].__getitem__
        print(
            f"first paint {figure('first_paint_seconds'):.2f} s, first view {figure('first_view_seconds'):.2f} s, "
            f"slider {figure('slider_milliseconds'):.0f} ms"
        )
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=2) + "\n")
    first = results["lengths"][0]
    slow = first["look_seconds"] >= LOOK_SECONDS or first["look_bytes"] >= LOOK_BYTES
    if results["browser"] is not None:
        slow |= results["browser"]["first_paint_seconds"] >= FIRST_PAINT
        slow |= results["browser"]["slider_milliseconds"] >= SLIDER
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    main()
