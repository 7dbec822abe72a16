"""A masked language model's run: the hidden tokens of each step, its metrics, and the use of both contexts."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import accumulate_gradients
from tiny_runs import NO_DROPOUT, figures, resume_state, tiny_masked_recipe

from tercet.checkpoint import load_model
from tercet.config import UserError
from tercet.evaluate.masked import score_masked
from tercet.models import EncoderOnly, build
from tercet.objectives import IGNORE_INDEX, MaskedBatch
from tercet.training import parse_recipe, read_recipe, train
from tercet.training.tasks.masked import BLOCK, MaskedTask
from tercet.training.tasks.open_task import task_of

FinishedRun = Callable[[str], Path]


def make_task(folder: Path, changes: dict[str, Any] | None = None, /, **training: Any) -> MaskedTask:
    task = task_of(tiny_masked_recipe(folder, changes, **training), progress=False)
    assert isinstance(task, MaskedTask)
    return task


def split_rows(batches: list[MaskedBatch]) -> list[tuple[list[int], dict[int, int]]]:
    """Return each row's inputs, and its hidden tokens by position."""
    masked_rows = list[tuple[list[int], dict[int, int]]]()
    for batch in batches:
        length = batch.inputs.shape[1]
        has_target = batch.targets != IGNORE_INDEX
        hidden = dict(zip(batch.positions[has_target].tolist(), batch.targets[has_target].tolist(), strict=True))
        for row, inputs in enumerate(batch.inputs.tolist()):
            row_hidden = {place - row * length: token for place, token in hidden.items() if place // length == row}
            masked_rows.append((inputs, row_hidden))
    return masked_rows


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["packed", {"kind": "packed", "document_mask": True}, {"kind": "padded", "stride": 5}])
def test_masks_depend_only_on_the_row_of_the_step(tmp_path: Path, rows: Any) -> None:
    changes = {"data": {"rows": rows}}
    size = 2 * (BLOCK + BLOCK // 2 + 1)  # blocks that are divided between two devices
    task = make_task(tmp_path, changes, batch_size=size, micro_batch_size=None)
    for micro in (1, 7, size // 2):
        other_task = make_task(tmp_path, changes, batch_size=size, micro_batch_size=micro)
        for step in (0, 3):
            expected = split_rows(task.batches(step, 0, 1))
            assert split_rows(other_task.batches(step, 0, 1)) == expected
            assert split_rows([*other_task.batches(step, 0, 2), *other_task.batches(step, 1, 2)]) == expected
    assert sum(len(hidden) for _, hidden in split_rows(task.batches(0, 0, 1))) > size


def test_every_epoch_hides_other_tokens_and_a_step_always_the_same(tmp_path: Path) -> None:
    text = {"data": {"rows": {"kind": "padded", "side": "right", "stride": 9}}}  # rows at fixed positions
    task, same_task = make_task(tmp_path, text), make_task(tmp_path, text)
    assert split_rows(task.batches(5, 0, 1)) == split_rows(same_task.batches(5, 0, 1))
    hidden: dict[int, list[dict[int, int]]] = {}
    for step in range(2 * len(task.rows) // 16):
        numbers, _ = task.plan.rows(step)
        for number, (_, row_hidden) in zip(numbers.tolist(), split_rows(task.batches(step, 0, 1)), strict=True):
            hidden.setdefault(number, []).append(row_hidden)
    mask_pairs = [masks for masks in hidden.values() if len(masks) == 2]
    assert sum(first != second for first, second in mask_pairs) > 0.8 * len(mask_pairs)


def test_each_step_and_each_block_of_its_rows_hides_other_places(tmp_path: Path) -> None:
    task = make_task(tmp_path, batch_size=2 * BLOCK, micro_batch_size=None)
    hidden = [[set(row_hidden) for _, row_hidden in split_rows(task.batches(step, 0, 1))] for step in range(2)]
    blocks = [rows[first : first + BLOCK] for rows in hidden for first in (0, BLOCK)]
    assert all(block != previous for n, block in enumerate(blocks) for previous in blocks[:n])


def test_each_hidden_token_was_there_and_no_special_one_is_hidden(tmp_path: Path) -> None:
    task = make_task(tmp_path, masking={"masked": 0.0, "random": 0.0})  # all stay unchanged
    special = task.corpus.tokenizer.special_ids
    for inputs, hidden in split_rows(task.batches(2, 0, 1)):
        assert all(inputs[place] == token and token not in special for place, token in hidden.items())
        assert inputs[0] == task.corpus.tokenizer.bos_id
        assert inputs[-1] == task.corpus.tokenizer.eos_id
        assert len(hidden) in (2, 3)  # 0.3 of 8


def test_accumulation_equals_one_big_batch(tmp_path: Path) -> None:
    changes = {"model": {"stack": {"dropout": NO_DROPOUT}}}
    gradients = list[list[torch.Tensor]]()
    for micro in (16, 3):
        task = make_task(tmp_path, changes, micro_batch_size=micro)
        model = build(task.recipe.model, seed=1)
        gradients.append(accumulate_gradients(task, model))
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


def test_the_validation_is_that_of_evaluate(finished_run: FinishedRun) -> None:
    out = finished_run("masked")
    task, trained_model = make_task(out.parent), load_model(out / "last")
    assert isinstance(trained_model.model, EncoderOnly)
    scores = score_masked(trained_model.model, trained_model.tokenizer, task.corpus)
    last_values = {name: column[-1][1] for name, column in figures(out).items() if column}
    assert last_values["val/loss"] == pytest.approx(scores.masked_loss, rel=1e-5)
    assert last_values["val/accuracy"] == pytest.approx(scores.masked_accuracy, rel=1e-6)
    assert last_values["val/unigram_entropy"] == pytest.approx(scores.unigram_entropy, rel=1e-6)


def test_tokens_are_counted_after_resuming(finished_run: FinishedRun) -> None:
    out = finished_run("masked")
    assert [y for _, y in figures(out)["tokens"]] == [160 * step for step in range(1, 13)]
    assert resume_state(out)["global_step"] == 12


def test_samples_contain_filled_masks(finished_run: FinishedRun) -> None:
    out = finished_run("masked")
    blocks = (out / "samples" / "step-000012.txt").read_text().split("\n\n")
    assert len(blocks) == 3
    hidden = 0
    for block in blocks:
        masked, filled, original = (line.partition(" ")[2].strip() for line in block.splitlines())
        hidden += masked.count("<mask>")
        assert "<mask>" not in filled + original
        assert "<bos>" not in block
        assert len(original.split()) > 1
    assert hidden


@pytest.mark.slow
def test_plateau_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = {"kind": "characters", "bos": True, "pad": True, "mask": True}
    changes = {"data": {"tokenizer": tokenizer}}
    train(tiny_masked_recipe(tmp_path, changes, optimizer={"kind": "adam", "lr": 0.0}), tmp_path / "run")
    output = capsys.readouterr().err
    assert output.count("is no better than unigram frequencies") == 1
    assert "step 3: the validation loss" in output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"data": {"tokenizer": {"mask": False}}},
            "requires a mask token.*wordpiece, or set mask: true in data.tokenizer",
        ),
        ({"data": {"tokenizer": {"bos": False}}}, "requires bos and eos tokens.*set bos: true"),
        ({"task": {"best_by": "bleu"}}, r"task\.best_by: .*'loss' or 'accuracy'"),
        ({"task": {"sample_prompt": "a"}}, "task: unknown key 'sample_prompt'"),
        ({"task": {"batch_tokens": 64}}, "task: unknown key 'batch_tokens'"),
        ({"model": {"max_len": 2}}, "max_len=2 is too small"),
        (
            {"task": {"kind": "translation"}},
            "trains encoder-decoder models, but this model is encoder-only; set task to",
        ),
    ],
)
def test_incompatible_settings_are_rejected(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_task(tmp_path, changes)


def train_on_lines(
    tmp_path: Path, lines: list[str], *, max_len: int, steps: int, d_model: int = 64, batch_size: int = 64,
    **training: Any,
) -> Path:  # fmt: skip
    (tmp_path / "lines.jsonl").write_text("".join(f'{{"text": "{line}"}}\n' for line in lines))
    stack = {"d_model": d_model, "n_layers": 2, "n_heads": 4, "d_ff": 128}
    held_out = {"kind": "held_out", "source": str(tmp_path / "lines.jsonl")}
    recipe = parse_recipe(
        {
            "task": {"kind": "masked", "batch_size": batch_size, "sample_tokens": 8},
            "data": {
                "source": str(tmp_path / "lines.jsonl"),
                "validation": held_out if training.pop("by_heart", False) else {"kind": "documents", "fraction": 0.1},
                "tokenizer": {"kind": "words", "bos": True, "pad": True, "mask": True},
                "rows": {"kind": "padded", "side": "right", "stride": max_len - 1},
            },
            "model": {"preset": "modern-encoder", "max_len": max_len, "stack": stack},
            "training": {
                "max_steps": steps,
                "optimizer": {"kind": "muon", "lr": 0.02, "adam_lr": 0.01},
                "precision": "fp32",
                "compile": "never",
                "accelerator": "cpu",
                "validate_every": steps,
                "save_every": steps,
                **training,
            },
        },
        name="learnt",
    )
    return train(recipe, tmp_path / "run", quiet=True)


WORDS = [f"{a}{b}" for a in "bcdfgklmnp" for b in "aeiou"]


def key_values(n: int) -> list[str]:
    """Return lines of three words and their three numbers, or the numbers first, followed by both again.

    The hidden tokens occur at three other places, in half of the lines all to the right.
    """
    rng = random.Random(0)
    lines = list[str]()
    for _ in range(n):
        keys = rng.sample(range(50), 3)
        halves = [" ".join(WORDS[key] for key in keys), " ".join(str(key + 100) for key in keys)]
        rng.shuffle(halves)
        lines.append(" ".join([*halves, *halves]))
    return lines


@pytest.mark.slow
def test_a_word_is_found_from_its_key_left_or_right(tmp_path: Path) -> None:
    out = train_on_lines(tmp_path, key_values(1500), max_len=14, steps=120, d_model=48)
    last_values = {name: column[-1][1] for name, column in figures(out).items() if column}
    assert last_values["val/loss"] < 0.1 * last_values["val/unigram_entropy"]
    trained_model = load_model(out / "last")
    assert isinstance(trained_model.model, EncoderOnly)
    corpus = task_of(read_recipe(out), progress=False).corpus  # pyright: ignore[reportAttributeAccessIssue]
    scores = score_masked(trained_model.model, trained_model.tokenizer, corpus, document_mask=True)
    assert scores.masked_loss == pytest.approx(last_values["val/loss"], rel=1e-4)
    trained_model.model.stack.causal = True
    left = score_masked(trained_model.model, trained_model.tokenizer, corpus, document_mask=True)
    assert left.masked_loss > 0.2 * left.unigram_entropy


@pytest.mark.exhaustive
def test_paragraph_is_memorized(tmp_path: Path) -> None:
    rng = random.Random(1)
    sentences = [" ".join(rng.choices(WORDS, k=40)) for _ in range(5)]
    out = train_on_lines(tmp_path, sentences, max_len=42, steps=250, by_heart=True, batch_size=10)
    last_values = {name: column[-1][1] for name, column in figures(out).items() if column}
    assert last_values["val/accuracy"] >= 0.95
    assert last_values["val/loss"] < 0.3
