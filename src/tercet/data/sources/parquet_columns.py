"""Columns of Parquet files, read as a stream: the text of each document, and optionally its group."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tercet.config import UserError
from tercet.data.sources.files import BLOCK, open_file, read_group, suggest_field
from tercet.data.sources.formats import is_gzip
from tercet.messages import describe_error
from tercet.reading.text_files import check_unpacked


def read_parquet(path: Path, field: str, group_field: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield the text and the group of each row, "" for null and without a column of groups.

    Args:
        path: Parquet file, which may be compressed by gzip.
        field: Column of the text.
        group_field: Column of the group, or None.

    Raises:
        UserError: If the file is damaged or too large, a column is missing or the text column is not text, a row has no
            group, or pyarrow is not installed.
    """
    try:
        from pyarrow import ArrowException
    except ImportError:
        raise UserError(f"{path}: reading Parquet requires pyarrow; pip install 'tercet[parquet]'") from None
    with open_file(path) as file, tempfile.TemporaryFile() as copy:
        if is_gzip(path):  # Parquet is read from its end, which gzip reaches only by unpacking everything before
            shutil.copyfileobj(file, copy, BLOCK)
        try:
            yield from _read_rows(path, copy if is_gzip(path) else file, field, group_field)
        except UnicodeDecodeError:
            raise UserError(f"{path}: the column {field!r} is not UTF-8 text; write the file again") from None
        except (ArrowException, OSError) as error:
            reason = describe_error(error)
            raise UserError(f"{path} is not a complete Parquet file: {reason}; copy it again") from None


def _read_rows(path: Path, file: IO[bytes], field: str, group_field: str | None) -> Iterator[tuple[str, str]]:
    """Yield the rows one by one.

    A whole column could be far larger than the file, because a dictionary column stores equal texts only once.
    """
    from pyarrow import parquet, types

    packed_bytes = path.stat().st_size
    metadata = parquet.read_metadata(file)
    row_groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    check_unpacked(path, packed_bytes, sum(max(0, group.total_byte_size) for group in row_groups))
    schema = metadata.schema.to_arrow_schema()
    fields = {field: "data.text_field", **({} if group_field is None else {group_field: "data.group_field"})}
    for name, setting in fields.items():
        if name not in schema.names:
            raise UserError(f"{path} has no column {name!r}{suggest_field(name, schema.names)} (set {setting})")
    kind = schema.field(field).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind)):
        raise UserError(f"{path}: the column {field!r} is not text; set data.text_field to a text column")
    table = parquet.ParquetFile(file, metadata=metadata, read_dictionary=[field], buffer_size=BLOCK)
    unpacked_characters = n_rows = 0
    for batch in table.iter_batches(batch_size=1024, columns=[*fields]):
        groups = [] if group_field is None else batch.column(group_field)
        for number, value in enumerate(batch.column(field)):
            text, n_rows = value.as_py() or "", n_rows + 1
            unpacked_characters += len(text)
            check_unpacked(path, packed_bytes, unpacked_characters)
            location = f"{path} row {n_rows}"
            yield text, "" if group_field is None else read_group(groups[number].as_py(), location, group_field)
