"""Pilot runs: short trainings of several sizes, from which the loss and the speed of a longer run are estimated."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tercet.checkpoint.forecast import Pilot
from tercet.checkpoint.metrics import read_metrics
from tercet.checkpoint.run_record import METRICS, PILOTS
from tercet.config import Plain, UserError, merge
from tercet.messages import print_note
from tercet.storage import read_sealed_json, write_sealed_json
from tercet.training.budget.settings import TextSize, run_settings
from tercet.training.request import ResolvedRecipe, RunRequest, resolve

RESULTS = "pilots.json"  # file with the results, in the folder of the pilot runs
SIZES = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
FLATTEST, STEEPEST = 0.5, 1.0  # exponent of the time of a step in its FLOPs, outside of the measured sizes


@dataclass
class PilotRuns:
    """Pilot runs of a request, whose results are kept in its run folder, so that none is trained twice.

    Args:
        request: Request with the name of a recipe.
        folder: Run folder.
        quiet: If True, do not report the results on stderr.

    Attributes:
        results: Results so far, in order.
        arithmetic: `precision` and `matmul` of all runs; None before the first.
        text: Sizes of the text; None before the first run has read it.
        decided: Number of planned pilot runs that were trained or left out, without the first.
    """

    request: RunRequest
    folder: Path
    quiet: bool = False
    results: list[Pilot] = field(default_factory=list[Pilot])
    arithmetic: Mapping[str, Any] | None = None
    text: TextSize | None = None
    decided: int = 0

    def __post_init__(self) -> None:
        path = self.folder / PILOTS / RESULTS
        if path.exists():
            plain = read_sealed_json(path)
            try:
                self.results = [Pilot(**result) for result in plain["pilots"]]
                self.arithmetic, self.decided = plain["arithmetic"], plain["decided"]
                self.text = None if plain["text"] is None else TextSize(**plain["text"])
            except (TypeError, KeyError):
                raise UserError(f"{path} was written by another version of Tercet; pass --restart") from None

    @property
    def seconds(self) -> float:
        """Seconds that all pilot runs have taken."""
        return sum(result.seconds for result in self.results)

    def train(self, size: int, steps: int) -> Pilot:
        """Return the result of a pilot run, which is trained unless it was trained before.

        Raises:
            UserError: If data or settings do not fit together.
            Interrupted: If a signal stopped training. The same call continues it.
        """
        for result in self.results:
            if (result.size, result.steps) == (size, steps):
                return result
        from tercet.training.run.train import train_resolved

        started = time.perf_counter()
        out = self.path(size, steps)
        resolved = self.resolve(size, steps, out, validations=1)
        if self.arithmetic is None:
            from tercet.training.compute.auto_arithmetic import choose_arithmetic

            self.arithmetic = choose_arithmetic(resolved.recipe.training)
        train_resolved(resolved, quiet=True, arithmetic=self.arithmetic)
        result = _read_result(out, size, steps, time.perf_counter() - started)
        self.results.append(result)
        self.save()
        if not self.quiet:
            print_note(
                f"pilot run {len(self.results)}: size {size}, {steps:,} steps, loss {result.loss:.3f}, "
                f"{result.seconds:.1f} s"
            )
        return result

    def save(self) -> None:
        """Write the results."""
        plain = {
            "arithmetic": self.arithmetic,
            "decided": self.decided,
            "text": None if self.text is None else asdict(self.text),
            "pilots": [asdict(result) for result in self.results],
        }
        write_sealed_json(self.folder / PILOTS / RESULTS, plain)

    def path(self, size: int, steps: int) -> Path:
        """Return the folder of a pilot run."""
        return self.folder / PILOTS / f"size-{size:04}-steps-{steps:06}"

    def resolve(self, size: int, steps: int, out: Path, *, validations: int) -> ResolvedRecipe:
        """Return the recipe of a run of a size and length, with the changes of the request."""
        settings = run_settings(size, steps, validations=validations, text=self.text)
        pilot: Plain = {} if validations > 1 else {"training": {"compile": "never"}, "task": {"sample_tokens": 0}}
        changes = merge(merge(settings, pilot), self.request.changes)
        return resolve(replace(self.request, changes=changes, out=out, quiet=True))


def fixed_sizes(request: RunRequest) -> tuple[int, ...]:
    """Return the sizes that a request allows: that of its changes, or `SIZES`."""
    model = request.changes.get("model")
    size = model.get("size") if isinstance(model, Mapping) else None
    return SIZES if size is None else (size,)


def _read_result(out: Path, size: int, steps: int, seconds: float) -> Pilot:
    from tercet.checkpoint import read_card

    columns = read_metrics(out / METRICS)
    tokens = int(columns["tokens"][-1][1])
    speed = statistics.median(rate for _, rate in columns["tokens_per_second"])
    loss = read_card(out).metrics["val/loss"]
    return Pilot(
        size=size, steps=steps, tokens=tokens, loss=loss, seconds=seconds, step_seconds=tokens / steps / speed
    )  # fmt: skip


def step_seconds(pilots: Sequence[Pilot], flops: Mapping[int, float], size: int) -> float:
    """Return the expected seconds per step of a size, from the speeds of pilot runs.

    Between measured sizes, the logarithm of the seconds is interpolated linearly in that of the FLOPs. Outside, it is
    continued with the slope at the end, between `FLATTEST` and `STEEPEST`.

    Args:
        pilots: Pilot runs, of at least one size.
        flops: FLOPs per step of each size.
        size: Size of which the speed is estimated.
    """
    fastest: dict[int, float] = {}
    for pilot in pilots:
        fastest[pilot.size] = min(pilot.step_seconds, fastest.get(pilot.size, math.inf))
    points = sorted((math.log(flops[measured]), math.log(seconds)) for measured, seconds in fastest.items())
    x = math.log(flops[size])
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            return math.exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    near, far = (points[0], points[1:2]) if x < points[0][0] else (points[-1], points[-2:-1])
    slope = (far[0][1] - near[1]) / (far[0][0] - near[0]) if far else 0.5 * (FLATTEST + STEEPEST)
    return math.exp(near[1] + min(STEEPEST, max(FLATTEST, slope)) * (x - near[0]))
