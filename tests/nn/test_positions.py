"""Position schemes match their papers, and each acts in one place only."""

import itertools
import math

import pytest
import torch

from tercet.nn import ALiBi, Learned, NoPosition, RelativeBias, Rotary, Sinusoidal
from tercet.nn.init import initialize
from tercet.nn.positions import RelativeBiasPositions, alibi_slopes, rotate
from tercet.nn.specs import Normal

SIZES = {"d_model": 24, "d_head": 6, "n_heads": 4, "n_layers": 3, "max_len": 11, "causal": True}
PLACES = {
    Learned(): "embed", Sinusoidal(): "embed", Rotary(): "rotation", ALiBi(): "bias", RelativeBias(): "bias",
    NoPosition(): None,
}  # fmt: skip
LEARNED_KINDS = ("learned", "relative_bias")


@pytest.mark.parametrize("spec", PLACES, ids=lambda spec: spec.kind)
def test_each_scheme_acts_in_at_most_one_place(spec) -> None:
    scheme, positions = spec.build(**SIZES), torch.arange(7)[None]
    acts = {
        "embed": scheme.embed(positions),
        "rotation": scheme.rotation(positions),
        "bias": scheme.bias(positions, positions),
    }
    assert [place for place, action in acts.items() if action is not None] == [p for p in (PLACES[spec],) if p]


