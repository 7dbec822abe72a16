"""One pass over the texts of a data source: faults of encoding, markup, repeated lines, and compressibility."""

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tercet.data.check.text_repair import TextRepair
from tercet.data.datasets.label_datasets import find_labels
from tercet.data.datasets.pair_datasets import find_pairs
from tercet.data.datasets.text_datasets import find_text
from tercet.data.examples.conversations import ConversationFile, find_conversations
from tercet.data.examples.labels import LabelFile
from tercet.data.examples.pairs import PairFiles
from tercet.data.label_spec import LabelsSpec
from tercet.data.sources.documents import DocumentFiles, TextPiece
from tercet.data.sources.files import Errors
from tercet.data.sources.id_files import IdFile
from tercet.data.specs import ConversationsSpec, PairsSpec, TextSpec
from tercet.data.summary.compression import compression_bits
from tercet.data.text_hashes import hash_text

MAX_LINE = 1 << 20  # characters after which a line is counted as several
MIN_REPEATED = 20  # characters of a line that counts as repeated; shorter ones, such as names of speakers, recur anyway
N_SHOWN = 5  # repeated lines to report
SAMPLE_CHARACTERS = 1_000_000  # that are compressed, at the beginning of the data; takes seconds
TAGS = (
    "a|abbr|article|aside|b|blockquote|body|br|button|cite|code|dd|div|dl|dt|em|figcaption|figure|font|footer|form|"
    "h[1-6]|head|header|hr|html|i|iframe|img|input|label|li|link|main|meta|nav|ol|option|p|pre|script|section|select|"
    "small|span|strong|style|sub|sup|table|tbody|td|textarea|tfoot|th|thead|title|tr|u|ul"
)
MARKUP = re.compile(
    rf"</?(?:{TAGS})(?:\s[^<>\n]{{0,500}})?/?>|<!--|-->|<!doctype html[^<>\n]{{0,200}}>"
    r"|&(?:amp|lt|gt|quot|apos|nbsp|[a-z]{1,8}(?:acute|grave|circ|uml|dash|quo)|#\d{1,7}|#x[\da-f]{1,6});",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class RepeatedLine:
    """A line that occurs several times, without surrounding white space, and the number of its occurrences."""

    text: str
    count: int


@dataclass(frozen=True, kw_only=True)
class TextFaults:
    """Faults of all texts together.

    Attributes:
        texts, characters, lines: Number of texts, of characters, and of lines that are not blank.
        changes: What `TextRepair` would change.
        line_ends: Number of line ends, including carriage returns.
        replaced: Number of replacement characters (U+FFFD).
        markup: Number of characters in tags and entities of HTML.
        repeated: Number of characters in lines of at least `MIN_REPEATED` characters that occurred before.
        repeated_lines: The most frequent of these lines.
        conflicting: Number of texts that occurred before with other labels only.
        bits_per_byte: Bits per byte of `xz -9e` on the first `SAMPLE_CHARACTERS` characters.
    """

    texts: int
    characters: int
    lines: int
    changes: dict[str, int]
    line_ends: int
    replaced: int
    markup: int
    repeated: int
    repeated_lines: tuple[RepeatedLine, ...]
    conflicting: int
    bits_per_byte: float


def find_text_faults(spec: TextSpec | PairsSpec | LabelsSpec | ConversationsSpec, errors: Errors) -> TextFaults | None:
    """Read all texts once, and again up to the last line to report if lines are repeated.

    Memory use is 16 bytes per line.

    Args:
        spec: Settings of the data.
        errors: As in `read_text`.

    Returns:
        The faults, or None for token ids.

    Raises:
        UserError: If the data cannot be read.
    """
    if isinstance(spec, TextSpec) and isinstance(find_text(spec), IdFile):
        return None
    counts = _TextCounts()
    for block, last in _blocks(_read_pieces(spec, errors)):
        counts.push(block)
        counts.texts += last
    repeated, repeated_lines = counts.find_repeated(block for block, _ in _blocks(_read_pieces(spec, errors)))
    return TextFaults(
        texts=counts.texts,
        characters=counts.characters,
        lines=counts.lines,
        changes=dict(counts.repair.changes),
        line_ends=counts.line_ends,
        replaced=counts.replaced,
        markup=counts.markup,
        repeated=repeated,
        repeated_lines=repeated_lines,
        conflicting=_count_conflicting(spec, errors) if isinstance(spec, LabelsSpec) else 0,
        bits_per_byte=compression_bits(counts.sample)["xz -9e"],
    )


class _TextCounts:
    def __init__(self) -> None:
        self.repair = TextRepair()
        self.texts = self.characters = self.lines = self.line_ends = self.replaced = self.markup = 0
        self.sample, self._sampled = list[str](), 0
        self._hashes, self._lengths = array("Q"), array("Q")

    def push(self, block: str) -> None:
        """Add a block of whole lines."""
        if self._sampled < SAMPLE_CHARACTERS:
            self.sample.append(block[: SAMPLE_CHARACTERS - self._sampled])
            self._sampled += len(block)
        self.characters += len(block)
        self.line_ends += block.count("\n") + block.count("\r") - block.count("\r\n")
        self.replaced += block.count("\ufffd")
        if "<" in block or "&" in block:
            self.markup += sum(match.end() - match.start() for match in MARKUP.finditer(block))
        self.repair.repair(block)
        for line in _lines(block):
            self.lines += 1
            if len(line) >= MIN_REPEATED:
                self._hashes.append(hash_text(line))
                self._lengths.append(len(line))

    def find_repeated(self, blocks: Iterable[str]) -> tuple[int, tuple[RepeatedLine, ...]]:
        """Return the characters in repeated lines, and the most frequent of these lines.

        Args:
            blocks: The same blocks again. They are read up to the last line to report.
        """
        hashes, lengths = (np.frombuffer(values, dtype=np.uint64) for values in (self._hashes, self._lengths))
        values, firsts, counts = np.unique(hashes, return_index=True, return_counts=True)
        repeated = int(lengths.sum() - lengths[firsts].sum())
        order = np.lexsort((firsts, -counts))[:N_SHOWN]
        missing = {int(values[place]): int(counts[place]) for place in order if counts[place] > 1}
        found = list[RepeatedLine]()
        for line in (line for block in blocks for line in _lines(block)) if missing else ():
            if len(line) >= MIN_REPEATED and (count := missing.pop(hash_text(line), None)):
                found.append(RepeatedLine(text=line, count=count))
                if not missing:
                    break
        return repeated, tuple(sorted(found, key=lambda line: -line.count))


def _lines(block: str) -> Iterator[str]:
    return (stripped for line in block.split("\n") if (stripped := line.strip()))


def _read_pieces(spec: TextSpec | PairsSpec | LabelsSpec | ConversationsSpec, errors: Errors) -> Iterator[TextPiece]:
    match spec:
        case TextSpec():
            source = find_text(spec)
            if isinstance(source, DocumentFiles):
                source = replace(source, errors=errors, sequences=replace(source.sequences, errors="skip"))
            assert not isinstance(source, IdFile)  # checked by the caller
            yield from source.pieces()
            return
        case PairsSpec():
            examples = find_pairs(spec)
        case LabelsSpec():
            examples = find_labels(spec)
        case ConversationsSpec():
            examples = find_conversations(spec)
    if isinstance(examples, PairFiles | LabelFile | ConversationFile):
        examples = replace(examples, errors=errors)
    if isinstance(examples, LabelFile):
        examples = replace(examples, sequences=replace(examples.sequences, errors="skip"))
    for example in examples.examples():
        yield from (TextPiece(text, last=True) for text in example.texts)


def _blocks(pieces: Iterable[TextPiece]) -> Iterator[tuple[str, bool]]:
    """Yield blocks of text that end at the end of a line or after `MAX_LINE` characters, and if the text ends there."""
    rest = ""
    for piece in pieces:
        text = rest + piece.text
        end = len(text) if piece.last or len(text) > MAX_LINE else text.rfind("\n") + 1
        if end:
            yield text[:end], piece.last
        rest = text[end:]


def _count_conflicting(spec: LabelsSpec, errors: Errors) -> int:
    texts, labeled = array("Q"), array("Q")
    source = find_labels(spec)
    if isinstance(source, LabelFile):
        source = replace(source, errors=errors, sequences=replace(source.sequences, errors="skip"))
    for example in source.examples():
        if not example.is_empty:
            texts.append(hash_text("\0".join(example.texts)))
            labeled.append(hash_text(repr((example.texts, example.labels))))
    return _count_distinct(labeled) - _count_distinct(texts)


def _count_distinct(hashes: "array[int]") -> int:
    return len(np.unique(np.frombuffer(hashes, dtype=np.uint64)))
