"""Metrics of a translator, recomputed pair by pair and with the formulas of the BLEU and chrF papers."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import sacrebleu
import torch

from tercet.checkpoint import Translator, load_model
from tercet.checkpoint.metrics import read_metrics
from tercet.cli.main import main
from tercet.data import PairsSpec, prepare_pairs
from tercet.evaluate import bleu, score_translations
from tercet.generation import Beam, translate
from tercet.training import read_recipe

SmallRun = Callable[[str], Path]
REFERENCES = ["Der Ä 東 京 雨 fällt heute 🙂", "e\u0301te\u0301 im Norden ist kurz und kalt", "Straße ßß nass"]
TRANSLATIONS = ["der Ä 東 京 Regen fällt heute 🙂 🙂", "e\u0301te\u0301 im Norden ist kalt", "Straße ßß nass"]


def ngrams(items: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(items[i : i + n]) for i in range(len(items) - n + 1))


def bleu_by_hand(translations: Sequence[str], references: Sequence[str]) -> float:
    """Compute BLEU of Papineni et al. 2002 over words separated by spaces."""
    right, total = [0] * 4, [0] * 4
    for translation, reference in zip(translations, references, strict=True):
        for n in range(1, 5):
            mine, theirs = ngrams(translation.split(), n), ngrams(reference.split(), n)
            right[n - 1] += (mine & theirs).total()
            total[n - 1] += mine.total()
    lengths = [sum(len(text.split()) for text in texts) for texts in (translations, references)]
    brevity = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    return 100 * brevity * math.exp(sum(math.log(x / y) for x, y in zip(right, total, strict=True)) / 4)


def chrf_by_hand(translations: Sequence[str], references: Sequence[str]) -> float:
    """Compute chrF of Popović 2015: characters without spaces, n up to 6, recall weighted twice (beta 2)."""
    precision, recall = list[float](), list[float]()
    for n in range(1, 7):
        right = mine = theirs = 0
        for translation, reference in zip(translations, references, strict=True):
            a, b = (ngrams("".join(text.split()), n) for text in (translation, reference))
            right, mine, theirs = right + (a & b).total(), mine + a.total(), theirs + b.total()
        precision.append(right / mine)
        recall.append(right / theirs)
    p, r = sum(precision) / 6, sum(recall) / 6
    return 100 * 5 * p * r / (4 * p + r)


def test_bleu_and_chrf_equal_the_formulas_of_their_papers() -> None:
    scores = score_translations(TRANSLATIONS, REFERENCES)
    assert scores.bleu == pytest.approx(bleu_by_hand(TRANSLATIONS, REFERENCES))
    assert bleu(TRANSLATIONS, REFERENCES) == scores.bleu
    assert scores.chrf == pytest.approx(chrf_by_hand(TRANSLATIONS, REFERENCES), rel=1e-6)
    assert scores.exact == 1 / 3
    assert scores.sentences == 3
    for score, (low, high) in ((scores.bleu, scores.bleu_interval), (scores.chrf, scores.chrf_interval)):
        assert low <= score <= high


def token_logprobs(trained_model: Translator, source: str, target: str) -> list[float]:
    """Return ln p of each target token, with eos last."""
    tokenizer, source_tokenizer, model = (
        trained_model.tokenizer,
        trained_model.source_tokenizer,
        trained_model.model.eval(),
    )
    read = torch.tensor([[*source_tokenizer.encode(source), source_tokenizer.eos_id]])
    expected = [*tokenizer.encode(target), tokenizer.eos_id]
    with torch.no_grad():
        logits = model(read, torch.tensor([[tokenizer.bos_id, *expected[:-1]]]))[0].double().log_softmax(-1)
    return [float(logits[place, token]) for place, token in enumerate(expected)]


@pytest.mark.slow
def test_translator_figures(small_run: SmallRun, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = small_run("pairs")
    recipe, trained_model = read_recipe(run), load_model(run / "last").require("translate")
    assert isinstance(recipe.data, PairsSpec)
    pairs = prepare_pairs(recipe.data).validation_texts
    assert len({len(target.split()) for _, target in pairs} | {len(target) for _, target in pairs}) > 2
    logprobs = [token_logprobs(trained_model, source, target) for source, target in pairs]
    nats = -sum(map(sum, logprobs)) / sum(map(len, logprobs))
    metrics = {name: points[-1][1] for name, points in read_metrics(run / "metrics.csv").items() if points}
    assert metrics["val/loss"] == pytest.approx(nats, rel=1e-5)
    greedy = [
        answer[0].text
        for answer in translate(
            trained_model.model, trained_model.tokenizer, [source for source, _ in pairs], Beam(size=1)
        )
    ]
    references = [target for _, target in pairs]
    assert metrics["val/bleu"] == pytest.approx(sacrebleu.corpus_bleu(greedy, [references]).score)

    command = ["evaluate", str(run / "last"), "--part", "validation", "--beam", "1", "--device", "cpu", "--json"]
    assert main(command) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["nll_nats_per_token"] == pytest.approx(nats, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(nats), rel=1e-4)
    assert scores["tokens"] == sum(map(len, logprobs))
    assert scores["sentences"] == len(pairs)
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(greedy, [references]).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(greedy, [references]).score)
    assert scores["exact"] == sum(x == y for x, y in zip(greedy, references, strict=True)) / len(pairs)

    (tmp_path / "in").write_text("".join(f"{source}\n" for source, _ in pairs))
    (tmp_path / "out").write_text("".join(f"{target}\n" for _, target in pairs))
    sides = ["--source", str(tmp_path / "in"), "--target", str(tmp_path / "out")]
    assert main(["evaluate", str(run / "last"), "--per-line", *sides, "--device", "cpu", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["logprob"] for line in lines] == pytest.approx([sum(x) for x in logprobs], rel=1e-5)
    assert [line["tokens"] for line in lines] == [len(x) for x in logprobs]
    assert [line["nats_per_token"] for line in lines] == pytest.approx([-sum(x) / len(x) for x in logprobs], rel=1e-5)
