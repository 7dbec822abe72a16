from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from tercet.generation import StopMatcher

stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)
pieces = st.lists(st.text("abc", max_size=4), max_size=12)


def match(stop: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stop)
    out = [matcher.push(piece) for piece in pieces]
    return [*out, matcher.flush()], matcher.is_complete


@given(stop=st.text("ab", min_size=1, max_size=5), pieces=pieces)
@example(stop="aab", pieces=["c", "a", "a", "b", "c"])
def test_one_stop_string_is_found_where_str_find_finds_it(stop: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    out, has_stop = match([stop], pieces)
    position = text.find(stop)
    assert has_stop == (position >= 0)
    assert "".join(out) == (text[:position] if has_stop else text)


@given(stop=stops, pieces=pieces)
@example(stop=["abba", "bb"], pieces=["abba"])
def test_first_complete_stop_string_counts(stop: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    matches = [
        (text.find(stop_string) + len(stop_string), text.find(stop_string))
        for stop_string in stop
        if stop_string in text
    ]
    out, has_stop = match(stop, pieces)
    assert has_stop == bool(matches)
    assert "".join(out) == text[: min(matches)[1] if matches else None]


@given(stop=stops, pieces=pieces)
def test_only_possible_stop_strings_are_held_back(stop: list[str], pieces: list[str]) -> None:
    matcher, given_out, text = StopMatcher(stop), "", ""
    for piece in pieces:
        given_out += matcher.push(piece)
        text += piece
        if matcher.is_complete:
            return
        held_text = text[len(given_out) :]
        assert not held_text or any(stop_string.startswith(held_text) for stop_string in stop)


def test_match_that_starts_within_a_failed_match_is_found() -> None:
    assert match(["aab"], ["a", "a", "a", "b", "c"]) == (["", "", "a", "", "", ""], True)
    assert match(["xx", "xyz"], ["x", "y", "x", "y", "!"]) == (["", "", "xy", "", "xy!", ""], False)


def test_result_does_not_depend_on_where_pieces_end() -> None:
    for pieces in (["abcd"], ["abc", "d"], list("abcd")):
        out, has_stop = match(["abcd", "bc"], pieces)
        assert ("".join(out), has_stop) == ("a", True)  # "bc" is complete first
