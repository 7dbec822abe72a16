"""`watch`: the page of some runs, served until a signal ends it."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tercet.checkpoint.find_run import find_run_folder, is_run
from tercet.checkpoint.run_record import METRICS, RECIPE
from tercet.config import UserError
from tercet.limits import WATCHED_RUNS

MISSING = "the page needs starlette and uvicorn: pip install 'tercet[explore]'; or use `tercet watch RUN --text`"
FIRST_PORT = 8766


def watch(
    *runs: str | Path,
    port: int = FIRST_PORT,
    open: bool = False,  # the name of the command line's flag
) -> None:
    """A page that shows how runs train, side by side, as `tercet watch` does; served on this machine alone, until it is
    stopped. It reads their folders, and nothing of the processes that train.

    Args:
        runs: their folders.
        port: or the next free one; 0 takes any.
        open: open the page in the browser.

    Raises:
        UserError: where a folder holds no run, nothing can be opened at the port, or starlette and uvicorn are missing.
    """
    folders = [find_run_folder(run) for run in runs]
    check_runs(folders)
    require_server()
    from tercet.dashboard.answers import RunAnswers
    from tercet.dashboard.server import application
    from tercet.web.page_server import open_page, serve_page

    answers = RunAnswers(folders)
    listening, address = open_page(port)
    answers.read_ahead()
    print(address, flush=True)
    serve_page(application(answers), listening, address, browse=open)


def check_runs(folders: Sequence[Path]) -> None:
    """Raises:
    UserError: where there are none or too many, one is there twice, or one can hold no run.
    """
    if not 0 < len(folders) <= WATCHED_RUNS:
        raise UserError(f"{len(folders)} runs: a page shows 1 to {WATCHED_RUNS}; give fewer")
    resolved_folders = set[Path]()
    for folder in folders:
        if folder.resolve() in resolved_folders:
            raise UserError(f"{folder} is given twice; leave one out")
        resolved_folders.add(folder.resolve())
        if is_run(folder):
            continue
        if folder.is_dir() and not any(not path.name.startswith(".") for path in folder.iterdir()):
            continue  # a run that is about to begin
        if folder.is_dir():
            raise UserError(f"{folder} holds no run: it has neither {RECIPE} nor {METRICS}; give a run's folder")
        raise UserError(f"no such folder: {folder}; give that of a run")


def require_server() -> None:
    """Raises:
    UserError: where starlette or uvicorn is missing.
    """
    if not all(map(find_spec, ("starlette", "uvicorn"))):
        raise UserError(MISSING)
