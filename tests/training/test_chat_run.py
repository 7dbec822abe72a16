"""A chat model's run: the targets of its batches, its loss by the formula, its files, and that it learns."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from by_hand import validation_batches
from tiny_runs import figures, tiny_chat_recipe

import tercet
from tercet.checkpoint import load_model
from tercet.config import UserError, merge
from tercet.models import DecoderOnly, build
from tercet.objectives import IGNORE_INDEX, CausalBatch
from tercet.tokens.chat_template import ChatTemplate
from tercet.training import parse_recipe, train
from tercet.training.tasks.chat import ChatTask
from tercet.training.tasks.open_task import task_of

FinishedRun = Callable[[str], Path]


def make_task(folder: Path, changes: dict[str, Any] | None = None, /, **settings: Any) -> ChatTask:
    task = task_of(tiny_chat_recipe(folder, changes, **settings), progress=False)
    assert isinstance(task, ChatTask)
    return task


def read_messages(folder: Path) -> list[list[dict[str, str]]]:
    return [json.loads(line)["messages"] for line in (folder / "chat.jsonl").read_text().splitlines()]


def trained_targets(batches: list[CausalBatch]) -> list[tuple[int, ...]]:
    """Return the trained targets of each row."""
    return [tuple(row[row != IGNORE_INDEX].tolist()) for batch in batches for row in batch.targets]


@pytest.mark.slow
@pytest.mark.parametrize("max_len", [32, 14])
def test_an_epoch_learns_the_answers_and_nothing_else(tmp_path: Path, max_len: int) -> None:
    task = make_task(tmp_path, {"model": {"max_len": max_len}}, batch_size=5, micro_batch_size=2)
    chat = ChatTemplate(task.corpus.template, task.corpus.tokenizer)
    all_targets = list[tuple[int, ...]]()
    for messages in read_messages(tmp_path):
        ids, answers = chat.encode_conversation(messages)
        targets = tuple(i for i, answer in list(zip(ids, answers, strict=True))[1 : max_len + 1] if answer)
        all_targets += [targets] if targets else []
    held_out = trained_targets(validation_batches(task))
    steps = len(task.rows) // 5
    epoch_targets = trained_targets([batch for step in range(steps) for batch in task.batches(step, 0, 1)])
    assert len(epoch_targets) == steps * 5
    assert len(all_targets) == len(task.rows) + len(held_out)
    left = list(all_targets)
    for targets in [*epoch_targets, *held_out]:
        left.remove(targets)
    assert len(left) == len(task.rows) - len(epoch_targets)
    cut = "truncated to max_len" in task.describe()
    assert cut
    assert ("left out" in task.describe()) == (len(all_targets) < len(read_messages(tmp_path)))


def test_the_loss_is_the_formula(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    model = build(task.recipe.model, seed=1).eval()
    assert isinstance(model, DecoderOnly)
    batch = max(task.batches(0, 0, 1), key=lambda batch: batch.inputs.shape[1])
    loss, nats, count = task.loss(model, batch), 0.0, 0
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        length = int((targets != IGNORE_INDEX).nonzero().max()) + 1
        logprobs = model(inputs[None, :length])[0].detach().double().log_softmax(-1)  # unbatched, without padding
        for position in range(length):
            if targets[position] != IGNORE_INDEX:
                nats -= float(logprobs[position, targets[position]])
                count += 1
    assert float(loss.total.detach()) == pytest.approx(nats, rel=1e-5)
    assert float(loss.count) == count


def test_devices_share_a_step(tmp_path: Path) -> None:
    task = make_task(tmp_path, batch_size=12, micro_batch_size=2)
    for step in (0, 7):
        rank_targets = trained_targets([batch for rank in range(3) for batch in task.batches(step, rank, 3)])
        assert sorted(rank_targets) == sorted(trained_targets(task.batches(step, 0, 1)))


def test_it_leaves_a_model_that_answers(finished_run: FinishedRun) -> None:
    out = finished_run("chat")
    trained_model, task = load_model(out), make_task(out.parent)
    assert trained_model.chat_template == task.corpus.template
    assert (trained_model.task, trained_model.kind) == ("chat", "a chat model")
    text = (out / "samples" / "step-000012.txt").read_text()
    assert text.count("output") == 2
    assert "answer   die" in text
    scores: Any = tercet.load(out / "last").evaluate()
    assert scores.nats_per_answer_token == pytest.approx(figures(out)["val/loss"][-1][1], rel=1e-6)
    assert scores.perplexity == pytest.approx(math.exp(scores.nats_per_answer_token))


@pytest.mark.slow
def test_another_file_is_scored_as_its_own_was_read(tmp_path: Path) -> None:
    table = tmp_path / "chat.csv"
    table.write_text("question,answer\n" + "".join(f"is {word} there,yes {word}\n" for word in ("tea", "ale", "rum")))
    data = {"source": str(table), "prompt_field": "question", "response_field": "answer"}
    recipe = tiny_chat_recipe(tmp_path, {"data": data}, max_steps=1, validate_every=1, save_every=1)
    run, other_file = tercet.load(train(recipe, tmp_path / "run", quiet=True)), tmp_path / "other.jsonl"
    other_file.write_text('{"question": "is rum there", "answer": "yes rum"}\n')
    scores: Any = run.evaluate(other_file)
    assert scores.conversations == 1
    other_file.write_text('{"prompt": "is rum there", "answer": "yes rum"}\n')
    with pytest.raises(UserError, match=r"no field 'question'.*\(rename it, or set data.prompt_field\)"):
        run.evaluate(other_file)


def test_incompatible_settings_are_rejected_before_any_file_is_written(
    finished_run: FinishedRun, tmp_path: Path
) -> None:
    old = finished_run("text")  # its tokenizer has no end token
    tiny_chat_recipe(tmp_path)
    settings = {"task": "chat", "pretrained": str(old), "data": {"source": str(tmp_path / "chat.jsonl")}}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "no eos token, and the model has no chat template; set data.chat_template"),
        ({"data": {"source": "???"}}, "requires conversations; pass --data FILE, such as chat.jsonl"),
        ({"data": {"source": str(tmp_path / "chat.json")}}, r"chat\.json"),
    ]
    for changes, words in cases:
        full = merge({**settings, "training": {"max_steps": 1}}, changes)
        with pytest.raises(UserError, match=words):
            train(parse_recipe(full, name="chat"), tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"no training conversation has an answer within 2 tokens"):
        make_task(tmp_path, {"model": {"max_len": 2}})


@pytest.mark.slow
def test_eight_answers_are_memorized_exactly(tmp_path: Path) -> None:
    answers = {
        f"question {word}": word[::-1] * (1 + n % 3)
        for n, word in enumerate(["abc", "bcd", "cde", "def", "efg", "fgh", "ghi", "hij"])
    }
    rows = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in answers.items()
    ]
    (tmp_path / "eight.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = str(tmp_path / "eight.jsonl")
    data = {"source": source, "validation": {"kind": "held_out", "source": source}, "tokenizer": {"kind": "characters"}}
    model = {"max_len": 64, "stack": {"d_model": 32, "n_layers": 2}}
    recipe = tiny_chat_recipe(
        tmp_path, {"data": data, "model": model}, batch_size=8, micro_batch_size=8, max_steps=160, validate_every=160,
        save_every=160, optimizer={"kind": "adamw", "lr": 0.02},
    )  # fmt: skip
    out = train(recipe, tmp_path / "run", quiet=True)
    trained_model = load_model(out / "last")
    assert trained_model.chat_template is not None
    chat, run = ChatTemplate(trained_model.chat_template, trained_model.tokenizer), tercet.load(out / "last")
    for question, answer in answers.items():
        prompt = chat.render([{"role": "user", "content": question}])
        assert run.generate(prompt, temperature=0, max_new_tokens=30) == answer
