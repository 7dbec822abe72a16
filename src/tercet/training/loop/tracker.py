"""A logger for a third-party program. If the program fails, the logger is disabled and training continues."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any

from pytorch_lightning.loggers import Logger

from tercet.messages import print_note, shorten


class Tracker(Logger):
    """Logger that forwards to a third-party logger until it first fails, and lets it print only to stderr.

    Args:
        logger: Lightning's logger of the third-party program.
        title: Name of the program, for the note about its failure.
        after: Last step that the program has already; metrics up to it are not sent again.
    """

    def __init__(self, logger: Logger, title: str, *, after: int = 0) -> None:
        super().__init__()
        self.logger, self.title, self.after, self.has_failed = logger, title, after, False

    @property
    def name(self) -> str | None:
        return self.logger.name

    @property
    def version(self) -> int | str | None:
        return self.logger.version

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        self._try(lambda: self.logger.log_hyperparams(params, *args, **kwargs))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if step is None or step > self.after:
            self._try(lambda: self.logger.log_metrics(dict(metrics), step))

    def save(self) -> None:
        self._try(self.logger.save)

    def finalize(self, status: str) -> None:
        self._try(lambda: self.logger.finalize(status))

    def _try(self, call: Callable[[], Any]) -> None:
        if self.has_failed:
            return
        try:
            with redirect_stdout(sys.stderr):  # such as the links that MLflow prints; results are on stdout
                call()
        except Exception as error:  # an error of the disk, the network or the service
            self.has_failed = True
            print_note(f"{self.title}: {shorten(error)}; this logger is disabled, and training continues")
