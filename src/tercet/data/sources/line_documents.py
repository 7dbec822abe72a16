"""Documents that stand in one text file: a line each, or the lines between empty ones; and whether a file looks so."""

import statistics
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal

DocumentUnit = Literal["file", "line", "blank_line"]

MIN_LINES = 20  # fewer say nothing
MAX_EMPTY_SHARE = 0.02  # of the lines: text in paragraphs has more
MAX_INDENTED_SHARE = 0.05  # code and plays have more
MIN_CHARACTERS = 20  # of half the lines: verse, lists and code have shorter ones
LONG_LINE_CHARACTERS = 120  # characters: nobody wraps text by hand so wide
MIN_SENTENCE_SHARE = 0.7  # of the lines that end as a sentence does: text that is wrapped at a width has a tenth
SENTENCE_ENDS = (".", "!", "?", "…", '."', '!"', '?"', ".”", "!”", "?”", ".)", "。", "！", "？", "।", "؟")


def documents_of_lines(lines: Iterable[str], unit: Literal["line", "blank_line"]) -> Iterator[Iterable[str]]:
    """The documents in a file's lines, each in chunks that are to be taken before the next document.

    White space alone is an empty line. The ends of lines (a carriage return too) between documents are no text, those
    within one are.
    """
    if unit == "line":
        yield from ([line.removesuffix("\r")] for line in lines if not _is_empty(line))
        return
    for is_empty, group in groupby(lines, _is_empty):
        if not is_empty:
            yield _join(group)


def has_document_per_line(sample: str) -> bool:
    """Whether the beginning of a file looks like one document a line: many lines, hardly an empty or indented one, and
    half of them longer than text is wrapped, or nearly all of them whole sentences."""
    lines = sample.split("\n")[:-1]  # the last may go on
    texts = [line for line in lines if not _is_empty(line)]
    if len(texts) < MIN_LINES or len(lines) - len(texts) > MAX_EMPTY_SHARE * len(lines):
        return False
    if sum(line[0].isspace() for line in texts) > MAX_INDENTED_SHARE * len(texts):
        return False
    median = statistics.median(map(len, texts))
    sentences = sum(line.rstrip().endswith(SENTENCE_ENDS) for line in texts)
    return median > LONG_LINE_CHARACTERS or (median >= MIN_CHARACTERS and sentences >= MIN_SENTENCE_SHARE * len(texts))


def _is_empty(line: str) -> bool:
    return not line or line.isspace()


def _join(lines: Iterable[str]) -> Iterator[str]:
    end = ""
    for line in lines:
        yield end + line.removesuffix("\r")
        end = "\r\n" if line.endswith("\r") else "\n"
