"""Exercise 3: Scaled dot-product attention.

Each query is compared with all keys. The scores become weights by a softmax, and the output is the weighted mean of the
values:

    attention(q, k, v) = softmax(q k^T / sqrt(K)) v

Without the division the variance of a score grows with K, the width of a head. The softmax would then be close to a
hard choice, with gradients close to zero.

Shapes: B rows, H heads, T queries, S keys and values, K width of a head.
Do not use `torch.nn.functional.scaled_dot_product_attention`.
Replace each `raise NotImplementedError` by your code. Check it with `tercet learn check 3`.

Paper: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1.
"""

from jaxtyping import Float
from torch import Tensor


def attention(
    q: Float[Tensor, "B H T K"], k: Float[Tensor, "B H S K"], v: Float[Tensor, "B H S K"]
) -> Float[Tensor, "B H T K"]:
    """Return for each query the mean of the values, weighted by its softmax over the keys."""
    raise NotImplementedError
