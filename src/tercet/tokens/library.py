"""Calls of the `tokenizers` library with one-line errors, and removal of the prefix that it adds to texts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from tercet.config import UserError
from tercet.tokens.structure import library_errors

Ids = np.ndarray[Any, np.dtype[np.uint32]]


def encode_texts(library: tokenizers.Tokenizer, texts: Sequence[str]) -> list[Ids]:
    try:
        with library_errors():
            encodings = library.encode_batch_fast(list(texts), add_special_tokens=False)
    except ValueError as error:
        raise UserError(f"the tokenizer cannot split this text: {error}; use another tokenizer.json") from None
    return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]


def decode_ids(library: tokenizers.Tokenizer, ids: list[int], *, skip_special: bool) -> str:
    try:
        with library_errors():
            return library.decode(ids, skip_special_tokens=skip_special)
    except ValueError as error:
        raise UserError(f"the tokenizer cannot join these tokens: {error}; use another tokenizer.json") from None


def remove_prefix(structure: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parsed `tokenizer.json` without the steps that add a prefix, such as a space, to every text."""
    return {**structure, **{part: _remove_step_prefix(structure.get(part)) for part in ("normalizer", "pre_tokenizer")}}


def _remove_step_prefix(step: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a step without the prefix that it adds; None if the step does nothing else."""
    match step:
        case {"type": "Prepend"}:
            return None
        case {"type": "Metaspace"}:
            return {**step, "prepend_scheme": "never"}
        case {"type": "ByteLevel"}:
            return {**step, "add_prefix_space": False}
        case {"type": "Sequence"}:
            lists = {key: steps for key, steps in step.items() if key != "type"}
            return {
                **step,
                **{key: list(filter(None, map(_remove_step_prefix, steps))) for key, steps in lists.items()},
            }
        case _:
            return step


def prefixes_start_only(structure: Mapping[str, Any]) -> bool:
    """Return whether a parsed `tokenizer.json` adds its prefix only at the start of a text.

    Otherwise it also adds the prefix after special tokens in the text.
    """
    return _prefixes_start_only(structure.get("pre_tokenizer"))


def _prefixes_start_only(step: dict[str, Any] | None) -> bool:
    match step:
        case {"type": "Metaspace"}:
            return step.get("prepend_scheme") == "first"
        case {"type": "Sequence", "pretokenizers": steps}:
            return any(map(_prefixes_start_only, steps))
        case _:
            return False


def check_unicode(text: str) -> None:
    """Raise UserError if the text is not valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise unicode_error(error) from None


def unicode_error(error: UnicodeEncodeError) -> UserError:
    code = ord(error.object[error.start])
    return UserError(f"the text has half a surrogate pair (U+{code:04X}) at character {error.start}; remove it")
