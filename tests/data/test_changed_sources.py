"""A file that changes between hashing and its last line leaves no entry in the cache under the old hash."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tercet.config import UserError
from tercet.data import LabelsSpec, PairsSpec, TextSpec, prepare, prepare_labels, prepare_pairs
from tercet.tokens import Characters, Tokenizer

FILES = {"a.txt": "a text\n" * 50, "a.tsv": "".join(f"text {n}\tTEXT {n}\n" for n in range(50)),
         "a.csv": "text,label\n" + "".join(f"text {n},{n % 2}\n" for n in range(50))}  # fmt: skip
TOKENIZER = Characters(eos=False)
PREPARE: dict[str, Callable[[str], Any]] = {
    "a.txt": lambda path: prepare(TextSpec(source=path, tokenizer=TOKENIZER)),
    "a.tsv": lambda path: prepare_pairs(PairsSpec(source=path, tokenizer=TOKENIZER)),
    "a.csv": lambda path: prepare_labels(LabelsSpec(source=path, tokenizer=TOKENIZER)),
}


@pytest.mark.parametrize("method", ["train", "encode_batch"])
@pytest.mark.parametrize("name", FILES)
def test_file_changed_while_read_is_rejected(
    name: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change occurs while a vocabulary is trained on the file, or while the file is encoded."""
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    path, plain = tmp_path / name, getattr(Tokenizer, method)
    path.write_text(FILES[name])

    def change_first(*args: Any, **options: Any) -> Any:
        path.write_text(FILES[name].replace(" ", "_"))
        return plain(*args, **options)

    with monkeypatch.context() as changing:
        changing.setattr(Tokenizer, method, change_first)
        with pytest.raises(UserError, match=rf"{name}.* was changed while it was read; try again"):
            PREPARE[name](str(path))
    path.write_text(FILES[name])
    corpus = PREPARE[name](str(path))
    assert " " in corpus.tokenizer.decode(range(corpus.tokenizer.vocab_size))
    assert len(list((tmp_path / "cache").rglob("manifest.json"))) == 2  # a tokenizer and its ids
