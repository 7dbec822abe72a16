"""The run that a path means: the folder of the run, or that of its best or last model."""

from pathlib import Path

from tercet.checkpoint.run_record import METRICS, RECIPE, check_run_links


def find_run_folder(path: str | Path) -> Path:
    """Return the folder of the run that `path` means; `path` itself if it is none of a run's models."""
    folder = Path(path)
    is_model = folder.name in ("best", "last") and not _has_begun(folder)
    return folder.parent if is_model and _has_begun(folder.parent) else folder


def is_run(path: Path) -> bool:
    """Return whether a run has begun in the folder that `path` means."""
    folder = find_run_folder(path)
    return folder.is_dir() and _has_begun(folder)


def find_metrics(path: Path) -> Path | None:
    """Return the metrics.csv of the run that `path` means, or None if there is none.

    Raises:
        UserError: As `check_run_links`.
    """
    folder = find_run_folder(path)
    check_run_links(folder)
    metrics = folder / METRICS
    return metrics if metrics.is_file() else None


def _has_begun(folder: Path) -> bool:
    return any((folder / name).exists() for name in (RECIPE, METRICS))
