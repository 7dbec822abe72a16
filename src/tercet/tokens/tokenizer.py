"""The tokenizer class for all kinds, stored as a `tokenizer.json` that the `tokenizers` library can read.

Text of the kind characters is encoded without the library: a table of code points takes milliseconds per megabyte.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import AddedToken

from tercet.config import UserError
from tercet.limits import MAX_VOCABULARY_BYTES
from tercet.reading.bounded_json import parse_json
from tercet.reading.files import read_text_file
from tercet.tokens import trainers
from tercet.tokens.character_table import CharacterTable
from tercet.tokens.decoding import (
    ByteStream,
    ByteTables,
    RedecodingStream,
    TextStream,
    byte_table,
    first_table,
    has_prefix_space,
    piece_tables,
)
from tercet.tokens.kinds import recognize_kind
from tercet.tokens.library import Ids, check_unicode, decode_ids, encode_texts, remove_prefix, unicode_error
from tercet.tokens.offsets import TokenOffsets
from tercet.tokens.opening import read_opening, replace_opening
from tercet.tokens.role_names import ENDS, MASKS, PADS, STARTS, UNKNOWNS, first_id
from tercet.tokens.sentencepiece import HIDDEN_PREFIX
from tercet.tokens.sequences import count_plain_ids, parse_ids
from tercet.tokens.specs import TokenizerFile, TokenizerSpec
from tercet.tokens.structure import check_structure, library_errors
from tercet.tokens.train_library import train_library
from tercet.tokens.word_starts import find_word_starts, split_before_mask

SPACE_PREFIXED_KINDS = ("words", "bpe", "unigram", "gpt2")  # kinds whose words include the space before them


class Tokenizer(TokenOffsets):
    """Convert text to ids and back.

    Attributes:
        kind: "characters", "words", "bpe", "unigram", "wordpiece", "fields", "kmers", "ids", "gpt2", or "file" for a
            tokenizer that was not trained by Tercet.
        vocab_size: Number of ids, including special ones.
        pad_id, bos_id, eos_id, mask_id, unk_id: Ids of the usual special tokens; None if the vocabulary has none.
        forced_bos_id: Id after `bos_id` at the beginning of every translation, such as BART's <s> or the language token
            of an mBART-50; None if there is none.
        mask_token: Text of the mask for `encode_masked`; None if the vocabulary has none.
        opening: Ids before a text to continue, such as a Llama's bos, or before a translator's source.
        id_limit: Ids in data are below this: `vocab_size`, or for "ids" the number of ids before the special tokens.
        special_ids, special_tokens: Ids that stand for no text, without `unk_id`, and their tokens.
        prefix_space: If True, a space is added before every text; decoding removes it.
        other_end_ids: Ids that end a generated text, in addition to `eos_id`.
        changed_roles: Ids that `with_ids` has set, by attribute.
        adds_prefix: If True, a space or more is put before every text, by `prefix_space` or in any other way.
        uses_library: If False, Tercet encodes without the library, and no token extends over a space or a line end.
        hash: SHA-256 of the canonical JSON, as 64 hex digits.
    """

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        # Text is never special: "<eos>" in a file must not end the document.
        library.encode_special_tokens = True
        library.no_truncation()
        library.no_padding()
        structure = json.loads(library.to_str())
        self._library = library
        self.vocab_size: int = max(library.get_vocab().values(), default=-1) + 1
        names = [(library.id_to_token(token) or "").removeprefix(HIDDEN_PREFIX) for token in range(self.vocab_size)]
        added_tokens = library.get_added_tokens_decoder()
        special = {token.content.removeprefix(HIDDEN_PREFIX): n for n, token in added_tokens.items() if token.special}
        ids = [first_id(special, role_names) for role_names in (PADS, STARTS, ENDS, MASKS)]
        self.pad_id, self.bos_id, self.eos_id, self.mask_id = ids
        self.mask_token = None if self.mask_id is None else names[self.mask_id]
        ids_by_name = {name: token for token, name in enumerate(names)}
        self.unk_id = first_id(ids_by_name, UNKNOWNS)
        self.special_ids = frozenset(special.values()) - {self.unk_id}
        self.opening = read_opening(structure)
        if invalid := [number for number in self.opening if not 0 <= number < self.vocab_size]:
            raise ValueError(f"its post-processor begins a text with the id {invalid[0]}, which the vocabulary lacks")
        self.kind = recognize_kind(structure, self.vocab_size)
        self.hash = hashlib.sha256(json.dumps(structure, sort_keys=True).encode()).hexdigest()
        self.prefix_space = has_prefix_space(structure)
        self.adds_prefix = remove_prefix(structure) != structure
        self.forced_bos_id: int | None = None
        self.other_end_ids, self.changed_roles = frozenset[int](), dict[str, int]()
        self._names, self._ids = names, ids_by_name
        self._table = byte_table(structure, names)
        self._first = first_table(structure, names, self._table) if self._table is not None else []
        lengths = [0 if token in self.special_ids else len(piece) for token, piece in enumerate(self._table or ())]
        self._lengths = np.array(lengths, dtype=np.int64)
        self._byte_ids = frozenset(ids_by_name[name] for name in trainers.BYTE_TOKENS if name in ids_by_name)
        self._characters = CharacterTable(names) if self.kind == "characters" else None
        self.id_limit = count_plain_ids(ids_by_name) if self.kind == "ids" else self.vocab_size
        self.uses_library = self.kind not in ("characters", "ids")
        self._continues: str = structure["model"].get("continuing_subword_prefix") or ""
        self.special_tokens = {number: added_tokens[number] for number in special.values()}
        self._word_starts = find_word_starts(
            self.kind, self._table, names, self._continues, self.special_ids, self.unk_id
        )

    @classmethod
    def train(cls, spec: TokenizerSpec, texts: Iterable[str]) -> "Tokenizer":
        """Train a tokenizer of the kind of `spec` on `texts`, which are read once.

        Raises:
            UserError: If a required file or package is missing, a text is invalid, `vocab_size` is too small, or a
                tokenizer of another package cannot be trained.
        """
        try:
            return cls.load(spec.path) if isinstance(spec, TokenizerFile) else cls(train_library(spec, texts))
        except UnicodeEncodeError as error:
            raise unicode_error(error) from None

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Load a `tokenizer.json`.

        Raises:
            UserError: If the file is missing, or is not a tokenizer.
        """
        try:
            text = read_text_file(Path(path), MAX_VOCABULARY_BYTES)
        except UserError as error:
            raise UserError(f"{error}, or pass the path of a tokenizer.json") from None
        try:
            return cls.from_json(text)
        except ValueError as error:
            raise UserError(f"{path} is not a tokenizer.json: {error}; pass the tokenizer.json of a model") from None

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """Parse the content of a tokenizer.json. Raises ValueError if it is invalid or exceeds a limit."""
        check_structure(parse_json(text))
        with library_errors():
            return cls(tokenizers.Tokenizer.from_str(text))

    def with_ids(
        self, *, bos_id: int | None = None, eos_id: int | None = None, pad_id: int | None = None,
        forced_bos_id: int | None = None,
    ) -> "Tokenizer":  # fmt: skip
        """Return a copy with other tokens for the beginning, the end or padding, which become special.

        None leaves an id unchanged. `to_json` contains that they are special, but not their roles.

        Raises:
            ValueError: If an id is not in the vocabulary.
        """
        ids = {"bos_id": bos_id, "eos_id": eos_id, "pad_id": pad_id, "forced_bos_id": forced_bos_id}
        changes = {name: n for name, n in ids.items() if n is not None and n != getattr(self, name)}
        self._check_ids(changes.values())
        if not changes:
            return self
        names = [self._library.id_to_token(number) for number in changes.values() if number not in self.special_ids]
        tokenizer = copy(self)
        if names:
            library = tokenizers.Tokenizer.from_str(self.to_json())
            library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
            tokenizer = Tokenizer(library)
            tokenizer._copy_roles(self)
        for name, number in changes.items():
            setattr(tokenizer, name, number)
        tokenizer.changed_roles = self.changed_roles | changes
        return tokenizer

    @property
    def target_opening(self) -> list[int]:
        """The ids before every translation: `bos_id` and `forced_bos_id`, if they exist."""
        return [number for number in (self.bos_id, self.forced_bos_id) if number is not None]

    @property
    def end_ids(self) -> list[int]:
        """The ids that end a generated text: `eos_id` first, then the others in ascending order."""
        return [*([] if self.eos_id is None else [self.eos_id]), *sorted(self.other_end_ids - {self.eos_id})]

    def with_other_end_ids(self, ids: Iterable[int]) -> "Tokenizer":
        """Return a copy for a model whose texts also end with these ids. Documents end with `eos_id` only.

        Raises:
            ValueError: If an id is not in the vocabulary.
        """
        tokenizer = copy(self)
        tokenizer.other_end_ids = frozenset(ids) - {self.eos_id}
        self._check_ids(tokenizer.other_end_ids)
        return tokenizer

    def with_opening(self, ids: Sequence[int]) -> "Tokenizer":
        """Return a copy with other tokens, or none, before a text to continue; `to_json` contains them.

        Raises:
            ValueError: If an id is not in the vocabulary.
        """
        if tuple(ids) == self.opening:
            return self
        self._check_ids(ids)
        names = [self._library.id_to_token(number) or "" for number in ids]
        structure = replace_opening(json.loads(self.to_json()), list(zip(names, ids, strict=True)))
        tokenizer = Tokenizer.from_json(json.dumps(structure))
        tokenizer._copy_roles(self)
        return tokenizer

    def frame(self, ids: Sequence[int], *, max_len: int) -> list[int]:
        """Return the input of a translator's encoder: `opening`, `ids` and eos, truncated to `max_len`."""
        end = [] if self.eos_id is None else [self.eos_id]
        return [*[*self.opening, *ids][: max_len - len(end)], *end]

    def id_of(self, name: str) -> int | None:
        """Return the id of a token by its name in the vocabulary, or None."""
        return self._ids.get(name)

    def to_json(self) -> str:
        return self._library.to_str(pretty=True)

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json(), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without special tokens before or after it.

        Raises:
            UserError: If a character is not in the vocabulary, or `text` is not valid Unicode.
        """
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str], *, continued: Sequence[bool] = ()) -> list[Ids]:
        """Return the ids of each text as uint32 arrays; errors as in `encode`. The library uses all cores.

        Args:
            continued: For each text, True if it continues another one, so that no space is added before it.
        """
        for text in texts:
            check_unicode(text)
        if self._characters is not None:
            return [self._characters.encode(text) for text in texts]
        if self.kind == "ids":
            return [parse_ids(text, self.id_limit) for text in texts]
        return self._encode(texts, continued)

    def encode_masked(self, text: str) -> Ids:
        """Return the ids of `text`, in which `[MASK]`, `<mask>` or `mask_token` is the mask.

        If words include the space before them, so does the mask: "The <mask> sat" hides " cat" with its space. White
        space that is not part of a word remains. Other special tokens are text, as in `encode`.

        Raises:
            UserError: If `text` has a mask and the vocabulary has none, or as in `encode`.
        """
        check_unicode(text)
        parts = re.split("|".join(re.escape(name) for name in {*MASKS, self.mask_token or MASKS[0]}), text)
        if len(parts) == 1:
            return self.encode_batch(parts)[0]
        if self.mask_id is None:
            raise UserError(
                "the text has a mask, but the tokenizer has no mask token; "
                "train one with mask: true, or use the kind wordpiece"
            )
        parts = [parts[0], *(part.lstrip() if self.special_tokens[self.mask_id].rstrip else part for part in parts[1:])]
        parts[0] = f" {parts[0]}" if self.prefix_space else parts[0]
        segments: list[str | None] = []  # None is a mask
        absorbs_space, includes_space = self.special_tokens[self.mask_id].lstrip, self.kind in SPACE_PREFIXED_KINDS
        for part in parts[:-1]:
            segments += [*split_before_mask(part, absorbs_space, includes_space), None]
        texts = [*(part for part in segments if part is not None), parts[-1]]
        library = self._unprefixed_library if self.prefix_space else self._library
        id_arrays = iter(encode_texts(library, texts) if self.uses_library else self.encode_batch(texts))
        mask = np.array([self.mask_id], dtype=np.uint32)
        return np.concatenate([mask if part is None else next(id_arrays) for part in [*segments, parts[-1]]])

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """Return True for each token of `ids` (..., T) that begins a word; special and unknown tokens do."""
        return self._word_starts(ids)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`, by default without special tokens. Ids outside the vocabulary have no text.

        The kind wordpiece writes a space between words and none before . , ! ?, whatever the original text was. A piece
        from inside a word keeps its ## if it comes first.
        """
        valid_ids = [token for token in map(int, ids) if 0 <= token < self.vocab_size]
        if self._table is None:
            return decode_ids(self._library, valid_ids, skip_special=skip_special)
        skipped_ids = self.special_ids if skip_special else frozenset[int]()
        visible_ids = [token for token in valid_ids if token not in skipped_ids and self._table[token]]
        pieces = [(self._table if number else self._first)[token] for number, token in enumerate(visible_ids)]
        return b"".join(pieces).decode("utf-8", "replace")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return each token in readable form, with its space; parts of characters are written as `\\xe2`.

        The kind wordpiece shows `##ing` instead of spaces. Ids outside the vocabulary give empty strings.
        """
        valid_ids = [token if 0 <= token < self.vocab_size else None for token in map(int, ids)]
        if self._table is None or self._continues:
            return ["" if token is None else self._names[token] for token in valid_ids]
        return ["" if token is None else self._table[token].decode("utf-8", "backslashreplace") for token in valid_ids]

    def stream(self, *, after: Sequence[int] = ()) -> TextStream:
        """Return an incremental decoder. Special ids have no text.

        Args:
            after: Previous ids. Their text is not returned, but the space between it and the new text is.
        """
        if self._table is None:
            return RedecodingStream(self.decode, self._byte_ids, after=self._ordinary_ids(after))
        return ByteStream(self._table, self._first if self.begins_text(after) else self._table, self.special_ids)

    @cached_property
    def byte_tables(self) -> ByteTables | None:
        """The bytes that each id adds to a text, none for special ids; None if they depend on the other ids."""
        tables = None if self._table is None else ByteTables(self._first, self._table)
        tables = tables or piece_tables(json.loads(self.to_json()), self._names)
        return tables and tables.without(self.special_ids)

    def begins_text(self, after: Sequence[int]) -> bool:
        """Return whether a token that follows the ids `after` is the first one with text."""
        ids = self._ordinary_ids(after)
        return not (ids if self._table is None else any(self._table[token] for token in ids))

    def _ordinary_ids(self, ids: Sequence[int]) -> list[int]:
        return [token for token in ids if 0 <= token < self.vocab_size and token not in self.special_ids]

    def count_bytes(self, ids: np.ndarray) -> int:
        """Return the number of UTF-8 bytes of the text of `ids`, exact even if they end inside a character.

        Special ids have no bytes. The text is that of `decode`, which for wordpiece differs from the original.
        """
        if self._table is None:
            return len(self.decode(ids.tolist()).encode())
        ids = ids[(ids >= 0) & (ids < self.vocab_size)]
        lengths = self._lengths[ids]
        n_bytes = int(lengths.sum())
        if n_bytes and self._first is not self._table:
            first = int(ids[(lengths > 0).argmax()])
            n_bytes += len(self._first[first]) - len(self._table[first])
        return n_bytes

    def _encode(self, texts: Sequence[str], continued: Sequence[bool]) -> list[Ids]:
        if not any(continued) or not self.adds_prefix:
            return encode_texts(self._library, texts)
        parts = {place: [text for text, is_continued in zip(texts, continued, strict=True) if is_continued == place]
                 for place in (False, True)}  # fmt: skip
        id_arrays = {False: iter(encode_texts(self._library, parts[False])),
                   True: iter(encode_texts(self._unprefixed_library, parts[True]))}  # fmt: skip
        return [next(id_arrays[bool(is_continued)]) for is_continued in continued]

    @cached_property
    def _unprefixed_library(self) -> tokenizers.Tokenizer:
        library = tokenizers.Tokenizer.from_str(json.dumps(remove_prefix(json.loads(self.to_json()))))
        library.encode_special_tokens = True
        return library

    def _copy_roles(self, source: "Tokenizer") -> None:
        for name in ("pad_id", "bos_id", "eos_id", "forced_bos_id", "changed_roles", "other_end_ids"):
            setattr(self, name, getattr(source, name))

    def _check_ids(self, ids: Iterable[int]) -> None:
        if invalid := [number for number in ids if not 0 <= number < self.vocab_size]:
            raise ValueError(f"the vocabulary has no id {invalid[0]}; ids are 0 to {self.vocab_size - 1}")
