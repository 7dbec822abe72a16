"""Find the run at a path, which may be the folder of the run or that of its best or last model."""

from pathlib import Path

from tercet.checkpoint.run_record import METRICS, RECIPE, check_run_links


def find_run_folder(path: str | Path) -> Path:
    """Return the run folder if `path` is the best or last model of a run; otherwise return `path` itself."""
    folder = Path(path)
    is_model = folder.name in ("best", "last") and not _has_begun(folder)
    return folder.parent if is_model and _has_begun(folder.parent) else folder


def is_run(path: Path) -> bool:
    """Return whether `path` is the folder of a started run, or of the best or last model of one."""
    folder = find_run_folder(path)
    return folder.is_dir() and _has_begun(folder)


def find_metrics(path: Path) -> Path | None:
    """Return the path of the metrics.csv of the run at `path`; None if there is none.

    Raises:
        UserError: If a link leads out of the run, as in `check_run_links`.
    """
    folder = find_run_folder(path)
    check_run_links(folder)
    metrics = folder / METRICS
    return metrics if metrics.is_file() else None


def _has_begun(folder: Path) -> bool:
    return any((folder / name).exists() for name in (RECIPE, METRICS))
