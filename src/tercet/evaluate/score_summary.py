"""Base class of all scores, which converts them for JSON."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from tercet.notebook import Summary


@dataclass(frozen=True, kw_only=True, repr=False)
class ScoreSummary(Summary):
    """Scores of a model on some data."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON; NaN and infinity, which JSON does not support, become None."""
        return {name: finite(value) for name, value in asdict(self).items()}


def finite(value: Any) -> Any:
    """Return None for NaN and infinity, and any other value unchanged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
