"""The cost of hashing every file, when loading a model and in a training run.

    python benchmarks/load/hashing.py             # loading a model of 85 million weights, and one of 0.2
    python benchmarks/load/hashing.py --run       # and the recipe shakespeare-quick, saved every 20 steps
    python benchmarks/load/hashing.py --tokens FOLDER     # only the shards of a prepared folder, opened twice

Each result is the time within `FileHash.from_path` next to the total time, in one process; loading is the median of
ten, with the file in the page cache, where hashing has the largest share.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tercet.checkpoint import Card, load_model, save_model
from tercet.data.corpora.prepared import open_folder
from tercet.models import build
from tercet.models.presets import model_spec
from tercet.storage import manifest
from tercet.tokens import Characters, Tokenizer

REPEATS = 10


class Clock:
    """Accumulated time and bytes of `FileHash.from_path`."""

    def __init__(self) -> None:
        self.seconds, self.bytes = 0.0, 0
        hash_file = manifest.FileHash.from_path

        def timed_hash(path: Path, size: int | None = None) -> manifest.FileHash:
            start = time.perf_counter()
            file_hash = hash_file(path, size)
            self.seconds += time.perf_counter() - start
            self.bytes += file_hash.size
            return file_hash

        manifest.FileHash.from_path = staticmethod(timed_hash)


def share(clock: Clock, work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of `work`, and those of hashing in it."""
    hash_seconds, start = clock.seconds, time.perf_counter()
    work()
    return time.perf_counter() - start, clock.seconds - hash_seconds


def loading(clock: Clock, width: int, layers: int, folder: Path) -> dict[str, Any]:
    tokenizer = Tokenizer.train(Characters(), ["to be or not to be"])
    stack = {"d_model": width, "n_layers": layers, "n_heads": width // 32}
    sizes = {"preset": "gpt2", "vocab_size": tokenizer.vocab_size, "max_len": 256, "stack": stack}
    model = build(model_spec(sizes, name="model"))
    save_model(folder / str(width), model, tokenizer, Card())
    times = [share(clock, lambda: load_model(folder / str(width))) for _ in range(REPEATS)]
    whole, hashing = (statistics.median(column) for column in zip(*times, strict=True))
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": n_parameters, "seconds": whole, "hashing": hashing, "share": hashing / whole}


def opening_shards(folder: str) -> dict[str, Any]:
    """Measure opening all shards, the first time (they are hashed, and their ids compared) and the second time."""
    contents = open_folder(folder).contents
    size = sum(contents.files.files[part.ids_file].size for part in contents.shards)
    figures: dict[str, Any] = {"shards": len(contents.shards), "megabytes": size / 1e6}
    for name in ("first", "second"):
        tokens = open_folder(folder)
        tokens.tokenizer()
        wall, processor = time.perf_counter(), time.process_time()
        for part in contents.shards:
            tokens.ids(part)
        figures[name] = {"seconds": time.perf_counter() - wall, "processor": time.process_time() - processor}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--tokens", metavar="FOLDER")
    args = parser.parse_args()
    if args.tokens is not None:
        print(json.dumps(opening_shards(args.tokens)))
        return
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        for width, layers in ((768, 12), (96, 2)):
            print(json.dumps(loading(clock, width, layers, Path(folder))))
        if args.run:
            from tercet.training import load_recipe, train

            recipe = load_recipe("shakespeare-quick", {"training": {"save_every": 20}})
            whole, hashing = share(clock, lambda: train(recipe, Path(folder, "run"), quiet=True))
            figures = {"seconds": whole, "hashing": hashing, "share": hashing / whole}
            print(json.dumps({"run": "shakespeare-quick", **figures}))


if __name__ == "__main__":
    main()
