"""Settings are written as PyYAML writes them, whether or not it was built with libyaml."""

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tercet import settings_yaml
from tercet.config import UserError
from tercet.settings_yaml import parse_yaml, write_yaml

KEYS = st.from_regex("[a-z_]{1,9}", fullmatch=True)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30)
VALUES = st.recursive(
    LEAVES, lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=3), max_leaves=6
)


@example({"a": "café " * 30, "b": "a" * 130, "c" * 130: 1, "d": "x\n y\n\n", "e": [], "f": {}, "g": [[1], {"h": 1e5}]})
@example({"a": "\U0001f600 smile"})
@example({"a": "\ud800"})
@example({"a": "\x85\u2028\ufeff\x7f"})
@example({"a": r"\d+"})
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, VALUES, max_size=3))
def test_the_text_is_that_of_pyyaml(data: dict[str, Any]) -> None:
    assert write_yaml(data) == yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def test_libyaml_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"a": {"b": [1, "two"]}}
    expected = write_yaml(data)
    monkeypatch.setattr(settings_yaml, "FAST_DUMPER", None)
    assert write_yaml(data) == expected == "a:\n  b:\n  - 1\n  - two\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: 1\nposition: {kind:rotary}",
            "line 2: not valid YAML: 'kind:rotary' has no space after its colon; write kind: rotary",
        ),
        ("{base:5, kind: x}", "'base:5' has no space after its colon; write base: 5"),
        ("training:\n  max_steps:100\n  seed: 1", "; line 2 has no space after its colon: write max_steps: 100"),
        ("max_steps:100", "expected `key: value` lines at the top level; line 1 has no space after its colon"),
    ],
)
def test_missing_space_after_a_colon_is_reported(text: str, message: str) -> None:
    with pytest.raises(UserError) as error_info:
        parse_yaml(text, name="mine")
    assert message in str(error_info.value)


@pytest.mark.parametrize(
    "text", ["{a: b:c}", "{'a:b': null}", "{a:b: 1}", "{a: 'x:y'}", "{http://a, c: 1}", "a: {my.part:Part: 1}"]
)
def test_other_colons_are_text(text: str) -> None:
    assert parse_yaml(text, name="mine") == yaml.safe_load(text)
