"""Data specs: the source of the text, its tokenizer, and how it is split into rows."""

import codecs
from collections import Counter
from dataclasses import field
from typing import Any, Literal

from tercet.data.sources.custom_dataset import Source
from tercet.data.sources.line_documents import DocumentUnit
from tercet.data.sources.sequence_files import SequenceErrors, SequenceSettings
from tercet.data.sources.sequence_headers import check_pattern
from tercet.data.sources.sequence_letters import SequenceAmbiguous, SequenceCase
from tercet.data.split_specs import (
    DocumentClusters,
    Documents,
    DocumentSplit,
    ExampleSplit,
    Fold,
    HeldOut,
    HeldOutPairs,
    RandomSplit,
    Tail,
    check_target,
)
from tercet.spec import Context, Name, ShardGroup, ShareBetween, spec
from tercet.tokens.specs import BPE, GPT2, TokenizerSpec, WordPiece

Side = Literal["train", "validation"]
SIDES: tuple[Side, Side] = ("train", "validation")
OLD_FILE_SETTINGS = ("encoding", "text_field", "documents", "dtype", "sequence_case")
SEQUENCE_SETTINGS = ("sequence_case", "sequence_ambiguous", "sequence_errors")
FILE_SETTINGS = (*OLD_FILE_SETTINGS, *SEQUENCE_SETTINGS[1:])  # fields of `TextSpec`
NON_FILE_ENCODINGS = ("idna", "punycode", "raw-unicode-escape", "unicode-escape")  # encodings of names and literals


def check_encoding(encoding: str) -> None:
    """Raise ValueError if `encoding` is not the name of a text encoding."""
    try:
        b"a".decode(encoding, "replace")  # codecs.lookup also accepts "hex", which is not a text encoding
        codecs.getincrementaldecoder(encoding)
        if codecs.lookup(encoding).name in NON_FILE_ENCODINGS:
            raise LookupError(encoding)
    except (LookupError, ValueError):
        raise ValueError(f"unknown encoding {encoding!r}; try utf-8, latin-1, cp1252 or utf-16") from None


@spec
class Packed:
    """Rows of equal length, cut from all documents concatenated.

    Args:
        document_mask: If True, tokens of different documents in the same row do not attend to each other.
    """

    kind: Literal["packed"] = "packed"
    document_mask: bool = False


@spec
class Padded:
    """Windows of equal length over each document separately, `stride` tokens apart and padded.

    Args:
        side: Side of the padding. `right`: the first window starts at the start of the document, and the last window is
            padded after its end. `left`: windows also start before the document, with padding on the left, and end
            after it. With a stride of 1, each token is then predicted from 1, 2, ... up to all inputs of a row.
        stride: Distance between windows in tokens.
    """

    kind: Literal["padded"] = "padded"
    side: Literal["left", "right"] = "left"
    stride: Context = 1


@spec
class Sliding:
    """Windows that slide over each document, `stride` tokens apart, from padding before it to its end.

    They are the windows of `padded` with `side: left`, without those that extend beyond the document's end. With a
    stride of 1, each token is predicted from 1, 2, ... up to all inputs of a row, except near the document's end, where
    short contexts are missing.

    Args:
        stride: Distance between windows in tokens.
    """

    kind: Literal["sliding"] = "sliding"
    stride: Context = 1


@spec
class MixtureSource:
    """Prepared folder in a mixture, and its share of the rows.

    Args:
        source: Prepared folder, or its URL.
        weight: Share of the rows.
    """

    source: Name
    weight: ShareBetween


