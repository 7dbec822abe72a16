"""Exercise 4: Causal and padding masks.

A mask is a tensor of bool: True if a query may attend to a key. A causal mask hides the tokens that a language model
has to predict. A padding mask hides the tokens that only fill short rows of a batch. Hidden keys must get the weight 0,
and the weights of the other keys must still sum to 1.

Shapes: B rows, H heads, T queries, S keys.
Replace each `raise NotImplementedError` by your code. Check it with `tercet learn check 4`.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor


def causal_mask(length: int) -> Bool[Tensor, "T T"]:
    """Return the mask in which query t attends to the keys 0 to t, itself included."""
    raise NotImplementedError


def padding_mask(lengths: Int[Tensor, " B"], max_len: int) -> Bool[Tensor, "B S"]:
    """Return the mask of real tokens: True for the first `lengths[b]` of the `max_len` tokens of row b."""
    raise NotImplementedError


def masked_weights(scores: Float[Tensor, "B H T S"], mask: Bool[Tensor, "#B #H #T S"]) -> Float[Tensor, "B H T S"]:
    """Return the softmax of the scores over the keys, with the weight 0 for hidden keys.

    Each query may attend to at least one key. The mask is broadcast to the shape of the scores.
    """
    raise NotImplementedError
