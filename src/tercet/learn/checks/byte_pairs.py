"""Checks of exercise 1: byte pair encoding. They need no tensor, so they start at once."""

import random
from collections.abc import Mapping
from itertools import pairwise
from types import ModuleType
from typing import Any

from tercet.messages import show

CORPUS = {tuple("low"): 5, tuple("lower"): 2, tuple("newest"): 6, tuple("widest"): 3}
MERGES = [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w"), ("e", "w")]
NO_RECOUNT = [("e", "s"), ("s", "t"), ("w", "e"), ("l", "o"), ("o", "w")]  # by the counts in single characters
LAST_OF_EQUALS = [("s", "t"), ("e", "st"), ("o", "w"), ("l", "ow"), ("w", "est")]
FIRST_FOUND = [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w"), ("n", "e")]


def explain_value(result: Any, expected: Any, mistakes: Mapping[str, Any]) -> str | None:
    """Return None if a result equals the expected value, else one line about the mistake."""
    if result == expected:
        return None
    if result is None:
        return "the function returns None; add a `return`"
    for mistake, wrong in mistakes.items():
        if result == wrong:
            return mistake
    return f"the result is {show(result)}; it must be {show(expected)}"


def check_counts(solution: ModuleType) -> str | None:
    corpus = {("a", "b", "a", "b"): 3, ("b", "a"): 2}
    result = solution.count_pairs(corpus)
    return explain_value(
        dict(result) if isinstance(result, Mapping) else result,
        {("a", "b"): 6, ("b", "a"): 5},
        {
            "the pairs are not counted once per occurrence of the word; add the word's count instead of 1": {
                ("a", "b"): 2, ("b", "a"): 2,
            },
            "a pair that occurs twice in a word is counted once; count each position": {("a", "b"): 3, ("b", "a"): 5},
            "the order of a pair is ignored; (a, b) and (b, a) are different pairs": {("a", "b"): 11},
        },
    )  # fmt: skip


def check_merge(solution: ModuleType) -> str | None:
    return explain_value(
        _word(solution.merge_pair(("a", "b", "a", "b", "c"), ("a", "b"))),
        ("ab", "ab", "c"),
        {
            "only the first occurrence of the pair is merged; continue to the end of the word": ("ab", "a", "b", "c"),
            "both symbols of the pair are kept; skip the second one after a merge": ("ab", "b", "ab", "b", "c"),
            "the last symbol of the word is lost": ("ab", "ab"),
        },
    ) or explain_value(
        _word(solution.merge_pair(("b", "a"), ("a", "b"))),
        ("b", "a"),
        {"the order of a pair is ignored; (a, b) and (b, a) are different pairs": ("ba",)},
    )


def check_overlap(solution: ModuleType) -> str | None:
    return explain_value(
        _word(solution.merge_pair(("a", "a", "a"), ("a", "a"))),
        ("aa", "a"),
        {
            "occurrences overlap: a symbol is used twice; continue after the merged pair": ("aa", "aa"),
            "the pairs are merged from right to left; begin at the left": ("a", "aa"),
            "a merged symbol is merged again; one call merges pairs of the original symbols": ("aaa",),
        },
    )


def check_text_is_kept(solution: ModuleType) -> str | None:
    draw = random.Random(1)
    for _ in range(200):
        word = tuple(draw.choices("abc", k=draw.randint(1, 9)))
        result = _word(solution.merge_pair(word, ("a", "b")))
        if not isinstance(result, tuple) or "".join(map(str, result)) != "".join(word):
            return f"merge_pair({word}, ('a', 'b')) returns {show(result)}, which is another text"
        if ("a", "b") in set(pairwise(result)):
            return f"merge_pair({word}, ('a', 'b')) returns {show(result)}, in which the pair still occurs"
    return None


def check_merges(solution: ModuleType) -> str | None:
    ties = "of equally frequent pairs, the first one in alphabetical order must be merged"
    result = solution.learn_merges(dict(CORPUS), len(MERGES))
    result = [tuple(pair) for pair in result] if isinstance(result, list | tuple) else result
    return explain_value(
        result,
        MERGES,
        {
            "the pairs are not counted again after each merge": NO_RECOUNT,
            f"{ties}, not the last": LAST_OF_EQUALS,
            f"{ties}, not the first that was found": FIRST_FOUND,
        },
    )


def check_end_of_merges(solution: ModuleType) -> str | None:
    corpus = {("a", "b"): 2}
    result = solution.learn_merges(dict(corpus), 5)
    if corpus != {("a", "b"): 2}:
        return "learn_merges changes the corpus of its caller; work on a copy"
    return explain_value(
        [tuple(pair) for pair in result] if isinstance(result, list | tuple) else result, [("a", "b")], {}
    )


def check_encode(solution: ModuleType) -> str | None:
    return explain_value(
        _word(solution.encode("abc", [("b", "c"), ("a", "b")])),
        ("a", "bc"),
        {
            "the merges are not applied in the order in which they were learned": ("ab", "c"),
            "no merge is applied; the symbols are still characters": ("a", "b", "c"),
        },
    ) or explain_value(
        _word(solution.encode("lowest", MERGES)),
        ("low", "est"),
        {
            "a merge is applied to characters only; later merges must see the symbols of earlier ones": (
                "lo",
                "w",
                "es",
                "t",
            )
        },
    )


def check_new_characters(solution: ModuleType) -> str | None:
    return explain_value(_word(solution.encode("xyz", MERGES)), tuple("xyz"), {})


def _word(result: Any) -> Any:
    """Accept a list as a word too."""
    return tuple(result) if isinstance(result, list) else result


CHECKS = {
    "count_pairs counts the pairs of all occurrences of a word": check_counts,
    "merge_pair merges each occurrence": check_merge,
    "merge_pair merges from left to right without overlap": check_overlap,
    "merge_pair keeps the text and leaves no such pair": check_text_is_kept,
    "learn_merges learns the merges of a small corpus": check_merges,
    "learn_merges stops if no pairs are left": check_end_of_merges,
    "encode applies the merges in order": check_encode,
    "encode leaves unknown characters as they are": check_new_characters,
}