@spec
class TextSpec:
    """Running text.

    Args:
        source: Named dataset; path of a text, JSONL, CSV, TSV, Parquet, FASTA or FASTQ file, or of a folder of them; or
            one file of existing token ids: `.bin`, `.npy`, or JSONL with a list of ids per line. Any file may be
            compressed as `.gz`. Also a folder written by `tercet data prepare`, or its URL, whose tokenizer and
            validation part replace those of the spec. Or the import path of a dataset in another package, which yields
            documents; with settings, `{kind: "my_package.database:Query", path: reviews.db}`.
        validation: Selection of the validation part.
        group_field: Key or column of a group, such as an author or a patient, or in FASTA and FASTQ a field of the
            header. All documents of a group are in the same part. Requires the split `documents`, `similarity` or
            `fold`.
        group_pattern: Regular expression with one group that matches the group in a header of FASTA or FASTQ.
        tokenizer: Tokenizer, trained on the training part. A masked language model needs one with `bos`, `eos` and
            `mask`, and its recipe uses `wordpiece` by default.
        rows: Division of the documents into rows.
        encoding: Encoding of the files, except for Parquet and arrays of ids.
        text_field: Key or column of the document in JSONL, CSV, TSV and Parquet.
        documents: Unit of a document in a text file: the whole `file`, each `line`, or the lines between blank lines
            (`blank_line`). Empty documents are ignored.
        dtype: Type of the ids in a `.bin` file.
        sequence_case: Lower-case letters of FASTA and FASTQ (soft masking): `keep` leaves them unchanged, `upper`
            converts them, `mask` replaces them with N, or with X in proteins.
        sequence_ambiguous: IUPAC's ambiguity codes of FASTA and FASTQ, after `sequence_case`: R, Y, S, W, K, M, B, D,
            H, V, N and X of nucleotides, or B, J, X and Z of proteins. `keep` leaves them unchanged, `unknown` replaces
            them with N or X, `drop` leaves out the records that contain one.
        sequence_errors: Records of FASTA and FASTQ that cannot be read: `strict` rejects the file, `skip` leaves them
            out and reports their number.
        reverse_complement: If True, each row of training is replaced by its reverse complement with probability 0.5,
            which is drawn in every epoch. Requires DNA or RNA, and the tokenizer `characters`.
        shard_group: Number of shards of a prepared folder that are shuffled together. By default all shards of a local
            folder, and 8 shards of a URL.
        mixture: Additional prepared folders, each with its share of the rows. The remaining rows come from `source`.
    """

    source: Source
    validation: DocumentSplit = Tail()
    group_field: Name | None = None
    group_pattern: Name | None = None
    tokenizer: TokenizerSpec = field(default_factory=BPE)
    rows: Packed | Padded | Sliding = Packed()
    encoding: Name = "utf-8"
    text_field: Name = "text"
    documents: DocumentUnit = "file"
    dtype: Literal["uint16", "uint32"] = "uint16"
    sequence_case: SequenceCase = "keep"
    sequence_ambiguous: SequenceAmbiguous = "keep"
    sequence_errors: SequenceErrors = "strict"
    reverse_complement: bool = False
    shard_group: ShardGroup | None = None
    mixture: tuple[MixtureSource, ...] = ()

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        if (shares := sum(mixture_source.weight for mixture_source in self.mixture)) >= 1:
            raise ValueError(f"the weights of mixture sum to {shares:g} and leave nothing for source; lower them")
        if self.mixture and not isinstance(self.rows, Packed):
            raise ValueError(f"mixture requires packed rows, not {self.rows.kind}; set rows to packed")
        self._check_groups()

    def _check_groups(self) -> None:
        if self.group_pattern is not None:
            check_pattern("group_pattern", self.group_pattern)
        if self.group_field is not None and self.group_pattern is not None:
            raise ValueError("group_field and group_pattern exclude each other; remove one of them")
        if self.group_field == self.text_field:
            raise ValueError(f"group_field and text_field are both {self.text_field!r}; set two fields")
        if self.group_settings and not isinstance(self.validation, Documents | DocumentClusters | Fold):
            raise ValueError(
                f"groups are divided by whole documents, but validation is {self.validation.kind}; set validation to "
                "{kind: documents}, or remove group_field and group_pattern"
            )

    @property
    def group_settings(self) -> dict[str, str]:
        """Settings of the documents' groups that are set, by their names."""
        settings = {"group_field": self.group_field, "group_pattern": self.group_pattern}
        return {name: value for name, value in settings.items() if value is not None}

    @property
    def file_settings(self) -> dict[str, Any]:
        """Settings for reading files, by their names."""
        return {name: getattr(self, name) for name in FILE_SETTINGS}

    @property
    def sequences(self) -> SequenceSettings:
        """Settings for FASTA and FASTQ files."""
        return SequenceSettings(case=self.sequence_case, ambiguous=self.sequence_ambiguous, errors=self.sequence_errors)

    @property
    def has_document_mask(self) -> bool:
        """True if the model reads each document separately."""
        return not isinstance(self.rows, Packed) or self.rows.document_mask


