"""Training with reverse complements: both strands, the same labels, any number of devices, and exact resuming."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import (
    CHECKPOINT,
    assert_same_run,
    child,
    dies_at_rename,
    exit_code,
    tiny_labels_recipe,
    tiny_masked_recipe,
    tiny_recipe,
)

from tercet.config import UserError, merge
from tercet.data.rows.batching import cut_share
from tercet.training import Recipe, train
from tercet.training.tasks.labels import LabelsTask
from tercet.training.tasks.language import LanguageTask
from tercet.training.tasks.open_task import task_of

COMPLEMENT = str.maketrans("ACGT", "TGCA")
CHARACTERS = {"kind": "characters", "bos": True, "pad": True, "mask": True}


def other_strand(text: str) -> str:
    return text.translate(COMPLEMENT)[::-1]


def make_recipe(kind: str, folder: Path, *, reverse: bool = True, **settings: Any) -> Recipe:
    """Return a tiny recipe on 120 sequences of 5 to 12 letters, with the length as label or without labels."""
    path, draw = folder / "a.fa", random.Random(4)
    if not path.exists():
        lines = [f">s{n} label={'even' if n % 2 else 'odd'}\nA{'C' * (n % 2)}" for n in range(120)]
        letters = ["".join(draw.choices("ACGT", k=4 + n % 7)) for n in range(120)]
        path.write_text("".join(f"{line}{tail}\n" for line, tail in zip(lines, letters, strict=True)))
    data: dict[str, Any] = {"source": str(path), "tokenizer": CHARACTERS, "reverse_complement": reverse}
    if kind == "labels":
        return tiny_labels_recipe(folder, {"data": data, "model": {"max_len": 14}}, **settings)
    data["rows"] = {"kind": "padded", "side": "right", "stride": 7}
    if kind == "masked":
        changes = {"data": data, "task": {"masking": {"unit": "tokens"}}}
        return tiny_masked_recipe(folder, changes, **settings)
    return tiny_recipe(folder, {"data": data}, **settings)


def make_task(kind: str, folder: Path, *, reverse: bool = True, **settings: Any) -> Any:
    return task_of(make_recipe(kind, folder, reverse=reverse, **settings), progress=False)


def texts_of(task: LabelsTask, step: int, *, rank: int = 0, world: int = 1) -> list[tuple[str, int]]:
    """Return the text and the label of each row."""
    tokenizer, rows = task.tokenizer, list[tuple[str, int]]()
    for batch in task.batches(step, rank, world):
        mask = torch.ones_like(batch.inputs, dtype=torch.bool) if batch.token_mask is None else batch.token_mask
        for row, is_real, label in zip(batch.inputs, mask, batch.targets.tolist(), strict=True):
            rows.append((tokenizer.decode(row[is_real].tolist()), label))
    return rows


def test_labels_stay_and_half_of_the_rows_are_other_strands(tmp_path: Path) -> None:
    task, plain = make_task("labels", tmp_path), make_task("labels", tmp_path, reverse=False)
    n_reversed = n_rows = 0
    for step in range(12):
        pairs = list(zip(texts_of(task, step), texts_of(plain, step), strict=True))
        assert all(label == plain_label for (_, label), (_, plain_label) in pairs)
        assert all(text in (original, other_strand(original)) for (text, _), (original, _) in pairs)
        n_reversed += sum(text != original for (text, _), (original, _) in pairs)
        n_rows += len(pairs)
    assert 0.35 < n_reversed / n_rows < 0.65
    group = task.validation_groups()[0]
    assert torch.equal(task.validation_batch(group).inputs, plain.validation_batch(group).inputs)
    assert task.data_hash == plain.data_hash


def test_devices_share_the_strands_of_a_step(tmp_path: Path) -> None:
    task = make_task("labels", tmp_path, batch_size=12, micro_batch_size=2)
    for step in (0, 9, 10):  # an epoch ends within step 9
        parts = [row for rank in range(3) for row in texts_of(task, step, rank=rank, world=3)]
        assert sorted(parts) == sorted(texts_of(task, step))
    language = make_task("text", tmp_path)
    assert isinstance(language, LanguageTask)
    whole = torch.cat([batch.inputs for batch in language.batches(5, 0, 1)])
    halves = [torch.cat([batch.inputs for batch in language.batches(5, rank, 2)]) for rank in range(2)]
    assert torch.equal(whole, torch.cat(halves))
    assert len(cut_share(whole.numpy(), rank=0, world=2)) == len(halves[0])


def test_strands_of_language_rows_change_with_the_epoch(tmp_path: Path) -> None:
    task, plain = make_task("text", tmp_path), make_task("text", tmp_path, reverse=False)
    strands = dict[tuple[int, int], bool]()
    for step in range(2 * len(task.rows) // 16):
        numbers, epochs = task.plan.rows(step)
        rows, originals = (torch.cat([batch.inputs for batch in t.batches(step, 0, 1)]) for t in (task, plain))
        changed = (rows != originals).any(1).tolist()
        strands |= dict(zip(zip(numbers.tolist(), epochs.tolist(), strict=True), changed, strict=True))
    both = [(strands[row, 0], strands[row, 1]) for row, epoch in strands if epoch == 0 and (row, 1) in strands]
    assert {*both} == {(False, False), (False, True), (True, False), (True, True)}


def test_masked_rows_hide_letters_of_the_chosen_strand(tmp_path: Path) -> None:
    task, plain = make_task("masked", tmp_path), make_task("masked", tmp_path, reverse=False)
    rows, originals = (torch.cat([batch.inputs for batch in t.batches(3, 0, 1)]) for t in (task, plain))
    assert rows.shape == originals.shape
    assert not torch.equal(rows, originals)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"tokenizer": {"kind": "kmers", "bos": True, "pad": True, "mask": True}}, "one token per nucleotide"),
        ({"tokenizer": {**CHARACTERS, "alphabet": "ACGTN"}}, ""),
        ({"tokenizer": {**CHARACTERS, "alphabet": "ACGTR"}}, "not its complement 'Y'"),
    ],
)
@pytest.mark.parametrize("kind", ["labels", "text", "masked"])
def test_alphabet_is_checked_before_training(kind: str, data: dict[str, Any], words: str, tmp_path: Path) -> None:
    from tercet.config import to_plain
    from tercet.training import parse_recipe

    recipe = parse_recipe(merge(to_plain(make_recipe(kind, tmp_path)), {"data": data}), name="test")
    if not words:
        task_of(recipe, progress=False)
        return
    with pytest.raises(UserError, match=words):
        task_of(recipe, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["labels", "text", pytest.param("masked", marks=pytest.mark.exhaustive)])
def test_a_killed_run_resumes_with_the_same_strands(kind: str, tmp_path: Path) -> None:
    recipe, whole, out = make_recipe(kind, tmp_path), tmp_path / "whole", tmp_path / "run"
    train(recipe, whole, quiet=True)

    def work() -> None:
        dies_at_rename(2, after=True, name=CHECKPOINT)()
        train(recipe, out, quiet=True)

    assert exit_code(child(work)) == -signal.SIGKILL
    train(recipe, out, quiet=True)
    assert_same_run(whole, out)
