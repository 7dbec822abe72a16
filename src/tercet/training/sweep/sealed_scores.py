"""Scores of a confirmation on a sealed test part, in one recorded call.

The validation part has chosen the settings, so the gain on it is too large if the settings suit only this part. The
sealed part has chosen nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.config import UserError
from tercet.evaluate.bootstrap import Difference
from tercet.evaluate.measures import RANKING_MEASURES
from tercet.evaluate.spreads import seed_difference
from tercet.evaluate.tasks.evaluation import Kind
from tercet.messages import counted
from tercet.storage import read_sealed_json, write_sealed_json
from tercet.training.sweep.sweep_folder import SEALED

if TYPE_CHECKING:
    import torch

NAMES = {  # names of the scores of `evaluate` for those of a leaderboard, if they differ
    "nats_per_token": "loss_nats_per_token",
    "nats_per_masked_token": "masked_loss",
    "nats_per_target_token": "nll_nats_per_token",
}


@dataclass(frozen=True, kw_only=True)
class SealedDifference:
    """The best trial of a search compared with the unchanged recipe on a sealed test part.

    Attributes:
        measure: Score that is compared, such as "nats_per_token".
        difference: Score of the trial minus that of the recipe, paired by seed.
        calls: Number of the call on the sealed part, in words.
        leaked: Number of test items that are exactly in the training data of a run; 0 if it could not be compared.
    """

    measure: str
    difference: Difference
    calls: str
    leaked: int = 0

    def describe(self) -> str:
        """Describe the call, and items that leaked, in one line."""
        items = counted(self.leaked, "item is", "items are")
        leaks = f"; {items} in the training data, so the scores are too good" if self.leaked else ""
        return f"Sealed test part: {self.calls}{leaks}."


def score_sealed(
    changed: Sequence[Path],
    unchanged: Sequence[Path],
    sealed: Path,
    out: Path,
    *,
    kind: Kind,
    measure: str,
    device: "str | torch.device" = "cpu",
) -> SealedDifference:
    """Score the runs of two variants on a sealed part, unless the result is in the folder `out`.

    Args:
        changed, unchanged: Runs of each variant, with the same seeds in the same order.
        sealed: Folder of the sealed part.
        out: Folder of the confirmation.
        kind: Kind of the models.
        measure: Score of the confirmation. If a sealed evaluation does not have it, the other score that ranks models
            of this kind is compared.
        device: PyTorch device.

    Raises:
        UserError: If the call is not allowed, or the models cannot be scored on this part.
    """
    if (out / SEALED).exists():
        return _parse(read_sealed_json(out / SEALED))
    from tercet.evaluate.sealed.evaluate_sealed import evaluate_sealed
    from tercet.evaluate.sealed.result import numbers

    result = evaluate_sealed([*unchanged, *changed], sealed, device=device)
    scores = [numbers(model.scores) for model in result.models]
    for chosen in filter(None, (measure, *RANKING_MEASURES[kind])):
        values = [value for one in scores if (value := one.get(NAMES.get(chosen, chosen))) is not None]
        if len(values) == len(scores):
            break
    else:
        raise UserError(f"{sealed}: the models have no score there by which they can be compared")
    difference = seed_difference(values[len(unchanged) :], values[: len(unchanged)])
    leaked = max(model.facts.leaked or 0 for model in result.models)
    scored = SealedDifference(measure=chosen, difference=difference, calls=result.describe_calls(), leaked=leaked)
    write_sealed_json(out / SEALED, asdict(scored))
    return scored


def _parse(plain: dict[str, Any]) -> SealedDifference:
    values: dict[str, Any] = dict(plain["difference"])
    low, high = values.pop("interval")
    facts: dict[str, Any] = {name: value for name, value in plain.items() if name != "difference"}
    return SealedDifference(difference=Difference(interval=(low, high), **values), **facts)
