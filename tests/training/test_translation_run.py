"""A translation run: its metrics computed independently, and its invariances."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
import torch.nn.functional as F
from by_hand import Step, steps_by_hand, validation_batches
from tiny_runs import NO_DROPOUT, RUN_FILES, figures, resume_state, tiny_pairs_recipe
from torch import Tensor

from tercet.checkpoint import TrainedModel, load_model
from tercet.config import UserError
from tercet.data import ParallelCorpus, prepare_pairs
from tercet.evaluate import score_pairs
from tercet.generation import Beam, translate
from tercet.models import EncoderDecoder
from tercet.objectives import IGNORE_INDEX, PairBatch
from tercet.training import read_recipe, train
from tercet.training.tasks.open_task import task_of
from tercet.training.tasks.translation import TranslationTask

FinishedRun = Callable[[str], Path]


def make_task(folder: Path, changes: dict[str, Any] | None = None, /, **training: Any) -> TranslationTask:
    task = task_of(tiny_pairs_recipe(folder, changes, **training), progress=False)
    assert isinstance(task, TranslationTask)
    return task


@pytest.fixture(scope="module")
def expected_steps(finished_run: FinishedRun) -> list[Step]:
    return list(steps_by_hand(make_task(finished_run("pairs").parent)))


def load_corpus(run: Path) -> ParallelCorpus:
    data: Any = read_recipe(run).data
    return prepare_pairs(data)


def load_run_model(run: Path, folder: str) -> tuple[EncoderDecoder, TrainedModel]:
    trained_model = load_model(run / folder)
    assert isinstance(trained_model.model, EncoderDecoder)
    return trained_model.model.eval(), trained_model


def test_training_figures_are_those_of_the_steps(finished_run: FinishedRun, expected_steps: list[Step]) -> None:
    out = finished_run("pairs")
    columns = figures(out)
    assert [y for _, y in columns["train/loss"]] == pytest.approx(
        [float(s.loss.mean) for s in expected_steps], rel=1e-7
    )
    assert [y for _, y in columns["train/nll"]] == pytest.approx(
        [float(s.loss.plain_mean) for s in expected_steps], rel=1e-7
    )
    assert all(abs(x - y) > 1e-4 for (_, x), (_, y) in zip(columns["train/loss"], columns["train/nll"], strict=True))
    assert columns["epoch"] == [(step, pytest.approx((step - 1) * 3 / 11)) for step in range(1, 13)]
    rates = [0.06 * min(step / 2, (2 / step) ** 0.5) for step in range(1, 13)]
    assert [y for _, y in columns["lr"]] == pytest.approx(rates)


def test_tokens_are_counted_exactly(finished_run: FinishedRun) -> None:
    out = finished_run("pairs")
    task, expected_counts, n_tokens = make_task(out.parent), list[float](), 0
    pad = task.corpus.tokenizer.pad_id
    for step in range(12):
        for batch in task.batches(step, 0, 1):
            n_tokens += int((batch.source != pad).sum()) + int((batch.targets != IGNORE_INDEX).sum())
        expected_counts.append(n_tokens)
    assert [y for _, y in figures(out)["tokens"]] == expected_counts
    assert load_model(out / "last").card.tokens_seen == n_tokens


@pytest.mark.slow
def test_validation_loss_is_unbatched_loss_without_smoothing(finished_run: FinishedRun) -> None:
    out = finished_run("pairs")
    model, trained_model = load_run_model(out, "last")
    tokenizer, nats, tokens = trained_model.tokenizer, 0.0, 0
    texts = load_corpus(out).validation_texts
    for source, target in texts:
        inputs = torch.tensor([[*tokenizer.encode(source), tokenizer.eos_id]])
        expected_ids = torch.tensor([[*tokenizer.encode(target), tokenizer.eos_id]])
        with torch.no_grad():
            logits = model(inputs, F.pad(expected_ids[:, :-1], (1, 0), value=tokenizer.bos_id))
        nats -= float(logits.log_softmax(-1).gather(-1, expected_ids[..., None]).sum())
        tokens += expected_ids.numel()
    last_value = figures(out)["val/loss"][-1]
    assert last_value == (12, pytest.approx(nats / tokens, rel=1e-5))
    scores = score_pairs(model, tokenizer, texts)
    assert -sum(score.logprob for score in scores) / sum(score.tokens for score in scores) == pytest.approx(
        last_value[1], rel=1e-5
    )


def greedy(run: Path, folder: str, sources: list[str]) -> list[str]:
    model, trained_model = load_run_model(run, folder)
    return [answer[0].text for answer in translate(model, trained_model.tokenizer, sources, Beam(size=1))]


@pytest.mark.slow
def test_validation_bleu_equals_sacrebleu_of_the_best_model(finished_run: FinishedRun) -> None:
    out = finished_run("pairs")
    bleu_by_step = dict(figures(out)["val/bleu"])
    best = load_model(out / "best").card
    assert best.step == max(bleu_by_step, key=lambda step: bleu_by_step[step])
    assert len(set(bleu_by_step.values())) > 2  # the metric changes
    sources, references = zip(*load_corpus(out).validation_texts, strict=True)
    expected = sacrebleu.corpus_bleu(greedy(out, "best", list(sources)), [list(references)], force=True).score
    assert bleu_by_step[best.step] == pytest.approx(expected, rel=1e-8)
    assert best.metrics["val/bleu"] == pytest.approx(expected, rel=1e-8)


@pytest.mark.slow
def test_bleu_of_the_first_sentences_only(tmp_path: Path) -> None:
    out = train(tiny_pairs_recipe(tmp_path, max_steps=3, validation_sentences=2), tmp_path / "run", quiet=True)
    sources, references = zip(*load_corpus(out).validation_texts[:2], strict=True)
    expected = sacrebleu.corpus_bleu(greedy(out, "last", list(sources)), [list(references)], force=True).score
    assert figures(out)["val/bleu"] == [(3, pytest.approx(expected, rel=1e-8))]


@pytest.mark.slow
def test_the_best_by_loss_is_another_than_by_bleu(tmp_path: Path) -> None:
    out = train(
        tiny_pairs_recipe(tmp_path, best_by="loss", max_steps=6, sample_sentences=0), tmp_path / "run", quiet=True
    )
    columns = figures(out)
    losses, scores = dict(columns["val/loss"]), dict(columns["val/bleu"])
    assert load_model(out / "best").card.step == min(losses, key=lambda step: losses[step]) == 6
    assert max(scores, key=lambda step: scores[step]) == 3


@pytest.mark.slow
def test_what_a_run_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = train(tiny_pairs_recipe(tmp_path, max_steps=3), tmp_path / "run")
    output = capsys.readouterr().err
    assert "94 training pairs, 3.3% padding, 3 steps; fp32, not compiled (as requested)" in output
    assert "bleu " in output
    names = {path.name for path in out.iterdir() if path.name != ".lock"}
    assert names == RUN_FILES
    sample = (out / "samples" / "step-000003.txt").read_text().split("\n\n")
    texts = load_corpus(out).validation_texts
    assert len(sample) == 5
    for text, (source, reference), expected_output in zip(
        sample, texts, greedy(out, "last", [source for source, _ in texts]), strict=False
    ):
        assert text.splitlines() == [f"source     {source}", f"reference  {reference}", f"output     {expected_output}"]


@pytest.mark.slow
def test_two_vocabularies(tmp_path: Path) -> None:
    changes = {
        "data": {"source_tokenizer": {"kind": "characters"}},
        "model": {"share_embeddings": False, "max_len": 32},
    }
    out = train(tiny_pairs_recipe(tmp_path, changes, max_steps=3), tmp_path / "run", quiet=True)
    model, trained_model = load_run_model(out, "last")
    assert trained_model.source_tokenizer is not trained_model.tokenizer
    assert model.source_embedding.weight.shape[0] == trained_model.source_tokenizer.vocab_size
    assert model.vocab_size == trained_model.tokenizer.vocab_size
    recipe = read_recipe(out)
    assert recipe.model == model.spec
    assert figures(out)["val/bleu"]


def test_devices_share_a_steps_pairs_and_see_each_pair_once_an_epoch(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    buckets: list[list[str]] = []
    for step in range(11):  # three epochs of eleven buckets
        whole = [decode_pairs(task, batch) for batch in task.batches(step, 0, 1)]
        shares = [[decode_pairs(task, batch) for batch in task.batches(step, rank, 3)] for rank in range(3)]
        assert [len(share) for share in shares] == [1, 1, 1]
        assert sorted(bucket for share in shares for bucket in share) == sorted(whole)
        buckets += whole
    epochs = [buckets[i : i + 11] for i in (0, 11, 22)]
    for epoch in epochs:
        pairs = [pair for bucket in epoch for pair in bucket]
        assert len(pairs) == len(set(pairs)) == 94
    # Each epoch groups them differently.
    companies = {frozenset(frozenset(bucket) for bucket in epoch) for epoch in epochs}
    assert len(companies) == 3


def decode_pairs(task: TranslationTask, batch: PairBatch) -> list[str]:
    source, target = task.corpus.source_tokenizer, task.corpus.tokenizer
    return [
        f"{source.decode(source_ids.tolist())} | {target.decode(target_ids.tolist())}"
        for source_ids, target_ids in zip(batch.source, batch.inputs, strict=True)
    ]


def test_validation_takes_each_pair_once(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    targets = [row[row != IGNORE_INDEX].tolist() for batch in validation_batches(task) for row in batch.targets]
    eos = task.corpus.tokenizer.eos_id
    expected = [[*task.corpus.tokenizer.encode(text), eos] for _, text in task.corpus.validation_texts]
    assert sorted(targets) == sorted(expected)


COMPARABLE_SETTINGS: dict[str, Any] = {
    "model": {"encoder": {"dropout": NO_DROPOUT}, "decoder": {"dropout": NO_DROPOUT}},
    "task": {"sample_sentences": 0, "validation_sentences": 0, "best_by": "loss"},
    "training": {"max_steps": 20},
}


def join_batches(batches: list[PairBatch], *, pad: int, padding: int = 0) -> PairBatch:
    """Return all pairs in one batch, with `padding` columns of padding on each side."""
    s, t = (max(batch[i].shape[1] for batch in batches) + padding for i in (0, 2))

    def pad_to(x: Tensor, length: int, value: int) -> Tensor:
        return F.pad(x, (0, length - x.shape[1]), value=value)

    source = torch.cat([pad_to(batch.source, s, pad) for batch in batches])
    inputs = torch.cat([pad_to(batch.inputs, t, pad) for batch in batches])
    targets = torch.cat([pad_to(batch.targets, t, IGNORE_INDEX) for batch in batches])
    return PairBatch(source, source != pad, inputs, targets)


def reshaped(monkeypatch: pytest.MonkeyPatch, change: Callable[[TranslationTask, list[PairBatch]], Any]) -> None:
    batches = TranslationTask.batches
    monkeypatch.setattr(TranslationTask, "batches", lambda self, *place: change(self, batches(self, *place)))


@pytest.fixture(scope="module")
def micro_batch_run(finished_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("micro")
    return train(tiny_pairs_recipe(folder, COMPARABLE_SETTINGS), folder / "run", quiet=True)


def assert_same_after_20_updates(expected_run: Path, actual_run: Path, atol: float = 1e-6) -> None:
    assert resume_state(actual_run)["global_step"] == 20
    a, b = (resume_state(run)["state_dict"] for run in (expected_run, actual_run))
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=atol, rtol=1e-5)
    expected, actual = figures(expected_run), figures(actual_run)
    for name in ("train/loss", "train/nll", "grad_norm", "val/loss", "tokens"):
        assert [y for _, y in actual[name]] == pytest.approx([y for _, y in expected[name]], rel=1e-5), name


@pytest.mark.slow
def test_micro_batches_are_one_batch(tmp_path: Path, micro_batch_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reshaped(monkeypatch, lambda task, batches: [join_batches(batches, pad=task.corpus.tokenizer.pad_id)])
    assert len(make_task(tmp_path, COMPARABLE_SETTINGS).batches(0, 0, 1)) == 1
    run = train(tiny_pairs_recipe(tmp_path, COMPARABLE_SETTINGS), tmp_path / "run", quiet=True)
    assert_same_after_20_updates(micro_batch_run, run)


@pytest.mark.slow
def test_padding_changes_nothing(tmp_path: Path, micro_batch_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wider(task: TranslationTask, batches: list[PairBatch]) -> list[PairBatch]:
        return [join_batches([batch], pad=task.corpus.tokenizer.pad_id, padding=1) for batch in batches]

    reshaped(monkeypatch, wider)
    run = train(tiny_pairs_recipe(tmp_path, COMPARABLE_SETTINGS), tmp_path / "run", quiet=True)
    assert_same_after_20_updates(micro_batch_run, run)


@pytest.mark.slow
def test_means_of_means_are_noticed(tmp_path: Path, micro_batch_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = TranslationTask.loss

    def mean_of_means_loss(
        self: TranslationTask, model: EncoderDecoder, batch: PairBatch, *, smoothing: float = 0.0
    ) -> Any:
        result = loss(self, model, batch, smoothing=smoothing)
        return type(result)(result.total * (30 / result.count), result.plain, result.count)

    monkeypatch.setattr(TranslationTask, "loss", mean_of_means_loss)
    run = train(tiny_pairs_recipe(tmp_path, COMPARABLE_SETTINGS), tmp_path / "run", quiet=True)
    with pytest.raises(AssertionError):
        assert_same_after_20_updates(micro_batch_run, run, atol=1e-3)


def test_padding_and_bos_are_never_predicted(finished_run: FinishedRun) -> None:
    """They are never targets, so the first thing a model learns is not to predict them."""
    model, trained_model = load_run_model(finished_run("pairs"), "last")
    task = make_task(finished_run("pairs").parent)
    forbidden_ids = {trained_model.tokenizer.pad_id, trained_model.tokenizer.bos_id}
    with torch.no_grad():
        for batch in validation_batches(task):
            logits = model(batch.source, batch.inputs, source_token_mask=batch.source_token_mask)
            assert not forbidden_ids & set(logits.argmax(-1).flatten().tolist())
        rows = torch.full((6, 1), trained_model.tokenizer.bos_id)
        for _ in range(7):
            logits = model(batch.source, rows, source_token_mask=batch.source_token_mask)[:, -1]
            rows = torch.cat([rows, logits.argmax(-1, keepdim=True)], dim=1)
            share = logits.softmax(-1)[:, sorted(forbidden_ids)]
            assert float(share.mean()) < 1 / model.vocab_size
    assert not forbidden_ids & set(np.unique(rows[:, 1:]).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("separate_vocabularies", [False, True], ids=["one vocabulary", "two"])
def test_source_bos_of_training_is_used_in_translation(separate_vocabularies: bool, tmp_path: Path) -> None:
    words = {"kind": "words", "prefix_space": True}
    changes = {
        "data": {"source_bos": True, **({"source_tokenizer": words} if separate_vocabularies else {})},
        "model": {"max_len": 9, "share_embeddings": not separate_vocabularies},
    }
    out = train(tiny_pairs_recipe(tmp_path, changes), tmp_path / "run", quiet=True)
    model, trained_model = load_run_model(out, "last")
    assert trained_model.source_tokenizer.opening == (trained_model.source_tokenizer.bos_id,)
    assert (trained_model.source_tokenizer is trained_model.tokenizer) == (not separate_vocabularies)
    corpus = load_corpus(out)
    pairs = list(corpus.validation_texts)
    scores = score_pairs(model, trained_model.tokenizer, pairs, source_tokenizer=trained_model.source_tokenizer)
    nats = -sum(score.logprob for score in scores) / sum(score.tokens for score in scores)
    assert nats == pytest.approx(trained_model.card.metrics["val/loss"], rel=1e-5)
    read = list[Tensor]()
    model.encoder.register_forward_pre_hook(lambda _part, inputs: read.append(inputs[0]))
    translate(
        model, trained_model.tokenizer, [pairs[0][0]], Beam(size=1), source_tokenizer=trained_model.source_tokenizer
    )
    framed_ids = trained_model.source_tokenizer.frame(trained_model.source_tokenizer.encode(pairs[0][0]), max_len=9)
    torch.testing.assert_close(read[0], model.source_embedding(torch.tensor([framed_ids])))


def test_language_of_bleu_is_checked_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.evaluate.protocols.find_spec", lambda name: None)  # no MeCab
    recipe = tiny_pairs_recipe(tmp_path, max_steps=1)
    japanese = replace(recipe, data=replace(recipe.data, target_language="ja"))
    with pytest.raises(UserError, match=r"'tercet\[ja\]', or set task.validation_sentences to 0"):
        TranslationTask(japanese)
    TranslationTask(replace(japanese, task=replace(japanese.task, best_by="loss", validation_sentences=0)))
