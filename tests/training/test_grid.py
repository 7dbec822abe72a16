"""The values of `--vary` and `--seeds`: any value can be written between commas, and names are unique."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.training.sweep.grid import (
    MAX_NAME_LENGTH,
    VariedKey,
    check_seeds,
    folder_names,
    format_label,
    grid_points,
    read_seeds,
    short_keys,
    split_values,
)

# JSON is YAML, except for surrogates and a few characters that are line breaks in YAML.
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp", "Cn"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.lists(VALUES, min_size=1, max_size=5), st.sampled_from([",", ", ", " ,  "]))
def test_any_values_come_through(values: list[object], comma: str) -> None:
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    assert split_values(comma.join(texts)) == texts


@given(st.lists(VALUES, min_size=1, max_size=4, unique_by=format_label))
def test_values_are_read_as_yaml(values: list[object]) -> None:
    text = "a.b=" + ",".join(json.dumps(value, ensure_ascii=False) for value in values)
    try:
        varied_keys = VariedKey.read(text)
    except UserError as error:
        varied_keys, reason = None, str(error)
    if varied_keys is None:  # 1 and "1" are two values with one label, which could not be distinguished
        assert "is repeated" in reason
        return
    assert varied_keys.key == "a.b"
    assert list(varied_keys.values) == values


@given(st.text(max_size=30))
def test_any_text_is_split_or_rejected(text: str) -> None:
    """No comma outside of brackets and quotes is left, and only blanks are dropped."""
    try:
        pieces = split_values(text)
    except UserError as error:
        pieces, reason = None, str(error)
    if pieces is None:
        assert "unmatched" in reason or "is missing at the end" in reason
        return
    assert "".join(",".join(pieces).split()) == "".join(text.split())
    assert all(piece == piece.strip() for piece in pieces)


def test_a_quote_may_hold_a_quote() -> None:
    assert split_values(r'"a\",b", c') == [r'"a\",b"', "c"]
    assert split_values("'it''s,', d") == ["'it''s,'", "d"]


def test_yaml_of_several_forms() -> None:
    varied_keys = VariedKey.read(
        "model.stack.position= learned, {kind: rotary, base: 5000} ,'a,b',[1, 2],don't,1e-3,true,null"
    )
    assert varied_keys.values == (
        "learned",
        {"kind": "rotary", "base": 5000},
        "a,b",
        [1, 2],
        "don't",
        "1e-3",
        True,
        None,
    )
    assert varied_keys.labels == ("learned", "rotary+base=5000", "a,b", "1+2", "don't", "1e-3", "true", "null")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model.max_len", "expected key=value,value"),
        ("=1,2", "expected key=value,value"),
        ("a..b=1,2", "expected key=value,value"),
        ("a=", "no values; pass some, such as --vary a=first,second"),
        ("a=1,,2", "a value is empty"),
        ("a=1,2,", "a value is empty"),
        ("a=1,2,1", "the value 1 is repeated; remove one"),
        ("a={kind: rotary", "} is missing at the end"),
        ("a=1],2", "unmatched closing ]"),
        ("a='x,y", "' is missing at the end"),
    ],
)
def test_invalid_list_is_rejected(text: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        VariedKey.read(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_python_gives_values_as_they_are() -> None:
    varied_keys = VariedKey.of("model.stack.position", ["learned", {"kind": "rotary", "base": 5000}])
    assert varied_keys == VariedKey.read("model.stack.position=learned,{kind: rotary, base: 5000}")
    with pytest.raises(UserError, match="no values"):
        VariedKey.of("model.max_len", [])


def test_the_product_of_all_values() -> None:
    points = grid_points(
        [VariedKey.read("model.stack.placement=pre,post"), VariedKey.read("model.max_len=8,16,32")],
        fixed_changes={"model": {"stack": {"d_model": 24}}},
    )
    assert [tuple(point.settings.values()) for point in points] == [
        (placement, length) for placement in ("pre", "post") for length in ("8", "16", "32")
    ]
    assert points[4].changes == {"model": {"stack": {"d_model": 24, "placement": "post"}, "max_len": 16}}
    assert [point.settings for point in grid_points([])] == [{}]


@pytest.mark.parametrize(
    ("varied_keys", "fixed_changes", "words"),
    [
        (["a.b=1,2", "a.b=3"], {}, "--vary a.b is given twice; put all its values into one list"),
        (["a.b=1,2", "a.b.c=3"], {}, "--vary a.b and --vary a.b.c conflict"),
        (["a.b.c=3", "a.b=1,2"], {}, "--vary a.b.c and --vary a.b conflict"),
        (["a.b=1,2"], {"a": {"b": 3}}, "a.b is both in --set and in --vary"),
        (["a.b=1,2"], {"a": {"b": {"c": 3}}}, "a.b is both in --set and in --vary"),
        (["a.b=1,2"], {"a": 3}, "a.b is both in --set and in --vary"),
        (["training.seed=1,2"], {}, "pass --seeds 1,2,3 instead"),
    ],
)
def test_conflicting_keys_are_rejected(varied_keys: list[str], fixed_changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as error:
        grid_points([VariedKey.read(text) for text in varied_keys], fixed_changes=fixed_changes)
    assert words in str(error.value)


def test_common_prefixes_are_no_conflict() -> None:
    assert len(grid_points([VariedKey.read("a.b=1,2"), VariedKey.read("a.bc=1,2")], fixed_changes={"a": {"d": 1}})) == 4


def test_keys_are_as_short_as_they_can_be_told_apart() -> None:
    assert short_keys(["model.stack.placement", "model.max_len"]) == ["placement", "max_len"]
    assert short_keys(["model.encoder.position", "model.decoder.position"]) == ["encoder.position", "decoder.position"]
    assert short_keys(["model.a.x", "data.a.x", "z"]) == ["model.a.x", "data.a.x", "z"]
    assert short_keys(["other.seed"]) == ["other.seed"]
    assert short_keys(["recipe"]) == ["recipe"]


@given(st.lists(st.text(min_size=1, max_size=200), max_size=8, unique=True))
def test_folder_names_are_safe_and_unique(labels: list[str]) -> None:
    names = folder_names(labels)
    assert len({name.casefold() for name in names}) == len(labels)  # also on case-insensitive file systems
    assert all(len(name) <= MAX_NAME_LENGTH + 11 and not set(name) & set("/\\:*?\"<>| '\n") for name in names)
    assert all(name not in (".", "..") and not name.startswith(".") for name in names)


def test_names_that_differ_only_in_case_are_distinct() -> None:
    names = folder_names(["a=X", "a=x", "a=y"])
    assert names[2] == "a=y"
    assert len({name.casefold() for name in names}) == 3


def test_a_readable_name_stays() -> None:
    assert folder_names(["placement=pre,position=rotary+base=5000,seed=1"]) == [
        "placement=pre,position=rotary+base=5000,seed=1"
    ]
    long_name = "x" * 300
    (name,) = folder_names([long_name])
    assert name.startswith("x" * MAX_NAME_LENGTH + "-")


@pytest.mark.parametrize(("text", "seeds"), [("1,2,3", (1, 2, 3)), ("3", (1, 2, 3)), ("7, 5", (7, 5)), ("1", (1,))])
def test_seeds_are_a_list_or_a_count(text: str, seeds: tuple[int, ...]) -> None:
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "a", "1,,2", "1,1", "-1", "1.5", "1;2", "²"])
def test_other_seeds_are_rejected(text: str) -> None:
    with pytest.raises(UserError, match="--seeds"):
        read_seeds(text)


def test_seeds_of_python() -> None:
    assert check_seeds(2) == (1, 2)
    assert check_seeds([4, 9]) == (4, 9)
    for invalid in ([], 0, [1, 1], [-1]):
        with pytest.raises(UserError, match="--seeds"):
            check_seeds(invalid)
