"""Dashboard of a run during training: a separate process with low priority, which exits with the training process.

    python -m tercet.dashboard.background runs/mine      serves until stdin is closed

The operating system closes stdin when the training process exits. The dashboard only reads the run folder, so its
failures do not affect training.
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
END_SECONDS = 5.0  # until a dashboard process that does not exit is killed


@contextmanager
def background_dashboard(folder: Path) -> Generator[None]:
    """Serve the dashboard of the run in `folder` within a context, and print its address on stderr.

    The folder need not exist yet. In distributed training, only the first process serves the dashboard. If its process
    cannot be started, a note is printed and training continues.

    Raises:
        UserError: If starlette or uvicorn is not installed.
    """
    from tercet.dashboard.watch import require_server

    require_server()
    if not is_first_process():
        yield
        return
    command = [sys.executable, "-m", "tercet.dashboard.background", str(folder.absolute())]
    process = None
    try:
        # A separate session, so that Ctrl-C only reaches the training process, which then saves and ends the dashboard.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print_note(f"tercet: cannot start the dashboard: {error.strerror}")
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
    """Serve the dashboard of the run in `folder` until stdin is closed."""
    with suppress(OSError, AttributeError):  # not available on Windows
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
        print_note(f"tercet: cannot start the dashboard: {error}")
        return
    print_note(f"tercet: dashboard: {address}")
    serve_page(application(RunAnswers([folder])), listening, address)


def _end_with_stdin() -> None:
    with suppress(OSError, ValueError):
        while sys.stdin.buffer.read(1 << 16):
            pass
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