@pytest.mark.parametrize("base", [10_000.0, 37.0])
def test_sinusoidal_table_matches_the_paper(base: float) -> None:
    table = Sinusoidal(base=base).build(**SIZES).embed(torch.arange(11)[None])
    assert table is not None
    assert table.shape == (1, 11, 24)
    for position in range(11):
        for i in range(12):
            angle = position / base ** (2 * i / 24)
            assert table[0, position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[0, position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_rotary_scores_depend_on_the_distance_only(share: float) -> None:
    scheme = Rotary(share=share).build(d_model=24, d_head=12, n_heads=2, max_len=11)
    q, k = torch.randn(1, 2, 1, 12), torch.randn(1, 2, 1, 12)

    def score(query_position: int, key_position: int) -> torch.Tensor:
        query_rotation, key_rotation = (scheme.rotation(torch.tensor([[p]])) for p in (query_position, key_position))
        assert query_rotation is not None
        assert key_rotation is not None
        return (rotate(q, query_rotation) * rotate(k, key_rotation)).sum(-1)

    for shift in (1, 17, 500):
        torch.testing.assert_close(score(5 + shift, 2 + shift), score(5, 2), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(score(5, 2), score(5, 3), atol=1e-3)
    assert not torch.allclose(score(5, 2), score(2, 5), atol=1e-3)


def test_rotary_rotates_pair_i_and_i_plus_half_by_its_own_angle() -> None:
    scheme = Rotary(base=100.0).build(**SIZES)
    x = torch.randn(2, 4, 7, 6)
    rotation = scheme.rotation(torch.arange(7)[None])
    assert rotation is not None
    result = rotate(x, rotation)
    for i in range(3):
        angles = torch.arange(7) * 100.0 ** (-2 * i / 6)
        pairs = torch.complex(x[..., i], x[..., i + 3]) * torch.polar(torch.ones(7), angles)
        torch.testing.assert_close(result[..., i], pairs.real, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(result[..., i + 3], pairs.imag, atol=1e-5, rtol=1e-5)


def test_partial_rotation_keeps_the_rest_of_the_head() -> None:
    scheme = Rotary(share=0.5).build(d_model=24, d_head=12, n_heads=2, max_len=11)
    x = torch.randn(2, 2, 7, 12)
    rotation = scheme.rotation(torch.arange(7)[None])
    assert rotation is not None
    result = rotate(x, rotation)
    assert torch.equal(result[..., 6:], x[..., 6:])
    torch.testing.assert_close(result.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(result[:, :, 0], x[:, :, 0])  # position 0 is not rotated
    assert not torch.allclose(result[:, :, 1:, :6], x[:, :, 1:, :6], atol=1e-3)


@pytest.mark.parametrize("spec", [spec for spec in PLACES if PLACES[spec] and spec.kind not in LEARNED_KINDS], ids=str)
def test_half_precision_keeps_positions_above_256_exact(spec) -> None:
    def acts(scheme) -> list[torch.Tensor]:
        far = torch.tensor([[4001, 4003]])
        rotation = scheme.rotation(far)
        return [x for x in (scheme.embed(far), *(rotation or ()), scheme.bias(far, far + 1)) if x is not None]

    scheme = spec.build(**SIZES)
    for before, after in zip(acts(scheme), acts(scheme.to(torch.bfloat16)), strict=True):
        torch.testing.assert_close(after, before, atol=0, rtol=0)


@pytest.mark.parametrize("spec", PLACES, ids=lambda spec: spec.kind)
def test_scheme_has_no_buffers_to_lose_on_the_meta_device(spec) -> None:
    """A model that is created on `meta` and loaded from a file must not have tables that the file lacks."""
    assert list(spec.build(**SIZES).buffers()) == []


def test_alibi_slopes_match_the_paper() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    four = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    assert alibi_slopes(6).tolist() == [*four, 2.0**-1, 2.0**-3]  # every other slope of eight heads
    assert alibi_slopes(1).tolist() == [2.0**-8]


def test_alibi_bias_is_slope_times_distance() -> None:
    queries, keys = torch.tensor([[3, 5], [0, 1]]), torch.tensor([[0, 1, 5], [2, 3, 4]])
    bias = ALiBi().build(**SIZES).bias(queries, keys)
    assert bias is not None
    slopes = alibi_slopes(4).tolist()
    for b in range(2):
        for h in range(4):
            for t in range(2):
                for s in range(3):
                    distance = abs(int(queries[b, t]) - int(keys[b, s]))
                    assert bias[b, h, t, s].item() == pytest.approx(-slopes[h] * distance)


def relative_bias(n_buckets: int = 32, max_distance: int = 128, **changes) -> RelativeBiasPositions:
    options = {name: changes.pop(name, False) for name in ("per_layer", "alibi_init")}
    return RelativeBias(n_buckets=n_buckets, max_distance=max_distance, **options).build(**SIZES | changes)


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 20), (6, 11), (4, 3)])
def test_near_distances_have_separate_buckets_and_far_ones_logarithmic_buckets(
    n_buckets: int, max_distance: int
) -> None:
    scheme, near = relative_bias(n_buckets, max_distance), n_buckets // 2
    for distance in range(3 * max_distance):
        share = math.log(max(distance, near) / near) / math.log(max_distance / near)
        expected = distance if distance < near else min(near + int(share * near + 1e-6), n_buckets - 1)
        assert int(scheme.buckets(torch.tensor([[[distance]]]))) == expected
    bias = relative_bias(n_buckets=2 * n_buckets, max_distance=max_distance, causal=False)
    positive, negative = (bias.buckets(sign * torch.arange(1, 400)[None, None]) for sign in (1, -1))
    assert torch.equal(positive, scheme.buckets(torch.arange(1, 400)[None, None]))
    assert torch.equal(negative, positive + n_buckets)


@pytest.mark.parametrize("per_layer", [False, True])
def test_relative_bias_depends_on_bucket_head_and_layer(per_layer: bool) -> None:
    scheme = relative_bias(8, 9, causal=False, per_layer=per_layer)
    queries, keys = torch.tensor([[3, 5], [0, 1]]), torch.tensor([[0, 1, 5], [2, 3, 14]])
    biases = list(scheme.biases(queries, keys, 3))
    assert len(biases) == 3
    assert len(scheme.tables) == (3 if per_layer else 1)
    buckets = scheme.buckets(queries[:, :, None] - keys[:, None, :])
    for layer, bias in enumerate(biases):
        table = scheme.tables[layer if per_layer else 0].weight
        for b, h, t, s in itertools.product(range(2), range(4), range(2), range(3)):
            assert bias[b, h, t, s] == table[buckets[b, t, s], h]
    assert torch.equal(scheme.bias(queries, keys), biases[0])


@pytest.mark.parametrize("causal", [False, True])
def test_initialization_with_alibi_adds_its_bias_at_the_mean_distance_of_each_bucket(causal: bool) -> None:
    plain, scheme = (relative_bias(32, 40, causal=causal, per_layer=True, alibi_init=on) for on in (False, True))
    for positions in (plain, scheme):
        initialize(positions, Normal(), seed=1)
    position = torch.arange(41)[None]
    distance = position[:, :, None] - position[:, None, :]  # -40 to 40
    if causal:
        distance = distance.clamp(min=0)
    buckets, alibi = scheme.buckets(distance), ALiBi().build(**SIZES).bias(position, position)
    assert alibi is not None
    for before, after in zip(plain.tables, scheme.tables, strict=True):
        added = after.weight - before.weight
        for bucket, n in itertools.product(buckets.unique().tolist(), range(4)):
            distances = distance[buckets == bucket].unique().abs().float()
            assert added[bucket, n].item() == pytest.approx(
                -alibi_slopes(4)[n].item() * distances.mean().item(), abs=1e-5
            )
        near = scheme.n // 2
        assert torch.allclose(
            scheme.bias(position, position)[0, :, near - 1, :near], alibi[0, :, near - 1, :near], atol=0.2
        )
        assert added.isfinite().all()
        assert before.weight.abs().max() < 0.2


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(7, 20), (32, 16), (32, 3)])
def test_invalid_bucket_settings_are_rejected(n_buckets: int, max_distance: int) -> None:
    with pytest.raises(ValueError, match=f"n_buckets={n_buckets} must be even and max_distance={max_distance} must"):
        relative_bias(n_buckets, max_distance)


def test_learned_positions_end_at_max_len() -> None:
    scheme = Learned().build(**SIZES)
    assert scheme.embed(torch.tensor([[10]])) is not None
    with pytest.raises(IndexError):
        scheme.embed(torch.tensor([[11]]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Rotary(), "d_head=5 x share=1.0 must be even"),
        (Sinusoidal(), "d_model=25 must be even"),
    ],
)
def test_odd_widths_are_rejected(spec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec.build(d_model=25, d_head=5, n_heads=5, max_len=11)
