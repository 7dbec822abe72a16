"""The speed and memory of preparing shards of tokens, and the time that a training step waits for its rows.

    python benchmarks/load/corpora.py                       # 64 MB of text, one worker and two
    python benchmarks/load/corpora.py --megabytes 2000 --workers 2
    python benchmarks/load/corpora.py --datatrove PYTHON    # compare with datatrove's DocumentTokenizer in that Python

The text is generated: words of a Zipf distribution over 200,000, in sentences of JSONL, so that no line is repeated. A
worker has one thread. Times are of one run; processor times depend less on the load of the machine. Memory is the peak
resident size of a process and its workers, sampled ten times per second.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from tercet.checkpoint.metrics import read_metrics
from tercet.data.corpora.prepared import open_folder
from tercet.training import load_recipe, train
from tercet.training.tasks.language import LanguageTask

VOCABULARY, FILE_BYTES = 200_000, 16 << 20
DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
if __name__ == "__main__":
    texts, out, tokenizer, workers = sys.argv[1:]
    steps = [JsonlReader(texts), DocumentTokenizer(out, tokenizer_name_or_path=tokenizer, eos_token="<eos>")]
    LocalPipelineExecutor(steps, tasks=int(workers), workers=int(workers), logging_dir=out + "/logs").run()
"""


def write_texts(folder: Path, n_bytes: int) -> None:
    """Write JSONL files of `FILE_BYTES` each."""
    draw = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = ["".join(draw.choice(letters[:18], draw.integers(2, 11))) for _ in range(VOCABULARY)]
    shares = 1 / np.arange(1, VOCABULARY + 1)
    vocabulary, n_written, number = np.array(words, dtype=object), 0, 0
    while n_written < n_bytes:
        with (folder / f"{number:05d}.jsonl").open("w") as file:
            size = 0
            while size < min(FILE_BYTES, n_bytes - n_written):
                drawn_words = vocabulary[draw.choice(VOCABULARY, 40_000, p=shares / shares.sum())]
                for start in range(0, len(drawn_words), 200):
                    sentences = (
                        " ".join(drawn_words[at : at + 20]).capitalize() + "." for at in range(start, start + 200, 20)
                    )
                    size += file.write(json.dumps({"text": " ".join(sentences)}) + "\n")
        n_written, number = n_written + size, number + 1


class Cost(NamedTuple):
    """The wall-clock and processor seconds of a program, and the peak resident bytes of it and its children."""

    seconds: float
    cpu_seconds: float
    resident: int


def run_measured(command: list[str]) -> Cost:
    start, peak, cpu = time.perf_counter(), 0, dict[int, float]()
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        resident = 0
        with suppress(psutil.Error):  # a process may end in between
            for member in [process, *process.children(recursive=True)]:
                resident += member.memory_info().rss
                times = member.cpu_times()
                cpu[member.pid] = times.user + times.system
        peak = max(peak, resident)
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(time.perf_counter() - start, sum(cpu.values()), peak)


def prepare(texts: Path, out: Path, tokenizer: Path, workers: int) -> Cost:
    words = ["data", "prepare", str(texts), "--out", str(out), "--tokenizer", str(tokenizer)]
    return run_measured(
        [sys.executable, "-m", "tercet", *words, "--workers", str(workers), "--shard-tokens", str(1 << 22)]
    )


def loading(tokens: Path, folder: Path, steps: int) -> dict[str, Any]:
    """Return the milliseconds per step of nanogpt-cpu, and those of reading its rows."""
    changes = {
        "data": {"source": str(tokens)},
        "training": {"max_steps": steps, "validate_every": steps, "save_every": steps, "log_every": 1},
    }
    recipe = load_recipe("nanogpt-cpu", changes)
    train(recipe, folder / "run", quiet=True)
    seconds = [value for _, value in read_metrics(folder / "run" / "metrics.csv")["seconds"]]
    task, times = LanguageTask(recipe), list[float]()
    for step in range(steps):
        start = time.perf_counter()
        task.batches(step, 0, 1)
        times.append(time.perf_counter() - start)
    step = statistics.median(np.diff(seconds[: steps - 1]))
    rows = statistics.median(times[1:])
    return {"step_ms": round(1e3 * step, 2), "rows_ms": round(1e3 * rows, 3), "share": round(rows / step, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--datatrove", metavar="PYTHON", help="Python interpreter with datatrove")
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per worker
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        texts, vocabulary = folder / "texts", folder / "vocabulary"
        texts.mkdir()
        write_texts(texts, args.megabytes * 10**6)
        n_bytes = sum(path.stat().st_size for path in texts.iterdir())
        first = next(iter(sorted(texts.iterdir())))
        words = ["data", "prepare", str(first), "--out", str(vocabulary), "--set", "data.tokenizer.vocab_size=32000"]
        run_measured([sys.executable, "-m", "tercet", *words])
        for workers in args.workers:
            out = folder / f"tokens-{workers}"
            print_speed(f"tercet, {workers} workers", n_bytes, prepare(texts, out, vocabulary, workers))
            if args.datatrove:
                script = folder / "datatrove_run.py"
                script.write_text(DATATROVE)
                words = [str(texts), str(folder / f"datatrove-{workers}"), str(vocabulary / "tokenizer.json")]
                cost = run_measured([args.datatrove, str(script), *words, str(workers)])
                print_speed(f"datatrove, {workers} workers", n_bytes, cost)
        tokens = sum(part.tokens for part in open_folder(str(out)).contents.shards)
        print(json.dumps({"tokens": tokens, **loading(out, folder, args.steps)}))


def print_speed(name: str, n_bytes: int, cost: Cost) -> None:
    figures = {
        "what": name,
        "MB": round(n_bytes / 1e6),
        "seconds": round(cost.seconds, 1),
        "MB/s": round(n_bytes / 1e6 / cost.seconds, 2),
        "CPU seconds": round(cost.cpu_seconds, 1),
        "MB a CPU second": round(n_bytes / 1e6 / cost.cpu_seconds, 2),
        "resident MB": cost.resident // 10**6,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
