"""Lightning logger for Trackio, which stores runs in a SQLite database in its own folder (TRACKIO_DIR)."""

import io
from argparse import Namespace
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from pytorch_lightning.loggers import Logger

from tercet.config import Plain


class TrackioLogger(Logger):
    """Logger that writes to a run of Trackio.

    Args:
        project: Name of the project.
        run_name: Name of the run.
        settings: Settings of the run, for its page.
        resume: If True, continue the newest run with this name, if there is one.

    Attributes:
        last_step: Last step that the continued run contains; 0 for a new run.
    """

    def __init__(self, project: str, run_name: str, settings: Plain, *, resume: bool) -> None:
        super().__init__()
        self._project, self._run_name = project, run_name
        import huggingface_hub

        trackio = import_module("trackio")
        # Trackio asks Hugging Face for the user's name if a token is stored. It needs the network only for uploads.
        was_offline = huggingface_hub.constants.HF_HUB_OFFLINE
        huggingface_hub.constants.HF_HUB_OFFLINE = True
        try:
            with redirect_stdout(io.StringIO()):  # results are on stdout
                self._run: Any = trackio.init(
                    project=project, name=run_name, config=settings, resume="allow" if resume else "never",
                    embed=False, auto_log_cpu=False, auto_log_gpu=False,
                )  # fmt: skip
        finally:
            huggingface_hub.constants.HF_HUB_OFFLINE = was_offline
        self.last_step = self._run._next_step - 1 if resume else 0

    @property
    def name(self) -> str:
        return self._project

    @property
    def version(self) -> str:
        return self._run_name

    @property
    def experiment(self) -> Any:
        return self._run

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        return

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._run.log(dict(metrics), step=step)

    def finalize(self, status: str) -> None:
        with redirect_stdout(io.StringIO()):
            import_module("trackio").finish()
