"""Findings about data: faults and remarkable properties, their effect on training, and remedies."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tercet.data.check.text_faults import TextFaults
from tercet.data.sources.formats import describe_left_out, extract_command
from tercet.data.summary.data_summary import DataSummary
from tercet.data.summary.split_summary import MAX_BYTES, SplitSummary
from tercet.messages import counted, shorten

SMALL_BYTES = 100_000  # of text, below which a model from scratch hardly learns more than the text itself
REPETITIVE_BITS = 1.0  # per byte; xz needs 1.5 to 2.5 for most texts
MARKUP_SHARE = 0.001  # of the characters; less is not reported
REPEATED_SHARE = 0.02  # of the characters; less is not reported
# Shares from which a finding is a problem rather than a note.
PROBLEM_SHARES = {
    "mojibake": 0.001, "replacement_characters": 0.0001, "control_characters": 0.0001, "repeated_lines": 0.2,
    "duplicates": 0.01, "near_duplicates": 0.05, "leaks": 0.01, "conflicting_labels": 0.01,
}  # fmt: skip
FIX = "--fix OUT writes a copy"
NO_FIX = "repair the source of the data; --fix only repairs text, JSONL, CSV and TSV files"
SIMILAR = "set data.validation.kind=similarity, which keeps similar texts in one part"
WITHOUT = {
    "documents": "no text", "labeled texts": "no text", "pairs": "an empty side", "conversations": "no answer to learn",
    "lists of ids": "no ids",
}  # fmt: skip
KINDS_OF_LABELS = {"numbers": "regression", "lists": "multi_label_classification"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Fault or remarkable property of data.

    Attributes:
        name: Name of the kind of finding, such as "near_duplicates".
        severity: "problem" if training fails, or its result is worse or misleading; otherwise "note".
        count: Number of items, lines, characters or bytes concerned.
        share: Share of all of them, or None.
        found: Description.
        effect: Effect on training.
        remedy: Advice to the user.
        is_fixed: True if the repaired copy does not have it.
    """

    name: str
    severity: Literal["problem", "note"]
    count: int
    share: float | None = None
    found: str
    effect: str
    remedy: str
    is_fixed: bool = False


def find_problems(
    summary: DataSummary,
    faults: TextFaults | None,
    split: SplitSummary | None,
    *,
    split_error: str,
    can_fix: bool,
) -> tuple[Finding, ...]:
    """Return the findings, problems first.

    Args:
        summary: Summary of the data.
        faults: Faults of its texts, or None for token ids.
        split: Summary of the division into training and validation, or None.
        split_error: Reason why training cannot divide the data, or "".
        can_fix: True if a repaired copy of the data can be written.
    """
    findings = [*_of_reading(summary), *_of_division(summary, split, split_error), *_of_items(summary, split, faults)]
    if faults is not None:
        findings += [*_of_characters(summary, faults), *_of_lines(summary, faults), *_of_amount(summary, faults)]
    if not can_fix:
        findings = [
            replace(finding, is_fixed=False, remedy=NO_FIX) if finding.is_fixed else finding for finding in findings
        ]
    return tuple(sorted(findings, key=lambda finding: finding.severity == "note"))


def _finding(
    name: str, count: int, total: int, found: str, effect: str, remedy: str, *, is_fixed: bool = False
) -> Iterator[Finding]:
    """Yield the finding if there is one; its share decides whether it is a problem."""
    if count > 0:
        share = count / max(1, total)
        yield Finding(
            name=name, severity="problem" if share >= PROBLEM_SHARES.get(name, 2) else "note", count=count,
            share=share, found=f"{found} ({_percent(share)})", effect=effect, remedy=remedy, is_fixed=is_fixed,
        )  # fmt: skip


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "<0.1%"


