"""If another program truncates a mapped file, the process dies and reports where."""

import signal
import subprocess
import sys
from pathlib import Path

CUT = """
import sys
import numpy as np
from tercet.cli import main
def read(arguments):
    ids = np.memmap(sys.argv[1], np.uint16, mode="r")
    open(sys.argv[1], "r+b").truncate(0)
    return int(ids[5000])
main.main = read
main.entry()
"""


def test_truncating_a_mapped_file_reports_the_place(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(bytes(20_000))
    command = [sys.executable, "-c", CUT, str(tmp_path / "train.bin")]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == -signal.SIGBUS
    assert "Bus error" in process.stderr
    assert "in read" in process.stderr