@spec
class PairsSpec:
    """Sentences and their translations.

    Args:
        source: File with one sentence per line. Without `target`: a named dataset of pairs, or one `.tsv`, `.csv` or
            `.jsonl` file of pairs, or a dataset of another package. Any file may be compressed as `.gz`.
        target: File of the translations, line by line.
        source_language, target_language: Languages such as "de". They select the direction of a named dataset, and are
            the keys of a JSONL file or dataset and the columns of a CSV or TSV file (default: "source" and "target").
        group_field: Key or column of a group, such as a document or a speaker, in one file of pairs. All pairs of a
            group are in the same part. Null to divide the pairs separately.
        validation: Selection of the validation part. By default it is that of the named dataset, or a `drawn` part of
            the pairs in files.
        tokenizer: Tokenizer, learned from both sides. With a `source_tokenizer`, learned from the target side only.
        source_tokenizer: Tokenizer of the source side, if it has a separate vocabulary.
        source_bos: If True, the encoder reads bos before the source, as the decoder does before the target.
        encoding: Encoding of the files.
    """

    source: Source
    target: Name | None = None
    source_language: Name | None = None
    target_language: Name | None = None
    group_field: Name | None = None
    validation: ExampleSplit | HeldOutPairs | None = None
    tokenizer: TokenizerSpec = field(default_factory=lambda: BPE(vocab_size=8000))
    source_tokenizer: TokenizerSpec | None = None
    source_bos: bool = False
    encoding: Name = "utf-8"

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        check_target(self.source, self.target)
        if self.source_language is not None and self.source_language == self.target_language:
            raise ValueError(
                f"source_language and target_language are both {self.source_language!r}; set two languages"
            )
        if isinstance(self.tokenizer, GPT2) or isinstance(self.source_tokenizer, GPT2):
            raise ValueError("gpt2 has no pad and no bos token, which pairs require; use the kind bpe")
        if self.group_field is not None and self.target is not None:
            raise ValueError(
                "group_field is a column of one file of pairs, but target is another file; write both sides and the "
                "group into one .csv or .jsonl file, or remove group_field"
            )
        if self.group_field is not None and isinstance(self.validation, HeldOutPairs):
            raise ValueError(
                "groups divide the pairs of one source, but validation has another one; remove group_field or "
                "validation"
            )


@spec
class QueriesSpec:
    """Pairs of texts whose vectors should be similar, such as a query and a document that answers it.

    Args:
        source: Named dataset of such pairs; a `.jsonl`, `.csv` or `.tsv` file of them, optionally `.gz`; or a dataset
            of another package.
        query_field, document_field: Keys or columns of the two texts.
        negative_field: Key or column of a document that looks relevant to the query but is not (a hard negative); null
            if there is none. It may be empty in some rows.
        validation: Selection of the validation part. By default it is that of the named dataset, or a `drawn` part of
            the pairs in a file. All pairs of a query are in the same part.
        tokenizer: Tokenizer, learned from the training pairs.
        encoding: Encoding of the files.
    """

    source: Source
    query_field: Name = "query"
    document_field: Name = "document"
    negative_field: Name | None = None
    validation: ExampleSplit | HeldOut | None = None
    tokenizer: TokenizerSpec = field(default_factory=WordPiece)
    encoding: Name = "utf-8"

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        fields = [self.query_field, self.document_field, *([self.negative_field] if self.negative_field else [])]
        if repeated_fields := [name for name, count in Counter(fields).items() if count > 1]:
            raise ValueError(
                f"{repeated_fields[0]!r} appears twice in query_field, document_field and negative_field; "
                "name each field once"
            )
        if isinstance(self.tokenizer, GPT2):
            raise ValueError("gpt2 has no pad and no bos token, which pairs of texts require; use the kind wordpiece")


@spec
class ConversationsSpec:
    """Conversations. The model learns the answers.

    Args:
        source: `.jsonl` file with a list of messages, or a prompt and its response, per line; or a `.csv` or `.tsv`
            file with a column for each, optionally `.gz`; or a dataset of another package.
        messages_field: Key of the list in JSONL. Each message has a role (system, user or assistant) and a content, or,
            as in ShareGPT's files, a from (system, human or gpt) and a value. "conversations" is read if "messages" is
            missing.
        prompt_field, response_field: Keys or columns of a prompt and its response.
        chat_template: File of a Jinja template. By default that of the pretrained model, or a plain one if the model
            has none.
        validation: Selection of the validation part: some of the conversations, or another file.
        tokenizer: Tokenizer, learned from the training part.
        encoding: Encoding of the files.
    """

    source: Source
    messages_field: Name = "messages"
    prompt_field: Name = "prompt"
    response_field: Name = "response"
    chat_template: Name | None = None
    validation: ExampleSplit | HeldOut = RandomSplit()
    tokenizer: TokenizerSpec = field(default_factory=BPE)
    encoding: Name = "utf-8"

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        if self.prompt_field == self.response_field:
            raise ValueError(f"prompt_field and response_field are both {self.prompt_field!r}; set two fields")

    @property
    def fields(self) -> dict[str, Any]:
        """Keys or columns of a conversation, by the names of their settings."""
        return {name: getattr(self, name) for name in ("messages_field", "prompt_field", "response_field")}
