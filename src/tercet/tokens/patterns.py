"""Check that a tokenizer's regular expressions have a run time linear in the text.

The engine of the `tokenizers` library backtracks if a match fails, so `(a+)+$` takes 2^n attempts for n letters and
`a*b` a quadratic number. A client's text, or a single long line, could block the program forever. A pattern is accepted
if each of its alternatives is one of these:

    '(?:[sdmt]|ll|ve|re)      no repetition
     ?[^\\s\\p{L}]+[\\r\\n]*      a repetition, followed by nothing that can fail
    \\s+(?!\\S)                 white space, if a later `\\s+` matches the run on which it backtracked
    those of `KNOWN_ALTERNATIVES`
"""

import re
from collections.abc import Sequence
from itertools import takewhile

from tercet.messages import shorten

MAX_PATTERN_CHARACTERS = 4096  # patterns that list the letters of all alphabets have hundreds of characters

CLASS = r"\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\\[])*\]"
ATOM = rf"(?:\\[pP]\{{\^?\w+\}}|\\x\{{[0-9A-Fa-f]+\}}|\\[^\dkgKXRG]|{CLASS}|[^\\\[\](){{}}|*+?^$])"
WORDS = r"\((?:\?i:|\?:)(?:[\w'’|]|\[\w+\])+\)"  # (?i:'s|'t|'re)
OPTIONAL = rf"(?:{WORDS}\?|{ATOM}[?*]\+?)"
FIXED_LENGTH = rf"(?:{WORDS}\??|{ATOM}(?:\?\+?|\{{\d\}})?)"
REPETITION = rf"{ATOM}(?:[*+]\+?|\{{\d,\d?\}})"
LINEAR = re.compile(rf"(?:\^|\\b)?{FIXED_LENGTH}{{0,8}}(?:\$|\\b|{REPETITION}{OPTIONAL}{{0,3}})?")

BEFORE_LAST = r"\s+(?!\S)"  # all white space of a run but its last character
BEFORE_SPACES = (BEFORE_LAST, r"\s*[\r\n]+", r"\s*[\r\n]", r"\s*\r?\n", r"\s++$", r"\s+$")
SPACES, SPACE = (r"\s+", r"\s++"), r"\s"

_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
KNOWN_ALTERNATIVES: dict[
    str, Sequence[str]
] = {  # the values are alternatives that must follow, and match the run on which the key backtracks
    r" ?[\p{L}\p{M}\p{N}]+(?:[-'’][\p{L}\p{M}\p{N}]+)*": (),  # of the kind words; it backtracks over a hyphen
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}": [_CAPITALS],  # GPT-4o
}


def check_pattern(pattern: str) -> None:
    """Raise ValueError if the run time of a pattern may be more than linear in the length of the text."""
    if not 1 <= len(pattern) <= MAX_PATTERN_CHARACTERS:
        raise ValueError(f"it has a pattern of {len(pattern)} characters; it must have 1 to {MAX_PATTERN_CHARACTERS}")
    alternatives = _split_alternatives(pattern)
    for number, alternative in enumerate(alternatives):
        following = alternatives[number:]
        if not (
            LINEAR.fullmatch(alternative)
            or (
                alternative in KNOWN_ALTERNATIVES
                and [*KNOWN_ALTERNATIVES[alternative]] == following[1 : 1 + len(KNOWN_ALTERNATIVES[alternative])]
            )
            or (alternative in BEFORE_SPACES and _take_spaces(following))
        ):
            raise ValueError(
                f"its pattern {shorten(pattern)!r} may take extremely long on some texts; Tercet supports "
                r"alternatives with at most one unlimited repetition (+ or *), near their end, such as ' ?\p{L}+|\s+'"
            )


def _take_spaces(alternatives: Sequence[str]) -> bool:
    """Return whether a run of white space is matched as a whole by the alternatives after the first."""
    leading = [*takewhile(lambda alternative: alternative in BEFORE_SPACES, alternatives)]
    closing = alternatives[len(leading) : len(leading) + 1]
    return bool(closing) and (closing[0] in SPACES or (closing[0] == SPACE and BEFORE_LAST in leading))


def _split_alternatives(pattern: str) -> list[str]:
    """Split a pattern at each `|` outside of groups and classes."""
    parts, depth = [""], 0
    for token in re.findall(rf"\\.|{CLASS}|.", pattern, flags=re.DOTALL):
        if token == "|" and not depth:
            parts.append("")
            continue
        depth += (token == "(") - (token == ")")
        parts[-1] += token
    return parts
