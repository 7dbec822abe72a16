"""Scores on fixed masks are reproducible, do not depend on the batch, and add up over the targets."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tercet.config import UserError
from tercet.data import Corpus
from tercet.data.rows.token_rows import Blocks
from tercet.evaluate import MaskedScores, masked, pseudo_perplexity, score_masked
from tercet.evaluate.masked import masked_windows
from tercet.models import EncoderOnly, model_spec
from tercet.objectives import IGNORE_INDEX, MaskedBatch, Masking, collate_masked
from tercet.tokens import BPE, Tokenizer, WordPiece

SAMPLE = "the cat sat on the mat and the dog lay by the door while unaffable birds were singing in the garden " * 9
T = 13


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(WordPiece(vocab_size=71), [SAMPLE])


@pytest.fixture(scope="module")
def corpus(tokenizer: Tokenizer) -> Corpus:
    generator = np.random.default_rng(0)
    ids = generator.integers(5, tokenizer.vocab_size, 700).astype(np.uint16) // 3 + 5
    starts = np.arange(0, 700, 23)
    ids[starts], ids[starts[1:] - 1] = 2, 3
    return Corpus(
        name="some",
        hash="",
        tokenizer=tokenizer,
        train=ids[:391],
        validation=ids[391:],
        train_documents=starts[starts < 391],
        validation_documents=starts[starts >= 391] - 391,
        train_bytes=1,
        validation_bytes=1,
    )


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> EncoderOnly:
    stack = {"d_model": 24, "n_layers": 2, "n_heads": 2, "d_ff": 31}
    spec = model_spec({"preset": "bert-tiny", "vocab_size": tokenizer.vocab_size, "max_len": T, "stack": stack})
    return EncoderOnly(spec, seed=1)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@pytest.mark.parametrize("document_mask", [False, True])
def test_scores_are_sums_over_the_masked_tokens(
    model: EncoderOnly, tokenizer: Tokenizer, corpus: Corpus, document_mask: bool
) -> None:
    scores = score_masked(model, tokenizer, corpus, rate=0.2, seed=3, document_mask=document_mask)
    blocks = Blocks(corpus.validation, T, document_starts=corpus.validation_documents if document_mask else None)
    counts = np.bincount(corpus.train, minlength=tokenizer.vocab_size) + 1.0
    counts[[0, 2, 3, 4]] = 0  # [PAD] [CLS] [SEP] [MASK] are never masked; [UNK] is a word
    losses, entropy, right, frequent, candidates = [], [], 0, 0, 0
    model.eval()
    for window in range(len(blocks)):
        rows = blocks.batch(np.array([window]))
        batch = collate_masked(
            rows, tokenizer, masking=Masking(rate=0.2, masked=1, random=0), generator=np.random.default_rng([3, window])
        )
        with torch.no_grad():
            logprobs = (
                model(batch.inputs, token_mask=batch.token_mask, documents=batch.documents)[0].log_softmax(-1).double()
            )
        for place, target in zip(batch.positions.tolist(), batch.targets.tolist(), strict=True):
            if target != IGNORE_INDEX:
                assert batch.inputs[0, place] == tokenizer.mask_id  # without random or unchanged tokens
                losses.append(-float(logprobs[place, target]))
                entropy.append(-math.log(counts[target] / counts.sum()))
                right += int(logprobs[place].argmax()) == target
                frequent += target == counts.argmax()
        text = rows.tokens[0] > 4
        text[0] = False
        text[(T if rows.mask is None else int(rows.mask.sum())) - 1 :] = False
        candidates += int(text.sum())
    assert scores.tokens == len(losses)
    assert scores.masked_loss == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert scores.unigram_entropy == pytest.approx(sum(entropy) / len(entropy), rel=1e-9)
    assert scores.masked_accuracy == right / len(losses)
    assert scores.most_frequent_accuracy == frequent / len(losses) > 0
    assert scores.mask_rate == len(losses) / candidates
    assert (scores.context, scores.seed) == (T, 3)


@pytest.mark.slow
def test_scores_are_reproducible_in_any_batch_without_side_effects(
    model: EncoderOnly, tokenizer: Tokenizer, corpus: Corpus
) -> None:
    model.train()
    state = torch.get_rng_state()
    scores, second_scores = (score_masked(model, tokenizer, corpus) for _ in range(2))
    assert scores == second_scores
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    for batch_tokens in (1, 2 * T, 5 * T):
        batched_scores = score_masked(model, tokenizer, corpus, batch_tokens=batch_tokens)
        assert batched_scores.masked_loss == pytest.approx(scores.masked_loss, rel=1e-6)
        assert replace(batched_scores, masked_loss=0.0, unigram_entropy=0.0) == replace(
            scores, masked_loss=0.0, unigram_entropy=0.0
        )
    assert score_masked(model, tokenizer, corpus, seed=1).masked_loss != scores.masked_loss
    assert abs(scores.mask_rate - 0.15) < 0.05


def test_part_of_the_text_is_spread_over_all_of_it(
    model: EncoderOnly, tokenizer: Tokenizer, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[int]()

    def record_windows(blocks: Blocks, numbers: np.ndarray, *args: Any, **settings: Any) -> MaskedBatch:
        read.extend(numbers.tolist())
        return masked_windows(blocks, numbers, *args, **settings)

    monkeypatch.setattr(masked, "masked_windows", record_windows)
    partial_scores = score_masked(model, tokenizer, corpus, rate=1.0, tokens=5 * T)
    last = -(-len(corpus.validation) // T) - 1
    assert read == [last * window // 4 for window in range(5)]
    assert partial_scores.tokens < 5 * T
    assert partial_scores.mask_rate == 1
    assert score_masked(model, tokenizer, corpus, rate=1.0, tokens=10**9).tokens > 4 * partial_scores.tokens


def test_plateau_is_reported() -> None:
    scores = MaskedScores(
        masked_loss=4.91, masked_accuracy=0.1, unigram_entropy=5.0, most_frequent_accuracy=0.1, mask_rate=0.15,
        tokens=9, context=T, seed=0,
    )  # fmt: skip
    assert scores.plateau
    assert replace(scores, masked_loss=7.0).plateau
    assert replace(scores, masked_loss=math.nan).plateau
    assert not replace(scores, masked_loss=4.89).plateau


def test_invalid_inputs_are_rejected(model: EncoderOnly, tokenizer: Tokenizer, corpus: Corpus) -> None:
    with pytest.raises(UserError, match="no token was masked at a rate of 0; pass more text"):
        score_masked(model, tokenizer, corpus, rate=0.0)
    with pytest.raises(ValueError, match=r"has 300 ids, the model \d+; use the model's tokenizer"):
        score_masked(model, Tokenizer.train(BPE(vocab_size=300), [SAMPLE]), corpus)
    with pytest.raises(UserError, match="at least one word"):
        pseudo_perplexity(model, tokenizer, [])


@pytest.mark.slow
def test_pseudo_perplexity_masks_each_token_once(model: EncoderOnly, tokenizer: Tokenizer) -> None:
    texts = ["the cat sat", "birds singing in the garden"]
    nats: list[float] = []
    model.eval()
    for text in texts:
        ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]])
        for place in range(1, ids.shape[1] - 1):
            masked_ids = ids.clone()
            masked_ids[0, place] = tokenizer.mask_id or 0
            nats.append(-float(model(masked_ids)[0, place].log_softmax(-1)[ids[0, place]].detach()))
    expected = math.exp(sum(nats) / len(nats))
    assert pseudo_perplexity(model, tokenizer, texts) == pytest.approx(expected, rel=1e-5)
    assert pseudo_perplexity(model, tokenizer, texts, batch_tokens=7) == pytest.approx(expected, rel=1e-5)
