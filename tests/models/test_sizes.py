"""The key `model.size`: depth, heads and feed-forward width that follow from a width."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.models import PRESETS, build
from tercet.models.presets import model_spec
from tercet.models.sizes import layers_of, size_keys
from tercet.models.specs import DecoderOnlySpec, EncoderDecoderSpec

SIZES = [*range(32, 512, 32), *range(512, 2049, 64)]


@pytest.mark.parametrize(("size", "layers"), [(32, 2), (64, 3), (128, 4), (256, 6), (384, 8), (768, 12), (1024, 14)])
def test_depth_by_width(size: int, layers: int) -> None:
    assert layers_of(size) == layers


@pytest.mark.parametrize("preset", ["modern", "modern-encoder", "modern-translator"])
@pytest.mark.parametrize("size", [32, 96, 128])
def test_a_model_of_any_family_has_the_size(preset: str, size: int) -> None:
    spec = model_spec({"preset": preset, "size": size, "vocab_size": 20, "max_len": 8})
    stacks = [spec.encoder, spec.decoder] if isinstance(spec, EncoderDecoderSpec) else [spec.stack]
    for stack in stacks:
        assert (stack.d_model, stack.n_layers, stack.n_heads) == (size, layers_of(size), size // 32)
    assert sum(p.numel() for p in build(spec, seed=1).parameters()) > 12 * size**2  # it can be built


def test_other_keys_override_the_size() -> None:
    spec = model_spec({"preset": "modern", "size": 128, "stack": {"n_layers": 7}})
    assert isinstance(spec, DecoderOnlySpec)
    assert (spec.stack.d_model, spec.stack.n_layers) == (128, 7)


def test_other_settings_are_those_of_the_preset() -> None:
    sized = model_spec({"preset": "modern", "size": 384})
    assert isinstance(sized, DecoderOnlySpec)
    preset = PRESETS["modern"]
    assert isinstance(preset, DecoderOnlySpec)
    changed = {"n_layers": 6, "n_heads": 6}
    assert model_spec({"preset": "modern", "size": 384, "stack": changed}) == preset


@given(st.sampled_from(SIZES), st.sampled_from(SIZES))
def test_a_wider_model_is_as_deep_or_deeper(one: int, other: int) -> None:
    narrow, wide = sorted((one, other))
    assert layers_of(narrow) <= layers_of(wide)


@pytest.mark.parametrize("size", [0, -32, 33, 16, 544, "big", 64.0, True, 1 << 20])
def test_other_sizes_are_rejected(size: object) -> None:
    with pytest.raises(UserError, match="multiple of 32 below 512"):
        size_keys({"stack": {}}, size)
