"""`watch`: serve the dashboard of runs until a signal arrives."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tercet.checkpoint.find_run import find_run_folder, is_run
from tercet.checkpoint.run_record import METRICS, RECIPE
from tercet.config import UserError
from tercet.limits import WATCHED_RUNS

MISSING = "the dashboard needs starlette and uvicorn: pip install 'tercet[explore]'; or use `tercet watch RUN --text`"
FIRST_PORT = 8766


def watch(
    *runs: str | Path,
    port: int = FIRST_PORT,
    open: bool = False,  # same name as the flag of the command line
) -> None:
    """Serve the dashboard of runs, as `tercet watch` does, on this machine only, until it is stopped.

    The dashboard only reads the run folders, and does not communicate with the training processes.

    Args:
        runs: Run folders, 1 to 16.
        port: First port to try; if it is in use, the next free one is used. 0 uses any free port.
        open: If True, open the dashboard in the browser.

    Raises:
        UserError: If the folders are invalid (see `check_runs`), no port can be opened, or starlette or uvicorn is not
            installed.
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
    """Check the run folders of a dashboard; an empty folder is accepted, since a run may be about to start in it.

    Raises:
        UserError: If there are none or more than WATCHED_RUNS, one is repeated, or one contains no run.
    """
    if not 0 < len(folders) <= WATCHED_RUNS:
        raise UserError(f"cannot show {len(folders)} runs; pass 1 to {WATCHED_RUNS} run folders")
    resolved_folders = set[Path]()
    for folder in folders:
        if folder.resolve() in resolved_folders:
            raise UserError(f"{folder} is given twice; remove one")
        resolved_folders.add(folder.resolve())
        if is_run(folder):
            continue
        if folder.is_dir() and not any(not path.name.startswith(".") for path in folder.iterdir()):
            continue  # a run that is about to start
        if folder.is_dir():
            raise UserError(f"{folder} contains no run: it has neither {RECIPE} nor {METRICS}; pass a run folder")
        raise UserError(f"no such folder: {folder}; pass a run folder")


def require_server() -> None:
    """Check that starlette and uvicorn are installed.

    Raises:
        UserError: If one of them is not installed.
    """
    if not all(map(find_spec, ("starlette", "uvicorn"))):
        raise UserError(MISSING)
