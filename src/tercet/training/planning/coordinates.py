"""The coordinate check: whether the scale of activations depends on the width of the model.

Models of several widths (`model.size`) are trained for a few steps with equal settings. If learning rates are to
transfer between widths, the activations of each kind keep their scale (Yang et al. 2022, "Tensor Programs V", appendix
D.1). The scale of a tensor is its root mean square, averaged over layers. Its drift is the slope of its logarithm
in that of the width: 0 if the scale does not depend on the width, 1 if it is proportional to the width.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tercet.config import UserError, merge
from tercet.models import AnyModel, blocks_of, build, stacks_of
from tercet.notebook import Summary, Table, View
from tercet.objectives import move_batch
from tercet.training.distributed.devices import accelerator
from tercet.training.optim.adamw import clip_gradients
from tercet.training.optim.optimizers import build_optimizer
from tercet.training.recipe.files import change_settings, read_settings
from tercet.training.request import RunRequest, resolve
from tercet.training.tasks.model_sizes import read_task

SIZES, STEPS = (64, 128, 256, 512), 8
MAX_DRIFT = 1 / 3
PARTS = {"self_attention": "attention", "cross_attention": "cross-attention", "feedforward": "feed-forward network"}
LOGIT_ROWS = 2  # rows of a batch whose logits are computed
STREAM, LOGITS = "residual stream", "logits"


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """The scale of one kind of activations, by width.

    Attributes:
        name: Kind of the activations.
        initial, trained: Root mean square at each width, before the first step and after the last.
        drift: Slope of the logarithm of `trained` in the logarithm of the width.
    """

    name: str
    initial: tuple[float, ...]
    trained: tuple[float, ...]
    drift: float


@dataclass(frozen=True, kw_only=True, repr=False)
class CoordinateCheck(Summary):
    """The result of a coordinate check.

    Attributes:
        sizes: Widths of the models.
        steps: Steps of training.
        losses: Training loss of the last step of each width, in nats per target.
        coordinates: Scales of the activations.
        limit: Largest drift, as an absolute value, with which the check passes.
    """

    sizes: tuple[int, ...]
    steps: int
    losses: tuple[float, ...]
    coordinates: tuple[Coordinate, ...]
    limit: float = MAX_DRIFT

    @property
    def drifting(self) -> list[str]:
        """Names of the activations whose scale depends on the width."""
        return [one.name for one in self.coordinates if not abs(one.drift) <= self.limit]

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as nested dicts for JSON."""
        return {**asdict(self), "drifting": self.drifting}

    def view(self) -> View:
        """Return a table of the scales after training, and the verdict."""
        rows = [
            (
                one.name,
                *(f"{scale:.3g}" for scale in one.trained),
                f"{one.drift:+.2f}{' *' * (one.name in self.drifting)}",
            )
            for one in self.coordinates
        ]
        rows.append(("loss", *(f"{loss:.3f}" for loss in self.losses), ""))
        table = Table(
            header=(f"scale after {self.steps} steps", *(f"width {size}" for size in self.sizes), "drift"), rows=rows,
            flush=True,
        )  # fmt: skip
        names = ", ".join(self.drifting)
        verdict = f"* {names}: the scale depends on the width, so learning rates do not transfer between widths"
        return View((table, "", verdict if names else "The scales do not depend on the width."))


def check_coordinates(request: RunRequest, *, sizes: Sequence[int] = SIZES, steps: int = STEPS) -> CoordinateCheck:
    """Train models of several widths for a few steps, and compare the scales of their activations.

    Args:
        request: Recipe with the key `model.size`, and changes.
        sizes: Widths of the models, at least two.
        steps: Steps of training.

    Raises:
        UserError: If there are fewer than two different sizes, or a recipe of a size is not valid.
    """
    if len(set(sizes)) < 2:
        raise UserError("the coordinate check compares widths; pass at least two, such as 64,128,256")
    model = change_settings(read_settings(request.recipe), request.changes).get("model")
    if not isinstance(model, Mapping) or model.get("size") is None:
        raise UserError(
            f"the coordinate check sets model.size, which the recipe {request.recipe} does not have; pass gpt or bert"
        )
    initial, trained = list[Mapping[str, float]](), list[Mapping[str, float]]()
    losses = list[float]()
    for size in sorted(set(sizes)):
        before, after, loss = _train(request, size, steps)
        initial.append(before)
        trained.append(after)
        losses.append(loss)
    widths = np.log(sorted(set(sizes)))
    coordinates = [
        Coordinate(
            name=name, initial=tuple(scales[name] for scales in initial),
            trained=tuple(scales[name] for scales in trained),
            drift=_slope(widths, [scales[name] for scales in trained]),
        ) for name in trained[0]
    ]  # fmt: skip
    return CoordinateCheck(
        sizes=tuple(sorted(set(sizes))), steps=steps, losses=tuple(losses), coordinates=tuple(coordinates)
    )


def _slope(widths: np.ndarray, scales: Sequence[float]) -> float:
    if not all(0 < scale < math.inf for scale in scales):
        return math.nan
    return float(np.polyfit(widths, np.log(scales), 1)[0])


def _train(request: RunRequest, size: int, steps: int) -> tuple[dict[str, float], dict[str, float], float]:
    """Return the scales before and after training a model of a width, and its last training loss."""
    changes = merge({"model": {"size": size}}, request.changes)
    recipe = resolve(replace(request, changes=changes)).recipe
    task = read_task(recipe, progress=False)
    spec = task.recipe.training
    model = build(task.recipe.model, seed=spec.seed).to(accelerator(spec))
    optimizer = build_optimizer(spec.optimizer, model)
    loss = math.nan
    before = _scales(model, lambda: _losses(task, model, 0))
    for step in range(steps):
        optimizer.zero_grad()
        loss = 0.0
        parts = [task.loss(model, move_batch(batch, model)) for batch in task.batches(step, 0, 1)]
        total = sum(int(part.count) for part in parts)
        for part in parts:
            (part.total / max(1, total)).backward()
            loss += float(part.total.detach()) / max(1, total)
        clip_gradients(model.parameters(), optimizer, math.inf if spec.clip_norm is None else spec.clip_norm)
        optimizer.step()
    return before, _scales(model, lambda: _losses(task, model, 0)), loss


def _losses(task: Any, model: AnyModel, step: int) -> None:
    for batch in task.batches(step, 0, 1):
        task.loss(model, move_batch(batch, model))


@torch.no_grad()
def _scales(model: AnyModel, compute: Callable[[], None]) -> dict[str, float]:
    """Return the root mean square of each kind of activations while `compute` calls a model, averaged over layers."""
    squares: dict[str, list[float]] = defaultdict(list)

    def record(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            tensor: Tensor = output[0] if isinstance(output, tuple) else output
            squares[name].append(float(tensor.float().square().mean()))

        return hook

    def record_logits(module: Any, inputs: Any, output: Any) -> None:
        record(LOGITS)(module, inputs, model.get_submodule("unembedding")(output[:LOGIT_ROWS]))

    was_training = model.training
    model.eval()
    with ExitStack() as hooks:
        for block in blocks_of(model):
            for part, name in PARTS.items():
                if (module := getattr(block, part, None)) is not None:
                    hooks.callback(module.register_forward_hook(record(name)).remove)
            hooks.callback(block.register_forward_hook(record(STREAM)).remove)
        # The loss is computed from hidden states without a call of the output layer.
        hooks.callback(list(stacks_of(model))[-1].register_forward_hook(record_logits).remove)
        compute()
    model.train(was_training)
    return {name: math.sqrt(sum(values) / len(values)) for name, values in squares.items()}
