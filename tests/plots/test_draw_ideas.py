"""Plots without a run match their formulas: positions, schedules, masks and label smoothing."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.nn.specs import ALiBi, Learned, NoPosition, RelativeBias, Rotary, Sinusoidal
from tercet.plots import (
    NothingToDraw,
    plot_masks,
    plot_position_schemes,
    plot_schedules,
    plot_smoothing,
)
from tercet.plots.masks import PAD, record_pair_masks, record_sentence_masks
from tercet.plots.position_scheme import initial_scheme
from tercet.plots.smoothing import compute_smoothing

SIZES = {"d_model": 24, "n_heads": 3, "length": 7}


@pytest.mark.parametrize("base", [10_000.0, 50.0])
def test_sinusoids_equal_those_of_the_paper(base: float) -> None:
    scheme = initial_scheme(Sinusoidal(base=base), **SIZES)
    angles = np.array([[p / base ** (2 * i / 24) for i in range(12)] for p in range(7)])
    assert scheme.vectors is not None
    assert np.allclose(scheme.vectors[:, 0::2], np.sin(angles), atol=1e-6)
    assert np.allclose(scheme.vectors[:, 1::2], np.cos(angles), atol=1e-6)
    image = plot_position_schemes([scheme]).axes[0].images[0].get_array()
    assert np.array_equal(image, scheme.vectors)
    assert scheme.to_dict() == {"kind": "sinusoidal", "base": base, "vectors": scheme.vectors.tolist()}


def test_rotary_angles_of_a_head() -> None:
    scheme = initial_scheme(Rotary(base=50.0), **SIZES)
    angles = [[p * 50.0 ** (-2 * pair / 8) for pair in range(4)] for p in range(7)]
    assert scheme.angles is not None
    assert np.allclose(scheme.angles, np.cos(angles), atol=1e-5)
    assert scheme.wavelengths == pytest.approx([2 * math.pi * 50.0 ** (2 * pair / 8) for pair in range(4)], rel=1e-5)
    settings = {"kind", "base", "share", "scaling", "local_base", "skip_layers"}
    assert set(scheme.to_dict()) == {*settings, "cosines", "wavelengths"}


def test_alibi_is_a_slope_for_each_head() -> None:
    scheme = initial_scheme(ALiBi(), **{**SIZES, "n_heads": 2})
    expected = [[[-slope * abs(t - s) for s in range(7)] for t in range(7)] for slope in (2**-4, 2**-8)]
    assert scheme.bias is not None
    assert np.allclose(scheme.bias, expected)
    lines, image = plot_position_schemes([scheme]).axes[:2]
    assert [list(line.get_ydata()) for line in lines.lines] == [head[0] for head in expected]
    assert np.array_equal(image.images[0].get_array(), scheme.bias[0])


def test_a_relative_bias_is_drawn_in_both_directions() -> None:
    scheme = initial_scheme(RelativeBias(n_buckets=8, max_distance=9), **SIZES)
    assert scheme.bias is not None
    lines, image = plot_position_schemes([scheme]).axes[:2]
    assert list(lines.lines[0].get_xdata()) == list(range(-6, 7))
    assert np.array_equal(lines.lines[0].get_ydata(), [*scheme.bias[0, -1], *scheme.bias[0, 0, 1:]])
    assert np.array_equal(image.images[0].get_array(), scheme.bias[0])
    assert "before training" in lines.get_title()


def test_learned_positions_depend_on_the_seed() -> None:
    first, second, other_seed = (
        initial_scheme(Learned(), d_model=64, n_heads=4, length=97, seed=n).vectors for n in (1, 1, 2)
    )
    assert first is not None
    assert second is not None
    assert other_seed is not None
    assert torch.equal(first, second)
    assert not torch.equal(first, other_seed)
    assert float(first.std()) == pytest.approx(0.02, rel=0.05)


def test_several_schemes_are_drawn_and_none_is_rejected() -> None:
    schemes = [initial_scheme(spec, **SIZES) for spec in (Sinusoidal(), Rotary(), Rotary(base=500.0), ALiBi())]
    titles = " ".join(axes.get_title() for axes in plot_position_schemes(schemes).axes)
    assert "rotary (base=500)" in titles
    with pytest.raises(NothingToDraw, match="nothing to draw for position: none"):
        initial_scheme(NoPosition(), **SIZES)
    with pytest.raises(ValueError, match="d_model=24 must be divisible by n_heads=5"):
        initial_scheme(ALiBi(), d_model=24, n_heads=5, length=7)


def test_curves_are_the_rates_by_step() -> None:
    figure = plot_schedules({"one": [0.5, 1.0, 0.75], "other": [0.1, 0.2, 0.3]})
    lines = figure.axes[0].lines
    assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3]] * 2
    assert [list(line.get_ydata()) for line in lines] == [[0.5, 1.0, 0.75], [0.1, 0.2, 0.3]]
    assert lines[0].get_label() == "one: highest 1 at step 2"


def test_decoder_masks_are_causal() -> None:
    (mask,) = record_sentence_masks([["The", "weather", "is", "great"]], kind="decoder")
    assert np.array_equal(mask.allowed, np.tri(4, dtype=bool))
    assert mask.queries == mask.keys == ("The", "weather", "is", "great")
    (whole,) = record_sentence_masks([["a", "b"]], kind="encoder")
    assert whole.allowed.all()


@pytest.mark.slow
@settings(max_examples=15)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_padding_is_masked(lengths: list[int]) -> None:
    sentences = [["w"] * length for length in lengths]
    longest = max(lengths)
    for kind, may in (("encoder", np.ones((longest, longest), dtype=bool)), ("decoder", np.tri(longest, dtype=bool))):
        for mask, length in zip(record_sentence_masks(sentences, kind=kind), lengths, strict=True):
            assert np.array_equal(mask.allowed, may & (np.arange(longest) < length))
            assert mask.keys == ("w",) * length + (PAD,) * (longest - length)


def test_a_pair_has_three_masks() -> None:
    first, second = record_pair_masks([list("abc"), list("de")], [list("vw"), list("xyz")])
    assert [mask.kind for mask in first] == ["encoder", "decoder", "cross"]
    assert [mask.allowed.shape for mask in first] == [(3, 3), (3, 3), (3, 3)]
    assert first[2].allowed.all()
    assert np.array_equal(second[2].allowed, [[True, True, False]] * 3)
    assert second[2].queries == ("x", "y", "z")
    assert second[2].keys == ("d", "e", PAD)
    assert np.array_equal(first[1].allowed, np.tri(3, dtype=bool) & np.array([True, True, False]))
    with pytest.raises(ValueError, match="2 sources and 1 targets; pass one target per source"):
        record_pair_masks([["a"], ["b"]], [["c"]])


def test_drawn_squares_equal_the_mask() -> None:
    row = record_sentence_masks([["It", "rains"], ["$x$", "now", "_"]], kind="decoder")
    figure = plot_masks([row])
    for axes, mask in zip(figure.axes, row, strict=True):
        assert np.array_equal(axes.images[0].get_array(), mask.allowed)
        assert [label.get_text() for label in axes.get_xticklabels()] == list(mask.keys)
        assert [text.get_text() for text in axes.texts] == ["0" if may else "−∞" for may in mask.allowed.flat]
    assert not any(label.get_parse_math() for label in figure.axes[1].get_yticklabels())


@pytest.mark.slow
@settings(max_examples=20)
@given(size=st.integers(2, 40), epsilon=st.sampled_from([0.0, 0.1, 0.3, 0.9]), data=st.data())
def test_drawn_targets_minimize_the_loss(size: int, epsilon: float, data: st.DataObject) -> None:
    target = data.draw(st.integers(0, size - 1))
    smoothing = compute_smoothing(vocab_size=size, target=target, epsilon=epsilon, points=9)
    one_hot = F.one_hot(torch.tensor(target), size).float()
    assert torch.allclose(smoothing.used, (1 - epsilon) * one_hot + epsilon / size, atol=1e-6)
    expected_described = torch.full((size,), epsilon / (size - 1))
    expected_described[target] = 1 - epsilon
    assert torch.allclose(smoothing.described, expected_described)
    assert float(smoothing.used.sum()) == pytest.approx(1, abs=1e-5)
    for p, loss, plain in zip(smoothing.confidence, smoothing.loss, smoothing.plain, strict=True):
        row = torch.full((size,), float((1 - p) / (size - 1)))
        row[target] = p
        expected = F.cross_entropy(row.log()[None], torch.tensor([target]), label_smoothing=epsilon)
        assert float(loss) == pytest.approx(float(expected), abs=1e-4)
        assert float(plain) == pytest.approx(-math.log(p), abs=1e-4)


@pytest.mark.slow
def test_bars_and_the_lowest_loss() -> None:
    smoothing = compute_smoothing(vocab_size=10, target=3, epsilon=0.1)
    figure = plot_smoothing(smoothing)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == pytest.approx([*smoothing.used.tolist(), *smoothing.described.tolist()])
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[0].startswith("used in training, ε/V for every token: 0.91, others 0.01")
    assert labels[1].startswith("often described, ε/(V - 1) for the others only: 0.9, others 0.01111")
    assert smoothing.confidence[smoothing.loss.argmin()] == pytest.approx(0.91)
    long_figure = plot_smoothing(compute_smoothing(vocab_size=500, target=499, epsilon=0.1, points=5))
    assert len(long_figure.axes[0].patches) == 2 * 64
    assert "436 to 499 of 500" in long_figure.axes[0].get_xlabel()


@pytest.mark.parametrize(
    ("size", "target", "epsilon", "words"),
    [
        (1, 0, 0.1, "vocabulary=1 must be at least 2"),
        (5, 5, 0.1, "target=5 must be a token of the vocabulary, 0 to 4"),
        (5, -1, 0.1, "target=-1 must be"),
        (5, 0, 1.0, "epsilon=1 must be at least 0 and below 1"),
        (5, 0, math.nan, "epsilon=nan must be at least 0"),
    ],
)
def test_invalid_smoothing_is_rejected(size: int, target: int, epsilon: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compute_smoothing(vocab_size=size, target=target, epsilon=epsilon)
