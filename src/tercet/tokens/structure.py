"""What a tokenizer.json may ask for, checked before the library reads it: ids, lengths, steps and patterns.

The library believes the file. An id of 2^31 makes tables of that size, a pattern may take for ever, a normalizer may
write a page for each letter, and what it does not expect ends in a panic, which is no `Exception`.
"""

from base64 import b64decode
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from tercet.config import UserError
from tercet.limits import (
    MOST_DIGITS,
    MOST_GROWTH,
    MOST_IDS,
    MOST_STEPS,
    MOST_TOKEN_CHARACTERS,
    MOST_WORDPIECE_CHARACTERS,
)
from tercet.messages import shorten
from tercet.tokens.patterns import check_pattern

BYTES_GROWTH = 4  # a character becomes as many as it has bytes


def check_structure(structure: Any) -> None:
    """Raises ValueError for what goes too far; what is missing or misspelt, the library says."""
    if not isinstance(structure, dict):
        raise ValueError("it is no object of keys")
    parts = cast("dict[str, Any]", structure)
    model = parts.get("model")
    if isinstance(model, dict):
        _check_model(cast("dict[str, Any]", model))
    for token in _dicts(parts.get("added_tokens")):
        check_ids([token.get("id")])
        check_names([token.get("content")])
    growth = 1
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        steps = list(_steps(parts.get(name)))
        if len(steps) > MOST_STEPS:
            raise ValueError(f"its {name} has {len(steps)} steps, and may have {MOST_STEPS}")
        growth = 1 if name == "decoder" else growth
        for step in steps:
            growth *= _growth(step)
            if isinstance(table := step.get("precompiled_charsmap"), str):
                check_table(b64decode(table))
            pattern = step.get("pattern")
            if isinstance(pattern, dict) and isinstance(regex := cast("dict[str, Any]", pattern).get("Regex"), str):
                check_pattern(regex)
        if growth > MOST_GROWTH:
            raise ValueError(f"its {name} may make {growth} characters of one, and {MOST_GROWTH} is the most")


def check_ids(ids: Sequence[Any]) -> None:
    """Raises ValueError for the first whole number that no vocabulary has as an id."""
    for number in ids:
        if isinstance(number, int) and not 0 <= number < MOST_IDS:
            raise ValueError(f"the id {shorten(number, MOST_DIGITS)} is not in 0 to {MOST_IDS - 1}")


def check_names(names: Sequence[Any]) -> None:
    """Raises ValueError where there are more tokens than ids, or one is a page of text."""
    if len(names) > MOST_IDS:
        raise ValueError(f"it has {len(names)} tokens, and {MOST_IDS} is the most")
    for name in names:
        if isinstance(name, str) and len(name) > MOST_TOKEN_CHARACTERS:
            raise ValueError(
                f"the token {shorten(name, 20)!r} has {len(name)} characters, and {MOST_TOKEN_CHARACTERS} is the most"
            )


def check_table(table: bytes) -> None:
    """Raises ValueError for a table of characters (sentencepiece's) that makes a page of one."""
    start = 4 + int.from_bytes(table[:4], "little")  # behind the trie
    longest = max(map(len, table[start:].split(b"\0")), default=0)
    if longest > MOST_GROWTH:
        raise ValueError(f"its table makes {longest} bytes of a character, and {MOST_GROWTH} is the most")


@contextmanager
def library_errors() -> Generator[None]:
    """The library's errors as ValueError: it has no class of its own, and a panic is no `Exception`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise ValueError(shorten(error)) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # its module cannot be imported
            raise
        raise ValueError(f"the tokenizers library cannot work with it: {shorten(error)}") from None


def _check_model(model: Mapping[str, Any]) -> None:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        by_name = cast("dict[str, Any]", vocabulary)
        check_names([*by_name])
        check_ids([*by_name.values()])
    elif isinstance(vocabulary, list):
        pieces = cast("list[Any]", vocabulary)
        check_names([piece[0] if isinstance(piece, list) and piece else None for piece in pieces])
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > MOST_WORDPIECE_CHARACTERS:
        raise ValueError(f"max_input_chars_per_word={longest} must be at most {MOST_WORDPIECE_CHARACTERS}")


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, a pre-tokenizer or a decoder, those of a sequence one by one."""
    for step in _dicts([part]):
        below = [step[key] for key in ("normalizers", "pretokenizers", "decoders") if key in step]
        if not below:
            yield step
        for steps in below:
            for nested in _dicts(steps):
                yield from _steps(nested)


def _growth(step: Mapping[str, Any]) -> int:
    """How many characters a step may make of one."""
    match step:
        case {"type": "Replace", "pattern": pattern, "content": str(content)}:
            replaced = pattern.get("String") if isinstance(pattern, dict) else None
            if replaced == "":
                raise ValueError("it replaces nothing by something")
            return max(1, len(content) // (len(replaced) if isinstance(replaced, str) else 1))
        case {"type": "Prepend", "prepend": str(content)} | {"type": "Append", "append": str(content)}:
            return max(1, len(content))
        case {"type": "ByteLevel"}:
            return BYTES_GROWTH
        case _:
            return 1


def _dicts(items: Any) -> Iterator[dict[str, Any]]:
    return (item for item in (cast("list[Any]", items) if isinstance(items, list) else ()) if isinstance(item, dict))