def _of_reading(summary: DataSummary) -> Iterator[Finding]:
    if summary.invalid:
        place = summary.invalid_places[0]
        yield Finding(
            name="invalid_utf8", severity="problem", count=summary.invalid,
            found=f"{counted(summary.invalid, 'byte is', 'bytes are')} not UTF-8, the first in line {place.line} "
            f"of {place.path}",
            effect="training rejects the file",
            remedy="pass the encoding of the file, such as --encoding cp1252, or correct it",
        )  # fmt: skip
    if summary.sequences is not None and summary.sequences.malformed:
        yield Finding(
            name="malformed_records", severity="problem", count=summary.sequences.malformed,
            found=shorten("; ".join(summary.sequences.malformed_records)),
            effect="training rejects the file",
            remedy="correct these records, or set data.sequence_errors=skip",
        )  # fmt: skip
    if summary.looks_like_lines:
        yield Finding(
            name="looks_like_lines", severity="note", count=1,
            found=f"{summary.source} looks like one document per line, but is read as one document",
            effect="texts continue each other in training, and validation is the end of the file",
            remedy="pass --documents line (data.documents)",
        )  # fmt: skip
    if summary.labels_look_like:
        yield Finding(
            name="labels_look_like", severity="note", count=len(summary.labels),
            found=f"the labels look like {summary.labels_look_like}, but each is read as the name of a class",
            effect="a model learns no order of numbers, and no labels that a list has in common",
            remedy=f"pass --problem-type {KINDS_OF_LABELS[summary.labels_look_like]} (data.problem_type)",
        )  # fmt: skip
    if summary.left_out:
        command = extract_command(summary.source, summary.left_out)
        yield Finding(
            name="left_out", severity="note", count=sum(summary.left_out.values()),
            found=f"{counted(sum(summary.left_out.values()), 'file', 'files')} left out: "
            f"{describe_left_out(summary.left_out)}",
            effect="training does not read them",
            remedy=f"to read documents among them, run: {command}" if command else "convert them if they contain text",
        )  # fmt: skip


def _of_division(summary: DataSummary, split: SplitSummary | None, split_error: str) -> Iterator[Finding]:
    if split_error:
        yield Finding(
            name="no_division", severity="problem", count=1,
            found="the data cannot be divided into training and validation",
            effect="training rejects it", remedy=split_error,
        )  # fmt: skip
    if split is None:
        return
    if split.clusters is None or split.leaks is None:
        yield Finding(
            name="not_compared", severity="note", count=0,
            found=f"near duplicates were not searched for in more than {MAX_BYTES // 1_000_000} MB of text",
            effect="the validation part may contain copies of training texts",
            remedy="pass --similarity 0.8, which takes about a second per MB",
        )  # fmt: skip
        return
    yield from _finding(
        "leaks", split.leaks, split.validation,
        f"{split.leaks:,} of {split.validation:,} validation {summary.unit} are similar to a training text",
        "the validation loss is too low, since the model has seen these texts",
        "remove them from one of the two parts" if split.kind == "held_out" else SIMILAR,
    )  # fmt: skip
    total = split.train + split.validation
    n_near, is_separate = total - split.clusters - summary.duplicates, split.kind == "held_out"
    yield from _finding(
        "near_duplicates", n_near, total,
        f"{n_near:,} of {total:,} {summary.unit}{' of both parts' if is_separate else ''} are near duplicates of "
        f"others, with a similarity of at least {split.threshold:g}",
        "the model learns these texts by heart, and less about all others" if is_separate
        else "a random validation part contains copies of training texts, and its loss is too low",
        "remove copies that are not meant" if is_separate else f"{SIMILAR}; remove copies that are not meant",
    )  # fmt: skip


def _of_items(summary: DataSummary, split: SplitSummary | None, faults: TextFaults | None) -> Iterator[Finding]:
    total, conflicting = summary.count, 0 if faults is None else faults.conflicting
    n_exact = summary.duplicates - conflicting
    yield from _finding(
        "duplicates", n_exact, total,
        f"{n_exact:,} of {total:,} {summary.unit} are equal to earlier ones",
        "the model learns these texts by heart, and less about all others",
        f"{FIX} without them", is_fixed=True,
    )  # fmt: skip
    yield from _finding(
        "conflicting_labels", conflicting, total,
        f"{conflicting:,} of {total:,} {summary.unit} are equal to earlier ones with other labels",
        "no model can be right on all of them",
        "decide on one label for each text",
    )  # fmt: skip
    yield from _finding(
        "empty", summary.empty, total + summary.empty,
        f"{summary.empty:,} of {total + summary.empty:,} {summary.unit} have "
        f"{WITHOUT[summary.unit]}",
        "training leaves them out",
        f"{FIX} without them", is_fixed=True,
    )  # fmt: skip


