"""FlexAttention's block masks of packed documents match the dense mask, and are used only where supported."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._python_dispatch import TorchDispatchMode

from tercet.models import Dropout, StackSpec
from tercet.models.stack import Stack
from tercet.nn import ALiBi, NoPosition, document_mask
from tercet.nn.document_mask import dense_mask, document_blocks, supports_block_mask

each_causal = pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])


def packed(length: int, rows: int = 3) -> Tensor:
    """Return ids of documents of 1 to 200 tokens; the first may continue from another row."""
    return (torch.rand(rows, length) < torch.tensor([0.3, 0.01, 0.003])[:, None]).long().cumsum(1) + 7


@each_causal
@pytest.mark.parametrize("length", [1, 5, 128, 256, 300])
def test_block_mask_matches_the_dense_mask(length: int, causal: bool) -> None:
    documents = packed(length)
    mask, same_document = (
        document_blocks(documents, causal=causal),
        documents[:, None, :, None] == documents[:, None, None, :],
    )
    dense = same_document.tril() if causal else same_document
    assert torch.equal(dense_mask(mask), dense)
    blocks = -(-length // 128)
    squares = F.pad(dense, (0, 128 * blocks - length) * 2).unflatten(3, (blocks, 128)).unflatten(2, (blocks, 128))
    any_visible, all_visible = squares.any(5).any(3), squares.all(5).all(3)  # (B, 1, N, N)
    assert torch.equal(mask.to_dense().bool(), any_visible)
    for name, squares_of_kind in (("", any_visible & ~all_visible), ("full_", all_visible)):
        assert torch.equal(getattr(mask, f"{name}kv_num_blocks"), squares_of_kind.sum(-1, dtype=torch.int32))
        assert torch.equal(getattr(mask, f"{name}q_num_blocks"), squares_of_kind.sum(-2, dtype=torch.int32))


@each_causal
def test_block_mask_is_complete_for_any_document_ids(causal: bool) -> None:
    documents = torch.randint(-3, 3, (2, 13)).repeat_interleave(23, dim=1)
    blocks = document_blocks(documents, causal=causal)
    pairs = blocks.to_dense().repeat_interleave(128, -1).repeat_interleave(128, -2)[..., :299, :299]
    mask = dense_mask(blocks)
    assert 0 < mask.sum() < mask.numel()
    assert not (mask & ~pairs.bool()).any()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, True),
        ({"dtype": torch.float16}, True),
        ({"device": "cpu"}, False),
        ({"device": "mps"}, False),
        ({"dtype": torch.float32}, False),
        ({"dropout": 0.1}, False),
        ({"changes_scores": True}, False),
        ({"d_head": 8}, False),
    ],
)
def test_block_mask_is_used_only_where_the_kernel_supports_it(overrides: dict, expected: bool) -> None:
    settings = {"device": "cuda", "dtype": torch.bfloat16, "d_head": 64, "dropout": 0.0, "changes_scores": False}
    assert supports_block_mask(**settings | overrides) is expected


class Largest(TorchDispatchMode):
    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, list | tuple) else [out]:
            self.numbers = max(self.numbers, tensor.numel() if isinstance(tensor, Tensor) else 0)
        return out


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_mask, "DEVICES", ("cpu",))


def mask_of_stack(*, padded: bool = False, causal: bool = True, training: bool = True, **stack) -> object:
    spec = StackSpec(d_model=32, n_layers=1, n_heads=2, **{"position": NoPosition()} | stack)
    network = Stack(spec, causal=causal, max_len=1024).train(training)
    x, documents = torch.zeros(1, 1024, 32, dtype=torch.bfloat16), torch.arange(1024)[None] // 300
    return network._mask(x, torch.arange(1024)[None] < 800 if padded else None, documents.clamp(max=2))


@pytest.mark.slow  # because of PyTorch's import time
@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@each_causal
def test_stack_on_a_gpu_allocates_no_element_per_pair(causal: bool, padded: bool) -> None:
    with Largest() as largest:
        mask = mask_of_stack(causal=causal, padded=padded)
    assert isinstance(mask, BlockMask)
    assert 1024 <= largest.numbers <= 1024 * 32


@pytest.mark.usefixtures("on_a_gpu")
def test_padding_belongs_to_a_separate_document() -> None:
    mask = mask_of_stack(padded=True, causal=False)
    assert isinstance(mask, BlockMask)
    visible = dense_mask(mask)[0, 0]
    assert not visible[:800, 800:].any()
    blocks = [torch.ones(length, length) for length in (300, 300, 200)]
    assert torch.equal(visible[:800, :800], torch.block_diag(*blocks).bool())


@pytest.mark.usefixtures("on_a_gpu")
def test_stack_with_bias_or_dropout_uses_the_dense_mask() -> None:
    assert isinstance(mask_of_stack(), BlockMask)
    assert isinstance(mask_of_stack(position=ALiBi()), Tensor)
    dropout = Dropout(attention=0.1)
    assert isinstance(mask_of_stack(dropout=dropout), Tensor)
    assert isinstance(mask_of_stack(dropout=dropout, training=False), BlockMask)


def test_stack_on_a_cpu_uses_the_dense_mask() -> None:
    assert isinstance(mask_of_stack(), Tensor)
