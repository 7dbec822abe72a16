"""The page beside a training: a process of its own, at low priority, which ends when the training's does.

    python -m tercet.dashboard.beside runs/mine      until its stdin is closed, as it is when whoever started it is gone

It shares nothing with the training but the folder, which it reads: whatever happens to it, the training goes on.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tercet.messages import is_first_process, print_note

NICENESS = 10
END_SECONDS = 5.0  # in which it ends, or is ended


@contextmanager
def page_beside(folder: Path) -> Generator[None]:
    """The page of the run in `folder`, which need not be there yet; its address is printed on stderr.

    Raises:
        UserError: where starlette or uvicorn is missing.
    """
    from tercet.dashboard.watch import require_server

    require_server()
    if not is_first_process():
        yield
        return
    command = [sys.executable, "-m", "tercet.dashboard.beside", str(folder.absolute())]
    process = None
    try:
        process = subprocess.Popen(  # a session of its own: Ctrl-C is the training's, which saves first
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        print_note(f"tercet: no page beside the training: {error.strerror}")
    try:
        yield
    finally:
        if process is not None:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(folder: Path) -> None:
    """Serve until stdin ends."""
    with suppress(OSError, AttributeError):  # there is no niceness on Windows
        os.nice(NICENESS)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    from tercet.config import UserError
    from tercet.dashboard.answers import RunAnswers
    from tercet.dashboard.server import application
    from tercet.dashboard.watch import FIRST_PORT
    from tercet.web.page_server import open_page, serve_page

    try:
        listening, address = open_page(FIRST_PORT)
    except UserError as error:
        print_note(f"tercet: no page beside the training: {error}")
        return
    print_note(f"tercet: watch it at {address}")
    serve_page(application(RunAnswers([folder])), listening, address)


def _end_with_stdin() -> None:
    with suppress(OSError, ValueError):
        while sys.stdin.buffer.read(1 << 16):
            pass
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
