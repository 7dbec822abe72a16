"""Data spec of labeled texts."""

from collections import Counter
from dataclasses import field
from typing import Annotated, Literal

from tercet.data.sources.custom_dataset import Source
from tercet.data.sources.sequence_files import SequenceErrors, SequenceSettings
from tercet.data.sources.sequence_headers import check_pattern
from tercet.data.sources.sequence_letters import SequenceAmbiguous, SequenceCase
from tercet.data.specs import check_encoding
from tercet.data.split_specs import ExampleSplit
from tercet.spec import Interval, Name, ProblemType, check_problem_type, spec
from tercet.tokens.specs import GPT2, TokenizerSpec, WordPiece


@spec
class HeldOutLabels:
    """Separate source of the validation part: a file of labeled texts, or the training part of a named dataset.

    Args:
        source: Path, named dataset, or dataset of another package.
    """

    kind: Literal["held_out"] = "held_out"
    source: Source


@spec
class LabelsSpec:
    r"""Labeled texts, labeled pairs of texts, or texts with a label for each word.

    Args:
        source: Named dataset of labeled texts, or a `.jsonl`, `.csv` or `.tsv` file of them, or a FASTA or FASTQ file
            with the labels in its headers, optionally `.gz`; or a dataset of another package. With `negatives`, any of
            these except FASTA, with queries and their documents, which have no labels.
        text_field, label_field: Keys or columns of the text and its label. Over tokens they contain two lists of equal
            length, and "tokens" is read if "text" is missing, and "labels" if "label" is.
        label_pattern: Regular expression with one group that matches the label in a header of FASTA or FASTQ, such as
            `family=(\w+)`; null to read the value of `label_field` in a header such as `>s1 family=kinase`.
        group_field: Key or column of a group, such as a patient or a family, or in FASTA and FASTQ a field of the
            header. All texts of a group are in the same part. Null to divide the texts separately.
        group_pattern: As `label_pattern`, for the group.
        pair_field: Key or column of the second text of a pair, such as the document of a query; null for single texts.
            All pairs with the same first text are in the same part.
        negatives: Documents that are drawn for each query as irrelevant ones, for data without labels. The document of
            a query has the label in `label_fields`, and drawn documents do not. 0 for data with labels.
        negative_field: With `negatives`, key or column of another irrelevant document (a hard negative), which may be
            empty in some rows; null if there is none.
        over: Unit of a label: "texts" for labels of a text or pair, "tokens" for one label per word.
        problem_type: Kind of labels of a text: one label, any number of labels, or a number. A word has one label.
        label_separator: Separator of several labels in the label column of a table.
        label_fields: Keys or columns of several labels, used instead of `label_field`. Each is 1 if the text has the
            label and 0 if it does not.
        validation: Selection of the validation part. By default it is that of the named dataset, or a `drawn` part of
            the texts in a file.
        tokenizer: Tokenizer, learned from the training texts.
        encoding: Encoding of the files.
        sequence_case, sequence_ambiguous, sequence_errors: Treatment of FASTA and FASTQ, as in `TextSpec`. Records
            without a label or group also cannot be read.
        reverse_complement: If True, each text is replaced by its reverse complement with probability 0.5 in training,
            drawn in every epoch, with the same label. Requires DNA or RNA, and the tokenizer `characters`.
    """

    source: Source
    text_field: Name = "text"
    label_field: Name = "label"
    label_pattern: Name | None = None
    group_field: Name | None = None
    group_pattern: Name | None = None
    pair_field: Name | None = None
    negatives: Annotated[int, Interval(ge=0, le=1000)] = 0
    negative_field: Name | None = None
    over: Literal["texts", "tokens"] = "texts"
    problem_type: ProblemType = "single_label_classification"
    label_separator: Name = ","
    label_fields: tuple[Name, ...] = ()
    validation: ExampleSplit | HeldOutLabels | None = None
    tokenizer: TokenizerSpec = field(default_factory=WordPiece)
    encoding: Name = "utf-8"
    sequence_case: SequenceCase = "keep"
    sequence_ambiguous: SequenceAmbiguous = "keep"
    sequence_errors: SequenceErrors = "strict"
    reverse_complement: bool = False

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        check_problem_type(self.problem_type, self.over)
        if self.text_field == self.label_field and not self.label_fields:
            raise ValueError(f"text_field and label_field are both {self.text_field!r}; set two fields")
        if self.label_fields and self.problem_type != "multi_label_classification":
            raise ValueError("label_fields contain several labels; set problem_type to multi_label_classification")
        label_fields = self.label_fields or (self.label_field,)
        fields = Counter((self.text_field, *([self.pair_field] if self.pair_field else []), *label_fields))
        if repeated_fields := [name for name, count in fields.items() if count > 1]:
            raise ValueError(
                f"{repeated_fields[0]!r} appears twice in text_field, pair_field and label_fields; name each field once"
            )
        if self.pair_field is not None and self.over == "tokens":
            raise ValueError("pair_field requires labels of pairs; set over to texts, or leave pair_field out")
        if self.negatives and (self.pair_field is None or len(self.label_fields) != 1):
            raise ValueError(
                "negatives are drawn for pairs with one label, relevant or not; set pair_field to the field of the "
                "document, problem_type to multi_label_classification and label_fields to one name, such as [relevant]"
            )
        if self.negative_field is not None and not self.negatives:
            raise ValueError(
                "negative_field requires data without labels; set negatives to at least 1, or leave it out"
            )
        if isinstance(self.tokenizer, GPT2):
            raise ValueError("gpt2 has no pad and no bos token, which labeled texts require; use the kind wordpiece")
        self._check_headers_and_groups()

    def _check_headers_and_groups(self) -> None:
        for name in ("label_pattern", "group_pattern"):
            if (pattern := getattr(self, name)) is not None:
                check_pattern(name, pattern)
        if self.reverse_complement and (self.over == "tokens" or self.pair_field is not None):
            raise ValueError("reverse_complement requires labels of single texts; set it to false")
        if self.label_pattern is not None and self.label_field != "label":
            raise ValueError("label_field and label_pattern exclude each other; remove one of them")
        if self.label_pattern is not None and self.label_fields:
            raise ValueError("label_pattern and label_fields exclude each other; remove one of them")
        if self.group_field is not None and self.group_pattern is not None:
            raise ValueError("group_field and group_pattern exclude each other; remove one of them")
        if self.has_groups and self.negatives:
            raise ValueError("negatives are grouped by their query; remove group_field and group_pattern")
        if self.has_groups and isinstance(self.validation, HeldOutLabels):
            raise ValueError(
                "groups divide the texts of one source, but validation has another one; remove group_field and "
                "group_pattern, or validation"
            )

    @property
    def has_groups(self) -> bool:
        """True if all texts of a group are in the same part."""
        return self.group_field is not None or self.group_pattern is not None

    @property
    def sequences(self) -> SequenceSettings:
        """Settings for FASTA and FASTQ files."""
        return SequenceSettings(case=self.sequence_case, ambiguous=self.sequence_ambiguous, errors=self.sequence_errors)
