"""Attention within documents on a GPU with FlexAttention, which needs no (T, T) mask.

The pairs of queries and keys are divided into squares of BLOCK x BLOCK. A `BlockMask` lists the squares that contain a
query and a key of the same document. The kernel skips all other squares. It compares the document numbers of single
pairs only in squares in which not every pair may attend.

Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention Kernels" (2024).
"""

from functools import cache
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

DEVICES: tuple[str, ...] = ("cuda",)
DTYPES = (torch.bfloat16, torch.float16)  # float32 would be multiplied with the precision of TF32, or slowly
BLOCK = 128  # side of a square, the default of FlexAttention; other sizes were not much faster
MIN_HEAD_WIDTH = 16  # minimum width of a head that the kernel supports


def supports_block_mask(device: str, dtype: torch.dtype, *, d_head: int, dropout: float, changes_scores: bool) -> bool:
    """Return whether `attend_blocks` supports this kind of attention.

    Args:
        device: Type of the device, such as `cuda`.
        dtype: Type in which queries and keys are multiplied.
        d_head: Width of a head.
        dropout: Share of attention weights that are set to zero.
        changes_scores: If True, the position scheme adds a bias to the scores, or they have a softcap.
    """
    return device in DEVICES and dtype in DTYPES and d_head >= MIN_HEAD_WIDTH and not dropout and not changes_scores


def document_blocks(documents: Int[Tensor, "B T"], *, causal: bool) -> BlockMask:
    """Return a mask in which each token attends only to tokens of the same document.

    Document numbers may be in any order. If they never decrease along a row, as in packed rows, no square without an
    allowed pair is listed. In any other order such squares may be listed, which costs time but changes no result.

    Args:
        documents: Number of the document of each token.
        causal: If True, tokens do not attend to later tokens.
    """
    length = documents.shape[1]
    n_blocks = -(-length // BLOCK)
    # An incomplete last square is padded with the row's last token and never counts as full.
    tokens = torch.arange(n_blocks * BLOCK, device=documents.device).clamp(max=length - 1)
    numbers = documents.index_select(1, tokens).unflatten(1, (n_blocks, BLOCK))
    lowest, highest = numbers.amin(-1), numbers.amax(-1)  # (B, N)
    has_pairs = (lowest[:, :, None] <= highest[:, None]) & (lowest[:, None] <= highest[:, :, None])  # (B, N, N)
    is_full = (lowest[:, :, None] == highest[:, None]) & (lowest[:, None] == highest[:, :, None])
    block = torch.arange(n_blocks, device=documents.device)
    is_inside = (block + 1) * BLOCK <= length
    is_full = is_full & is_inside[:, None] & is_inside
    if causal:
        has_pairs, is_full = has_pairs & (block[:, None] >= block), is_full & (block[:, None] > block)

    return BlockMask.from_kv_blocks(
        *_list_blocks(has_pairs & ~is_full),
        *_list_blocks(is_full),
        BLOCK_SIZE=BLOCK,
        # A lambda: type checks at run time may wrap annotated functions, and PyTorch inspects the number of arguments.
        mask_mod=lambda row, _, query, key: (
            (documents[row, query] == documents[row, key]) & ((query >= key) if causal else True)
        ),
        seq_lengths=(length, length),
    )


def attend_blocks(
    q: Float[Tensor, "B H T K"], k: Float[Tensor, "B G T K"], v: Float[Tensor, "B G T K"], mask: BlockMask
) -> Float[Tensor, "B H T K"]:
    """Compute `attend` with a mask from `document_blocks`."""
    attention = flex_attention if torch.compiler.is_compiling() else _compiled_attention()
    # Norms and rotations may have changed the dtype of queries and keys.
    return attention(q.to(v.dtype), k.to(v.dtype), v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def dense_mask(mask: BlockMask) -> Bool[Tensor, "B 1 T T"]:
    """Convert a mask from `document_blocks` to one element per query and key, as `attend_by_hand` requires."""
    rows = torch.arange(len(mask.kv_num_blocks), device=mask.kv_num_blocks.device)[:, None, None, None]
    tokens = torch.arange(mask.seq_lengths[0], device=rows.device)
    return mask.mask_mod(rows, rows, tokens[:, None], tokens)


def _list_blocks(blocks: Bool[Tensor, "B N N"]) -> tuple[Int[Tensor, "B 1 N"], Int[Tensor, "B 1 N N"]]:
    """Return, for each row of squares, the number of True ones, and the indices of all squares, True ones first."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[:, None], order.int()[:, None]


@cache
def _compiled_attention() -> Any:
    """Return the compiled kernel, for use outside of a compiled graph.

    Uncompiled, it would write all scores to memory.
    """
    return cast(Any, torch.compile(flex_attention))
