"""Load times of the page of two long runs, and its frame times while scrolling and zooming: in Debian's Chromium.

    python -m benchmarks.load.run_page                  # two runs of 100,000 logged steps
    python -m benchmarks.load.run_page --tensorboard    # and TensorBoard on the same curves

`tercet watch` is started for each measurement, a browser is already running, and its page is requested as soon as the
address is printed. The results are the time from there until every curve is drawn, and the time from the command on.
TensorBoard gets the losses, rates and norms of the same runs as scalars, which it reads gradually. Its result is the
time until it has read both runs completely and its page, requested then, shows two charts.
"""

import argparse
import contextlib
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

from benchmarks.load.explorer import FLAGS

from tercet.checkpoint.metrics import COLUMNS
from tercet.checkpoint.run_record import RunRecord

MOST_SECONDS, MOST_FRAME = 1.0, 50.0  # limits: seconds until curves are drawn, ms per frame
CHARTS = {"train/loss": 3.0, "lr": 1e-3, "grad_norm": 0.8, "tokens_per_second": 51_234.0}  # each with a typical value
DRAWN_SCRIPT = """() => {
  const charts = [...document.querySelectorAll(".chart canvas")];
  return charts.length >= 4 && charts.every((one) => one.width > 80);
}"""
SCROLL_SCRIPT = """async () => {
  const times = [], end = document.documentElement.scrollHeight - innerHeight;
  let before = performance.now();
  for (let n = 1; n <= 60; n++) {
    scrollTo(0, end * (n <= 30 ? n : 60 - n) / 30);
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - before);
    before = performance.now();
  }
  return times;
}"""
ZOOM_SCRIPT = """async () => {
  const field = document.querySelector("[data-key='chart:Loss']"), times = [];
  field.focus();
  for (let n = 0; n < 20; n++) {
    const before = performance.now();
    field.dispatchEvent(new KeyboardEvent("keydown", { key: n < 10 ? "+" : "-", bubbles: true }));
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - before);
  }
  return times;
}"""


def values(step: int, seed: int) -> dict[str, float]:
    """Return the values of a logged step: a falling loss, and the other metrics around their typical values."""
    noise = math.sin(step * (12.9898 + seed)) * 43758.5453 % 1
    metrics = {name: usual * (0.75 + 0.5 * noise) for name, usual in CHARTS.items()}
    return metrics | {"train/loss": 1.5 + 2 / math.log(step + 2) + 0.3 * noise}


def write_run(folder: Path, steps: int, seed: int) -> Path:
    folder.mkdir(parents=True)
    with (folder / "metrics.csv").open("w", newline="") as file:
        file.write(",".join(COLUMNS) + "\r\n")
        for step in range(1, steps + 1):
            cells: dict[str, float] = {
                "step": step, "epoch": step / 1000, "tokens": 4096 * step, "seconds": 0.1 * step, **values(step, seed),
            }  # fmt: skip
            if step % 100 == 0:
                cells["val/loss"] = cells["train/loss"] + 0.1
            file.write(",".join(f"{cells[name]:.9g}" if name in cells else "" for name in COLUMNS) + "\r\n")
    (folder / "recipe.yaml").write_text(f"task: {{kind: language}}\ntraining: {{max_steps: {steps}}}\n")
    RunRecord(
        data="d", tokenizer="t", precision="fp32", matmul="highest", compile="never", steps=steps, finished=True
    ).write(folder)
    return folder


def write_events(folder: Path, steps: int, seed: int) -> Path:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step in range(1, steps + 1):
        summary_values = [Summary.Value(tag=name, simple_value=value) for name, value in values(step, seed).items()]
        writer.add_event(Event(step=step, wall_time=0.1 * step, summary=Summary(value=summary_values)))
    writer.close()
    return folder


@contextlib.contextmanager
def start_server(command: list[str]) -> Generator[tuple[str, float]]:
    """Start a server; yield its address, and the seconds until it was printed."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if address := re.search(r"http://\S+:\d+/", line):
                    yield address[0], time.perf_counter() - began
                    break
            else:
                raise RuntimeError(f"{command[:4]} printed no address")
        finally:
            process.kill()


def wait_until_read(address: str, steps: int) -> None:
    """Wait until TensorBoard has read the curves of both runs completely, downsampled as it stores them."""
    for run in ("one", "two"):
        last = 0
        while last < steps:
            with contextlib.suppress(OSError, ValueError, IndexError):
                response = urllib.request.urlopen(f"{address}data/plugin/scalars/scalars?run={run}&tag=lr")
                last = json.load(response)[-1][1]
            time.sleep(0.05)


def measure(browser: Any, command: list[str], ready_script: str, *, steps: int, moves: bool) -> dict[str, float]:
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    with start_server(command) as (address, print_seconds):
        began = time.perf_counter()
        if not moves:
            wait_until_read(address, steps)
        page.goto(address)
        page.wait_for_function(ready_script, timeout=120_000, polling="raf")
        result = {"printed_seconds": print_seconds, "open_seconds": time.perf_counter() - began}
        if moves:
            page.wait_for_timeout(500)
            frames, zooms = page.evaluate(SCROLL_SCRIPT), page.evaluate(ZOOM_SCRIPT)
            result |= {"frame_milliseconds": statistics.median(frames), "slowest_frame_milliseconds": max(frames)}
            result |= {"zoom_milliseconds": statistics.median(zooms)}
    page.context.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--tensorboard", action="store_true")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        sys.exit("no chromium: apt-get install chromium")
    commands: dict[str, tuple[list[str], str]] = {}
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        runs = [write_run(Path(place) / "runs" / name, args.steps, n) for n, name in enumerate(("one", "two"))]
        commands["tercet"] = [sys.executable, "-m", "tercet", "watch", *map(str, runs), "--port", "0"], DRAWN_SCRIPT
        if args.tensorboard:
            for n, name in enumerate(("one", "two")):
                write_events(Path(place) / "events" / name, args.steps, n)
            arguments = ["--logdir", f"{place}/events", "--port", "0"]
            lines = "() => document.querySelectorAll('scalar-card line-chart canvas').length >= 2"
            commands["tensorboard"] = [sys.executable, "-m", "tensorboard.main", *arguments], lines
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        measurements: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for _ in range(args.times):
            for name, (command, ready_script) in commands.items():
                measurements[name].append(
                    measure(browser, command, ready_script, steps=args.steps, moves=name == "tercet")
                )
        browser.close()
    medians = {
        name: {key: statistics.median(measurement[key] for measurement in rounds) for key in rounds[0]}
        for name, rounds in measurements.items()
    }
    print(json.dumps({"steps": args.steps, **medians}, indent=2))
    tercet_times = medians["tercet"]
    sys.exit(
        1
        if tercet_times["open_seconds"] > MOST_SECONDS or tercet_times["slowest_frame_milliseconds"] > MOST_FRAME
        else 0
    )


if __name__ == "__main__":
    main()
