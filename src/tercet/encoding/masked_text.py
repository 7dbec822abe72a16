"""Text with masks: their positions, and the text after filling one of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tercet.config import UserError
from tercet.encoding.batches import frame_rows
from tercet.tokens import Tokenizer

MASK_NAMES = ("[MASK]", "<mask>")  # accepted in addition to the tokenizer's mask token


def require_mask_id(tokenizer: Tokenizer) -> int:
    """Return the id of the mask token.

    Raises:
        UserError: If the tokenizer has no mask token.
    """
    if tokenizer.mask_id is None:
        raise UserError(
            f"the tokenizer ({tokenizer.kind}) has no mask token, so nothing can be masked; train with the kind "
            "wordpiece, or set mask: true in data.tokenizer"
        )
    return tokenizer.mask_id


@dataclass(frozen=True, kw_only=True)
class MaskedText:
    """Text with one or more masks.

    Attributes:
        tokenizer: Tokenizer that encoded the text.
        text: The text with its masks.
        row: Ids, from bos to eos.
        positions: Positions of the masks in `row`.
        prefixes: Text before each mask.
        truncated: True if the text exceeds the model's context and was cut.
    """

    tokenizer: Tokenizer
    text: str
    row: list[int]
    positions: tuple[int, ...]
    prefixes: tuple[str, ...]
    truncated: bool

    @classmethod
    def read(cls, tokenizer: Tokenizer, text: str, *, max_len: int) -> "MaskedText":
        """Encode a text and find its masks. Texts of more than `max_len` tokens are truncated.

        Raises:
            UserError: If the text has no mask, or one beyond `max_len`; if the tokenizer has no mask token, bos or eos.
        """
        mask_id = require_mask_id(tokenizer)
        ids = tokenizer.encode_masked(text).tolist()
        prefixes = tuple(text[: match.start()] for match in _pattern(tokenizer).finditer(text))
        if not prefixes:
            raise UserError(f"no mask in {_quote(text)}; write {MASK_NAMES[0]} where a word is missing")
        encoded_texts = frame_rows(tokenizer, [ids], max_len=max_len)
        row = encoded_texts.rows[0]
        positions = tuple(position for position, token in enumerate(row) if token == mask_id)
        if len(positions) < ids.count(mask_id):
            raise UserError(
                f"mask {len(positions) + 1} in {_quote(text)} is beyond the model's context of {max_len} tokens; "
                "shorten the text before it"
            )
        return cls(
            tokenizer=tokenizer,
            text=text,
            row=row,
            positions=positions,
            prefixes=prefixes,
            truncated=bool(encoded_texts.truncated),
        )

    def pieces(self, number: int, word: str) -> tuple[int, ...]:
        """Return the ids of `word` at the mask with index `number`.

        The ids depend on the text before the mask, because the word may follow a space or continue another word.

        Raises:
            UserError: If the vocabulary cannot encode the word.
        """
        context = self.row[1 : self.positions[number]]
        ids = self.tokenizer.encode_masked(self.prefixes[number] + word).tolist()
        pieces = ids[len(context) :] if ids[: len(context)] == context else self.tokenizer.encode(word)
        if not word.strip() or not pieces or self.tokenizer.unk_id in pieces or self.tokenizer.mask_id in pieces:
            raise UserError(f"the vocabulary has no {word!r}; use other words")
        return tuple(pieces)

    def fill_mask(self, number: int, pieces: Sequence[int]) -> str:
        """Return the text with `pieces` instead of the mask with index `number`; the other masks are kept."""
        position = self.positions[number]
        text = self.tokenizer.decode([*self.row[1:position], *pieces, *self.row[position + 1 : -1]], skip_special=False)
        # Encoding a mask drops the space before it, so decoding has to restore it for the remaining masks.
        has_space = [prefixes[-1:].isspace() for n, prefixes in enumerate(self.prefixes) if n != number]
        parts = _pattern(self.tokenizer).split(text)
        if len(parts) != len(has_space) + 1:
            return text
        for n, space in enumerate(has_space):
            parts[n] += (" " if space and parts[n] and not parts[n][-1].isspace() else "") + str(
                self.tokenizer.mask_token
            )
        return "".join(parts)


def count_masks(tokenizer: Tokenizer, text: str) -> int:
    """Return the number of masks in a text."""
    return len(_pattern(tokenizer).findall(text))


def _pattern(tokenizer: Tokenizer) -> re.Pattern[str]:
    names = {*MASK_NAMES, *([tokenizer.mask_token] if tokenizer.mask_token else [])}
    return re.compile("|".join(map(re.escape, sorted(names))))


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
