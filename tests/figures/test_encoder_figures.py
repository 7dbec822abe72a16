"""Metrics of masked language models and classifiers, recomputed one row and one token at a time."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import DOCUMENTS, HELD_OUT, LABELED_TEXTS
from torch import Tensor

from tercet.checkpoint import load_model
from tercet.checkpoint.metrics import read_metrics
from tercet.cli.main import main
from tercet.tokens import Tokenizer
from tercet.training import read_recipe
from tercet.training.tasks.open_task import task_of

SmallRun = Callable[[str], Path]


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*arguments, "--json", "--device", "cpu"]) == 0
    return json.loads(capsys.readouterr().out)


def token_ids(tokenizer: Tokenizer, documents: list[str]) -> list[int]:
    return [token for text in documents for token in (tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id)]  # pyright: ignore[reportReturnType]


def predict_targets(model: Any, batch: Any) -> list[tuple[Tensor, int]]:
    """Return ln p of the vocabulary and the target at each masked place, for each row and document separately."""
    result = list[tuple[Tensor, int]]()
    length = batch.inputs.shape[1]
    for position, target in zip(batch.positions.tolist(), batch.targets.tolist(), strict=True):
        if target < 0:
            continue
        row, place = divmod(position, length)
        is_visible = torch.ones(length, dtype=torch.bool) if batch.token_mask is None else batch.token_mask[row].clone()
        if batch.documents is not None:
            is_visible &= batch.documents[row] == batch.documents[row, place]
        with torch.no_grad():
            logits = model.logits(model.hidden(batch.inputs[row][is_visible][None]))[0, int(is_visible[:place].sum())]
        result.append((logits.double().log_softmax(-1), target))
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked", "masked-documents", "masked-padded"])
def test_masked_figures(name: str, small_run: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run(name)
    task: Any = task_of(read_recipe(run), progress=False)
    trained_model = load_model(run / "last").require("fill")
    model, tokenizer = trained_model.model.eval(), trained_model.tokenizer
    guesses = [
        guess
        for batch in map(task.validation_batch, task.validation_groups())
        for guess in predict_targets(model, batch)
    ]
    special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id}
    counts = Counter(token for token in token_ids(tokenizer, DOCUMENTS) if token not in special)
    n_ids = sum(token not in special for token in range(tokenizer.vocab_size))
    total = counts.total() + n_ids
    expected = [target for _, target in guesses]
    n = len(guesses)
    loss = -sum(float(logprobs[target]) for logprobs, target in guesses) / n
    accuracy = sum(int(logprobs.argmax()) == target for logprobs, target in guesses) / n
    entropy = sum(-math.log((counts[target] + 1) / total) for target in expected) / n
    commonest = min(counts, key=lambda token: (-counts[token], token))
    metrics = {name: points[-1][1] for name, points in read_metrics(run / "metrics.csv").items() if points}
    assert metrics["val/loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["val/accuracy"] == pytest.approx(accuracy)
    assert metrics["val/unigram_entropy"] == pytest.approx(entropy)
    scores = answer(["evaluate", str(run / "last")], capsys)
    assert scores["masked_loss"] == pytest.approx(loss, rel=1e-5)
    assert scores["masked_accuracy"] == accuracy
    assert scores["unigram_entropy"] == pytest.approx(entropy)
    assert scores["most_frequent_accuracy"] == expected.count(commonest) / n
    assert scores["tokens"] == n
    # Tokens of text do not include those that bos and eos replaced at the ends of a row.
    batches = list(map(task.validation_batch, task.validation_groups()))
    text = sum(int((batch.inputs == token).sum()) for batch in batches for token in counts) + n
    stray = {int(x) for batch in batches for x in batch.inputs.flatten()} - set(counts) - special
    assert stray == set()
    assert scores["mask_rate"] == pytest.approx(n / text)
    assert (scores["context"], scores["seed"]) == (14, 0)
    assert scores["plateau"] == (loss >= 0.98 * entropy)


def hidden_token_logprobs(model: Any, tokenizer: Tokenizer, text: str) -> list[float]:
    """Return ln p of each token of a text if only that token is masked."""
    ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
    logprobs = list[float]()
    for place in range(1, len(ids) - 1):
        row = torch.tensor([ids])
        row[0, place] = tokenizer.mask_id
        with torch.no_grad():
            logprobs.append(float(model.logits(model.hidden(row))[0, place].double().log_softmax(-1)[ids[place]]))
    return logprobs


def test_pseudo_likelihood(small_run: SmallRun, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = small_run("masked") / "last"
    trained_model = load_model(run).require("fill")
    texts = ["雨🙂 3", "Zoë", "e\u0301"]
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{text}\n" for text in texts))
    assert main(["evaluate", str(run), "--per-line", "--data", str(lines), "--json", "--device", "cpu"]) == 0
    for text, line in zip(texts, capsys.readouterr().out.splitlines(), strict=True):
        score, logprobs = (
            json.loads(line),
            hidden_token_logprobs(trained_model.model.eval(), trained_model.tokenizer, text),
        )
        assert score["logprob"] == pytest.approx(sum(logprobs), rel=1e-5)
        assert score["tokens"] == len(logprobs) == len(text)
        assert score["nats_per_token"] == pytest.approx(-sum(logprobs) / len(text), rel=1e-5)
    # The score covers documents of the validation part, cut to the context, over all their tokens.
    scores = answer(["evaluate", str(run), "--pseudo-perplexity", "2"], capsys)
    cut = [text[: 14 - 1] for text in HELD_OUT[:2]]  # a span begins with bos
    logprobs = [
        x for text in cut for x in hidden_token_logprobs(trained_model.model, trained_model.tokenizer, text[: 14 - 2])
    ]
    assert scores["pseudo_perplexity"] == pytest.approx(math.exp(-sum(logprobs) / len(logprobs)), rel=1e-4)


def test_classifier_figures(small_run: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run("labels")
    trained_model = load_model(run / "last").require("classify")
    model, tokenizer = trained_model.model.eval(), trained_model.tokenizer
    examples = [(text + "!", label) for text, label in LABELED_TEXTS[:20] if label != "c"]
    nats, predicted_labels = 0.0, list[str]()
    for text, label in examples:
        ids = [tokenizer.bos_id, *tokenizer.encode(text)[: 16 - 2], tokenizer.eos_id]
        with torch.no_grad():
            logprobs = model.classify(model.hidden(torch.tensor([ids])), None)[0].double().log_softmax(-1)
        nats -= float(logprobs["abc".index(label)])
        predicted_labels.append("abc"[int(logprobs.argmax())])
    pairs = Counter(zip([label for _, label in examples], predicted_labels, strict=True))
    f1 = dict[str, float]()
    for label in "abc":
        right, n_target = pairs[label, label], sum(n for (target_label, _), n in pairs.items() if target_label == label)
        n_predicted = sum(n for (_, guess), n in pairs.items() if guess == label)
        if n_target + n_predicted:  # a class that neither targets nor predictions contain is ignored
            f1[label] = 2 * right / (n_target + n_predicted)
    accuracy = sum(pairs[label, label] for label in "abc") / len(examples)
    macro = sum(f1.values()) / len(f1)
    scores = answer(["evaluate", str(run / "last")], capsys)
    assert scores["accuracy"] == pytest.approx(accuracy)
    assert scores["f1"] == pytest.approx(macro)
    assert scores["count"] == len(examples)
    assert scores["labels"] == ["a", "b", "c"]
    assert scores["confusion"] == [[pairs[target_label, guess] for guess in "abc"] for target_label in "abc"]
    assert scores["majority"] == max(sum(x == label for _, x in examples) for label in "abc") / len(examples)
    assert scores["per_label"]["c"]["count"] == 0
    assert scores["truncated"] == sum(len(tokenizer.encode(text)) + 2 > 16 for text, _ in examples)
    for label in "ab":
        row, n_predicted = scores["per_label"][label], sum(guess == label for guess in predicted_labels)
        n_target = sum(x == label for _, x in examples)
        assert row["recall"] == pytest.approx(pairs[label, label] / n_target)
        assert row["precision"] == pytest.approx(pairs[label, label] / max(1, n_predicted))
        assert row["f1"] == pytest.approx(f1[label])
    metrics = {name: points[-1][1] for name, points in read_metrics(run / "metrics.csv").items() if points}
    assert metrics["val/loss"] == pytest.approx(nats / len(examples), rel=1e-5)
    assert metrics["val/accuracy"] == pytest.approx(accuracy)
    assert metrics["val/f1"] == pytest.approx(macro)
