"""A test is worth what it catches: break one part, and the comparison that guards it must fail."""

import math

import pytest
import test_ecosystem
import torch
import torch.nn.functional as F

import tercet.nn.attention as attention
import tercet.nn.cache as cache
from tercet.models.stack import Stack
from tercet.nn import Residual


def wrong_attend(q, k, v, *, causal=False, scale=None, axis=-1, future=False):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    sees = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(diagonal=10_000 if future else 0)
    scores = scores.masked_fill(~sees, -1e9) if causal else scores
    return scores.softmax(axis) @ v


def replace_attend(**fault):
    return lambda patch: patch.setattr(
        attention,
        "attend",
        lambda q, k, v, *, mask=None, bias=None, causal=False, dropout=0.0: wrong_attend(
            q, k, v, causal=causal, **fault
        ),
    )


def rotate_backwards_for_keys(patch) -> None:
    right, calls = attention.rotate, iter(range(10**6))

    def wrong(x, rotation):
        cos, sin = rotation
        return right(x, (cos, -sin if next(calls) % 2 else sin))

    patch.setattr(attention, "rotate", wrong)


def rotate_neighbours(patch) -> None:
    """Pairs (2i, 2i + 1): scores still depend on the distance only, but the weights are no longer Llama's."""

    def wrong(x, rotation):
        cos, sin = (table[:, None] for table in rotation)
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)

    patch.setattr(attention, "rotate", wrong)


def heads_repeated_in_the_wrong_order(patch) -> None:
    def wrong(q, k, v, *, mask=None, bias=None, causal=False, dropout=0.0):
        k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    patch.setattr(attention, "attend", wrong)


def post_for_pre(patch) -> None:
    patch.setattr(Residual, "forward", lambda self, x, sublayer: self.before(x + sublayer(x)))


def no_final_norm(patch) -> None:
    right = Stack.forward

    def wrong(self, x, **how):
        norm, self.final_norm = self.final_norm, torch.nn.Identity()
        try:
            return right(self, x, **how)
        finally:
            self.final_norm = norm

    patch.setattr(Stack, "forward", wrong)


def steps_in_the_wrong_column(patch) -> None:
    right = cache.Cache.advance
    patch.setattr(cache.Cache, "advance", lambda self, by: right(self, by + 1 if isinstance(by, int) else by))


def other_gelu(patch) -> None:
    from tercet.nn.feedforward import ACTIVATIONS

    patch.setitem(ACTIVATIONS, "gelu_tanh", F.gelu)


FAULTS = {
    "the future is seen": ("gpt2", replace_attend(future=True)),
    "scores are not scaled": ("gpt2", replace_attend(scale=1.0)),
    "softmax over the queries": ("gpt2", replace_attend(axis=-2)),
    "keys turned backwards": ("llama", rotate_backwards_for_keys),
    "neighbours turned as pairs": ("llama", rotate_neighbours),
    "heads repeated in the wrong order": ("llama", heads_repeated_in_the_wrong_order),
    "post-norm for pre-norm": ("gpt2", post_for_pre),
    "no final norm": ("gpt2", no_final_norm),
    "steps skip a column": ("gpt2", steps_in_the_wrong_column),
    "gelu by erf for gelu by tanh": ("gpt2", other_gelu),
}
PAIRS = {"gpt2": (test_ecosystem.gpt2_pair, test_ecosystem.gpt2_names, 4)}
PAIRS["llama"] = (test_ecosystem.llama_pair, test_ecosystem.llama_names, 2)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_reference_test_catches(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preset, plant = FAULTS[fault]
    compare = test_ecosystem.test_logits_gradients_and_greedy_tokens_are_theirs
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        compare(*PAIRS[preset])


@pytest.mark.parametrize("preset", PAIRS)
def test_and_passes_without_a_fault(preset: str) -> None:
    test_ecosystem.test_logits_gradients_and_greedy_tokens_are_theirs(*PAIRS[preset])
