"""A test is worth what it catches: break one part, and the comparison that guards it must fail."""

import math

import pytest
import test_ecosystem
import test_pytorchs_transformer
import test_translator_decoding as decoding
import test_translator_masks as masks
import torch
import torch.nn.functional as F
from small import translator

import tercet.models.stack as stack
import tercet.nn.attention as attention
import tercet.nn.cache as cache
from tercet.models import EncoderDecoder
from tercet.models.stack import Stack
from tercet.models.vocabulary import TokenEmbedding
from tercet.nn import Block, Learned, Residual, Sinusoidal


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
    patch.setattr(Residual, "forward", lambda self, x, sublayer, read: self.before(x + sublayer(x)))


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
    right = cache.StackCache.advance
    patch.setattr(cache.StackCache, "advance", lambda self, by: right(self, by + 1 if isinstance(by, int) else by))


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


# A translator's own faults, beside the test that must notice each.


def no_memory_mask(patch) -> None:
    right = Block.forward
    patch.setattr(Block, "forward", lambda self, x, **how: right(self, x, **how | {"memory_mask": None}))


def causality(causal: bool):
    def plant(patch) -> None:
        right = Stack.__init__
        patch.setattr(Stack, "__init__", lambda self, spec, **how: right(self, spec, **how | {"causal": causal}))

    return plant


def no_source_mask(patch) -> None:
    right = Stack._mask
    patch.setattr(
        Stack,
        "_mask",
        lambda self, x, token_mask, documents: right(self, x, token_mask if self.causal else None, documents),
    )


def positions_are_columns(patch) -> None:
    patch.setattr(stack, "_positions", lambda x, token_mask, documents: torch.arange(x.shape[1])[None])


def memory_before_the_norm(patch) -> None:
    right = EncoderDecoder.encode

    def wrong(self, source, **how):
        norm, self.encoder.final_norm = self.encoder.final_norm, torch.nn.Identity()
        try:
            return right(self, source, **how)
        finally:
            self.encoder.final_norm = norm

    patch.setattr(EncoderDecoder, "encode", wrong)


def embeddings_not_scaled(patch) -> None:
    patch.setattr(TokenEmbedding, "forward", lambda self, tokens: F.embedding(tokens, self.weight))


def embeddings_not_shared(patch) -> None:
    right = TokenEmbedding.forward
    patch.setattr(TokenEmbedding, "forward", lambda self, tokens: right(self, tokens).detach())


def nothing_seen_is_nothing_over_nothing(patch) -> None:
    def wrong(q, k, v, *, mask=None, bias=None, causal=False, dropout=0.0):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        sees = torch.ones(scores.shape[-2:], dtype=torch.bool).tril() if causal else mask
        return (scores if sees is None else scores.masked_fill(~sees, -math.inf)).softmax(-1) @ v

    patch.setattr(attention, "attend", wrong)


def sources_stay_when_rows_go(patch) -> None:
    right = cache.StaticKVCache.reorder
    patch.setattr(cache.StaticKVCache, "reorder", lambda self, rows: right(self, torch.arange(len(rows))))


def source_padding_stays_when_rows_go(patch) -> None:
    right = cache.StackCache.reorder

    def wrong(self, rows):
        before = self.memory_token_mask
        right(self, rows)
        if self.memory_token_mask is not None:
            self.memory_token_mask = before[: len(self.memory_token_mask)]

    patch.setattr(cache.StackCache, "reorder", wrong)


def rows_spread_in_turn(patch) -> None:
    """0 1 2 0 1 2 for 0 0 1 1 2 2."""

    def wrong(self, n):
        rows = torch.arange(len(self.lengths)).repeat(n)
        self.lengths, self.shared = self.lengths[rows], self.shared * n
        for layer in self.layers:
            layer.self_kv.reorder(rows)

    patch.setattr(cache.StackCache, "expand_beams", wrong)


def shared_rows_mix_their_heads(patch) -> None:
    patch.setattr(attention, "fold_beams", lambda q, sources: q.reshape(sources, q.shape[1], -1, q.shape[-1]))


def growing_loses_a_column(patch) -> None:
    right = cache.GrowingKVCache.grow

    def wrong(self, columns):
        self.keys, self.values = self.keys[:, :, :-1], self.values[:, :, :-1]
        right(self, columns)

    patch.setattr(cache.GrowingKVCache, "grow", wrong)


def sources_projected_anew_at_each_step(patch) -> None:
    """From what there is: the target itself."""
    right = cache.StaticKVCache.keys_values

    def wrong(self, project):
        first, again = right(self, project), project()
        return first if again[0].shape[2] > 1 else tuple(x.expand(-1, -1, first[0].shape[2], -1) for x in again)

    patch.setattr(cache.StaticKVCache, "keys_values", wrong)


def reference(number: int):
    return lambda: test_pytorchs_transformer.test_logits_and_gradients_are_theirs(number)


def padding_changes_nothing() -> None:
    masks.check_padded_rows(translator(position=Sinusoidal()))


def sight() -> None:
    masks.check_sight(translator())


def an_empty_source() -> None:
    masks.check_an_empty_source(translator())


def beams() -> None:
    decoding.test_beams_are_their_rows_alone(Learned(), "translator")


POST, PRE = reference(0), reference(1)
TRANSLATION_FAULTS = {
    "no memory mask": (no_memory_mask, (POST, PRE, padding_changes_nothing, an_empty_source)),
    "the encoder is causal": (causality(True), (POST, PRE, sight)),
    "the decoder sees the future": (causality(False), (POST, PRE, sight)),
    "no source mask": (no_source_mask, (POST, PRE, padding_changes_nothing)),
    "positions are columns": (positions_are_columns, (padding_changes_nothing,)),
    "the memory is not normed": (memory_before_the_norm, (PRE,)),
    "embeddings are not scaled": (embeddings_not_scaled, (POST, PRE)),
    "the matrix learns at the top only": (embeddings_not_shared, (POST, PRE)),
    "an empty source is 0 / 0": (nothing_seen_is_nothing_over_nothing, (an_empty_source,)),
    "other sources stay than rows": (sources_stay_when_rows_go, (beams,)),
    "source padding stays where it was": (source_padding_stays_when_rows_go, (beams,)),
    "rows are spread in turn": (rows_spread_in_turn, (beams,)),
    "rows that share a source mix their heads": (shared_rows_mix_their_heads, (beams,)),
    "growing loses a column": (growing_loses_a_column, (beams,)),
    "a translator's steps skip a column": (steps_in_the_wrong_column, (beams,)),
    "the source is projected anew": (sources_projected_anew_at_each_step, (beams,)),
}
CAUGHT = [
    pytest.param(plant, guard, id=f"{fault}-{i}")
    for fault, (plant, guards) in TRANSLATION_FAULTS.items()
    for i, guard in enumerate(guards)
]


@pytest.mark.parametrize(("plant", "guard"), CAUGHT)
def test_a_translators_fault_is_caught(plant, guard, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        guard()


@pytest.mark.parametrize("guard", [POST, PRE, padding_changes_nothing, sight, an_empty_source, beams])
def test_and_a_sound_translator_passes(guard) -> None:
    guard()
