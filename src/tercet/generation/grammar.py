"""Structured output: a grammar restricts the next token of a row, so that its text matches a JSON schema or a regex.

    bytes that each token adds to the text  ->  grammar (llguidance)  ->  mask (V,)  ->  logits, -inf if excluded

The mask is applied before the filters of `sampling`, so a draw is one from the allowed tokens. A token may consist of
parts of characters or of several parts of the grammar. End tokens are allowed if the text so far matches.

A vocabulary with a token for each of the 256 bytes can write any text, so a text that has matched so far can always be
finished. Other vocabularies have an alphabet: the characters that are tokens, and with a space before them, those that
are tokens with this space. They can finish a text if the grammar requires no other characters. A regex is restricted to
the alphabet, and a JSON schema that requires other characters is rejected before generation.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.config import UserError
from tercet.generation.specs import Sampling
from tercet.limits import SCHEMA_CHARACTERS, SCHEMA_PATTERNS
from tercet.messages import shorten
from tercet.reading.bounded_json import parse_json
from tercet.tokens import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

Kind = Literal["json_schema", "regex"]

# Between the parts of a JSON text: nothing, a space, or a line break with indentation. A model could repeat unlimited
# white space until the maximum number of tokens.
WHITE_SPACE = r"(?: |\n {0,32})?"
# Without this option, the library allows only its own tokenization of text that the grammar determines.
OPTIONS = '%llguidance {"no_forcing": true}'
END_PIECE = b"\xff<end>"  # \xff marks special tokens in llguidance
JSON_CHARACTERS = '"{}[]:,0123456789aeflnrstu'  # of all JSON texts, apart from strings
TEXT_KEYWORDS = ("pattern", "patternProperties", "format")  # keywords that restrict the characters of strings
PLACE = r"^at \d+\(\d+\): (failed to compile JSON schema: )?"  # in the Lark grammar, in messages
GRAMMAR_SIZE = 100_000  # symbols; 1/5 of the library's limit, since time may be quadratic in it
REGEX_CHARACTERS = frozenset(r"\^$.|?*+()[]{}-,:=!<>&~")  # characters with a meaning in a regex


class GrammarState:
    """The grammar of a row, and its position in it.

    Args:
        vocabulary: Vocabulary of the model.
        matcher: Grammar at its beginning.
        begins_text: If True, the next token is the first one with text.

    Attributes:
        mask: True at tokens that may follow, on the CPU; ids beyond the tokenizer's are not included.
        is_complete: True if the text matches and no token except an end token may follow.
    """

    def __init__(self, vocabulary: "GrammarVocabulary", matcher: "LLMatcher", *, begins_text: bool) -> None:
        self._vocabulary, self._matcher = vocabulary, matcher
        self._places = vocabulary.first if begins_text else vocabulary.later
        self.mask, self.is_complete = self._next_mask()

    def advance(self, token: int) -> None:
        """Add a token that the mask allows, and that is not an end token.

        Raises:
            UserError: If no token of the vocabulary continues the text, or the grammar is too complex.
        """
        self._matcher.consume_token(int(self._places[token]))
        self._places = self._vocabulary.later
        self.mask, self.is_complete = self._next_mask()

    def _next_mask(self) -> tuple[Bool[Tensor, " V"], bool]:
        allowed = np.frombuffer(self._matcher.compute_logit_bias(), dtype=np.uint8) != 0
        if self._matcher.is_error():
            raise UserError(f"cannot continue the structured output: {_reason(self._matcher.get_error())}")
        mask = allowed[self._places]
        is_complete, accepts = not mask.any(), bool(allowed[-1])
        if is_complete and not accepts:
            raise UserError(
                "no token of the vocabulary continues the structured output; change the schema or regex, or use a "
                "model with a byte-level tokenizer"
            )
        mask[self._vocabulary.end_ids] = accepts
        return torch.from_numpy(mask), is_complete


class GrammarVocabulary:
    """The tokens of a tokenizer as bytes, for llguidance.

    Args:
        tokenizer: Tokenizer of the model.

    Attributes:
        library: The tokenizer of llguidance. It has all different byte strings, and an end token as the last one.
        first: Its number of each id as the first token with text.
        later: Its number of each id after other tokens; the number of "" for ids without text.
        end_ids: Ids that end a text.
        alphabet: Characters that are tokens after other tokens; None if all bytes are tokens.
        spaced: Characters that are tokens only with a space before them, in a vocabulary without a space.
        initials: Characters that are tokens as the first one with text.

    Raises:
        UserError: If llguidance is missing, or the bytes of a token depend on other tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ModuleNotFoundError:
            raise UserError("structured output requires llguidance: pip install 'tercet[structured]'") from None
        tables = tokenizer.byte_tables
        if tables is None:
            raise UserError(
                "structured output is not supported for this tokenizer, whose tokens have no fixed text; use a model "
                "with a byte-level or sentencepiece tokenizer"
            )
        self.end_ids, self.alphabet = tokenizer.end_ids, None
        self.initials = self.spaced = frozenset[str]()
        if len({piece for piece in tables.later if len(piece) == 1}) < 256:
            tables = tables.without({n for n, piece in enumerate(tables.later) if not _is_text(piece)})
            first, later = ({piece.decode() for piece in table} for table in tables)
            self.initials, self.alphabet = _characters(first), _characters(later)
            if " " not in self.alphabet:
                self.spaced = _characters(text[1:] for text in later if text.startswith(" "))
        numbers = {piece: number for number, piece in enumerate(dict.fromkeys((b"", *tables.first, *tables.later)))}
        self.first, self.later = (np.array([numbers[piece] for piece in table]) for table in tables)
        self.library = LLTokenizer(TokenizerWrapper(_Pieces([*numbers, END_PIECE])), slices=[])

    def lacks(self, text: Iterable[str]) -> list[str]:
        """Return the characters of a text that the vocabulary cannot write after any other, sorted."""
        return [] if self.alphabet is None else sorted(set(text) - self.alphabet)

    def expressible(self, *, begins_text: bool) -> str | None:
        """Return a regex of the texts that consist of the alphabet; None for all texts.

        Args:
            begins_text: If True, the next token is the first one with text.
        """
        if self.alphabet is None:
            return None
        parts = [_one_of(self.alphabet), *([f" {_one_of(self.spaced)}"] if self.spaced else [])]
        others = f"({'|'.join(parts)})*"
        return f"({_one_of(self.initials)}{others})?" if begins_text else others