def _of_characters(summary: DataSummary, faults: TextFaults) -> Iterator[Finding]:
    changes = faults.changes
    if (n_lines := changes.get("mojibake", 0)) > 0:
        yield from _finding(
            "mojibake", n_lines, faults.lines,
            f"{n_lines:,} of {faults.lines:,} lines were decoded in a wrong encoding",
            'the model learns and writes sequences such as "Ã©" for "é"',
            f"{FIX} that is decoded again", is_fixed=True,
        )  # fmt: skip
    if not summary.invalid:  # otherwise the invalid bytes are read as these characters
        yield from _finding(
            "replacement_characters", faults.replaced, faults.characters,
            f"{faults.replaced:,} of {faults.characters:,} characters are U+FFFD, written for bytes that a program "
            "could not decode",
            "the text is lost at these places, and the model learns to write U+FFFD",
            "convert the text again from its source, in the right encoding",
        )  # fmt: skip
    n_control = changes.get("control_characters", 0)
    yield from _finding(
        "control_characters", n_control, faults.characters,
        f"{n_control:,} of {faults.characters:,} characters are control characters, NUL or byte-order marks",
        "they take space in the vocabulary, and the model learns to write them",
        f"{FIX} without them", is_fixed=True,
    )  # fmt: skip
    n_returns = changes.get("line_ends", 0)
    yield from _finding(
        "line_ends", n_returns, faults.line_ends,
        f"{n_returns:,} of {faults.line_ends:,} line ends have a carriage return",
        "the model learns several kinds of line ends" if n_returns < faults.line_ends
        else "the model learns a character that has no meaning",
        f"{FIX} in which all are line feeds", is_fixed=True,
    )  # fmt: skip
    n_nfc = changes.get("unicode_nfc", 0)
    yield from _finding(
        "unicode_nfc", n_nfc, faults.lines,
        f"{n_nfc:,} of {faults.lines:,} lines are not in Unicode's normal form NFC",
        "words that look the same consist of different characters, and get different tokens",
        f"{FIX} in NFC", is_fixed=True,
    )  # fmt: skip
    if faults.markup >= MARKUP_SHARE * faults.characters:
        yield from _finding(
            "markup", faults.markup, faults.characters,
            f"{faults.markup:,} of {faults.characters:,} characters are tags or entities of HTML",
            "the model learns and writes them",
            "if that is not meant, extract the text: tercet data extract reads HTML files",
        )  # fmt: skip


def _of_lines(summary: DataSummary, faults: TextFaults) -> Iterator[Finding]:
    # Duplicates of single lines are reported as such, and messages of conversations repeat the system message.
    has_lines = summary.unit in ("documents", "labeled texts") and faults.lines >= 2 * faults.texts
    if has_lines and faults.repeated_lines and faults.repeated >= REPEATED_SHARE * faults.characters:
        first = faults.repeated_lines[0]
        yield from _finding(
            "repeated_lines", faults.repeated, faults.characters,
            f"{faults.repeated:,} of {faults.characters:,} characters are in lines that occurred before, most often "
            f'({first.count:,} times) "{shorten(first.text, 60)}"',
            "the model learns them by heart, and a loss on them does not measure new text",
            "remove headers, footers and menus that are repeated",
        )  # fmt: skip


def _of_amount(summary: DataSummary, faults: TextFaults) -> Iterator[Finding]:
    if faults.bits_per_byte < REPETITIVE_BITS:
        yield Finding(
            name="repetitive", severity="note", count=0,
            found=f"the text is repetitive: xz compresses it to {faults.bits_per_byte:.2f} bits per byte",
            effect="a low loss is no achievement; compare it with this figure",
            remedy="look for templates and copies, and remove them if they are not meant",
        )  # fmt: skip
    n_bytes = sum(text.n_bytes for text in summary.texts.values())
    if n_bytes < SMALL_BYTES:
        yield Finding(
            name="small", severity="note", count=n_bytes,
            found=f"there are only {n_bytes:,} bytes of text, about {max(1, n_bytes // 4):,} tokens",
            effect="a model from scratch learns little more than the text itself",
            remedy="add text, or continue the training of a model with --pretrained",
        )  # fmt: skip
