"""The masked loss is cross-entropy at the masked positions, whether rows are padded, packed or empty."""

import itertools
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tercet.config import UserError
from tercet.data import PackedRows, PaddedRows
from tercet.data.rows.token_rows import TokenRows
from tercet.models import EncoderOnly, model_spec
from tercet.objectives import (
    IGNORE_INDEX,
    MaskedBatch,
    Masking,
    collate_masked,
    concatenate_masked,
    likelihood,
    masked_loss,
)
from tercet.tokens import BPE, Tokenizer, WordPiece

SAMPLE = "the cat sat on the mat and the dog lay by the door while unaffable birds were singing in the garden " * 9
T = 13


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(WordPiece(vocab_size=71), [SAMPLE])


def model(vocab_size: int, *, preset: str = "bert-tiny", dropout: float = 0.0, max_len: int = 29) -> EncoderOnly:
    rates = {"embedding": dropout, "attention": dropout, "residual": dropout}
    stack = {"d_model": 24, "n_layers": 2, "n_heads": 2, "d_ff": 31, "dropout": rates}
    spec = model_spec({"preset": preset, "vocab_size": vocab_size, "max_len": max_len, "stack": stack})
    encoder = EncoderOnly(spec, seed=1)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return encoder


def corpus(tokenizer: Tokenizer, lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return documents of the given lengths, including bos and eos, and their start offsets."""
    generator = np.random.default_rng(3)
    assert tokenizer.bos_id is not None
    assert tokenizer.eos_id is not None
    documents = [
        [tokenizer.bos_id, *generator.integers(5, tokenizer.vocab_size, length - 2), tokenizer.eos_id]
        for length in lengths
    ]
    return np.concatenate(documents).astype(np.uint16), np.cumsum([0, *lengths[:-1]])


def make_rows(tokenizer: Tokenizer, numbers: list[int], *, document_mask: bool = True) -> TokenRows:
    rows = PackedRows(*corpus(tokenizer, [17, 5, 29, 8, 31, 7, 19]), length=T - 1, document_mask=document_mask)
    return rows.batch(np.array(numbers))


def gradients(network: EncoderOnly, batches: list[MaskedBatch]) -> Tensor:
    """Return the gradient of the mean over all targets of all batches, as in a training step."""
    network.zero_grad()
    targets = max(1, sum(int((batch.targets != IGNORE_INDEX).sum()) for batch in batches))
    for batch in batches:
        (masked_loss(network, batch).total / targets).backward()
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in network.parameters()])


def dense_loss(network: EncoderOnly, batch: MaskedBatch) -> Tensor:
    """Compute all B · T scores, as most implementations do."""
    targets = torch.full((batch.inputs.numel(),), IGNORE_INDEX)
    has_target = batch.targets != IGNORE_INDEX
    targets[batch.positions[has_target]] = batch.targets[has_target]
    logits = network(batch.inputs, token_mask=batch.token_mask, documents=batch.documents).flatten(0, 1)
    return F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")


@pytest.mark.parametrize("preset", ["bert-tiny", "modern-encoder"])
@pytest.mark.parametrize("rate", [0.15, 0.25, 0.4, 0.0])
def test_sparse_head_matches_the_dense_head(tokenizer: Tokenizer, rate: float, preset: str) -> None:
    network = model(tokenizer.vocab_size, preset=preset).double()
    batch = collate_masked(
        make_rows(tokenizer, [0, 1, 4]), tokenizer, masking=Masking(rate=rate), generator=np.random.default_rng(1)
    )  # two of these rows contain several documents
    network.zero_grad()
    dense = dense_loss(network, batch)
    dense.backward()
    expected = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in network.named_parameters()
    }
    network.zero_grad()
    loss = masked_loss(network, batch)
    loss.total.backward()
    assert int(loss.count) == int((batch.targets != IGNORE_INDEX).sum())
    assert abs(float(loss.total.detach() - dense.detach())) <= 1e-6 * max(1.0, float(dense.detach()))
    for name, p in network.named_parameters():
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        torch.testing.assert_close(
            gradient, expected[name], rtol=1e-6, atol=1e-6, msg=lambda message, name=name: name + message
        )


def test_loss_without_masks_is_zero_with_zero_gradient(tokenizer: Tokenizer) -> None:
    network = model(tokenizer.vocab_size)
    for rate in (0.0, 0.3):
        masking, generator = Masking(rate=rate), np.random.default_rng(0)
        rows = TokenRows(tokens=np.array([[5, 6], [7, 8]]))  # these tokens become bos and eos
        batch = collate_masked(rows, tokenizer, masking=masking, generator=generator)
        loss = masked_loss(network, batch)
        assert float(loss.total.detach()) == float(loss.mean.detach()) == int(loss.count) == 0
        assert not gradients(network, [batch]).any()


@pytest.mark.slow
def test_short_rows_never_give_nan(tokenizer: Tokenizer) -> None:
    network, generator = model(tokenizer.vocab_size), np.random.default_rng(0)
    counts: set[int] = set()
    for _ in range(100):
        rows = TokenRows(tokens=generator.integers(5, tokenizer.vocab_size, (1, 4)))
        batch = collate_masked(rows, tokenizer, masking=Masking(rate=0.15), generator=generator)
        counts.add(int((batch.targets != IGNORE_INDEX).sum()))
        assert gradients(network, [batch]).isfinite().all()
    assert counts == {0, 1}


class Widest(TorchDispatchMode):
    """Measure peak memory in tensors as wide as the vocabulary, at every operation of both passes."""

    def __init__(self, vocab_size: int, parameters: list[Tensor]) -> None:
        super().__init__()
        self.vocab_size, self.alive, self.peak = vocab_size, dict[int, int](), 0
        self.parameter_storages = {tensor.untyped_storage().data_ptr() for tensor in parameters}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and tensor.ndim > 1 and tensor.shape[-1] == self.vocab_size:
                storage = tensor.untyped_storage()
                key = storage._cdata  # pyright: ignore[reportPrivateUsage]
                if key not in self.alive and storage.data_ptr() not in self.parameter_storages:
                    self.alive[key] = storage.nbytes()
                    weakref.finalize(storage, self.alive.pop, key, None)
                    self.peak = max(self.peak, sum(self.alive.values()))
        return out


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.15, 0.3, 0.4])
def test_sparse_head_memory_is_proportional_to_the_mask_rate(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one chunk, only the head's share matters; in chunks, as in training, it needs even less."""
    vocab_size, generator = 1009, np.random.default_rng(0)
    network = model(vocab_size, max_len=127)
    batch, full_batch = (
        _whole(generator.integers(5, vocab_size, (5, 127)), Masking(rate=share), vocab_size) for share in (rate, 1.0)
    )

    def measure_peak(loss: Any, masked_batch: MaskedBatch) -> int:
        network.zero_grad()
        with Widest(vocab_size, list(network.parameters())) as widest:
            loss(network, masked_batch).backward()
        assert widest.peak > 0
        return widest.peak

    def sparse(network: EncoderOnly, masked_batch: MaskedBatch) -> Tensor:
        return masked_loss(network, masked_batch).total

    dense_peak = measure_peak(dense_loss, batch)
    assert dense_peak >= 5 * 127 * vocab_size * 4
    chunked_peak = measure_peak(sparse, batch)
    monkeypatch.setitem(likelihood.CHUNK_ELEMENTS, "cpu", 1 << 40)
    sparse_peak = measure_peak(sparse, batch)
    limit = (rate + 0.05) * measure_peak(sparse, full_batch)  # the same head over all rows holds only one copy
    assert chunked_peak <= sparse_peak <= limit < dense_peak


def _whole(tokens: np.ndarray, masking: Masking, vocab_size: int) -> MaskedBatch:
    from tercet.objectives.masking import mask_rows

    rows = mask_rows(
        tokens, np.ones(tokens.shape, bool), masking=masking, generator=np.random.default_rng(0), mask_id=4,
        random_ids=np.arange(5, vocab_size),
    )  # fmt: skip
    return MaskedBatch(*(torch.from_numpy(array) for array in (rows.inputs, rows.positions, rows.targets)))


def test_small_batches_match_one_large_batch(tokenizer: Tokenizer) -> None:
    network = model(tokenizer.vocab_size).double()
    generator = np.random.default_rng(5)
    masking = Masking(rate=0.25)
    big = collate_masked(make_rows(tokenizer, [0, 1, 2, 3, 4, 5]), tokenizer, masking=masking, generator=generator)
    generator = np.random.default_rng(5)
    small = [
        collate_masked(make_rows(tokenizer, numbers), tokenizer, masking=masking, generator=generator)
        for numbers in ([0, 1, 2], [3], [4, 5])
    ]
    combined = concatenate_masked(small)
    assert all(
        torch.equal(network, expected) for network, expected in zip(combined, big, strict=True) if network is not None
    )
    assert combined.token_mask is big.token_mask is None
    whole, parts = gradients(network, [big]), gradients(network, small)
    assert float((whole - parts).norm() / whole.norm()) <= 1e-6


def test_rows_are_texts_and_special_tokens_are_not_masked(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, list(range(6)))
    special = set(tokenizer.special_ids)
    for unit, random_share in itertools.product(("tokens", "words", "spans"), (0.1, 1.0)):
        masking = Masking(rate=0.9, unit=unit, masked=0.9 - 0.9 * random_share, random=random_share)
        batch = collate_masked(rows, tokenizer, masking=masking, generator=np.random.default_rng(0))
        assert (batch.inputs[:, 0] == tokenizer.bos_id).all()
        assert (batch.inputs[:, -1] == tokenizer.eos_id).all()
        assert not special & set(batch.targets.tolist())
        is_special = torch.from_numpy(np.isin(rows.tokens, sorted(special)))
        is_special[:, [0, -1]] = False
        assert is_special.any()
        assert torch.equal(batch.inputs[is_special], torch.from_numpy(rows.tokens)[is_special])
        is_changed = batch.inputs != torch.from_numpy(rows.tokens)
        is_changed[:, [0, -1]] = False
        new = set(batch.inputs[is_changed].tolist())
        assert new & special == ({tokenizer.mask_id} if random_share < 1 else set())


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_keep_their_padding_and_have_bos_and_eos(tokenizer: Tokenizer, side: Any) -> None:
    ids, starts = corpus(tokenizer, [17, 5, 29, 8])
    rows = PaddedRows(ids, starts, length=T - 1, side=side, stride=5, pad_id=0).batch(np.arange(7))
    batch = collate_masked(rows, tokenizer, masking=Masking(rate=0.9), generator=np.random.default_rng(0))
    assert batch.token_mask is not None
    assert rows.mask is not None
    assert torch.equal(batch.token_mask, torch.from_numpy(rows.mask))
    for row, real in zip(batch.inputs, batch.token_mask, strict=True):
        text = row[real]
        assert text[0] == tokenizer.bos_id
        assert text[-1] == tokenizer.eos_id or len(text) == 1
        assert (row[~real] == 0).all()


def test_single_real_token_becomes_bos(tokenizer: Tokenizer) -> None:
    mask = np.array([[False, False, True], [True, True, False], [False, False, False]])
    rows = TokenRows(tokens=np.full((3, 3), 7), mask=mask)
    batch = collate_masked(rows, tokenizer, masking=Masking(rate=0.0), generator=np.random.default_rng(0))
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    assert batch.inputs.tolist() == [[7, 7, bos], [bos, eos, 7], [7, 7, 7]]


def test_padding_of_any_id_is_never_masked(tokenizer: Tokenizer) -> None:
    mask = np.arange(9) < np.array([[4], [9], [1]])
    rows = TokenRows(tokens=np.full((3, 9), 7), mask=mask)
    batch = collate_masked(rows, tokenizer, masking=Masking(rate=1.0), generator=np.random.default_rng(0))
    assert (batch.targets != IGNORE_INDEX).sum() == (4 - 2) + (9 - 2)
    assert (batch.inputs[~torch.from_numpy(mask)] == 7).all()


@pytest.mark.slow
def test_packed_padded_and_separate_texts_have_the_same_loss(tokenizer: Tokenizer) -> None:
    network = model(tokenizer.vocab_size).eval()
    ids, starts = corpus(tokenizer, [7, 9, 5])
    rows = PackedRows(ids, starts, length=20, document_mask=True).batch(np.array([0]))
    packed = collate_masked(rows, tokenizer, masking=Masking(rate=0.4), generator=np.random.default_rng(2))
    assert packed.documents is not None
    batched = network.hidden(packed.inputs, documents=packed.documents)[0]
    for start, end in ((0, 7), (7, 16), (16, 21)):
        text = packed.inputs[:, start:end]
        torch.testing.assert_close(network.hidden(text)[0], batched[start:end], atol=1e-5, rtol=1e-5)
        for left in (0, 4):
            tokens, real = torch.zeros(1, 19, dtype=torch.long), torch.zeros(1, 19, dtype=torch.bool)
            tokens[:, left : left + end - start], real[:, left : left + end - start] = text, True
            hidden = network.hidden(tokens, token_mask=real)[0, left : left + end - start]
            torch.testing.assert_close(hidden, batched[start:end], atol=1e-5, rtol=1e-5)
    changed_inputs = packed.inputs.clone()
    changed_inputs[0, 9] = 5 + (changed_inputs[0, 9] - 4) % 60  # in the second document
    is_changed = (network.hidden(changed_inputs, documents=packed.documents)[0] - batched).abs().amax(-1) > 1e-6
    assert is_changed[7:16].all()
    assert not is_changed[:7].any()
    assert not is_changed[16:].any()
    is_changed_without_documents = (network.hidden(changed_inputs)[0] - network.hidden(packed.inputs)[0]).abs().amax(
        -1
    ) > 1e-6
    assert is_changed_without_documents.all()  # without document masks, all documents see each other


def test_padding_has_no_effect_on_gradients(tokenizer: Tokenizer) -> None:
    network = model(tokenizer.vocab_size)
    network.unembedding.weight = torch.nn.Parameter(network.embedding.weight.detach().clone())
    tokens, mask = np.full((2, T), 0), np.zeros((2, T), bool)
    tokens[:, 3:9], mask[:, 3:9] = 7, True
    rows = TokenRows(tokens=tokens, mask=mask)
    batch = collate_masked(rows, tokenizer, masking=Masking(rate=0.5, random=0.0), generator=np.random.default_rng(1))
    gradients(network, [batch])
    assert network.embedding.weight.grad is not None
    assert not network.embedding.weight.grad[0].any()
    assert network.embedding.weight.grad[4].any()


def test_tokenizer_without_required_tokens_is_rejected() -> None:
    rows = TokenRows(tokens=np.array([[1, 2, 3]]))
    for spec, message in (
        (BPE(vocab_size=300), "requires a mask token"),
        (BPE(vocab_size=300, mask=True), "bos: true"),
    ):
        with pytest.raises(UserError, match=message):
            collate_masked(rows, Tokenizer.train(spec, [SAMPLE]), masking=Masking(), generator=np.random.default_rng())


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds",
    [
        ("masked",),
        pytest.param(("causal", "break"), marks=pytest.mark.exhaustive),  # test_tracing.py traces causal ones
    ],
    ids=" and ".join,
)
def test_training_step_traces_once_as_one_graph(kinds: tuple[str, ...]) -> None:
    """Masked and causal language models trace as one graph."""
    script = Path(__file__).with_name("traced_training.py")
    process = subprocess.run([sys.executable, script, *kinds], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
