from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from tercet.generation import StopMatcher

stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)
pieces = st.lists(st.text("abc", max_size=4), max_size=12)


def matched(stop: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stop)
    out = [matcher.push(piece) for piece in pieces]
    return [*out, matcher.flush()], matcher.is_complete


@given(stop=st.text("ab", min_size=1, max_size=5), pieces=pieces)
@example(stop="aab", pieces=["c", "a", "a", "b", "c"])
def test_one_stop_string_is_found_where_str_find_finds_it(stop: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    out, found = matched([stop], pieces)
    at = text.find(stop)
    assert found == (at >= 0)
    assert "".join(out) == (text[:at] if found else text)


@given(stop=stops, pieces=pieces)
@example(stop=["abba", "bb"], pieces=["abba"])
def test_first_complete_stop_string_counts(stop: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    ends = [(text.find(one) + len(one), text.find(one)) for one in stop if one in text]
    out, found = matched(stop, pieces)
    assert found == bool(ends)
    assert "".join(out) == text[: min(ends)[1] if ends else None]


@given(stop=stops, pieces=pieces)
def test_only_possible_stop_strings_are_held_back(stop: list[str], pieces: list[str]) -> None:
    matcher, given_out, text = StopMatcher(stop), "", ""
    for piece in pieces:
        given_out += matcher.push(piece)
        text += piece
        if matcher.is_complete:
            return
        held = text[len(given_out) :]
        assert not held or any(one.startswith(held) for one in stop)


def test_match_that_starts_within_a_failed_match_is_found() -> None:
    assert matched(["aab"], ["a", "a", "a", "b", "c"]) == (["", "", "a", "", "", ""], True)
    assert matched(["xx", "xyz"], ["x", "y", "x", "y", "!"]) == (["", "", "xy", "", "xy!", ""], False)


def test_result_does_not_depend_on_where_pieces_end() -> None:
    for pieces in (["abcd"], ["abc", "d"], list("abcd")):
        out, found = matched(["abcd", "bc"], pieces)
        assert ("".join(out), found) == ("a", True)  # "bc" is complete first