class _Pieces:
    """A vocabulary in the form that llguidance requires."""

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens, self.eos_token_id, self.bos_token_id = tokens, len(tokens) - 1, None
        self.special_token_ids = [len(tokens) - 1]

    def __call__(self, text: bytes | str) -> list[int]:  # used only to draft tokens, which is not done here
        return []


def start_grammar(tokenizer: Tokenizer, sampling: Sampling, *, after: Sequence[int] = ()) -> GrammarState | None:
    """Return the grammar of a row before its first token; None if `sampling` has no JSON schema and no regex.

    Args:
        tokenizer: Tokenizer of the model.
        sampling: Sampling settings.
        after: Ids that precede the text, as in `Tokenizer.stream`.

    Raises:
        UserError: If llguidance is missing, the schema or regex is invalid or too large, or the vocabulary cannot write
            its texts.
    """
    kind: Kind = "regex" if sampling.json_schema is None else "json_schema"
    text = getattr(sampling, kind)
    if text is None:
        return None
    begins_text = tokenizer.begins_text(after)
    matcher = _compile(tokenizer, kind, text, begins_text)
    return GrammarState(_vocabulary(tokenizer), matcher.deep_copy(), begins_text=begins_text)


def start_grammars(
    tokenizer: Tokenizer, sampling: Sampling, previous_ids: Iterable[Sequence[int]]
) -> list[GrammarState] | None:
    """Return the grammar of each row, as `start_grammar`; None if `sampling` has no JSON schema and no regex.

    Args:
        tokenizer: Tokenizer of the model.
        sampling: Sampling settings.
        previous_ids: For each row, the ids that precede its text.
    """
    states = [start_grammar(tokenizer, sampling, after=ids) for ids in previous_ids]
    return [state for state in states if state is not None] or None


@lru_cache(maxsize=32)
def _compile(tokenizer: Tokenizer, kind: Kind, text: str, begins_text: bool) -> "LLMatcher":
    if len(text) > SCHEMA_CHARACTERS:
        raise UserError(f"{kind}: {len(text):,} characters exceed the maximum of {SCHEMA_CHARACTERS:,}; shorten it")
    vocabulary = _vocabulary(tokenizer)
    from llguidance import LLMatcher, LLParserLimits

    if kind == "json_schema":
        source = _json_grammar(vocabulary, text)
    else:
        source = _regex_grammar(text, vocabulary.expressible(begins_text=begins_text))
    source = LLMatcher.grammar_from_lark(f"{OPTIONS}\n{source}")
    limits = LLParserLimits(max_grammar_size=GRAMMAR_SIZE, verbose_errors=False)
    matcher = LLMatcher(vocabulary.library, source, log_level=0, limits=limits)
    if matcher.is_error():
        raise UserError(f"{kind}: {_reason(matcher.get_error())}; correct it")
    try:
        GrammarState(vocabulary, matcher.deep_copy(), begins_text=begins_text)
    except UserError:
        missing = vocabulary.lacks(set(text) - REGEX_CHARACTERS) if kind == "regex" else []
        raise _vocabulary_error(kind, missing) from None
    return matcher


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer) -> GrammarVocabulary:
    return GrammarVocabulary(tokenizer)


def mask_logits(logits: Float[Tensor, "B V"], states: Sequence[GrammarState | None]) -> Float[Tensor, "B V"]:
    """Return the logits with -inf at tokens that the grammars exclude; rows without a grammar are unchanged."""
    if not any(states):
        return logits
    mask = torch.ones(logits.shape, dtype=torch.bool)
    for row, state in enumerate(states):
        if state is not None:
            mask[row, : len(state.mask)] = state.mask
            mask[row, len(state.mask) :] = False
    return logits.masked_fill(~mask.to(logits.device), -torch.inf)


