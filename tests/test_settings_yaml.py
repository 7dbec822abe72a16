"""Settings are written as PyYAML writes them, whether or not it was built with libyaml."""

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tercet import settings_yaml
from tercet.settings_yaml import write_yaml

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
