"""A simulated device with memory for a limited number of rows per micro-batch."""

from collections.abc import Callable
from typing import Any

import torch

from tercet.training.tasks.chat import ChatTask
from tercet.training.tasks.labels import LabelsTask
from tercet.training.tasks.language import LanguageTask
from tercet.training.tasks.masked import MaskedTask
from tercet.training.tasks.translation import TranslationTask

TASKS = (LanguageTask, MaskedTask, LabelsTask, ChatTask, TranslationTask)


def hold_rows(rows: Callable[[int], int], set_attribute: Callable[[Any, str, Any], None] = setattr) -> dict[int, Any]:
    """Make the backward pass run out of memory if a micro-batch of a step has more rows than `rows(step)`.

    Steps are counted from 0. Returns the numbers of rows of the micro-batches of each step.
    """
    rows_by_step: dict[int, list[int]] = {}

    def limit(kind: type[Any]) -> None:
        batches, loss = kind.batches, kind.loss

        def noted_batches(self: Any, step: int, rank: int, world: int) -> Any:
            rows_by_step.pop(step, None)  # a failed attempt
            rows_by_step[step] = []
            return batches(self, step, rank, world)

        def limited_loss(self: Any, model: Any, batch: Any, *, smoothing: float = 0.0) -> Any:
            answer = loss(self, model, batch, smoothing=smoothing)
            if model.training:
                step = list(rows_by_step)[-1]
                rows_by_step[step].append(len(batch[0]))
                if len(batch[0]) > rows(step):
                    answer.total.register_hook(fail)
            return answer

        set_attribute(kind, "batches", noted_batches)
        set_attribute(kind, "loss", limited_loss)

    for kind in TASKS:
        limit(kind)
    return rows_by_step


def fail(gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
