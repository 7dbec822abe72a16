"""From text files to rows of ids: sources, named datasets, ids on disk, rows, and the order in which they come."""

from tercet.data.buckets import Buckets, PairRows, gather
from tercet.data.datasets import DATASETS, Dataset
from tercet.data.label_datasets import LABEL_DATASETS, LabelDataset
from tercet.data.labelled import (
    Labelled,
    LabelledCorpus,
    LabelRows,
    encode_words,
    examples_of,
    labelled_rows,
    prepare_labelled,
)
from tercet.data.labels import Example, LabelFile, read_examples
from tercet.data.order import Order
from tercet.data.pair_datasets import PAIR_DATASETS, PairDataset
from tercet.data.pairs import PairFiles, read_pairs
from tercet.data.parallel import Pairs, ParallelCorpus, pairs_of, prepare_pairs
from tercet.data.prepare import Corpus, prepare
from tercet.data.rows import PackedRows, PaddedRows, TokenRows, Windows
from tercet.data.specs import (
    Documents,
    Drawn,
    HeldOut,
    HeldOutLabels,
    HeldOutPairs,
    LabelsSpec,
    Packed,
    Padded,
    PairsSpec,
    Sliding,
    Tail,
    TextSpec,
)

__all__ = [
    "DATASETS",
    "LABEL_DATASETS",
    "PAIR_DATASETS",
    "Buckets",
    "Corpus",
    "Dataset",
    "Documents",
    "Drawn",
    "Example",
    "HeldOut",
    "HeldOutLabels",
    "HeldOutPairs",
    "LabelDataset",
    "LabelFile",
    "LabelRows",
    "Labelled",
    "LabelledCorpus",
    "LabelsSpec",
    "Order",
    "Packed",
    "PackedRows",
    "Padded",
    "PaddedRows",
    "PairDataset",
    "PairFiles",
    "PairRows",
    "Pairs",
    "PairsSpec",
    "ParallelCorpus",
    "Sliding",
    "Tail",
    "TextSpec",
    "TokenRows",
    "Windows",
    "encode_words",
    "examples_of",
    "gather",
    "labelled_rows",
    "pairs_of",
    "prepare",
    "prepare_labelled",
    "prepare_pairs",
    "read_examples",
    "read_pairs",
]
