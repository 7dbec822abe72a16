"""Log-probabilities of tokens match the formula for any chunk size, and add up to the loss."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tercet.data import PairRows, TokenRows
from tercet.models import (
    AnyModel,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
)
from tercet.nn import Rotary
from tercet.objectives import (
    IGNORE_INDEX,
    causal_logprobs,
    causal_loss,
    collate_causal,
    collate_pairs,
    likeliest_tokens,
    logprobs,
    move_batch,
    pad_rows,
    seq2seq_logprobs,
    seq2seq_loss,
    split_logits,
    target_logprobs,
    token_logprobs,
)

V, D = 13, 24
STACK = StackSpec(d_model=D, n_layers=1, n_heads=3, d_ff=29, position=Rotary())


def far_from_uniform(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 5
    return model.eval().requires_grad_(False)


DECODER = far_from_uniform(DecoderOnly(DecoderOnlySpec(vocab_size=V, max_len=7, stack=STACK, pad_vocab_to=16)))
ENCODER = far_from_uniform(
    EncoderOnly(EncoderOnlySpec(vocab_size=V, max_len=7, stack=STACK, masked_head=MaskedHead(bias=True)))
)
TRANSLATOR = far_from_uniform(
    EncoderDecoder(EncoderDecoderSpec(encoder=STACK, decoder=STACK, vocab_size=V, max_len=7, logit_softcap=9.0))
)


@pytest.mark.parametrize("model", [DECODER, ENCODER, TRANSLATOR])
@settings(max_examples=25, deadline=None)
@given(
    targets=st.lists(st.sampled_from([IGNORE_INDEX, *range(V)]), max_size=19),
    max_logits=st.sampled_from([1, 3 * V, 7 * V + 5, 1 << 24]),
    seed=st.integers(0, 99),
)
def test_logprobs_match_the_formula(model: AnyModel, targets: list[int], max_logits: int, seed: int) -> None:
    hidden = torch.randn(len(targets), D, generator=torch.Generator().manual_seed(seed))
    z = model.logits(hidden).double()
    target_rows = [row for row, target in enumerate(targets) if target != IGNORE_INDEX]
    expected = [float(z[row, targets[row]] - z[row].exp().sum().log()) for row in target_rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprobs, "MAX_LOGITS", max_logits)
        result = target_logprobs(model, hidden, torch.tensor(targets, dtype=torch.long))
        parts = list(split_logits(model, hidden))
        likeliest = likeliest_tokens(model, hidden)
    assert result.dtype == torch.float32
    assert result.tolist() == pytest.approx(expected, abs=1e-4)
    assert likeliest.tolist() == z.argmax(-1).tolist()
    assert all(len(logits) <= max(1, max_logits // V) for _, logits in parts)
    assert [row for rows, _ in parts for row in range(len(targets))[rows]] == list(range(len(targets)))


def test_bfloat16_logits_are_scored_in_float32() -> None:
    logits, tokens = torch.randn(5, V).bfloat16(), torch.arange(5)
    expected = logits.double().log_softmax(-1)[range(5), tokens]
    torch.testing.assert_close(token_logprobs(logits, tokens).double(), expected, atol=1e-6, rtol=1e-6)


def test_scores_of_a_text_add_up_to_its_loss() -> None:
    tokens = torch.randint(V, (3, 6)).numpy()
    mask = (torch.arange(6) < torch.tensor([[6], [4], [2]])).numpy()
    batch = collate_causal(TokenRows(tokens=tokens, mask=mask))
    scores, loss = causal_logprobs(DECODER, batch), causal_loss(DECODER, batch)
    assert len(scores) == int(loss.count) == 5 + 3 + 1
    torch.testing.assert_close(-scores.sum(), loss.total)


def test_scores_of_a_translation_add_up_to_its_loss() -> None:
    (source, source_mask), (target, target_mask) = (
        [part.numpy() for part in pad_rows(rows, torch.device("cpu"))]
        for rows in ([[3, 4], [5, 6, 7, 8]], [[1, 9, 10, 2], [1, 2]])
    )
    batch = collate_pairs(PairRows(source=source, source_mask=source_mask, target=target, target_mask=target_mask))
    scores, loss = seq2seq_logprobs(TRANSLATOR, batch), seq2seq_loss(TRANSLATOR, batch)
    assert len(scores) == int(loss.count) == 3 + 1
    torch.testing.assert_close(-scores.sum(), loss.total)
    first = TRANSLATOR(batch.source[1:], batch.inputs[1:, :1])[0, 0]
    assert float(scores[3]) == pytest.approx(float(F.log_softmax(first, -1)[2]), abs=1e-5)


@given(rows=st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=7))
def test_padded_rows_match_unpadded_rows(rows: list[list[int]]) -> None:
    tokens, mask = pad_rows(rows, torch.device("cpu"), pad=0)
    assert tokens.dtype == torch.long
    assert tokens.shape == mask.shape == (len(rows), max(map(len, rows)))
    assert [row[real].tolist() for row, real in zip(tokens, mask, strict=True)] == rows
    assert not tokens[~mask].any()


def test_moved_batch_keeps_its_type_and_missing_fields() -> None:
    batch = collate_causal(TokenRows(tokens=torch.randint(V, (2, 5)).numpy()))
    moved_batch = move_batch(batch, nn.Linear(2, 3, device="meta"))
    assert type(moved_batch) is type(batch)
    assert moved_batch.inputs.device.type == "meta"
    assert moved_batch.token_mask is None
