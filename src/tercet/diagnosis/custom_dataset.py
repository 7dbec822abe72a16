"""Checks of a custom dataset: conditions under which runs on it can be resumed and repeated."""

import copy
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice

from tercet.config import UserError, to_plain
from tercet.data import CustomDataset
from tercet.data.sources.dataset_source import DatasetSource
from tercet.diagnosis.part_checks import PartChecks, run_check
from tercet.messages import counted, shorten

TIMEOUT = 600  # seconds for reading all examples in another process
FIELDS = 8  # maximum number of fields in the summary
# Prints the hash of the examples of the dataset in the first argument.
CODE = """
import sys
from tercet.data.sources.custom_dataset import read_source
from tercet.data.sources.dataset_source import DatasetSource
print(DatasetSource(dataset=read_source(sys.argv[1])).hash())
"""


def check_dataset_part(dataset: CustomDataset) -> PartChecks:
    """Check a dataset by reading all of its examples several times, the last time in another process.

    Raises:
        UserError: If its examples cannot be read.
    """
    source = DatasetSource(dataset=dataset)
    kinds, fields = Counter[str](), ""
    for _, row in source.rows():
        kinds["texts" if isinstance(row, str) else "mappings"] += 1
        if kinds.total() == 1:
            fields = "" if isinstance(row, str) else ", ".join(islice(row, FIELDS))
    count, content = kinds.total(), source.hash()
    conditions: dict[str, tuple[Callable[[], bool], str]] = {
        "the dataset is not empty": (lambda: count > 0, "yield at least one example; check its settings"),
        "all examples are texts, or all are mappings": (lambda: len(kinds) <= 1, "yield only one of both"),
        "two passes are equal": (
            lambda: source.hash() == content,
            "sort rows and the names of files, draw random numbers with a fixed seed, and open files in `examples`",
        ),
        "a pass that is stopped early changes nothing": (
            lambda: _stop_early(source) == content,
            "open files and create generators in `examples`, not once for all calls",
        ),
        "another process reads equal examples": (
            lambda: _hash_elsewhere(dataset) == content,
            "sort rows, do not draw random ones, and do not iterate over a set or use `hash` of a text",
        ),
        "the dataset can be copied": (
            lambda: copy.deepcopy(dataset) == dataset,
            "keep only settings in the class, and open files and connections in `examples`",
        ),
    }
    checks = tuple(run_check(name, check, remedy) for name, (check, remedy) in conditions.items())
    form = counted(count, "text", "texts") if not kinds["mappings"] else f"{counted(count, 'example', 'examples')}"
    contents = f"{form} with {shorten(fields)}" if count and kinds["mappings"] and fields else form
    return PartChecks(part=dataset.kind, parameters=0, checks=checks, contents=contents)


def _stop_early(source: DatasetSource) -> str:
    """Return the hash of the examples while another pass has read only the first one."""
    stopped = source.rows()
    next(stopped, None)
    return source.hash()


def _hash_elsewhere(dataset: CustomDataset) -> str:
    """Return the hash of the examples in another process, in which sets have another order.

    Raises:
        UserError: If they cannot be read there.
    """
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(to_plain(dataset))],
        env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    if result.returncode:
        raise UserError((result.stderr.strip().splitlines() or ["it was stopped"])[-1])
    return result.stdout.strip()
