"""Padding and packing change nothing: a sequence has the same scores in any batch."""

import pytest
import torch
from small import GROUPS, MAX_LEN, POSITIONS, V, model, padded

from pairwise import parametrize_pairs

pytestmark = pytest.mark.threads

LENGTHS = (MAX_LEN, 1, 5, 8)


@parametrize_pairs(position=POSITIONS, groups=tuple(GROUPS.values()), side=("left", "right", "scattered"))
@torch.no_grad()
def test_padded_rows_match_unpadded_rows(position, groups: int, side: str) -> None:
    decoder = model(position=position, n_kv_heads=groups)
    sequences = [torch.randint(V, (length,)) for length in LENGTHS]
    tokens, token_mask = padded(sequences, side, MAX_LEN)
    logits = decoder(tokens, token_mask=token_mask)
    assert logits.isfinite().all()
    for row, sequence in enumerate(sequences):
        torch.testing.assert_close(logits[row, token_mask[row]], decoder(sequence[None])[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("position", POSITIONS, ids=lambda spec: spec.kind)
def test_padding_has_finite_gradients(position) -> None:
    decoder = model(position=position)
    tokens, token_mask = padded([torch.randint(V, (length,)) for length in LENGTHS], "left", MAX_LEN)
    decoder(tokens, token_mask=token_mask)[token_mask].logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in decoder.parameters())


@pytest.mark.parametrize("position", POSITIONS, ids=lambda spec: spec.kind)
@torch.no_grad()
def test_packed_documents_match_separate_documents(position) -> None:
    decoder = model(position=position)
    lengths = (5, 1, 7)
    tokens = torch.randint(V, (2, sum(lengths)))
    documents = torch.tensor([3, 1, 4]).repeat_interleave(torch.tensor(lengths)).expand(2, -1)
    packed, leaking = decoder(tokens, documents=documents), decoder(tokens)
    for start, stop in ((0, 5), (5, 6), (6, 13)):
        separate = decoder(tokens[:, start:stop])
        torch.testing.assert_close(packed[:, start:stop], separate, atol=1e-5, rtol=1e-5)
        assert torch.allclose(leaking[:, start:stop], separate, atol=1e-5) is (start == 0)


@pytest.mark.parametrize("position", POSITIONS, ids=lambda spec: spec.kind)
@torch.no_grad()
def test_packed_documents_with_padding_anywhere(position) -> None:
    decoder = model(position=position)
    first_text, second_text = torch.randint(V, (4,)), torch.randint(V, (5,))
    tokens, real = torch.randint(V, (1, MAX_LEN)), torch.zeros(1, MAX_LEN, dtype=torch.bool)
    documents = (torch.arange(MAX_LEN) >= 6).long()[None]
    first, second = torch.tensor([1, 2, 3, 5]), torch.tensor([8, 9, 10, 11, 12])  # each starts with padding
    tokens[0, first], tokens[0, second] = first_text, second_text
    real[0, first] = real[0, second] = True
    logits = decoder(tokens, token_mask=real, documents=documents)
    torch.testing.assert_close(logits[0, first], decoder(first_text[None])[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[0, second], decoder(second_text[None])[0], atol=1e-5, rtol=1e-5)
