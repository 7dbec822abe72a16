"""Notes and logs that cannot be written are dropped without an error: work does not depend on reporting."""

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import tercet
from tercet.cli.streams import _Notes
from tercet.messages import counted, describe_error, print_note
from tercet.serve.http.log import ServerLog

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
SOURCES = sorted(Path(tercet.__file__).parent.rglob("*.py"))


class Interrupted(io.StringIO):
    """A stream in the middle of a write, as a signal handler may find it."""

    def write(self, _: str) -> int:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")


def closed_stream() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [closed_stream(), Interrupted(), None], ids=["closed", "interrupted", "missing"])
def test_unwritable_note_is_dropped_without_error(
    stream: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        print_note("words")
    assert capsys.readouterr() == ("", "")
    print_note("words", end="!")
    assert capsys.readouterr() == ("", "words!")


@needs_full
@pytest.mark.parametrize("use_json", [False, True])
def test_server_log_on_full_disk_is_dropped(use_json: bool) -> None:
    with FULL.open("wb", buffering=0) as file:
        log = ServerLog(file=io.TextIOWrapper(file, write_through=True), use_json=use_json)
        log.note("closing")
        log.request("GET", "/health", 200, 0.1, model=None, prompt_tokens=0, new_tokens=0)


@needs_full
def test_library_writes_to_full_standard_error_are_dropped() -> None:
    stream = _Notes(io.BufferedWriter(io.FileIO(FULL, "w")), line_buffering=True)
    for _ in range(3):
        assert stream.write("words\n" * 5000) == 30_000
    stream.flush()
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), stream.fileno())  # otherwise closing would write again
    stream.close()


def test_notes_have_one_writer() -> None:
    """Other code that writes to standard error would raise if the stream is full."""
    assert len(SOURCES) > 400
    writes = re.compile(r"file=sys\.stderr|sys\.stderr\.write")
    assert not [path for path in SOURCES if writes.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError(), "ValueError"),
        (OSError("\n"), "OSError"),
        (ValueError("\n a\nb"), "a"),
        (ValueError("x" * 300), "x" * 200 + "..."),
    ],
)
def test_error_without_a_message_is_described_by_its_class(error: Exception, text: str) -> None:
    assert describe_error(error) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 rows are"), (1, "1 row is"), (2, "2 rows are"), (1001, "1,001 rows are")]
)
def test_words_agree_with_their_number(number: int, text: str) -> None:
    assert counted(number, "row is", "rows are") == text
