"""From text files to rows of ids: sources, named datasets, ids on disk, rows, and the order in which they come."""

from tercet.data.datasets import DATASETS, Dataset, cache_folder
from tercet.data.order import Order
from tercet.data.prepare import Corpus, prepare
from tercet.data.rows import PackedRows, PaddedRows, TokenRows, Windows
from tercet.data.specs import DataSpec, Documents, HeldOut, Packed, Padded, Tail

__all__ = [
    "DATASETS",
    "Corpus",
    "DataSpec",
    "Dataset",
    "Documents",
    "HeldOut",
    "Order",
    "Packed",
    "PackedRows",
    "Padded",
    "PaddedRows",
    "Tail",
    "TokenRows",
    "Windows",
    "cache_folder",
    "prepare",
]
