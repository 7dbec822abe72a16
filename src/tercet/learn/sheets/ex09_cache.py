"""Exercise 9: Decoding with a KV cache.

A language model generates token by token. With causal attention, the keys and values of earlier tokens do not depend on
later tokens. A cache keeps them, so each step projects only the new token, and the result is that of a pass over the
whole text.

Several tokens can also be added at once, such as a prompt. Causal attention then holds among them too: the first new
token must not see the second.

Shapes: B rows, T new tokens, S tokens in the cache after they were added, D width, K width of the head.
You may use `torch.nn.functional.scaled_dot_product_attention`.
Replace each `raise NotImplementedError` by your code. Check it with `tercet learn check 9`.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor


class KeyValueCache:
    """Keys and values of all tokens so far."""

    def __init__(self) -> None:
        raise NotImplementedError

    def append(
        self, k: Float[Tensor, "B T K"], v: Float[Tensor, "B T K"]
    ) -> tuple[Float[Tensor, "B S K"], Float[Tensor, "B S K"]]:
        """Add the keys and values of new tokens, and return those of all tokens in order."""
        raise NotImplementedError


def attend_with_cache(
    x: Float[Tensor, "B T D"],
    query: Callable[[Tensor], Tensor],
    key: Callable[[Tensor], Tensor],
    value: Callable[[Tensor], Tensor],
    cache: KeyValueCache,
) -> Float[Tensor, "B T K"]:
    """Return the causal attention of the new tokens to all tokens so far, with one head.

    Args:
        x: Vectors of the new tokens.
        query, key, value: Projections from width D to K. Each may be applied only to the new tokens.
        cache: Keys and values of the earlier tokens, to which those of the new tokens are added.
    """
    raise NotImplementedError
