"""Tables from spreadsheets and data libraries are read, or rejected with a list of their columns."""

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tercet.config import UserError
from tercet.data import PairFiles
from tercet.data.sources.documents import DocumentFiles

ROWS = [("source", "target"), ("A cat.", "Eine Katze."), ("A dog.", "Ein Hund.")]


def lines(separator: str, end: str = "\n") -> str:
    return "".join(separator.join(row) + end for row in ROWS)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("sep=,\n" + lines(";"), "no column 'source'"),
        (lines(",", "\r"), "line 1 is not CSV"),
    ],
)
def test_a_table_of_excel_is_rejected_with_its_columns(content: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode())
    with pytest.raises(UserError, match=why):
        list(PairFiles(source=path).examples())


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_same_table_with_commas_is_read(end: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(("\ufeff" + lines(",", end)).encode())
    assert list(PairFiles(source=path).examples()) == ROWS[1:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary", "with null"])
def test_text_columns_of_parquet_are_read(kind: str, tmp_path: Path) -> None:
    texts = ["one\n", "naïve 🙂"]
    column = pyarrow.array([*texts, None] if kind == "with null" else texts, pyarrow.string())
    if kind == "large_string":
        column = column.cast(pyarrow.large_string())
    elif kind == "dictionary":
        column = column.dictionary_encode()
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    assert [piece.text for piece in DocumentFiles(root=tmp_path / "a.parquet").pieces()] == texts
