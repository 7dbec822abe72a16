"""Files with the concatenated arrays of many examples, and files with the position at which each example starts."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tercet.data.cache import memory_map
from tercet.data.specs import Side


class ArrayFile(NamedTuple):
    """File with one array for each example of the training or the validation part, concatenated.

    Attributes:
        name: File name without the part, such as ids.bin for train_ids.bin. A `.bin` file is written incrementally and
            memory-mapped. A `.npy` file is written at the end and loaded.
        dtype: Type of the numbers.
        starts: Name of the file with the start of each example and the end of the last one, (N + 1,) int64; empty if
            there is none.
    """

    name: str
    dtype: np.dtype[Any]
    starts: str = ""


class ArrayWriter:
    """Writer of the files of the training or the validation part."""

    def __init__(self, folder: Path, side: Side, files: Sequence[ArrayFile]) -> None:
        self._folder, self._side, self._files = folder, side, files
        self._ends = [array("q", [0]) for _ in files]  # eight bytes per example
        self._chunks: list[list[np.ndarray]] = [[] for _ in files]

    def append(self, arrays: Sequence[Sequence[Any]]) -> None:
        """Add some examples: for each file, a sequence with one array per example."""
        for file, example_arrays, ends, chunks in zip(self._files, arrays, self._ends, self._chunks, strict=True):
            joined = np.concatenate(example_arrays, dtype=file.dtype, casting="unsafe")
            if file.name.endswith(".npy"):
                chunks.append(joined)
            else:
                with self._path(file.name).open("ab") as output:
                    output.write(joined.tobytes())
            if file.starts:
                ends.extend((ends[-1] + np.cumsum([len(values) for values in example_arrays])).tolist())

    def finish(self) -> None:
        """Write the `.npy` files and the files with the starts of examples."""
        for file, ends, chunks in zip(self._files, self._ends, self._chunks, strict=True):
            if chunks:
                self._save(file.name, np.concatenate(chunks))
            if file.starts:
                self._save(file.starts, np.array(ends, dtype=np.int64))

    def _save(self, name: str, numbers: np.ndarray) -> None:
        if name.endswith(".npy"):
            np.save(self._path(name), numbers, allow_pickle=False)
        else:
            numbers.tofile(self._path(name))

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._side}_{name}"


def open_arrays(folder: Path, side: Side, files: Sequence[ArrayFile]) -> dict[str, np.ndarray]:
    """Return the concatenated arrays and the starts of a part, by the names in `files` without suffix."""
    dtypes = {file.name: file.dtype for file in files} | {
        file.starts: np.dtype(np.int64) for file in files if file.starts
    }
    arrays = dict[str, np.ndarray]()
    for name, dtype in dtypes.items():
        path = folder / f"{side}_{name}"
        array_ = np.load(path, allow_pickle=False) if path.suffix == ".npy" else memory_map(path, dtype)
        arrays[Path(name).stem] = array_
    return arrays
