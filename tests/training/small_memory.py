"""A device that holds so many rows of a micro-batch and no more, for lack of a small one."""

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
    """Have training run out of memory, on its way back, where a micro-batch of a step, counted from 0, has more rows
    than `rows(step)`. Returns the rows of the micro-batches that each step has been taken in."""
    held: dict[int, list[int]] = {}

    def limit(kind: type[Any]) -> None:
        batches, loss = kind.batches, kind.loss

        def noted_batches(self: Any, step: int, rank: int, world: int) -> Any:
            held.pop(step, None)  # an attempt that failed
            held[step] = []
            return batches(self, step, rank, world)

        def limited_loss(self: Any, model: Any, batch: Any, *, smoothing: float = 0.0) -> Any:
            answer = loss(self, model, batch, smoothing=smoothing)
            if model.training:
                step = list(held)[-1]
                held[step].append(len(batch[0]))
                if len(batch[0]) > rows(step):
                    answer.total.register_hook(fail)
            return answer

        set_attribute(kind, "batches", noted_batches)
        set_attribute(kind, "loss", limited_loss)

    for kind in TASKS:
        limit(kind)
    return held


def fail(gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