def _json_grammar(vocabulary: GrammarVocabulary, text: str) -> str:
    """Return a Lark grammar for a JSON schema, after checks of its structure and its characters."""
    try:
        schema = parse_json(text)
    except ValueError as error:
        raise UserError(f"json_schema: not valid JSON ({shorten(error)}); correct it") from None
    if not isinstance(schema, dict) and schema is not True:
        raise UserError('json_schema: must be a JSON object, such as {"type": "object"}')
    try:
        n_patterns = _most_patterns(schema)
    except RecursionError:
        raise UserError("json_schema: too long a chain of references; shorten it") from None
    if n_patterns > SCHEMA_PATTERNS:
        raise UserError(f"json_schema: a value has more than {SCHEMA_PATTERNS} patterns; join them to one")
    if vocabulary.alphabet is not None:
        if missing := vocabulary.lacks([*JSON_CHARACTERS, *json.dumps(list(_constants(schema)), ensure_ascii=False)]):
            raise _vocabulary_error("json_schema", missing)
        if keyword := next((name for name in _keywords(schema) if name in TEXT_KEYWORDS), None):
            raise UserError(f"json_schema: {keyword} requires a tokenizer with all bytes, such as of the kind bpe")
    options = {"whitespace_pattern": WHITE_SPACE, "whitespace_flexible": True}
    return f"start: %json {json.dumps({**({} if schema is True else schema), 'x-guidance': options})}"


def _regex_grammar(text: str, within: str | None) -> str:
    """Return a Lark grammar for a regex, restricted to the texts of another regex."""
    from llguidance import LLMatcher

    source = json.loads(LLMatcher.grammar_from_regex(text))["grammars"][0]["lark_grammar"]
    pattern = source.removeprefix("start: ")  # quoted as /.../
    return f"start: TEXT\nTEXT: {pattern}" + ("" if within is None else f" & /{within}/")


def _most_patterns(schema: Any) -> int:
    """Return an upper bound of the number of patterns and formats that a single value must match."""
    counts = dict[int, int]()  # by the identity of a part of the schema; 0 while it is being counted

    def count(part: Any) -> int:
        """Return the number for this part: its own patterns, and those of parts that apply to the same value."""
        if not isinstance(part, Mapping):
            return 0
        keywords = cast("Mapping[str, Any]", part)
        if id(part) not in counts:
            counts[id(part)] = 0
            total = sum(name in keywords for name in ("pattern", "format"))
            for name in ("allOf", "anyOf", "oneOf"):
                branches = [count(branch) for _, branch in _items(keywords.get(name))]
                total += (sum if name == "allOf" else max)(branches or [0])
            counts[id(part)] = total + count(_referenced(schema, keywords.get("$ref")))
        return counts[id(part)]

    def most(part: Any) -> int:
        return max([count(part), *(most(item) for _, item in _items(part))])

    return most(schema)


def _referenced(schema: Any, reference: Any) -> Any:
    """Return the part of a schema at a reference such as "#/$defs/a"; None if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    part = schema
    for name in reference[1:].split("/")[1:]:
        key = unquote(name).replace("~1", "/").replace("~0", "~")
        part = dict(_items(part)).get(key) if isinstance(part, Mapping) else None
    return part


def _constants(schema: Any) -> Iterator[Any]:
    """Yield the names and values of a schema that its texts may have to contain."""
    for name, value in _items(schema):
        if name in ("const", "enum", "required"):
            yield value
        if name in ("properties", "dependentRequired") and isinstance(value, Mapping):
            yield [*cast("Mapping[str, Any]", value)]
        yield from _constants(value)


def _keywords(schema: Any) -> Iterator[str]:
    for name, value in _items(schema):
        yield name
        yield from _keywords(value)


def _items(schema: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(schema, Mapping):
        return cast("Mapping[str, Any]", schema).items()
    return (("", item) for item in cast("list[Any]", schema)) if isinstance(schema, list) else ()


def _vocabulary_error(kind: Kind, missing: Sequence[str]) -> UserError:
    shown = ", ".join(f"{character!r} (U+{ord(character):04X})" for character in missing[:5])
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    lacks = f"it has no {shown}{more} as a token" if missing else "no token begins a text of the grammar"
    return UserError(
        f"{kind}: the vocabulary cannot write it: {lacks}; change it, or use a model with a byte-level tokenizer"
    )


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _characters(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(text for text in texts if len(text) == 1)


def _one_of(characters: Iterable[str]) -> str:
    """Return a regex for one of these characters; for no text if there are none."""
    codes = "".join(f"\\x{{{ord(character):X}}}" for character in sorted(characters))
    return f"[{codes}]" if codes else r"[^\x{0}-\x{10FFFF}]"


def _reason(error: str) -> str:
    """Return the reason in one line of a message of llguidance, whose further lines show the grammar."""
    lines = [line.strip() for line in error.splitlines()]
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    return shorten(re.sub(PLACE, "", reason), 200)
