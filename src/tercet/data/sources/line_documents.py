"""Documents in a text file, one per line or separated by blank lines, and detection of such files."""

import statistics
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal

DocumentUnit = Literal["file", "line", "blank_line"]

MIN_LINES = 20  # fewer nonempty lines are too few to decide
MAX_EMPTY_SHARE = 0.02  # of the lines; text in paragraphs has more
MAX_INDENTED_SHARE = 0.05  # of the nonempty lines; code and plays have more
MIN_CHARACTERS = 20  # median length of a line; verse, lists and code have shorter lines
LONG_LINE_CHARACTERS = 120  # text is not wrapped manually at this width
MIN_SENTENCE_SHARE = 0.7  # of lines that end like a sentence; in wrapped text it is about a tenth
SENTENCE_ENDS = (".", "!", "?", "…", '."', '!"', '?"', ".”", "!”", "?”", ".)", "。", "！", "？", "।", "؟")


def documents_of_lines(lines: Iterable[str], unit: Literal["line", "blank_line"]) -> Iterator[Iterable[str]]:
    """Yield the documents in the lines of a file, each as an iterable of chunks of text.

    The chunks of a document must be read before the next document. A line of only white space counts as empty. Line
    ends, including carriage returns, belong to the text only within a document.

    Args:
        lines: Lines without "\\n".
        unit: "line" for one document per line, "blank_line" if empty lines separate documents.
    """
    if unit == "line":
        yield from ([line.removesuffix("\r")] for line in lines if not _is_empty(line))
        return
    for is_empty, group in groupby(lines, _is_empty):
        if not is_empty:
            yield _join(group)


def has_document_per_line(sample: str) -> bool:
    """Return True if the beginning of a file looks like one document per line.

    Such a file has many lines and hardly any empty or indented ones. Its lines are longer than wrapped text, or most of
    them end like a sentence.
    """
    lines = sample.split("\n")[:-1]  # the last one may be incomplete
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
