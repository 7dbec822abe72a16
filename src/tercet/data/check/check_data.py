"""Faults of data, their effect on training, and a repaired copy."""

from dataclasses import dataclass, replace
from pathlib import Path

from tercet.config import UserError
from tercet.data.check.findings import Finding, find_problems
from tercet.data.check.fix import DataRepair, RepairReport
from tercet.data.check.repaired_items import can_repair
from tercet.data.check.text_faults import RepeatedLine, find_text_faults
from tercet.data.check.text_repair import has_ftfy
from tercet.data.datasets.recognize import recognize
from tercet.data.label_spec import HeldOutLabels, LabelsSpec
from tercet.data.sources.custom_dataset import CustomDataset
from tercet.data.specs import ConversationsSpec, PairsSpec, TextSpec
from tercet.data.split_specs import HeldOut, HeldOutPairs
from tercet.data.summary.data_summary import summarize_data
from tercet.data.summary.split_summary import find_split

Spec = TextSpec | PairsSpec | LabelsSpec | ConversationsSpec


@dataclass(frozen=True, kw_only=True)
class DataCheck:
    """Result of a check of data.

    Attributes:
        source: Path or name of the data.
        unit: Kind of the items, such as "documents".
        count: Number of items that are not empty.
        n_bytes: Bytes of their texts in UTF-8.
        findings: Faults and remarkable properties, problems first.
        repeated_lines: The most frequent lines that occur several times, of at least 20 characters.
        bits_per_byte: Bits per byte of `xz -9e` on the first 1,000,000 characters; None for token ids.
        has_ftfy: False if mojibake was not looked for, because ftfy is not installed.
        repaired: Report on the repaired copy, or None.
    """

    source: str
    unit: str
    count: int
    n_bytes: int
    findings: tuple[Finding, ...]
    repeated_lines: tuple[RepeatedLine, ...]
    bits_per_byte: float | None
    has_ftfy: bool
    repaired: RepairReport | None = None

    @property
    def has_problem(self) -> bool:
        """True if a finding is a problem, and not only a note."""
        return any(finding.severity == "problem" for finding in self.findings)


def check_data(
    data: str | Path | CustomDataset | Spec,
    *,
    target: str | Path | None = None,
    validation: str | Path | None = None,
    validation_target: str | Path | None = None,
    similarity: float | None = None,
    fix: str | Path | None = None,
) -> DataCheck:
    """Report the faults of data, their effect on training, and a remedy for each.

    The data is read several times as a stream. Memory use is 16 bytes per line, and 512 bytes per document if texts are
    compared.

    Args:
        data: Spec, path, name of a dataset, or dataset of another package, as for `summarize_data`.
        target: File of the translations, line by line, if `data` is the path of the sentences.
        validation: Separate validation part, in which copies of the data are looked for; by default the part that
            training would select.
        validation_target: File of the translations of `validation`.
        similarity: Minimum similarity of near duplicates, an estimated Jaccard similarity. By default 0.8 for at most
            20 MB of text; texts of more are not compared.
        fix: Path of a repaired copy to write, a file of the same format or, for a folder and for two files, a folder.
            It must not exist, except as an empty folder.

    Raises:
        UserError: If the data cannot be read, or the copy cannot be written.
    """
    if isinstance(data, str | Path | CustomDataset):
        name = data if isinstance(data, CustomDataset) else str(data)
        data = recognize(name, None if target is None else str(target))
    spec = data if validation is None else hold_out(data, str(validation), validation_target)
    repair = None if fix is None else DataRepair(spec, Path(fix))  # rejects what it cannot write before the work
    summary = summarize_data(spec)
    if repair is not None and summary.invalid:
        raise UserError(
            f"{summary.source} has bytes that are not UTF-8, which --fix cannot repair without a guess; pass the "
            "encoding of the file, such as --encoding cp1252"
        )
    faults = find_text_faults(spec, "replace" if summary.invalid else "strict") if summary.sequences is None else None
    split, split_error = None, ""
    try:
        split = find_split(spec, summary, similarity)
    except UserError as error:
        if validation is not None:
            raise
        split_error = str(error)
    findings = find_problems(summary, faults, split, split_error=split_error, can_fix=can_repair(spec))
    return DataCheck(
        source=summary.source,
        unit=summary.unit,
        count=summary.count,
        n_bytes=sum(text.n_bytes for text in summary.texts.values()),
        findings=findings,
        repeated_lines=() if faults is None else faults.repeated_lines,
        bits_per_byte=None if faults is None else faults.bits_per_byte,
        has_ftfy=has_ftfy(),
        repaired=None if repair is None else repair.write(),
    )


def hold_out(spec: Spec, source: str, target: str | Path | None = None) -> Spec:
    """Return the settings with a separate validation part.

    Args:
        spec: Settings of the data.
        source: Path or name of the validation part.
        target: File of its translations.

    Raises:
        UserError: If the settings exclude it.
    """
    if target is not None and not isinstance(spec, PairsSpec):
        raise UserError("only pairs have two files for validation; pass one")
    match spec:
        case TextSpec() | ConversationsSpec():
            held_out = HeldOut(source=source)
        case LabelsSpec():
            held_out = HeldOutLabels(source=source)
        case PairsSpec():
            held_out = HeldOutPairs(source=source, target=None if target is None else str(target))
    try:
        return replace(spec, validation=held_out)
    except ValueError as error:  # groups divide the data, and need no separate validation part
        raise UserError(f"a separate validation part does not fit the settings: {error}") from None
