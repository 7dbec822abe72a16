"""Prior distributions of the law, from trainings of the same recipes on other texts.

`calibration.csv` has one line per training. `python benchmarks/quality/scaling.py table` writes it; it holds only for
the recipes and the settings with which it was made.
"""

import csv
from collections import defaultdict
from functools import cache
from importlib import resources

from tercet.training.budget.law import Point, Prior, prior_of

TABLE = "calibration.csv"


@cache
def read_prior(recipe: str) -> Prior:
    """Return the prior distribution of the law for a packaged recipe with `model.size`, such as "gpt"."""
    return prior_of(read_points(recipe))


def read_points(recipe: str) -> dict[str, list[Point]]:
    """Return the results of the trainings of a recipe, by the name of the text."""
    points: dict[str, list[Point]] = defaultdict(list)
    text = (resources.files("tercet.training.budget") / TABLE).read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        if row["recipe"] == recipe:
            numbers = (float(row[name]) for name in ("multiplied", "tokens", "unique", "ngram", "ratio"))
            points[row["text"]].append(Point(*numbers))
    return dict(points)
