"""Read text files in blocks: only regular files, and no more bytes than they had when they were opened."""

import errno
import io
import os
import stat
from pathlib import Path

from tercet.config import UserError
from tercet.limits import FILE_BYTES, UNPACKED_BYTES, UNPACKED_RATIO
from tercet.reading.files import open_without_waiting


def open_regular_file(path: Path) -> io.BufferedReader:
    """Open a regular file for reading in blocks, up to its current size.

    Devices, which may never end, and pipes, which may block, are rejected.

    Raises:
        OSError: If the file cannot be opened.
        UserError: If it is not a regular file, is larger than FILE_BYTES, or is a sparse file that consists almost
            entirely of holes. Reading raises it if the file has become shorter.
    """
    return io.BufferedReader(_RegularFile(path), 1 << 16)


def check_unpacked(path: Path, packed: int, unpacked: int) -> None:
    """Reject a compressed or sparse file whose content is far larger than text that compresses well.

    Args:
        path: The file, for the error message.
        packed: Its size on disk in bytes.
        unpacked: Size of its content in bytes.

    Raises:
        UserError: If `unpacked` exceeds both UNPACKED_BYTES and UNPACKED_RATIO times `packed`.
    """
    if unpacked > max(UNPACKED_BYTES, UNPACKED_RATIO * packed):
        raise UserError(
            f"{path}: its {packed:,} bytes unpack to more than {UNPACKED_RATIO} times as many, which text never does; "
            "check the file, or write its content to an uncompressed file"
        )


class _RegularFile(io.FileIO):
    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb", opener=open_without_waiting)
        self._path, status = path, os.fstat(self.fileno())
        self._size = status.st_size
        try:
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path} is not a regular file; copy its content into one")
            if self._size > FILE_BYTES:
                raise UserError(
                    f"{path} has {self._size:,} bytes, more than the allowed {FILE_BYTES:,}; check its type"
                )
            self._check_holes()
        except UserError:
            self.close()
            raise

    def readinto(self, buffer: "bytearray | memoryview", /) -> int:  # type: ignore[override]  # the base class accepts any buffer
        left = max(0, self._size - self.tell())  # otherwise reading a file that grows faster would never end
        n_bytes = super().readinto(memoryview(buffer)[:left]) or 0
        if not n_bytes and left and len(buffer):
            raise UserError(f"{self._path} became shorter while it was read; try again when it is complete")
        return n_bytes

    def _check_holes(self) -> None:
        if self._size <= UNPACKED_BYTES or not hasattr(os, "SEEK_HOLE"):
            return
        end = on_disk = 0
        while end < self._size and on_disk * UNPACKED_RATIO < self._size:
            try:
                start = os.lseek(self.fileno(), end, os.SEEK_DATA)
                end = os.lseek(self.fileno(), start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    return  # the file system does not support it
                break  # only a hole is left
            on_disk += end - start
        self.seek(0)
        check_unpacked(self._path, on_disk, self._size)
