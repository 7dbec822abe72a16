"""The forecast of a run within a number of hours, and its file `forecast.json`, which is written before the run."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from tercet.checkpoint.run_record import FORECAST
from tercet.config import UserError
from tercet.notebook import Summary, Table, View, format_bytes, format_count, format_duration
from tercet.storage import read_sealed_json, write_sealed_json

COVERAGE = 0.9  # probability of the interval of a forecast


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """A short training, from which a run is forecast.

    Attributes:
        size: Width of the model, `model.size`.
        steps, tokens: Length in steps and in tokens.
        loss: Validation loss in nats per target.
        seconds: Seconds of the whole training, with its start.
        step_seconds: Seconds per step.
    """

    size: int
    steps: int
    tokens: int
    loss: float
    seconds: float
    step_seconds: float


@dataclass(frozen=True, kw_only=True)
class SizeForecast:
    """A size that a run could have, with its best length, and what it would reach.

    Attributes:
        size: Width of the model, `model.size`.
        steps: Steps with the lowest expected loss, of those that fit into the remaining time.
        tokens, passes: Tokens of these steps, and passes over the text.
        seconds: Expected duration.
        loss, low, high: Expected validation loss in nats per target, and the interval that contains it with a
            probability of 90 %.
    """

    size: int
    steps: int
    tokens: int
    passes: float
    seconds: float
    loss: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Forecast(Summary):
    """The forecast of a run, made before it starts.

    Attributes:
        hours: Hours that the run may take, with the pilot runs.
        chosen: Size and length of the run, with the expected loss.
        candidates: All sizes that were considered, by size.
        pilots: Pilot runs, in the order in which they were trained.
        unique_tokens: Tokens of the training text.
        unigram_loss: Validation loss of counting tokens, in nats per target.
        unit: Unit of the losses, such as "nats per token".
        seconds_left: Seconds for the run when the forecast was made.
        reasons: Reasons for the choice, in sentences.
        memory_bytes: Memory of a step in bytes, as `tercet train --plan` estimates it; None if it is unknown.
        machine: Description of the machine of the run if it is not the one of the pilot runs, else None.
    """

    CANDIDATE_HEADER: ClassVar = ("size", "steps", "tokens", "passes", "expected loss", "90 % interval")

    hours: float
    chosen: SizeForecast
    candidates: tuple[SizeForecast, ...]
    pilots: tuple[Pilot, ...]
    unique_tokens: int
    unigram_loss: float
    unit: str
    seconds_left: float
    reasons: tuple[str, ...]
    memory_bytes: int | None = None
    machine: str | None = None

    def __repr__(self) -> str:
        return f"Forecast({self.describe()})"

    def describe(self) -> str:
        """Describe the expected loss in one line."""
        chosen = self.chosen
        return (
            f"{chosen.loss:.3f} {self.unit} ({chosen.low:.3f} to {chosen.high:.3f} with 90 % probability) with size "
            f"{chosen.size} and {chosen.steps:,} steps, {format_passes(chosen.passes)} over the text"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as nested dicts for JSON."""
        return asdict(self)

    @staticmethod
    def parse(plain: Mapping[str, Any]) -> "Forecast":
        """Parse the output of `to_dict`. Raises TypeError or KeyError if it is not valid."""
        values = dict(plain)
        return Forecast(
            chosen=SizeForecast(**values.pop("chosen")),
            candidates=tuple(SizeForecast(**candidate) for candidate in values.pop("candidates")),
            pilots=tuple(Pilot(**pilot) for pilot in values.pop("pilots")),
            reasons=tuple(values.pop("reasons")),
            **values,
        )

    def view(self) -> View:
        """Return the forecast, the candidates and the reasons."""
        table = Table(header=self.CANDIDATE_HEADER, rows=self.candidate_rows(), caption="* chosen", flush=True)
        facts = Table(rows=list(self._facts()), left=(0, 1))
        return View((facts, "", table, "", " ".join(self.reasons)))

    def candidate_rows(self) -> list[tuple[str, ...]]:
        """Return the cells of a table of the candidates, with the columns `CANDIDATE_HEADER`."""
        return [_candidate_row(candidate, self.chosen) for candidate in self.candidates]

    def _facts(self) -> Iterator[tuple[str, str]]:
        yield "forecast", f"{self.describe()}; counting tokens {self.unigram_loss:.3f}"
        if self.machine is None:
            spent = f"after {format_duration(3600 * self.hours - self.seconds_left)} for pilot runs"
        else:
            spent = "with pilot runs on this machine"
            yield "machine", self.machine
        yield "time", f"{format_duration(self.seconds_left)} for the run, {spent}"
        yield "text", f"{format_count(self.unique_tokens)} tokens"
        if self.memory_bytes is not None:
            yield "memory", f"{format_bytes(self.memory_bytes)} for a step, in addition to that of Python and PyTorch"

    def contains(self, loss: float) -> bool:
        """Return whether a loss is within the interval of the forecast."""
        return self.chosen.low <= loss <= self.chosen.high

    def describe_outcome(self, loss: float) -> str:
        """Describe the forecast and a validation loss in one sentence."""
        chosen = self.chosen
        place = "within" if self.contains(loss) else "below" if loss < chosen.low else "above"
        return (
            f"Forecast before training: {chosen.loss:.4f} ({chosen.low:.4f} to {chosen.high:.4f}). "
            f"Outcome: {loss:.4f}, {place} the interval."
        )


def register(forecast: Forecast, folder: Path) -> None:
    """Write a forecast to a run folder. Its hash is in the record of the run from the first step on.

    Raises:
        UserError: If the folder already has a forecast, or cannot be written.
    """
    path = folder / FORECAST
    if path.exists():
        raise UserError(f"{path} already exists, and a forecast is never changed; pass another --out, or --restart")
    write_sealed_json(path, forecast.to_dict())


def read_forecast(folder: Path) -> Forecast | None:
    """Return the registered forecast of a run; None if it has none.

    Raises:
        UserError: If the file is damaged.
    """
    path = folder / FORECAST
    if not path.exists():
        return None
    try:
        return Forecast.parse(read_sealed_json(path))
    except (TypeError, KeyError):
        raise UserError(f"{path} was written by another version of Tercet; delete it, or pass another --out") from None


def format_passes(passes: float) -> str:
    return "1 pass" if passes == 1 else f"{passes:.3g} passes"


def _candidate_row(candidate: SizeForecast, chosen: SizeForecast) -> tuple[str, ...]:
    mark = " *" if candidate == chosen else ""
    return (
        f"{candidate.size}{mark}",
        f"{candidate.steps:,}",
        format_count(candidate.tokens),
        f"{candidate.passes:.3g}",
        f"{candidate.loss:.3f}",
        f"{candidate.low:.3f} to {candidate.high:.3f}",
    )
