"""Unigram vocabularies of sentencepiece (.spm), with the ids that a translation model assigns to the pieces.

Kudo and Richardson (2018). The file is a protobuf message, of which three parts are used: the pieces with their scores,
the model type, and the table that normalizes characters (nmt_nfkc), which is copied unchanged.

Marian numbers the pieces of two such files, of source and target, in a single list. Names that one side never produces
from a text (pieces of the other side, and `</s>`) are prefixed with `HIDDEN_PREFIX`, a code point that no text
contains: they keep their id and text but are never matched. As in `transformers`, a run of characters that this side's
pieces do not contain is looked up among all names.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from tercet.config import UserError
from tercet.limits import MAX_PIECES_BYTES
from tercet.messages import shorten
from tercet.reading.files import read_regular_file
from tercet.tokens.structure import check_names, check_table

HIDDEN_PREFIX = "\ufdd0"  # a noncharacter, reserved for internal use
SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5  # types of pieces; 4 is user-defined, 6 a byte
UNIGRAM = 1
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5  # wire types of protobuf


@dataclass(kw_only=True)
class SentencePieceModel:
    """The parts of an .spm file that are used.

    Attributes:
        scores: Score of each normal piece, a log-probability.
        table: Compiled table that normalizes characters; empty if there is none.
        adds_space: If True, a space is added before every text.
        joins_spaces: If True, runs of spaces become one, and outer spaces are removed.
    """

    scores: dict[str, float] = field(default_factory=dict[str, float])
    table: bytes = b""
    adds_space: bool = True
    joins_spaces: bool = True


def read_pieces(path: Path) -> SentencePieceModel:
    """Read the pieces of an .spm file.

    Raises:
        UserError: If the file is missing, damaged, or not a supported Unigram model.
    """
    data = read_regular_file(path, MAX_PIECES_BYTES)
    try:
        return _parse(data)
    except (ValueError, struct.error, IndexError) as error:
        reason = shorten(error)
        raise UserError(f"{path} is not a supported sentencepiece model ({reason}); copy it again") from None


def build_unigram(
    pieces: SentencePieceModel, ids: Mapping[str, int], *, unknown: str, special: frozenset[str]
) -> tokenizers.Tokenizer:
    """Build the tokenizer of one side, source or target.

    Args:
        pieces: Pieces of that side.
        ids: Names of both sides with their ids, from 0 to n - 1.
        unknown: Name of the unknown token.
        special: Names of the special tokens, which stand for no text.

    Raises:
        ValueError: If the ids are not 0 to n - 1, the unknown or a special token is missing, or there are too many or
            too long names.
        Exception: If the table of characters is damaged; raised by the library, possibly as a panic.
    """
    names = {number: name for name, number in ids.items()}
    if sorted(names) != list(range(len(ids))):
        raise ValueError(f"{len(ids)} names must have the ids 0 to {len(ids) - 1}, each once")
    if missing := sorted({unknown, *special} - set(ids)):
        raise ValueError(f"it has no {missing[0]!r}")
    check_names([*ids])
    codes = {name: None for name in ids if name.startswith(">>") and name.endswith("<<")}  # languages, as in ">>fr<<"
    lowest = min(pieces.scores.values(), default=0.0)
    known_characters = set("".join(pieces.scores))
    vocabulary: list[tuple[str, float]] = []
    for _, name in sorted(names.items()):
        if name in pieces.scores and name not in special and name != unknown:
            vocabulary.append((name, pieces.scores[name]))
        elif name in codes:
            vocabulary.append((name, 0.0))
        elif known_characters.isdisjoint(name) and name not in special and name != unknown:
            vocabulary.append((name, lowest - 1))  # rare characters, preferred to the unknown token (lowest - 11)
        else:
            vocabulary.append((HIDDEN_PREFIX + name, 0.0))
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=ids[unknown]))
    tokenizer.normalizer = _normalizer(pieces)
    is_space_inside = any(SPACE in name[1:] for name in pieces.scores)
    scheme = "always" if pieces.adds_space else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=not is_space_inside)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(HIDDEN_PREFIX, ""), decoders.Metaspace(SPACE, prepend_scheme=scheme)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(HIDDEN_PREFIX + name, special=True, normalized=False) for name in sorted(special)]
    )
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in codes])
    return tokenizer


def _normalizer(pieces: SentencePieceModel) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.Replace(HIDDEN_PREFIX, "\ufffd")]
    if pieces.table:
        steps.append(normalizers.Precompiled(pieces.table))
    if pieces.joins_spaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    return normalizers.Sequence(steps)


def _parse(data: bytes) -> SentencePieceModel:
    """Parse an .spm file.

    Fields of sentencepiece_model.proto: 1 pieces (1 name, 2 score, 3 type), 2 training (3 model), 3 normalization.
    """
    model = SentencePieceModel()
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(_bytes(value)))
            name, kind = _bytes(piece.get(1, b"")).decode(), piece.get(3, NORMAL)
            if kind not in (NORMAL, UNKNOWN, CONTROL, UNUSED):
                raise ValueError(
                    f"the piece {name!r} has the type {kind}; user-defined and byte pieces are not supported"
                )
            if kind == NORMAL:
                model.scores[name] = struct.unpack("<f", _bytes(piece.get(2, bytes(4))))[0]
                if not math.isfinite(model.scores[name]):
                    raise ValueError(f"the piece {name!r} has a score that is not finite")
        elif number == 2:
            training = dict(_fields(_bytes(value)))
            if training.get(3, UNIGRAM) != UNIGRAM or training.get(24, 0):
                raise ValueError("its model type is not Unigram, or it puts spaces after words")
        elif number == 3:
            settings = dict(_fields(_bytes(value)))
            model.table = _bytes(settings.get(2, b""))
            if model.table:
                check_table(model.table)
            model.adds_space, model.joins_spaces = bool(settings.get(3, 1)), bool(settings.get(4, 1))
            if not settings.get(5, 1):
                raise ValueError("it does not write spaces as ▁")
    if not model.scores:
        raise ValueError("it has no pieces")
    check_names([*model.scores])
    return model


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message with their numbers."""
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        if key & 7 == VARINT:
            value, offset = _varint(data, offset)
            yield key >> 3, value
            continue
        if key & 7 == BYTES:
            length, offset = _varint(data, offset)
        elif key & 7 in (FOUR_BYTES, EIGHT_BYTES):
            length = 4 if key & 7 == FOUR_BYTES else 8
        else:
            raise ValueError(f"unknown type of a field at byte {offset}")
        if offset + length > len(data):
            raise ValueError(f"it ends inside a value, at byte {len(data)}")
        yield key >> 3, data[offset : offset + length]
        offset += length


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Read a number of seven bits per byte, lowest first, up to the first byte below 128."""
    value = 0
    for shift in range(0, 70, 7):
        if offset >= len(data):
            raise ValueError(f"it ends inside a number, at byte {len(data)}")
        byte, offset = data[offset], offset + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
    raise ValueError(f"the number that ends at byte {offset} is too long")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number instead of bytes")
    return value
