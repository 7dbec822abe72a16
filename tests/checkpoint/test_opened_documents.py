"""Training and evaluation start documents with the tokens that start a text, as generation does."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_models import BYTES, llama, save_folder

from tercet.checkpoint import LanguageModel, load_model
from tercet.data import HeldOut, TextSpec, Windows, prepare
from tercet.data.shards.prepare_tokens import prepare_tokens
from tercet.data.split_specs import Documents
from tercet.evaluate.tasks import evaluation_of
from tercet.evaluate.tasks.language import LanguageEvaluation
from tercet.generation import encode_prompt

LINES = ("the cat sat", "a mat", "on the long mat sat a cat", "sat", "cats and the cat")
WITH_BOS = BYTES.with_opening([1])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    return path


def test_ids_of_documents_are_those_of_prompts_and_the_end(text: Path, tmp_path: Path) -> None:
    spec = TextSpec(source=str(text), validation=HeldOut(source=str(text)))
    expected = [[*encode_prompt(WITH_BOS, line), WITH_BOS.eos_id] for line in LINES]
    corpus = prepare(spec, tokenizer=WITH_BOS)
    starts = corpus.validation_documents
    assert [ids.tolist() for ids in np.split(corpus.validation, starts[1:])] == expected
    assert [ids.tolist() for ids in np.split(corpus.train, corpus.train_documents[1:])] == expected
    plain = prepare(spec, tokenizer=BYTES)  # has another cache entry
    assert len(corpus.validation) == len(plain.validation) + len(LINES)
    assert (corpus.validation_bytes, corpus.train_bytes) == (plain.validation_bytes, plain.train_bytes)


def test_prepared_tokens_start_with_the_opening(text: Path, tmp_path: Path) -> None:
    spec = TextSpec(source=str(text), validation=Documents(fraction=0.3))
    for name, tokenizer in (("opened", WITH_BOS), ("plain", BYTES)):
        prepare_tokens(spec, tmp_path / name, tokenizer=tokenizer)
    with_bos, plain = (np.fromfile(tmp_path / name / "train-00000.bin", np.uint16) for name in ("opened", "plain"))
    assert with_bos[with_bos != 1].tolist() == plain.tolist()
    assert len(with_bos) > len(plain)


def test_opened_ids_get_no_second_opening(tmp_path: Path) -> None:
    ids = np.array([1, 70, 71, WITH_BOS.eos_id, 72, WITH_BOS.eos_id], np.uint16)
    np.save(tmp_path / "ids.npy", ids)
    spec = TextSpec(source=str(tmp_path / "ids.npy"), validation=HeldOut(source=str(tmp_path / "ids.npy")))
    end = WITH_BOS.eos_id
    assert prepare(spec, tokenizer=WITH_BOS).validation.tolist() == [1, 70, 71, end, 1, 72, end]


def test_evaluate_reads_each_text_after_its_opening(text: Path, tmp_path: Path) -> None:
    """lm-evaluation-harness#1465, #1586, #2382, #2049: perplexity without BOS is another model's."""
    trained_model = load_model(save_folder(tmp_path / "ours", llama(), WITH_BOS))
    assert isinstance(trained_model, LanguageModel)
    nats = list[float]()
    with torch.no_grad():
        for line in LINES:
            ids = torch.tensor([[*encode_prompt(WITH_BOS, line), WITH_BOS.eos_id]])
            logprobs = trained_model.model(ids)[0].double().log_softmax(-1)
            nats += (-logprobs[:-1].gather(1, ids[0, 1:, None])).flatten().tolist()
    evaluation = evaluation_of(trained_model)
    assert isinstance(evaluation, LanguageEvaluation)
    scores = evaluation.evaluate(text)
    assert scores.tokens == len(nats)
    assert scores.loss_nats_per_token == pytest.approx(np.mean(nats), rel=1e-5)
    text_nats = scores.bits_per_byte * np.log(2) * sum(map(len, LINES))
    assert 0 < text_nats < scores.loss_nats_per_token * scores.tokens


def test_windows_of_whole_documents_score_each_target_once() -> None:
    draw = np.random.default_rng(0)
    for length in (3, 5, 8):
        sizes = draw.integers(1, 14, size=20)
        starts, n_ids = np.cumsum([0, *sizes[:-1]]), int(sizes.sum())
        windows = Windows(np.arange(n_ids), length, document_starts=starts, whole_documents=True)
        batch = windows.batch(np.arange(len(windows)))
        assert batch.mask is not None
        assert batch.documents is not None
        score_mask = batch.mask[:, 1:] & (batch.documents[:, 1:] == batch.documents[:, :-1])
        assert sorted(batch.tokens[:, 1:][score_mask]) == sorted(set(range(n_ids)) - set(starts.tolist()))
        for row, is_scored in zip(batch.documents, score_mask, strict=True):
            for document in np.unique(row[1:][is_scored]):
                assert sizes[document] > length + 1 or (row == document).sum() == sizes[document]
