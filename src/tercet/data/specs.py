"""What to train on, as settings: where the text is, how it is cut into tokens, and into rows."""

import codecs
from collections import Counter
from dataclasses import field
from typing import Annotated, Any, Literal

from tercet.data.sources.fasta import SequenceCase
from tercet.data.sources.line_documents import DocumentUnit
from tercet.spec import Context, Interval, Name, ProblemType, ShardGroup, ShareBetween, check_problem_type, spec
from tercet.tokens.specs import BPE, GPT2, TokenizerSpec, WordPiece

Side = Literal["train", "validation"]
SIDES: tuple[Side, Side] = ("train", "validation")
FILE_SETTINGS = ("encoding", "text_field", "documents", "dtype", "sequence_case")  # of a `TextSpec`
NON_FILE_ENCODINGS = ("idna", "punycode", "raw-unicode-escape", "unicode-escape")  # but of single names and literals


def _check_encoding(encoding: str) -> None:
    try:
        b"a".decode(encoding, "replace")  # codecs.lookup would also take "hex", which is no text encoding
        codecs.getincrementaldecoder(encoding)
        if codecs.lookup(encoding).name in NON_FILE_ENCODINGS:
            raise LookupError(encoding)
    except (LookupError, ValueError):
        raise ValueError(f"unknown encoding {encoding!r}; try utf-8, latin-1, cp1252 or utf-16") from None


@spec
class Tail:
    """The last part of the tokens is kept for validation."""

    kind: Literal["tail"] = "tail"
    fraction: ShareBetween = 0.1


@spec
class Documents:
    """Whole documents, drawn at random but always the same ones, are kept for validation."""

    kind: Literal["documents"] = "documents"
    fraction: ShareBetween = 0.1


@spec
class HeldOut:
    """A second source, a path or a named dataset, is for validation."""

    kind: Literal["held_out"] = "held_out"
    source: Name


@spec
class Packed:
    """All documents one after another, cut into rows of equal length. `document_mask` keeps each to itself."""

    kind: Literal["packed"] = "packed"
    document_mask: bool = False


@spec
class Padded:
    """Each document by itself, in windows `stride` tokens apart, padded on one side to equal length."""

    kind: Literal["padded"] = "padded"
    side: Literal["left", "right"] = "left"
    stride: Context = 1


@spec
class Sliding:
    """Windows `stride` tokens apart over each document with a row of padding before it; the last ends where it ends.

    With a stride of 1 each token is predicted from 1, 2, ... and all tokens of a row, and stands once at each place.
    """

    kind: Literal["sliding"] = "sliding"
    stride: Context = 1


@spec
class MixtureSource:
    """A prepared folder, or the URL of one, and the share of the rows that come from it."""

    source: Name
    weight: ShareBetween


@spec
class TextSpec:
    """Running text.

    Args:
        source: a named dataset; the path of a text, JSONL, CSV, TSV, Parquet, FASTA or FASTQ file or a folder of them;
            or one file of ids that were made elsewhere: `.bin`, `.npy`, or JSONL with a list of them on each line. All
            also as `.gz`. Or a folder that `tercet data prepare` has made, or its URL, whose tokenizer and validation
            part take the place of those here.
        encoding: of text files.
        text_field: the key or column that holds a document in JSONL, CSV, TSV and Parquet.
        documents: what is a document of a text file: the `file`, each `line`, or the lines between a `blank_line` and
            the next. Empty ones are none.
        dtype: of the ids in a `.bin` file.
        sequence_case: of FASTA and FASTQ: letters as they are, or all of them in the `upper` case.
        shard_group: how many shards of a prepared folder are shuffled together; null is all of them, of a URL 8.
        mixture: other prepared folders, each with its share of the rows; `source` has what they leave.
    """

    source: Name
    validation: Tail | Documents | HeldOut = Tail()
    tokenizer: TokenizerSpec = field(default_factory=BPE)
    rows: Packed | Padded | Sliding = Packed()
    encoding: Name = "utf-8"
    text_field: Name = "text"
    documents: DocumentUnit = "file"
    dtype: Literal["uint16", "uint32"] = "uint16"
    sequence_case: SequenceCase = "keep"
    shard_group: ShardGroup | None = None
    mixture: tuple[MixtureSource, ...] = ()

    def __post_init__(self) -> None:
        _check_encoding(self.encoding)
        if (shares := sum(mixed.weight for mixed in self.mixture)) >= 1:
            raise ValueError(f"the weights of mixture sum up to {shares:g} and leave nothing to source; make them less")
        if self.mixture and not isinstance(self.rows, Packed):
            raise ValueError(f"mixture is of packed rows, and rows are {self.rows.kind}; set rows to packed")

    @property
    def file_settings(self) -> dict[str, Any]:
        """How files are read."""
        return {name: getattr(self, name) for name in FILE_SETTINGS}

    @property
    def has_document_mask(self) -> bool:
        """Whether the model sees each document by itself."""
        return not isinstance(self.rows, Packed) or self.rows.document_mask


@spec
class RandomSplit:
    """Some of the pairs or labelled texts, about `count` and at most a tenth, are kept for validation.

    They are drawn by a hash of the source sentence or the text: equal ones fall on one side, and in whatever order the
    lines stand, the same ones are drawn.
    """

    kind: Literal["drawn"] = "drawn"
    count: Annotated[int, Interval(ge=1, le=10**9)] = 1000


