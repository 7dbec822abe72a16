"""Opening any model folder ends quickly, with a model or with an error in one line."""

import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from attack import attack_function
from folder_copies import whole_folders
from hurt_folders import MAKERS, damage_copy
from report import count_inputs

from tercet.checkpoint import load_model, read_spec
from tercet.cli.main import main
from tercet.config import UserError

SCALE = int(os.environ.get("TERCET_HOSTILE", "1"))
INPUTS = 36 if SCALE == 1 else 72 * SCALE
BATCH = 12  # inputs per child
SECONDS = 10.0  # CPU time per input; a waiting child is killed after BATCH times as long
MEMORY = 1 << 30
PROMPT = "the cat  sat on <s> the mat, naïve\n\t 1984!" * 3


def open_folder(path: Path) -> str:
    """Open a folder and return its outcome, "read" or "refused". Errors other than `UserError` propagate."""
    try:
        trained_model = load_model(path)
        for tokenizer in (trained_model.tokenizer, trained_model.source_tokenizer):
            tokenizer.decode(tokenizer.encode(PROMPT))
        trained_model.readme()
    except UserError as error:
        check_message(error)
        return "refused"
    return "read"


def open_spec(path: Path) -> None:
    try:
        read_spec(path)
    except UserError as error:
        check_message(error)


def check_message(error: UserError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 2000


@pytest.mark.parametrize("kind", MAKERS)
def test_an_intact_folder_opens(kind: str) -> None:
    assert open_folder(whole_folders()[kind]) == "read"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, INPUTS, BATCH))
def test_a_damaged_folder_is_read_or_rejected(first: int, tmp_path: Path) -> None:
    """One child opens a batch of inputs and prints one line for each, so the last line identifies a failure."""

    folders = whole_folders()

    def work() -> int:
        for seed in range(first, first + BATCH):
            kind = list(MAKERS)[seed % len(MAKERS)]
            path, description = damage_copy(folders[kind], tmp_path / str(seed), seed)
            print(seed, kind, description.encode("ascii", "backslashreplace").decode(), end=" -> ", flush=True)
            start = time.process_time()
            open_spec(path)
            result = open_folder(path)
            if seed % 8 == 0:
                assert main(["inspect", str(path)]) in (0, 2)
            assert time.process_time() - start < SECONDS
            print(result, flush=True)
            shutil.rmtree(tmp_path / str(seed))
        return 0

    outcome = attack_function(work, seconds=BATCH * SECONDS)
    assert outcome.code == 0, outcome.stdout[-500:] + outcome.stderr[-3000:]
    assert outcome.memory < MEMORY
    results = Counter(line.rpartition(" -> ")[2] for line in outcome.stdout.splitlines())
    assert results["read"] + results["refused"] == BATCH
    count_inputs(taken=results["read"], refused=results["refused"])
