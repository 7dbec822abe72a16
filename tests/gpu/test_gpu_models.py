"""On a GPU, decoding with a cache equals the full forward pass, independent of padding and other rows."""

import pytest
import torch
from grid import GRID
from small import MAX_LEN, POSITIONS, V, encoder, model, padded, translator
from torch import Tensor

from tercet.nn import Rotary, document_mask

# Rows longer than the models' table of positions, and heads of 16 numbers.
ROTARY = [{"position": Rotary(), "n_kv_heads": heads} for heads in (4, 2, 1)]
CLOSE = {"atol": 1e-4, "rtol": 1e-4}
LENGTHS = (MAX_LEN, 1, 5, 8)
SIDES = ("left", "right", "scattered")
each_position = pytest.mark.parametrize("position", POSITIONS, ids=lambda spec: spec.kind)


def on(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    return [tensor.to(device) for tensor in tensors]


@pytest.mark.parametrize("point", GRID)
@torch.no_grad()
def test_cached_steps_equal_the_full_pass(point, device: torch.device) -> None:
    decoder = model(**point).to(device)
    tokens, lengths, rows = on(device, torch.randint(V, (3, MAX_LEN)), torch.tensor([3, 1, 7]), torch.arange(3))
    full = decoder(tokens)
    logits, cache = decoder.start(tokens[:, :7], lengths, capacity=MAX_LEN)
    torch.testing.assert_close(logits, full[rows, lengths - 1], **CLOSE)
    for t in range(MAX_LEN - 7):
        logits = decoder.step(tokens[rows, lengths + t], cache)
        torch.testing.assert_close(logits, full[rows, lengths + t], **CLOSE)


@each_position
@torch.no_grad()
def test_cached_steps_of_a_translator_equal_the_full_pass(position, device: torch.device) -> None:
    translator_ = translator(position=position).to(device)
    source, token_mask = on(device, *padded([torch.randint(V, (length,)) for length in (8, 11, 2)], "right", 11))
    target, lengths, rows = on(device, torch.randint(V, (3, MAX_LEN)), torch.tensor([3, 1, 5]), torch.arange(3))
    full = translator_(source, target, source_token_mask=token_mask)
    logits, cache = translator_.start(
        target[:, :5], lengths, source=source, source_token_mask=token_mask, capacity=MAX_LEN
    )
    torch.testing.assert_close(logits, full[rows, lengths - 1], **CLOSE)
    for t in range(MAX_LEN - 5):
        logits = translator_.step(target[rows, lengths + t], cache)
        torch.testing.assert_close(logits, full[rows, lengths + t], **CLOSE)


@each_position
@torch.no_grad()
def test_reordered_rows_continue_as_their_sources(position, device: torch.device) -> None:
    decoder, rows = model(position=position).to(device), torch.tensor([2, 0, 0], device=device)
    tokens, lengths = on(device, torch.randint(V, (3, MAX_LEN)), torch.tensor([3, 1, 5]))
    _, cache = decoder.start(tokens[:, :5], lengths, capacity=MAX_LEN)
    cache.reorder(rows)
    full, at = decoder(tokens), lengths[rows]
    torch.testing.assert_close(decoder.step(tokens[rows, at], cache), full[rows, at], **CLOSE)


@pytest.mark.parametrize("family", [model, encoder], ids=["decoder", "encoder"])
@pytest.mark.parametrize("side", SIDES)
@each_position
@torch.no_grad()
def test_padding_and_neighbors_change_nothing(position, side: str, family, device: torch.device) -> None:
    made = family(position=position).to(device)
    sequences = [torch.randint(V, (length,)) for length in LENGTHS]
    tokens, token_mask = on(device, *padded(sequences, side, MAX_LEN))
    hidden = made.hidden(tokens, token_mask=token_mask)
    assert hidden.isfinite().all()
    for row, sequence in enumerate(sequences):
        alone = made.hidden(sequence[None].to(device))[0]
        torch.testing.assert_close(hidden[row, token_mask[row]], alone, **CLOSE)


@each_position
@torch.no_grad()
def test_packed_documents_do_not_see_each_other(position, device: torch.device) -> None:
    decoder, lengths = model(position=position).to(device), (5, 1, 7)
    tokens = torch.randint(V, (2, sum(lengths)), device=device)
    documents = torch.tensor([3, 1, 4]).repeat_interleave(torch.tensor(lengths)).expand(2, -1).to(device)
    packed = decoder(tokens, documents=documents)
    for start, stop in ((0, 5), (5, 6), (6, 13)):
        torch.testing.assert_close(packed[:, start:stop], decoder(tokens[:, start:stop]), **CLOSE)


@pytest.mark.parametrize("family", [model, encoder], ids=["decoder", "encoder"])
@pytest.mark.parametrize("point", ROTARY)
def test_packed_documents_in_bf16_learn_as_by_the_dense_mask(
    point, family, cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlexAttention uses blocks, of which these rows have three by three."""
    made = family(d_model=64, **point).to(cuda)
    tokens = torch.randint(V, (2, 300), device=cuda)
    starts = torch.rand(2, 300, device=cuda) < torch.tensor([[0.1], [0.005]], device=cuda)
    real = torch.arange(300, device=cuda) < torch.tensor([[300], [200]], device=cuda)
    found = list[list[Tensor]]()
    for devices in (("cuda",), ()):
        monkeypatch.setattr(document_mask, "DEVICES", devices)
        made.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            hidden = made.hidden(tokens, token_mask=real, documents=starts.long().cumsum(1))
        out = hidden.float()[real]
        (out * torch.linspace(-1, 1, out.numel(), device=cuda).view_as(out)).sum().backward()
        found.append([out.detach(), *(p.grad for p in made.parameters() if p.grad is not None)])
    norm = torch.stack([one.norm() for one in found[1][1:]]).norm()  # a key's bias has only rounding
    torch.testing.assert_close(found[0][0], found[1][0], atol=5e-2, rtol=5e-2)
    for squares, dense in zip(found[0][1:], found[1][1:], strict=True):
        assert (squares - dense).norm() < 3e-2 * norm


@pytest.mark.parametrize("point", GRID)
@torch.no_grad()
def test_logits_are_those_of_the_cpu(point, device: torch.device) -> None:
    decoder, tokens = model(**point), torch.randint(V, (3, MAX_LEN))
    expected = decoder(tokens)
    torch.testing.assert_close(decoder.to(device)(tokens.to(device)).cpu(), expected, **CLOSE)
