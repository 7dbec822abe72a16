"""Exercise 2: Embeddings and sinusoidal positions.

An embedding is a row of a table: token id 7 becomes row 7. Attention does not see the order of its inputs, so a vector
of the position is added. Vaswani et al. use sines and cosines. For position p, counted from 0, and the pair of columns
2i and 2i + 1 of D columns:

    P[p, 2i]     = sin(p / 10000^(2i / D))
    P[p, 2i + 1] = cos(p / 10000^(2i / D))

The rows of the table are multiplied by sqrt(D) before the positions are added.

Shapes: B rows of T tokens, D width of a vector, V vocabulary size.
Replace each `raise NotImplementedError` by your code. Check it with `tercet learn check 2`.

Paper: Vaswani et al., "Attention Is All You Need" (2017), sections 3.4 and 3.5.
"""

from jaxtyping import Float, Int
from torch import Tensor


def sinusoidal_positions(length: int, d_model: int) -> Float[Tensor, "T D"]:
    """Return the vectors of the positions 0 to length - 1, for an even width."""
    raise NotImplementedError


def embed(ids: Int[Tensor, "B T"], table: Float[Tensor, "V D"]) -> Float[Tensor, "B T D"]:
    """Return the scaled embeddings of the ids plus the vectors of their positions."""
    raise NotImplementedError
