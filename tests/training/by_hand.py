"""A run written as a loop over the steps of any task, with the formula of the moving average."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tercet.models import build
from tercet.objectives import Loss, zero_loss
from tercet.training.loop.module import step_seed
from tercet.training.optim.optimizers import base_rates, build_optimizer, set_rates
from tercet.training.optim.schedules import rate_factor
from tercet.training.tasks.task import Task

State = dict[str, Tensor]


class Step(NamedTuple):
    """The state after an optimizer step, on the CPU in float32."""

    loss: Loss  # of the batch, before the update
    weights: State
    average: State  # of the weights of all steps so far


def steps_by_hand(task: Task) -> Iterator[Step]:
    """Yield each step of a run on one device."""
    spec = task.recipe.training
    model = build(task.recipe.model, seed=spec.seed)
    optimizer = build_optimizer(spec.optimizer, model)
    base, average = base_rates(optimizer), dict[str, Tensor]()
    for step in range(task.plan.steps):
        factor = rate_factor(spec.schedule, step=step, warmup=spec.warmup_steps, total=task.plan.steps)
        set_rates(optimizer, base, factor)
        batches = task.batches(step, 0, 1)
        targets = torch.stack([(batch.targets >= 0).sum() for batch in batches]).sum().clamp(min=1)
        loss = zero_loss(torch.device("cpu"))
        for place, batch in enumerate(batches):
            torch.manual_seed(step_seed(spec.seed, step, micro_batch=place))
            part = task.loss(model, batch, smoothing=spec.label_smoothing)
            (part.total * (1 / targets)).backward()
            loss = loss + part.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip_norm or float("inf"))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        decay = (
            min(spec.ema or 0.0, (1 + step) / (10 + step)) if step else 0.0
        )  # the first average is the first weights
        average = {name: decay * average.get(name, x) + (1 - decay) * x for name, x in weights.items()}
        yield Step(loss, weights, average)


def validation_batches(task: Task) -> list[Any]:
    return [task.validation_batch(group) for group in task.validation_groups()]


def accumulate_gradients(task: Task, model: Any) -> list[Tensor]:
    """Return the loss of step 1 on one device, its targets, and the accumulated gradients of its micro-batches."""
    loss = zero_loss(torch.device("cpu"))
    for batch in task.batches(1, 0, 1):
        part = task.loss(model, batch)
        part.total.backward()
        loss = loss + part.detach()
    return [loss.total, loss.count, *(p.grad for p in model.parameters() if p.grad is not None)]
