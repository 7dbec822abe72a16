"""Settings from nested mappings and back: merging, validation of values, and differences."""

from typing import Annotated, Any, Literal

import pytest

from tercet.config import UserError, find_differences, merge, nest, parse, to_plain
from tercet.spec import Interval, check_range, is_within, spec


@spec
class Fixed:
    kind: Literal["fixed"] = "fixed"


@spec
class Turning:
    kind: Literal["turning"] = "turning"
    base: Annotated[float, Interval(gt=1, lt=100)] = 10.0


@spec
class Parts:
    one: bool = True
    two: bool = True


@spec
class Model:
    width: Annotated[int, Interval(ge=1, le=64)]
    share: Annotated[float, Interval(ge=0, le=1)] | None = None
    position: Fixed | Turning = Fixed()
    parts: bool | Parts = True
    sides: tuple[Turning, ...] = ()
    mode: Literal["none", "offline"] = "none"
    rates: tuple[Annotated[float, Interval(ge=0, lt=1)], ...] = ()


@pytest.mark.parametrize(
    ("base", "change", "expected"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"d": 3}}}, {"a": {"b": {"c": 1, "d": 3}}}),
        ({"p": {"kind": "x", "base": 1}}, {"p": {"kind": "y"}}, {"p": {"kind": "y"}}),  # old keys are dropped
        ({"p": {"kind": "x", "base": 1}}, {"p": {"kind": "x", "size": 2}}, {"p": {"kind": "x", "base": 1, "size": 2}}),
        ({"p": {"kind": "x", "base": 1}}, {"p": {"size": 2}}, {"p": {"kind": "x", "base": 1, "size": 2}}),
        ({"p": "x"}, {"p": {"base": 5}}, {"p": {"kind": "x", "base": 5}}),
        ({"p": "x"}, {"p": {"kind": "y", "base": 5}}, {"p": {"kind": "y", "base": 5}}),
        ({"p": {"kind": "x"}}, {"p": "y"}, {"p": "y"}),
        ({"p": {"kind": "x"}}, {"p": None}, {"p": None}),
        ({"items": [1, 2]}, {"items": [3]}, {"items": [3]}),
    ],
)
def test_merge_overrides_base_with_changes(base: Any, change: Any, expected: Any) -> None:
    before = repr(base)
    assert merge(base, change) == expected
    assert repr(base) == before


def test_parse_inverts_to_plain() -> None:
    model = Model(
        width=3,
        share=0.5,
        position=Turning(base=7.0),
        parts=Parts(two=False),
        sides=(Turning(), Turning(base=2.5)),
        rates=(0.0, 0.25),
    )
    assert parse(Model, to_plain(model)) == model
    assert parse(Model, {"width": 3, "position": "turning", "parts": False, "share": 1}) == Model(
        width=3, position=Turning(), parts=False, share=1.0
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": True}, "width: expected a number or text, got true"),
        ({"width": 2.5}, "width: "),
        ({"mode": True}, "mode: expected one of none, offline, got true"),
        ({"width": 0}, "width=0 must be at least 1 and at most 64"),
        ({"width": 65}, "width=65 must be"),
        ({"share": float("nan")}, "share: "),
        ({"share": 1.5}, "share=1.5 must be at least 0 and at most 1, or null"),
        ({"rates": [0.5, 1.0]}, "rates=1.0 must be at least 0 and below 1"),
        ({"sides": [{}, {"base": 1}]}, r"sides\[1\].base=1.0 must be above 1 and below 100"),
        ({"position": {"kind": "turning", "bass": 5}}, "position: unknown key 'bass'; did you mean 'base'"),
        ({"position": "turnin"}, "position: unknown kind 'turnin'; did you mean 'turning'"),
        ({"width": None}, "width: "),
    ],
)
def test_parse_rejects_value_with_its_path(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"^file: {words}"):
        parse(Model, {"width": 3, **change}, name="file")


def test_bounds_include_or_exclude_their_ends() -> None:
    closed, open_ = Interval(ge=1, le=3), Interval(gt=1, lt=3)
    assert [is_within(n, closed) for n in (0, 1, 2, 3, 4)] == [False, True, True, True, False]
    assert [is_within(n, open_) for n in (0, 1, 2, 3, 4)] == [False, False, True, False, False]
    assert not any(is_within(value, closed) for value in (True, float("nan"), "2", None))
    check_range("rates", (0.1, 0.2), tuple[Annotated[float, Interval(ge=0, lt=1)], ...])
    with pytest.raises(ValueError, match=r"rates=1 must be"):
        check_range("rates", (0.1, 1, 0.2), tuple[Annotated[float, Interval(ge=0, lt=1)], ...])


def test_differences_are_leaves_of_either_side() -> None:
    old = {"a": {"b": 1, "c": 2}, "d": [1], "gone": 0}
    new = {"a": {"b": 1, "c": 3, "more": None}, "d": [1, 2], "new": True}
    lines = ["a.c: 2 -> 3", "d: [1] -> [1, 2]", "gone: 0 -> None", "new: None -> True"]
    assert find_differences(old, new) == lines
    assert find_differences(old, old) == []


def test_nest_opens_a_path_of_keys() -> None:
    assert nest("a.b.c", 1) == {"a": {"b": {"c": 1}}}
    assert nest(".".join("abcdefghijklmnop"), 1)  # 16 keys, the maximum depth of settings
    for path in ("", "a..b", ".a", "a.", ".".join("abcdefghijklmnopq")):
        with pytest.raises(UserError, match="is not a recipe key"):
            nest(path, 1)
