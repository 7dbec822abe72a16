"""Checks of exercise 9: decoding with a KV cache. The reference is causal attention over the whole text."""

from types import ModuleType

import torch
from torch import Tensor, nn

from tercet.learn.compare import explain, normal
from tercet.nn.attention import attend_by_hand

B, T, D, K = 2, 6, 8, 4


class Projection(nn.Linear):
    """A linear layer that counts the tokens to which it was applied."""

    def __init__(self, seed: int) -> None:
        super().__init__(D, K, bias=False)
        self.n_tokens = 0
        with torch.no_grad():
            self.weight.copy_(normal(K, D, seed=seed))

    def forward(self, input: Tensor) -> Tensor:
        self.n_tokens += input.shape[1]
        return super().forward(input)


def projections() -> list[Projection]:
    """Return the projections of queries, keys and values."""
    return [Projection(seed) for seed in (11, 12, 13)]


def decode(solution: ModuleType, x: Tensor, sizes: list[int], layers: list[Projection] | None = None) -> Tensor:
    """Return the outputs of the student's code for the tokens of `x`, added in pieces of these sizes."""
    cache, layers = solution.KeyValueCache(), layers or projections()
    outputs = [solution.attend_with_cache(piece, *layers, cache) for piece in x.split(sizes, dim=1)]
    return torch.cat(outputs, dim=1)


def attention(x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """Return attention over the whole text; causal if there is no mask."""
    q, k, v = (layer(x)[:, None] for layer in projections())
    if mask is None:
        return attend_by_hand(q * scale, k, v, causal=True)[:, 0]
    return attend_by_hand(q * scale, k, v, mask=mask)[:, 0]


@torch.no_grad()
def check_append(solution: ModuleType) -> str | None:
    cache = solution.KeyValueCache()
    k, v = normal(B, 3, K), normal(B, 3, K, seed=2)
    cache.append(k[:, :2], v[:, :2])
    result = cache.append(k[:, 2:], v[:, 2:])
    if not isinstance(result, tuple | list) or len(result) != 2:
        return "append must return two tensors: all keys and all values"
    for name, one, expected in zip(("keys", "values"), result, (k, v), strict=True):
        mistakes = {
            f"append returns only the new {name}; return those of all tokens so far": expected[:, 2:],
            f"the new {name} are in front of the earlier ones; add them at the end": torch.cat(
                (expected[:, 2:], expected[:, :2]), dim=1
            ),
            f"the new {name} are not kept": expected[:, :2],
        }
        if (problem := explain(one, expected, mistakes, name=f"the tensor of {name}")) is not None:
            return problem
    return None


@torch.no_grad()
def check_independent(solution: ModuleType) -> str | None:
    first, second = solution.KeyValueCache(), solution.KeyValueCache()
    first.append(normal(B, 2, K), normal(B, 2, K))
    keys, _ = second.append(normal(B, 1, K), normal(B, 1, K))
    if keys.shape != (B, 1, K):
        return "two caches share their keys; create the storage in __init__, not in the class"
    return None


@torch.no_grad()
def check_token_by_token(solution: ModuleType) -> str | None:
    x = normal(B, T, D)
    only_new = torch.cat([attention(one) for one in x.split(1, dim=1)], dim=1)
    first = torch.arange(T) == torch.zeros(T, 1)  # a mask of key 0
    return explain(
        decode(solution, x, [1] * T),
        attention(x),
        {
            "each token attends only to itself; attend to all keys and values of the cache": only_new,
            "the causal mask ignores the earlier tokens: new token t may attend to the keys 0 to S - T + t": attention(
                x, first
            ),
            "the scores are not divided by sqrt(K)": attention(x, scale=K**0.5),
        },
        name="the result of decoding token by token",
    )


@torch.no_grad()
def check_prompt(solution: ModuleType) -> str | None:
    x = normal(B, T, D, seed=2)
    everything = attention(x, torch.ones(1, 1, T, T, dtype=torch.bool))
    return explain(
        decode(solution, x, [T]),
        attention(x),
        {"new tokens see later ones; attention among the new tokens is causal": everything},
        name="the result for a prompt",
    )


@torch.no_grad()
def check_pieces(solution: ModuleType) -> str | None:
    x, sizes = normal(B, T, D, seed=3), [3, 2, 1]
    unmasked, shifted = torch.zeros(T, T, dtype=torch.bool), torch.zeros(T, T, dtype=torch.bool)
    start = 0
    for size in sizes:  # rows of the mask for each piece: all keys so far, or keys counted from the start
        unmasked[start : start + size, : start + size] = True
        shifted[start : start + size, :size] = torch.ones(size, size, dtype=torch.bool).tril()
        start += size
    return explain(
        decode(solution, x, sizes),
        attention(x),
        {
            "new tokens see later ones; attention among the new tokens is causal": attention(x, unmasked),
            "the causal mask ignores the earlier tokens: new token t may attend to the keys 0 to S - T + t": attention(
                x, shifted
            ),
        },
        name="the result of adding 3, 2 and 1 tokens",
    )


@torch.no_grad()
def check_work(solution: ModuleType) -> str | None:
    layers = projections()
    decode(solution, normal(B, T, D, seed=4), [1] * T, layers)
    for name, layer in zip(("query", "key", "value"), layers, strict=True):
        if layer.n_tokens > T:
            return f"{name} is applied to {layer.n_tokens} tokens for a text of {T}; project each token once"
    return None


CHECKS = {
    "append returns the keys and values of all tokens in order": check_append,
    "each cache has its own keys and values": check_independent,
    "decoding token by token equals a pass over the whole text": check_token_by_token,
    "a prompt is read causally": check_prompt,
    "several tokens at once equal a pass over the whole text": check_pieces,
    "each token is projected once": check_work,
}
