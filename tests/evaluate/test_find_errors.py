"""Listed errors are those behind the scores: their losses sum to the loss, and confusions equal scikit-learn's."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tercet
from own_cache import fill_cache
from tercet.checkpoint.training_data import open_training_data
from tercet.config import UserError
from tercet.data import Corpus, ParallelCorpus
from tercet.data.rows.token_rows import Blocks
from tercet.evaluate import (
    LabelErrors,
    LabelScores,
    PairErrors,
    RegressionErrors,
    TextErrors,
    evaluation_of,
    multi_label_scores,
)
from tercet.evaluate.errors.texts import PASSAGE
from tercet.evaluate.errors.token_errors import MIN_OCCURRENCES
from tercet.evaluate.masked import FIXED_MASKING, masked_windows
from tercet.objectives import IGNORE_INDEX
from tercet.training import train

sys.path.append(str(Path(__file__).parents[1] / "training"))
sys.path.append(str(Path(__file__).parents[1] / "dashboard"))

from tiny_runs import TINY, tiny_numbers_recipe, tiny_sets_recipe

pytestmark = [pytest.mark.slow]
ALL = 10**6  # more than there are errors
RECIPES: dict[str, Callable[..., Any]] = {**TINY, "numbers": tiny_numbers_recipe, "sets": tiny_sets_recipe}


class Models:
    """Tiny trained models of each task, trained when they are first requested."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> tercet.Run:
        if not (out := self._folder / name).exists():
            train(RECIPES[name](self._folder), out, quiet=True)
        return tercet.load(out)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERCET_CACHE", fill_cache(folder / "cache"))
        yield Models(folder)


