"""Scaled rotations have the frequencies of `transformers`."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tercet.nn.positions import RotaryPositions
from tercet.nn.specs import DynamicScaling, LinearScaling, Llama3Scaling, Scaling, YaRNScaling

CONTEXT = 64
SCALINGS: list[tuple[Scaling, dict[str, float]]] = [
    (LinearScaling(factor=3.0), {}),
    (Llama3Scaling(original_max_len=CONTEXT), {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    (
        Llama3Scaling(factor=5.0, low_freq_factor=0.5, high_freq_factor=7.0, original_max_len=CONTEXT),
        {"low_freq_factor": 0.5, "high_freq_factor": 7.0},
    ),
    (YaRNScaling(factor=4.0, original_max_len=CONTEXT), {}),
    (
        YaRNScaling(
            factor=4.0, original_max_len=CONTEXT, beta_fast=6.0, beta_slow=0.3, truncate=False, attention_factor=2.0,
        ),
        {"beta_fast": 6.0, "beta_slow": 0.3, "truncate": False, "attention_factor": 2.0},
    ),
    (YaRNScaling(factor=4.0, original_max_len=3), {"original_max_position_embeddings": 3}),
]  # fmt: skip


def build(scaling: Scaling | None, *, width: int = 16, base: float = 100.0) -> RotaryPositions:
    return RotaryPositions(width, base, 1.0, scaling)


def reference(scaling: Scaling, extra: dict[str, float], base: float, length: int | None = None):
    rope = {"rope_type": scaling.kind, "rope_theta": base, "factor": scaling.factor} | extra
    config = LlamaConfig(hidden_size=16, num_attention_heads=1, max_position_embeddings=CONTEXT, rope_parameters=rope)
    return ROPE_INIT_FUNCTIONS[scaling.kind](config, torch.device("cpu"), seq_len=length)


@pytest.mark.parametrize("base", [100.0, 10_000.0])
@pytest.mark.parametrize(("scaling", "extra"), SCALINGS, ids=lambda x: getattr(x, "kind", ""))
def test_frequencies_and_gain_match_transformers(scaling: Scaling, extra: dict[str, float], base: float) -> None:
    expected, gain = reference(scaling, extra, base)
    positions = torch.tensor([[0, 1, 70]])
    cos, sin = build(scaling, base=base).rotation(positions)
    angles = positions[..., None] * expected
    torch.testing.assert_close(cos, angles.cos() * gain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sin, angles.sin() * gain, atol=1e-5, rtol=1e-5)
    plain = build(None, base=base).rotation(positions)
    assert not torch.allclose(plain[1], sin, atol=1e-3)


@pytest.mark.parametrize("length", [5, CONTEXT, CONTEXT + 1, 3 * CONTEXT])
def test_dynamic_base_depends_on_the_last_position_of_the_row(length: int) -> None:
    scaling = DynamicScaling(factor=2.0, original_max_len=CONTEXT)
    expected, _ = reference(scaling, {}, 100.0, length)
    rows = torch.stack((torch.arange(length), torch.arange(length).clamp(max=3)))
    frequencies = build(scaling).frequencies(rows)
    assert frequencies.shape == (2, 1, 8)
    torch.testing.assert_close(frequencies[0, 0], expected)
    torch.testing.assert_close(frequencies[1, 0], build(None).frequencies(rows))
    assert torch.allclose(frequencies[0], frequencies[1]) == (length <= CONTEXT)


@pytest.mark.parametrize(
    ("scaling", "base", "message"),
    [
        (DynamicScaling(factor=2.0, original_max_len=9), 100.0, "d_head=2 x share=1.0 must be at least 4"),
        (YaRNScaling(factor=2.0, original_max_len=9), 1.0, "base=1.0 must be above 1"),
    ],
)
def test_sizes_without_a_scaling_are_rejected(scaling: Scaling, base: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(scaling, width=2, base=base)


def test_limits_in_the_wrong_order_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"low_freq_factor=4\.0 must be below high_freq_factor=4\.0"):
        Llama3Scaling(low_freq_factor=4.0)
    with pytest.raises(ValueError, match=r"beta_slow=40\.0 must be below beta_fast=32\.0"):
        YaRNScaling(factor=2.0, original_max_len=9, beta_slow=40.0)
