"""The induction task is learned within a minute; one head has the highest attention score and ablation effect."""

import statistics
from collections import Counter
from pathlib import Path

import pytest
import torch

import tercet
from tercet.data import Windows, prepare
from tercet.data.datasets import text_datasets
from tercet.inspect import ablations, head_scores
from tercet.models.inference import inference_mode
from tercet.objectives import causal_loss, collate_windows
from tercet.training import load_recipe


def test_induction_texts_repeat_one_word() -> None:
    source = text_datasets.find_documents("induction")
    texts = [piece.text for piece in source.pieces()]
    assert len(texts) == len(set(texts)) == 20_000
    assert source.hash() == text_datasets.find_documents("induction").hash()
    sizes = Counter[int]()
    for text in texts:
        assert len(text) == 64
        size = len(set(text))  # no letter occurs twice in a word
        assert text == (text[:size] * 8)[:64]
        sizes[size] += 1
    assert sorted(sizes) == list(range(8, 25))
    assert all(abs(count - 20_000 / 17) < 200 for count in sizes.values())
    beginnings = Counter(text[:2] for text in texts)  # all pairs of letters are equally likely
    assert len(beginnings) == 26 * 25
    assert max(beginnings.values()) < 70


@pytest.mark.exhaustive
def test_the_best_induction_head_is_worth_five_times_the_median_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    run = tercet.train("induction", out=tmp_path / "run", quiet=True)
    model, corpus = run.model, prepare(load_recipe("induction").data)
    windows = Windows(corpus.validation, 64, document_starts=corpus.validation_documents)
    batch = collate_windows(windows.batch(torch.arange(100).numpy()))  # a hundred words that were held out

    def loss() -> float:
        with inference_mode(model.modules()):
            batch_loss = causal_loss(model, batch)
        return float(batch_loss.total / batch_loss.count)

    with inference_mode(model.modules()):
        right = model(batch.inputs).argmax(-1)[:, 24:63] == batch.targets[:, 24:63]
    assert right.float().mean() > 0.99  # after the first occurrence of every word
    letters = [corpus.tokenizer.encode(letter)[0] for letter in "abcdefghijklmnopqrstuvwxyz"]
    scores, rises = head_scores(model, ids=letters), ablations(model, loss)
    assert list(scores.induction) == list(rises)
    induction = torch.cat(list(scores.induction.values()))  # shape (16,)
    previous = torch.cat(list(scores.previous.values()))
    rise = torch.tensor([rise for heads in rises.values() for rise in heads])
    median = statistics.median(rise.tolist())
    assert rise[induction.argmax()] >= 5 * median
    assert rise[previous.argmax()] >= 5 * median
    assert induction.argmax() >= 8 > previous.argmax()  # the second block uses heads of the first
    assert induction.max() > 0.4
    assert previous.max() > 0.4
