"""Checks of a tokenizer.json before the `tokenizers` library reads it: ids, lengths, steps and patterns.

The library does not check them itself. An id of 2^31 makes tables of that size, matching a pattern may never end, a
normalizer may write a page for each letter, and unexpected values cause a panic, which is not an `Exception`.
"""

from base64 import b64decode
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from tercet.config import UserError
from tercet.limits import (
    MAX_DIGITS,
    MAX_GROWTH,
    MAX_IDS,
    MAX_STEPS,
    MAX_TOKEN_CHARACTERS,
    MAX_WORDPIECE_CHARACTERS,
)
from tercet.messages import shorten
from tercet.tokens.patterns import check_pattern

BYTES_GROWTH = 4  # ByteLevel makes one character of each UTF-8 byte


def check_structure(structure: Any) -> None:
    """Raise ValueError if a parsed tokenizer.json exceeds a limit, or would cause a panic of the library.

    Missing and misspelled keys are not checked here, since the library checks them.
    """
    if not isinstance(structure, dict):
        raise ValueError("it is not an object")
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
        if len(steps) > MAX_STEPS:
            raise ValueError(f"its {name} has {len(steps)} steps; the maximum is {MAX_STEPS}")
        growth = 1 if name == "decoder" else growth
        for step in steps:
            growth *= _growth(step)
            _check_panics(name, step)
            if isinstance(table := step.get("precompiled_charsmap"), str):
                check_table(b64decode(table))
            pattern = step.get("pattern")
            if isinstance(pattern, dict) and isinstance(regex := cast("dict[str, Any]", pattern).get("Regex"), str):
                check_pattern(regex)
        if growth > MAX_GROWTH:
            raise ValueError(f"its {name} may replace one character by {growth}; the maximum is {MAX_GROWTH}")


def check_ids(ids: Sequence[Any]) -> None:
    """Raise ValueError if a whole number is not in 0..MAX_IDS - 1. Other values are left to the library."""
    for number in ids:
        if isinstance(number, int) and not 0 <= number < MAX_IDS:
            raise ValueError(f"the id {shorten(number, MAX_DIGITS)} is not in 0 to {MAX_IDS - 1}")


def check_names(names: Sequence[Any]) -> None:
    """Raise ValueError if there are more than `MAX_IDS` names, or one is longer than `MAX_TOKEN_CHARACTERS`."""
    if len(names) > MAX_IDS:
        raise ValueError(f"it has {len(names)} tokens; the maximum is {MAX_IDS}")
    for name in names:
        if isinstance(name, str) and len(name) > MAX_TOKEN_CHARACTERS:
            raise ValueError(
                f"the token {shorten(name, 20)!r} has {len(name)} characters; the maximum is {MAX_TOKEN_CHARACTERS}"
            )


def check_table(table: bytes) -> None:
    """Raise ValueError if sentencepiece's table of characters is damaged, or a replacement is too long.

    The table consists of the size of a trie, the trie (darts-clone: Yata et al. 2007, 32 bits per unit), and
    zero-terminated texts. The library follows the trie without checks, and panics beyond its end.
    """
    size = int.from_bytes(table[:4], "little")
    texts = table[4 + size :]
    longest = max(map(len, texts.split(b"\0")), default=0)
    if longest > MAX_GROWTH:
        raise ValueError(f"its table replaces a character by {longest} bytes; the maximum is {MAX_GROWTH}")
    if size % 4 or not 0 < size <= len(table) - 4 or not _is_utf8(texts):
        raise ValueError("its table of characters is truncated or invalid")
    units = np.frombuffer(table, "<u4", size // 4, offset=4).astype(np.int64)
    offsets = (units >> 10) << ((units & 1 << 9) >> 6)
    starts = np.isin(np.frombuffer(b"\0" + texts, np.uint8), range(0x80, 0xC0), invert=True)[1:]  # of characters
    visited, nodes = np.zeros(len(units), bool), offsets[:1]
    while len(nodes):
        if (nodes | 255).max() >= len(units):
            raise ValueError("its table of characters refers to places outside of it")
        nodes = np.unique(nodes[~visited[nodes]])
        visited[nodes] = True
        children = nodes[:, None] ^ np.arange(1, 256)
        children = children[units[children] & (1 << 31 | 255) == np.arange(1, 256)]
        nodes = children ^ offsets[children]
        leaves = nodes[units[children] & 1 << 8 > 0]
        if (leaves >= len(units)).any() or not _all_within(units[leaves] & (1 << 31) - 1, starts):
            raise ValueError("its table of characters refers to places outside of it")


def _all_within(places: np.ndarray, starts: np.ndarray) -> bool:
    """Return whether all places are starts of characters in the texts."""
    return bool((places < len(starts)).all() and starts[places].all())


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@contextmanager
def library_errors() -> Generator[None]:
    """Raise the library's errors as ValueError, including panics, which are not an `Exception`."""
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
        ids_by_name = cast("dict[str, Any]", vocabulary)
        check_names([*ids_by_name])
        check_ids([*ids_by_name.values()])
    elif isinstance(vocabulary, list):
        pieces = cast("list[Any]", vocabulary)
        check_names([piece[0] if isinstance(piece, list) and piece else None for piece in pieces])
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > MAX_WORDPIECE_CHARACTERS:
        raise ValueError(f"max_input_chars_per_word={longest} must be at most {MAX_WORDPIECE_CHARACTERS}")


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer, a pre-tokenizer or a decoder, with sequences flattened."""
    for step in _dicts([part]):
        nested_steps = [step[key] for key in ("normalizers", "pretokenizers", "decoders") if key in step]
        if not nested_steps:
            yield step
        for steps in nested_steps:
            for substep in _dicts(steps):
                yield from _steps(substep)


def _check_panics(name: str, step: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that would make the library panic, which would also print lines to stderr."""
    match name, step:
        case "normalizer", {"type": "Precompiled"} if not isinstance(step.get("precompiled_charsmap"), str):
            raise ValueError("its normalizer Precompiled has no table of characters")
        case "pre_tokenizer", {"type": "FixedLength", "length": 0}:
            raise ValueError("its pre_tokenizer splits into parts of length 0")
        case "decoder", {"type": "Strip", "stop": int(stop)} if stop > 0:  # it panics for shorter tokens
            raise ValueError(f"its decoder strips {stop} characters from the end of each token; the maximum is 0")
        case _:
            pass


def _growth(step: Mapping[str, Any]) -> int:
    """Return the maximum number of characters that a step makes of one."""
    match step:
        case {"type": "Replace", "pattern": pattern, "content": str(content)}:
            pattern_text = pattern.get("String") if isinstance(pattern, dict) else None
            if pattern_text == "":
                raise ValueError("it replaces an empty pattern")
            return max(1, len(content) // (len(pattern_text) if isinstance(pattern_text, str) else 1))
        case {"type": "Prepend", "prepend": str(content)} | {"type": "Append", "append": str(content)}:
            return max(1, len(content))
        case {"type": "ByteLevel"}:
            return BYTES_GROWTH
        case _:
            return 1


def _dicts(items: Any) -> Iterator[dict[str, Any]]:
    return (item for item in (cast("list[Any]", items) if isinstance(items, list) else ()) if isinstance(item, dict))