@spec
class HeldOutPairs:
    """Other files, two of sentences or one of pairs, are for validation."""

    kind: Literal["held_out"] = "held_out"
    source: Name
    target: Name | None = None


@spec
class PairsSpec:
    """Sentences and their translations.

    Args:
        source: a file of sentences, one a line; or, without `target`, a named dataset of pairs or one `.tsv`, `.csv` or
            `.jsonl` file of them. Files may be `.gz`.
        target: the file of their translations, line by line.
        source_language, target_language: such as "de"; they choose the direction of a named dataset and are the keys
            of a JSONL file and the columns of a CSV file (by default "source" and "target").
        validation: null is the named dataset's own validation part; for files, some of their pairs.
        tokenizer: learnt on both sides; where there is a `source_tokenizer`, on the target side alone.
        source_tokenizer: gives the source side a vocabulary of its own.
        source_bos: whether the encoder reads bos before the source, as the decoder does before the target.
        encoding: of text, TSV and CSV files.
    """

    source: Name
    target: Name | None = None
    source_language: Name | None = None
    target_language: Name | None = None
    validation: RandomSplit | HeldOutPairs | None = None
    tokenizer: TokenizerSpec = field(default_factory=lambda: BPE(vocab_size=8000))
    source_tokenizer: TokenizerSpec | None = None
    source_bos: bool = False
    encoding: Name = "utf-8"

    def __post_init__(self) -> None:
        _check_encoding(self.encoding)
        if self.source_language is not None and self.source_language == self.target_language:
            raise ValueError(f"source_language and target_language are both {self.source_language!r}; set two")
        if isinstance(self.tokenizer, GPT2) or isinstance(self.source_tokenizer, GPT2):
            raise ValueError("gpt2 has no pad and no bos token, which pairs need; use the kind bpe")


@spec
class HeldOutLabels:
    """A second file of labelled texts, or a named set's training part, is for validation."""

    kind: Literal["held_out"] = "held_out"
    source: Name


@spec
class LabelsSpec:
    """Texts and what each is, or words and what each of them is.

    Args:
        source: a named set of labelled texts, or a `.jsonl`, `.csv` or `.tsv` file of them, also as `.gz`.
        text_field, label_field: the keys or columns of the text and of its label. Over tokens they hold two lists of
            equal length, and where there is no "text" or "label", "tokens" and "labels" are taken for them.
        over: "texts" for a label a text, "tokens" for one a word.
        problem_type: whether a text has one label, any number of labels, or a number; a word has one label.
        label_separator: what stands between the labels of a text in a table's column, where it may have several.
        label_fields: in the place of `label_field` a key or column for each of several labels, with 1 where the text
            has it and 0 where not.
        validation: null is the named set's own validation part; for files, some of their texts.
        tokenizer: learnt on the training texts.
        encoding: of the files.
    """

    source: Name
    text_field: Name = "text"
    label_field: Name = "label"
    over: Literal["texts", "tokens"] = "texts"
    problem_type: ProblemType = "single_label_classification"
    label_separator: Name = ","
    label_fields: tuple[Name, ...] = ()
    validation: RandomSplit | HeldOutLabels | None = None
    tokenizer: TokenizerSpec = field(default_factory=WordPiece)
    encoding: Name = "utf-8"

    def __post_init__(self) -> None:
        _check_encoding(self.encoding)
        check_problem_type(self.problem_type, self.over)
        if self.text_field == self.label_field and not self.label_fields:
            raise ValueError(f"text_field and label_field are both {self.text_field!r}; set two")
        if self.label_fields and self.problem_type != "multi_label_classification":
            raise ValueError("label_fields are several labels: set problem_type to multi_label_classification")
        repeated_fields = [name for name, count in Counter((self.text_field, *self.label_fields)).items() if count > 1]
        if repeated_fields:
            raise ValueError(
                f"{repeated_fields[0]!r} stands twice in text_field and label_fields; name each field once"
            )
        if isinstance(self.tokenizer, GPT2):
            raise ValueError("gpt2 has no pad and no bos token, which labelled texts need; use the kind wordpiece")


@spec
class ConversationsSpec:
    """Conversations, whose answers are learnt.

    Args:
        source: a `.jsonl` file with a list of messages on each line, or with a prompt and its response, or a `.csv` or
            `.tsv` file with a column of each; also as `.gz`.
        messages_field: the key of the list in JSONL; each message has a role (system, user or assistant) and a content,
            or a from (system, human or gpt) and a value, as ShareGPT's. Where there is no "messages", "conversations"
            is taken for it.
        prompt_field, response_field: the keys or columns of a prompt and of the response to it.
        chat_template: the file of a Jinja template, in the place of the pretrained model's own, or where it has none of
            a plain one.
        validation: some of the conversations, or another file.
        tokenizer: learnt on the training part.
        encoding: of the files.
    """

    source: Name
    messages_field: Name = "messages"
    prompt_field: Name = "prompt"
    response_field: Name = "response"
    chat_template: Name | None = None
    validation: RandomSplit | HeldOut = RandomSplit()
    tokenizer: TokenizerSpec = field(default_factory=BPE)
    encoding: Name = "utf-8"

    def __post_init__(self) -> None:
        _check_encoding(self.encoding)
        if self.prompt_field == self.response_field:
            raise ValueError(f"prompt_field and response_field are both {self.prompt_field!r}; set two")

    @property
    def fields(self) -> dict[str, Any]:
        """Where a conversation stands in an object or a row."""
        return {name: getattr(self, name) for name in ("messages_field", "prompt_field", "response_field")}