@pytest.mark.parametrize(
    ("name", "loss"),
    [("text", "loss_nats_per_token"), ("masked", "masked_loss"), ("chat", "nats_per_answer_token")],
)
def test_losses_of_texts_sum_to_the_evaluated_loss(name: str, loss: str, models: Models) -> None:
    run = models[name]
    scores: Any = run.evaluate()
    errors = run.find_errors(top=ALL)
    assert isinstance(errors, TextErrors)
    assert errors.tokens == scores.tokens
    assert errors.mean_loss == pytest.approx(getattr(scores, loss), rel=1e-6)
    for listed in (errors.worst, errors.tokens_by_total):
        assert sum(error.total_loss for error in listed) == pytest.approx(
            getattr(scores, loss) * scores.tokens, rel=1e-6
        )
    for text in errors.worst:
        known = [value for value in text.losses if value is not None]
        assert len(text.losses) == len(text.tokens) <= PASSAGE
        assert (len(known), sum(known)) == (text.scored, pytest.approx(text.total_loss))
    means = [text.mean_loss for text in errors.worst]
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("name", ["chat", "masked"])
def test_losses_of_answers_and_masks_are_at_their_tokens(name: str, models: Models) -> None:
    run = models[name]
    evaluation: Any = evaluation_of(run.trained_model)
    data = evaluation.load()
    errors = run.find_errors(top=ALL, batch_tokens=10)  # several batches
    assert isinstance(errors, TextErrors)
    places = set[int]()
    starts = data.starts if name == "chat" else data.validation_documents
    for text in errors.worst:
        first = int(starts[text.index]) + text.start
        places |= {first + place for place, loss in enumerate(text.losses) if loss is not None}
    if name == "chat":
        learned = np.flatnonzero(data.answers)
        first = data.starts[np.searchsorted(data.starts, learned, side="right") - 1]
        assert places == set(learned[learned - first <= run.model.max_len].tolist())
        return
    n = len(data.validation)
    expected = set[int]()
    length = run.model.max_len
    windows = Blocks(data.validation, length, pad_id=run.tokenizer.pad_id or 0)
    for number in range(-(-n // length)):
        batch = masked_windows(windows, np.array([number]), run.tokenizer, FIXED_MASKING)
        used = batch.targets != IGNORE_INDEX
        masked = number * length + batch.positions[used].numpy()
        assert data.validation[masked].tolist() == batch.targets[used].tolist()
        expected |= set(masked.tolist())
    assert places == expected


def test_losses_of_references_sum_to_the_evaluated_loss(models: Models) -> None:
    run = models["pairs"]
    scores: Any = run.evaluate()
    errors = run.find_errors(top=ALL)
    assert isinstance(errors, PairErrors)
    assert (errors.tokens, errors.pairs, len(errors.worst)) == (scores.tokens, 6, 6)
    for listed in (errors.worst, errors.tokens_by_total):
        assert sum(error.total_loss for error in listed) == pytest.approx(scores.nll_nats_per_token * scores.tokens)
    for pair in errors.worst:
        assert sum(pair.losses) == pytest.approx(pair.total_loss)
        assert len(pair.tokens) == len(pair.losses)
        assert "".join(pair.tokens[:-1]).split() == pair.reference.split()
        aligned = [int(word.split("-")[1]) for word in pair.alignment.split()]
        assert sorted(aligned) == list(range(len(pair.reference.split())))
        assert sum(loss for _, _, loss in pair.words) + pair.losses[-1] == pytest.approx(pair.total_loss)


def test_chrf_ranks_pairs_by_their_translations(models: Models) -> None:
    from sacrebleu import sentence_chrf

    run = models["pairs"]
    errors = run.find_errors(top=4, rank_by="chrf")
    assert isinstance(errors, PairErrors)
    evaluation: Any = evaluation_of(run.trained_model)
    result = evaluation.score(evaluation.load())
    scores = [
        sentence_chrf(translation, [reference]).score
        for translation, (_, reference) in zip(result.translations, result.pairs, strict=True)
    ]
    assert [pair.chrf for pair in errors.worst] == pytest.approx(sorted(scores)[:4])
    assert [result.translations[pair.index] for pair in errors.worst] == [pair.translation for pair in errors.worst]


def test_confusions_equal_those_of_scikit_learn(models: Models) -> None:
    from sklearn.metrics import confusion_matrix

    run = models["labels"]
    errors, scores = run.find_errors(top=ALL), run.evaluate()
    assert isinstance(errors, LabelErrors)
    assert isinstance(scores, LabelScores)
    evaluation: Any = evaluation_of(run.trained_model)
    labeled = evaluation.load()
    texts = [
        run.tokenizer.decode(labeled.ids[a:b]) for a, b in zip(labeled.starts[:-1], labeled.starts[1:], strict=True)
    ]
    predictions = run.classify(texts, truncate=True)
    true = [labeled.names[number] for number in labeled.labels]
    matrix = confusion_matrix(true, [prediction.label for prediction in predictions], labels=scores.labels)
    np.fill_diagonal(matrix, 0)
    counts = np.zeros_like(matrix)
    for confusion in errors.confusions:
        counts[scores.labels.index(str(confusion.true)), scores.labels.index(str(confusion.predicted))] = (
            confusion.count
        )
    assert counts.tolist() == matrix.tolist()
    assert errors.mistakes == len(errors.worst) == matrix.sum() == round((1 - scores.accuracy) * scores.count) > 0
    for wrong in errors.worst:
        assert (wrong.text, wrong.true) == (texts[wrong.index], true[wrong.index])
        assert (wrong.predicted, wrong.probability) == (
            predictions[wrong.index].label,
            pytest.approx(predictions[wrong.index].probability, rel=1e-5),
        )
        assert wrong.true_probability == pytest.approx(predictions[wrong.index].scores[str(wrong.true)], rel=1e-5)
    probabilities = [wrong.probability for wrong in errors.worst]
    assert probabilities == sorted(probabilities, reverse=True)


def test_missing_and_extra_labels_explain_the_f1_of_sets(models: Models) -> None:
    run = models["sets"]
    errors, scores = run.find_errors(top=ALL), run.evaluate()
    assert isinstance(errors, LabelErrors)
    evaluation: Any = evaluation_of(run.trained_model)
    labeled = evaluation.load()
    true = labeled.targets(np.arange(len(labeled))) > 0
    predicted = true.copy()
    for wrong in errors.worst:
        label = labeled.names.index(str(wrong.true or wrong.predicted))
        assert true[wrong.index, label] == (wrong.true is not None)
        predicted[wrong.index, label] = wrong.true is None
    expected = multi_label_scores(predicted, true, labeled.names)
    assert expected.micro_f1 == pytest.approx(getattr(scores, "micro_f1"))  # noqa: B009  # a union of scores
    assert errors.count == true.size
    assert sum(confusion.count for confusion in errors.confusions) == errors.mistakes


def test_errors_of_numbers_equal_the_scores(models: Models) -> None:
    run = models["numbers"]
    errors = run.find_errors(top=ALL)
    scores: Any = run.evaluate()
    assert isinstance(errors, RegressionErrors)
    differences = np.array([wrong.error for wrong in errors.worst])
    assert np.sqrt((differences**2).mean()) == pytest.approx(scores.rmse) == pytest.approx(errors.rmse)
    assert np.abs(differences).tolist() == sorted(np.abs(differences).tolist(), reverse=True)
    for wrong in errors.worst:
        assert wrong.true == 1e4 + 25 * len(wrong.text)
        assert run.regress(wrong.text, truncate=True).value == pytest.approx(wrong.predicted, rel=1e-5)


@pytest.mark.parametrize("name", ["text", "masked", "chat", "pairs", "labels", "sets", "numbers"])
def test_batch_size_does_not_change_the_errors(name: str, models: Models) -> None:
    run = models[name]
    large, small = (run.find_errors(top=5, batch_tokens=size).to_dict() for size in (1 << 14, 9))
    assert_close(large, small)


def assert_close(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_close(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_close(x, y)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-4)
    else:
        assert a == b


def test_a_token_that_the_model_cannot_predict_is_listed_first(models: Models) -> None:
    run = models["text"]
    corpus = open_training_data(run.trained_model)
    assert isinstance(corpus, Corpus)
    token = int(np.bincount(corpus.validation).argmax())
    model: Any = run.model
    with torch.no_grad():
        hidden = model.hidden(torch.from_numpy(corpus.validation[:8].astype(np.int64))[None])[0].mean(0)
        model.unembedding.weight[token] = -50 * hidden
    errors = run.find_errors(top=1)
    assert isinstance(errors, TextErrors)
    assert errors.tokens_by_total[0].id == token


def test_lists_of_tokens_equal_a_plain_loop(models: Models) -> None:
    errors = models["text"].find_errors(top=ALL)
    assert isinstance(errors, TextErrors)
    losses = defaultdict[str, list[float]](list)
    for text in errors.worst:
        for token, loss in zip(text.tokens, text.losses, strict=True):
            if loss is not None:
                losses[token].append(loss)
    totals = sorted(losses, key=lambda token: -sum(losses[token]))
    frequent = [token for token in losses if len(losses[token]) >= MIN_OCCURRENCES]
    means = sorted(frequent, key=lambda token: -np.mean(losses[token]))
    assert [token.token for token in errors.tokens_by_total] == totals
    assert [token.token for token in errors.tokens_by_mean] == means
    for token in errors.tokens_by_total:
        assert (token.count, token.highest_loss) == (len(losses[token.token]), pytest.approx(max(losses[token.token])))
        assert token.mean_loss == pytest.approx(np.mean(losses[token.token]))


def test_a_garbled_line_is_the_worst_text(models: Models, tmp_path: Path) -> None:
    data = tmp_path / "lines.txt"
    data.write_text("3 times 4 is 12.\n4 times 5 is 20.\nissi....mmm\n5 times 6 is 30.\n")
    errors = models["text"].find_errors(data, documents="line")
    assert isinstance(errors, TextErrors)
    assert (errors.texts, errors.worst[0].index) == (4, 2)
    assert "mmm" in errors.worst[0].text


def test_wrong_labels_of_one_text_are_the_most_confident_mistakes(models: Models, tmp_path: Path) -> None:
    run = models["labels"]
    texts = ["the red cat sleeps", "the blue cow eats", "the green duck sings well"]
    best = run.classify(texts, truncate=True)
    true = [prediction.label for prediction in best]
    true[1] = min(best[1].scores, key=lambda name: best[1].scores[name])
    lines = [f"{text},{label}\n" for text, label in zip(texts, true, strict=True)]
    data = tmp_path / "planted.csv"
    data.write_text("text,label\n" + "".join(lines))
    errors = run.find_errors(data)
    assert isinstance(errors, LabelErrors)
    assert [(error.index, error.text, error.true) for error in errors.worst] == [(1, texts[1], true[1])]


def test_errors_of_rows_with_a_value_are_those_of_a_file_with_these_rows(models: Models, tmp_path: Path) -> None:
    run, rows = models["labels"], ["the red cat sleeps,cow,a", "the blue cow eats,cat,b", "the green duck eats,cat,a"]
    for name, chosen in (("all.csv", rows), ("part.csv", [row for row in rows if row.endswith(",a")])):
        (tmp_path / name).write_text("".join(f"{row}\n" for row in ["text,label,domain", *chosen]))
    selected = run.find_errors(tmp_path / "all.csv", where="domain=a")
    assert selected.to_dict() == run.find_errors(tmp_path / "part.csv").to_dict()
    with pytest.raises(UserError, match="rows are selected in one file"):
        run.find_errors(where="domain=a")


def test_a_planted_reference_is_the_worst_pair(models: Models, tmp_path: Path) -> None:
    run = models["pairs"]
    evaluation: Any = evaluation_of(run.trained_model)
    pairs = list(evaluation.load().pairs)
    pairs[3] = (pairs[3][0], "singt singt singt singt singt")
    (tmp_path / "source").write_text("".join(f"{source}\n" for source, _ in pairs))
    (tmp_path / "target").write_text("".join(f"{target}\n" for _, target in pairs))
    errors = run.find_errors(source=tmp_path / "source", target=tmp_path / "target", top=1)
    assert isinstance(errors, PairErrors)
    assert errors.worst[0].index == 3
    assert errors.worst[0].reference == pairs[3][1]


def test_filters_select_texts_by_length_and_rare_tokens(models: Models) -> None:
    run = models["pairs"]
    corpus = open_training_data(run.trained_model)
    assert isinstance(corpus, ParallelCorpus)
    counts = np.bincount(corpus.train.target, minlength=run.tokenizer.vocab_size)
    everything = run.find_errors(top=ALL)
    assert isinstance(everything, PairErrors)
    lengths = [len(pair.reference.split()) for pair in everything.worst]
    errors = run.find_errors(top=ALL, max_length=min(lengths))
    assert isinstance(errors, PairErrors)
    assert {len(pair.reference.split()) for pair in errors.worst} == {min(lengths)}
    assert errors.mean_loss == everything.mean_loss
    assert all(token.train_count == counts[token.id] for token in everything.tokens_by_total)
    rare = int(np.sort(counts[[token.id for token in everything.tokens_by_total]])[2])
    errors = run.find_errors(top=ALL, rare=rare)
    assert isinstance(errors, PairErrors)
    assert {token.id for token in errors.tokens_by_total} == {
        token.id for token in everything.tokens_by_total if counts[token.id] <= rare
    }
    for pair in errors.worst:
        assert (counts[run.tokenizer.encode(pair.reference)] <= rare).any()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("text", {"min_length": 10**6}, "no text has a length in the range"),
        ("text", {"top": 0}, "top=0 must be at least 1"),
        ("text", {"min_length": 3, "max_length": 2}, "exceeds the maximum length"),
        ("text", {"rank_by": "chrf"}, "chrF ranks translations"),
        ("text", {"source": "x"}, "source does not apply to .* available: data, encoding"),
        ("labels", {"rare": 0}, "no text has a token that occurs at most 0 times"),
        ("labels", {"documents": "line"}, "documents does not apply"),
        ("vectors", {}, "errors are not listed"),
    ],
)
def test_wrong_settings_are_rejected(name: str, options: Any, message: str, models: Models) -> None:
    with pytest.raises(UserError, match=message):
        models[name].find_errors(**options)
