"""From text files to rows of ids: sources, named datasets, ids on disk, rows, and the order in which they come."""

from tercet.data.buckets import Buckets, PairRows, gather
from tercet.data.cache import cache_folder
from tercet.data.datasets import DATASETS, Dataset
from tercet.data.order import Order
from tercet.data.pair_datasets import PAIR_DATASETS, PairDataset
from tercet.data.pairs import PairFiles, read_pairs
from tercet.data.parallel import Pairs, ParallelCorpus, pairs_of, prepare_pairs
from tercet.data.prepare import Corpus, prepare
from tercet.data.rows import PackedRows, PaddedRows, TokenRows, Windows
from tercet.data.specs import (
    DataSpec,
    Documents,
    Drawn,
    HeldOut,
    HeldOutPairs,
    Packed,
    Padded,
    PairsSpec,
    Tail,
)

__all__ = [
    "DATASETS",
    "PAIR_DATASETS",
    "Buckets",
    "Corpus",
    "DataSpec",
    "Dataset",
    "Documents",
    "Drawn",
    "HeldOut",
    "HeldOutPairs",
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
    "Tail",
    "TokenRows",
    "Windows",
    "cache_folder",
    "gather",
    "pairs_of",
    "prepare",
    "prepare_pairs",
    "read_pairs",
]
