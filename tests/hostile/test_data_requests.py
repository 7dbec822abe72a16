"""Excessive numbers, and damaged files of named datasets, are rejected in one line."""

from pathlib import Path

import pytest
from attack import MEMORY, attack, attack_in_one_child
from data_files import refuse

import tercet.checkpoint
import tercet.encoding
import tercet.generation  # noqa: F401  # in the parent once, and not in every child

# Numbers.

TRILLION, HUGE = str(10**12), str(10**30)


TOO_MUCH = [
    ["generate", "run", "--num-samples", str(10**9)], ["generate", "run", "--num-samples", HUGE],
    ["generate", "run", "--max-new-tokens", TRILLION], ["generate", "run", "--seed", HUGE],
    ["generate", "run", "--seed", str(2**63 - 1), "--num-samples", "2"], ["generate", "run", "--seed", "-1"],
    ["generate", "run", "--lookup", HUGE], ["generate", "run", "--lookup", "--draft-tokens", HUGE],
    ["generate", "run", "--temperature", "nan"], ["generate", "run", "--top-p", "1e999"],
    ["translate", "run", "--beam", str(10**6)], ["translate", "run", "--beam", "5", "--n-best", HUGE],
    ["translate", "run", "--pool", TRILLION], ["translate", "run", "--pool", HUGE],
    ["translate", "run", "--batch-tokens", TRILLION], ["translate", "run", "--sample", "--seed", HUGE],
    ["translate", "run", "--max-ratio", "inf"], ["translate", "run", "--alpha", "nan"],
    ["embed", "run", "--output", "a.npz", "--batch-tokens", HUGE], ["classify", "run", "--batch-tokens", HUGE],
    ["embed", "run", "--query", "query", "--input", "a.txt", "--top", HUGE],
    ["evaluate", "run", "--per-line", "--batch-tokens", TRILLION], ["fill", "run", "[MASK]", "--top", HUGE],
    ["generate", "run", "--num-samples", "9" * 5000], ["translate", "run", "--beam", "9" * 5000],
]  # fmt: skip


def test_excessive_numbers_are_rejected() -> None:
    for command, outcome in zip(TOO_MUCH, attack_in_one_child(TOO_MUCH), strict=True):
        assert outcome.refused_in_one_line(), (command, outcome.stderr[-2000:])
        assert outcome.memory < MEMORY
        assert "no such" not in outcome.stderr, f"the number was not checked: {command}"


# Named datasets.


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"To be", b"x" * 2_000_000, None], ids=["empty", "cut", "foreign", "device"])
@pytest.mark.parametrize(("dataset", "name"), [("shakespeare", "input.txt"), ("multi30k", "train.de.gz")])
def test_damaged_files_of_named_datasets_are_rejected(
    content: bytes | None, dataset: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / dataset / name
    path.parent.mkdir()
    if content is None:
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(content)
    for variable, value in (("TERCET_DATA", tmp_path), ("TERCET_CACHE", tmp_path / "cache"), ("TERCET_OFFLINE", 1)):
        monkeypatch.setenv(variable, str(value))
    refuse(attack(["data", dataset]))
