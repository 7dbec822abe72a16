"""Masking has the documented distribution for every unit, and handles short rows and other edge cases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.objectives import IGNORE_INDEX, Masking
from tercet.objectives.masking import MaskedRows, mask_rows

SPECIAL, MASK, V = 5, 4, 211  # ids 0 to 4 are special
RANDOM_IDS = np.arange(SPECIAL, V)
UNITS = ("tokens", "words", "spans")


def text(n_rows: int, length: int, *, seed: int = 0, pieces: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with scattered special ids and padding on both sides, and the starts of words."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(SPECIAL, V, (n_rows, length))
    tokens[generator.random(tokens.shape) < 0.05] = 2
    tokens[:, 0], tokens[:, -1] = 2, 3
    for row, padded in enumerate(generator.integers(0, length // 3 + 1, n_rows)):
        tokens[row, : padded // 2] = 0
        tokens[row, length - (padded - padded // 2) :] = 0
    return tokens, (generator.random(tokens.shape) > pieces) | (tokens < SPECIAL)


def masked(
    tokens: np.ndarray,
    starts: np.ndarray | None = None,
    *,
    generator: np.random.Generator | None = None,
    **settings: Any,
) -> MaskedRows:
    return mask_rows(
        tokens,
        tokens >= SPECIAL,
        masking=Masking(**settings),
        generator=generator or np.random.default_rng(7),
        mask_id=MASK,
        random_ids=RANDOM_IDS,
        word_starts=starts,
    )


def predicted_mask(rows: MaskedRows) -> np.ndarray:
    """Return a mask of the predicted tokens, (B, T)."""
    is_predicted = np.zeros(rows.inputs.shape, bool)
    is_predicted.ravel()[rows.positions[rows.targets != IGNORE_INDEX]] = True
    return is_predicted


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_mask_rates_over_200_000_tokens_match_the_settings(unit: str, rate: float) -> None:
    tokens, starts = text(1900, 127)
    masked_rows = masked(tokens, starts, unit=unit, rate=rate)
    candidates, hidden = tokens >= SPECIAL, predicted_mask(masked_rows)
    assert candidates.sum() > 190_000
    assert abs(hidden.sum() / candidates.sum() - rate) < 0.005
    assert not (hidden & ~candidates).any()  # no special token and no padding
    replacements, originals = masked_rows.inputs[hidden], tokens[hidden]
    assert abs((replacements == MASK).mean() - 0.8) < 0.005
    p_same = 1 / (V - SPECIAL)  # probability that a random token equals the original
    assert abs((replacements == originals).mean() - 0.1 * (1 + p_same)) < 0.005
    assert abs(((replacements != originals) & (replacements != MASK)).mean() - 0.1 * (1 - p_same)) < 0.005
    np.testing.assert_array_equal(masked_rows.inputs[~hidden], tokens[~hidden])


def test_targets_are_the_original_tokens_at_chosen_positions_only() -> None:
    tokens, starts = text(31, 53)
    for unit in UNITS:
        masked_rows = masked(tokens, starts, unit=unit, rate=0.4)
        has_target = masked_rows.targets != IGNORE_INDEX
        np.testing.assert_array_equal(
            masked_rows.targets[has_target], tokens.ravel()[masked_rows.positions[has_target]]
        )
        assert len(set(masked_rows.positions[has_target].tolist())) == has_target.sum()  # no position twice
        assert not masked_rows.positions[~has_target].any()
        assert (masked_rows.targets[has_target] >= SPECIAL).all()


def test_random_tokens_are_uniform_over_ordinary_tokens() -> None:
    tokens = np.full((1500, 127), 17)  # independent of the tokens in the batch
    masked_rows = masked(tokens, rate=0.3, masked=0.0, random=1.0)
    replacements = masked_rows.inputs[predicted_mask(masked_rows)]
    counts = np.bincount(replacements, minlength=V)
    assert not counts[:SPECIAL].any()
    expected = len(replacements) / len(RANDOM_IDS)
    degrees = len(RANDOM_IDS) - 1
    chi_square = float(((counts[SPECIAL:] - expected) ** 2 / expected).sum())
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)
    narrow = np.bincount(SPECIAL + (replacements - SPECIAL) % 200, minlength=V)[
        SPECIAL:
    ]  # as if six ids were never drawn
    assert float(((narrow - expected) ** 2 / expected).sum()) - degrees > 4 * np.sqrt(2 * degrees)


def test_every_position_is_equally_likely() -> None:
    masked_rows = masked(np.full((20_000, 11), 17), rate=0.3)
    np.testing.assert_allclose(predicted_mask(masked_rows).mean(0), 0.3, atol=0.015)
    hidden = (masked_rows.inputs == MASK).mean(0)  # the replacement does not depend on the position either
    np.testing.assert_allclose(hidden, 0.24, atol=0.015)


@given(
    n_rows=st.integers(1, 5),
    length=st.integers(1, 40),
    rate=st.floats(0, 1),
    unit=st.sampled_from(UNITS),
    share=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_shapes_are_static_and_no_mask_is_lost(
    n_rows: int, length: int, rate: float, unit: Any, share: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    tokens = generator.integers(SPECIAL, V, (n_rows, length))
    candidates, starts = generator.random((2, n_rows, length)) < share
    masking = Masking(rate=rate, unit=unit)
    masked_rows = mask_rows(
        tokens,
        candidates,
        masking=masking,
        generator=generator,
        mask_id=MASK,
        random_ids=RANDOM_IDS,
        word_starts=starts,
    )
    assert masked_rows.positions.shape == masked_rows.targets.shape == (n_rows * masking.max_predictions(length),)
    assert masking.max_predictions(length) <= rate * length + 1
    hidden = predicted_mask(masked_rows)
    assert not (hidden & ~candidates).any()
    assert not ((masked_rows.inputs != tokens) & ~hidden).any()  # changed tokens are always predicted
    expected = rate * candidates.sum(1)
    assert (hidden.sum(1) <= np.ceil(expected)).all()
    if unit == "tokens":
        assert (hidden.sum(1) >= np.floor(expected - 1e-9)).all()


def test_masks_per_row_do_not_depend_on_the_batch() -> None:
    """B · round(p T) differs from round(p B T): 4 rows of 14 tokens at 15 % would lose two."""
    for n_rows, length in ((4, 14), (1, 10), (7, 13)):
        for rate in (0.15, 0.4):
            masked_rows = masked(np.full((n_rows, length), 17), rate=rate)
            counts = predicted_mask(masked_rows).sum(1)
            assert set(counts.tolist()) <= {int(rate * length), int(np.ceil(rate * length))}
            assert counts.sum() == (masked_rows.targets != IGNORE_INDEX).sum()


def test_short_rows_have_the_mask_rate_on_average() -> None:
    assert predicted_mask(masked(np.full((9000, 3), 17), rate=0.15)).mean() == pytest.approx(0.15, abs=0.005)


@pytest.mark.parametrize("unit", ["words", "spans"])
def test_words_are_masked_whole_or_not_at_all(unit: str) -> None:
    tokens, starts = text(300, 61, pieces=0.4)
    for rate in (0.15, 0.5):
        hidden = predicted_mask(masked(tokens, starts, unit=unit, rate=rate))
        candidates = tokens >= SPECIAL
        within_word = candidates[:, 1:] & candidates[:, :-1] & ~starts[:, 1:]  # a token and the previous one in a word
        assert within_word.any()
        np.testing.assert_array_equal(hidden[:, 1:][within_word], hidden[:, :-1][within_word])
    split = predicted_mask(masked(tokens, starts, unit="tokens", rate=0.15))
    assert (split[:, 1:][within_word] != split[:, :-1][within_word]).any()


def test_word_that_exceeds_the_budget_is_not_masked() -> None:
    starts = np.zeros((50, 20), bool)
    starts[:, ::5] = True  # four words of five tokens, with a budget of four tokens
    tokens = np.full(starts.shape, 17)
    assert set(predicted_mask(masked(tokens, starts, unit="words", rate=0.2)).sum(1).tolist()) == {0}
    assert set(predicted_mask(masked(tokens, starts, unit="words", rate=0.25)).sum(1).tolist()) == {5}


@pytest.mark.slow
def test_spans_have_about_their_mean_length() -> None:
    tokens = np.full((4000, 401), 17)
    starts = np.ones(tokens.shape, bool)

    def mean_run(**settings: Any) -> float:
        hidden = np.pad(predicted_mask(masked(tokens, starts, **settings)), ((0, 0), (1, 0)))
        return float(hidden.sum() / (hidden[:, 1:] & ~hidden[:, :-1]).sum())

    assert mean_run(unit="spans", rate=0.05, span=3.0) == pytest.approx(3.0, rel=0.1)
    assert mean_run(unit="spans", rate=0.05, span=1.0) == pytest.approx(1.05, rel=0.05)  # some spans are adjacent
    assert mean_run(unit="words", rate=0.05) == pytest.approx(1.05, rel=0.05)


@pytest.mark.parametrize("unit", UNITS)
def test_equal_generators_mask_equally_and_others_do_not(unit: str) -> None:
    tokens, starts = text(17, 61)

    def inputs(seed: int) -> list[list[int]]:
        return masked(tokens, starts, unit=unit, generator=np.random.default_rng(seed)).inputs.tolist()

    assert inputs(1) == inputs(1) != inputs(2)


@pytest.mark.parametrize("unit", UNITS)
def test_rows_masked_in_parts_match_rows_masked_at_once(unit: str) -> None:
    tokens, starts = text(12, 61)
    whole = masked(tokens, starts, unit=unit, generator=np.random.default_rng(3))
    generator = np.random.default_rng(3)
    parts = [masked(tokens[a:b], starts[a:b], unit=unit, generator=generator) for a, b in ((0, 5), (5, 6), (6, 12))]
    np.testing.assert_array_equal(np.concatenate([part.inputs for part in parts]), whole.inputs)
    np.testing.assert_array_equal(np.concatenate([part.targets for part in parts]), whole.targets)


def test_inputs_are_not_modified() -> None:
    tokens, starts = text(5, 31)
    before, words = tokens.copy(), starts.copy()
    masked(tokens, starts, unit="words")
    np.testing.assert_array_equal(tokens, before)
    np.testing.assert_array_equal(starts, words)


def test_invalid_settings_are_rejected() -> None:
    for invalid, message in (
        ({"rate": 1.5}, r"rate=1.5 must be at least 0 and at most 1"),
        ({"span": 0.5}, r"span=0.5 must be at least 1"),
        ({"masked": 0.8, "random": 0.3}, "add up to at most 1"),
        ({"masked": -0.1}, "masked=-0.1 must be at least 0 and at most 1"),
        ({"unit": "letters"}, "tokens, words or spans"),
    ):
        with pytest.raises(ValueError, match=message):
            Masking(**invalid)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="requires word_starts"):
        masked(np.full((2, 5), 17), unit="words")
    with pytest.raises(ValueError, match="random=0"):
        mask_rows(
            np.full((2, 5), 17),
            np.ones((2, 5), bool),
            masking=Masking(),
            generator=np.random.default_rng(),
            mask_id=MASK,
            random_ids=np.empty(0, np.int64),
        )
    assert replace(Masking(), rate=0.1).max_predictions(30) == 3
