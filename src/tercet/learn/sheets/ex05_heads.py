"""Exercise 5: Multi-head attention.

The width D is split into H heads of K = D / H columns: head 0 has the first K columns, head 1 the next K. Each head
attends independently. The outputs of the heads are concatenated and projected:

    heads = attention(split(x W_q^T), split(source W_k^T), split(source W_v^T))
    multi_head_attention(x, source) = merge(heads) W_o^T

Self-attention has x as its source. In cross-attention the source is another sequence, such as the encoder's output.

Shapes: B rows, T tokens of x, S tokens of the source, D width, H heads, K width of a head. The weights have the layout
of `nn.Linear.weight`: output columns first.
You may use `torch.nn.functional.scaled_dot_product_attention`.
Replace each `raise NotImplementedError` by your code. Check it with `tercet learn check 5`.

Paper: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2.
"""

from jaxtyping import Float
from torch import Tensor


def split_heads(x: Float[Tensor, "B T D"], n_heads: int) -> Float[Tensor, "B H T K"]:
    """Return the columns of each head as a separate sequence."""
    raise NotImplementedError


def merge_heads(heads: Float[Tensor, "B H T K"]) -> Float[Tensor, "B T D"]:
    """Undo `split_heads`: concatenate the columns of all heads."""
    raise NotImplementedError


def multi_head_attention(
    x: Float[Tensor, "B T D"],
    source: Float[Tensor, "B S D"],
    w_q: Float[Tensor, "D D"],
    w_k: Float[Tensor, "D D"],
    w_v: Float[Tensor, "D D"],
    w_o: Float[Tensor, "D D"],
    n_heads: int,
) -> Float[Tensor, "B T D"]:
    """Return the attention from the tokens of `x` to those of `source`, with all heads."""
    raise NotImplementedError
