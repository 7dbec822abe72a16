"""Tables and notes of cross-validation: the scores of each fold, and the differences to the best variant."""

from collections.abc import Mapping, Sequence

from tercet.evaluate.bootstrap import Difference
from tercet.evaluate.measures import MEASURES
from tercet.evaluate.spreads import FoldSpread, SeedSpread
from tercet.notebook import Table


def fold_table(
    name: str,
    spreads: Mapping[str, SeedSpread],
    runs: Sequence[tuple[int | None, int | None, Mapping[str, float] | None]],
) -> Table:
    """Return the scores of a variant in each fold, then their mean, standard deviation, interval and pooled score.

    Args:
        name: Name of the variant.
        spreads: `FoldSpread` of each score.
        runs: Seed, fold and scores of each run; the scores are None if the run diverged.
    """
    several = len({seed for seed, _, _ in runs}) > 1
    names = [measure for measure in MEASURES if measure in spreads]
    rows = list[list[str]]()
    for seed, fold, scores in runs:
        label = f"seed {seed}, fold {fold}" if several else f"fold {fold}"
        cells = ["" if scores is None else MEASURES[measure].write(scores[measure]) for measure in names]
        rows.append([label, *(cells if scores is not None or not cells else ["diverged", *cells[1:]])])
    folds = {measure: spread for measure in names if isinstance(spread := spreads[measure], FoldSpread)}
    rows += [
        ["mean", *(MEASURES[measure].write(spread.mean) for measure, spread in folds.items())],
        ["standard deviation", *(MEASURES[measure].write(spread.std) for measure, spread in folds.items())],
        ["95 % interval", *(MEASURES[measure].write_interval(spread.interval) for measure, spread in folds.items())],
    ]
    if any(spread.pooled is not None for spread in folds.values()):
        pooled = [(measure, spread.pooled) for measure, spread in folds.items()]
        rows.append(["pooled", *("" if value is None else MEASURES[measure].write(value) for measure, value in pooled)])
    header = (name, *(MEASURES[measure].heading for measure in names))
    bold = [(len(runs), column) for column in range(len(header))]  # the mean
    return Table(header=header, rows=rows, folded={0: 18}, bold=bold)


def difference_tables(best: str, measure: str, differences: Mapping[str, Difference]) -> list[Table | str]:
    """Return a table of the differences to the best variant and an empty line; nothing if there are no differences.

    Args:
        best: Name of the best variant.
        measure: Measure that ranks the variants.
        differences: Difference of each other variant to the best one.
    """
    rows = [
        (name, f"{row.difference:+.4g}", f"{row.interval[0]:+.4g} to {row.interval[1]:+.4g}", f"{row.p_value:.3f}")
        for name, row in differences.items()
    ]
    if not rows:
        return []
    header = ("", f"{MEASURES[measure].heading}, minus {best}", "95 % interval", "p")
    return [Table(header=header, rows=rows, folded={0: 18}, unbroken=(2,)), ""]


def fold_notes(folds: int, *, repeats: int, pooled: bool) -> list[str]:
    """Return the notes on the reliability of cross-validation.

    Args:
        folds: Number of folds.
        repeats: Number of divisions into folds.
        pooled: If True, there are pooled scores.
    """
    divisions = f"{folds} folds" if repeats == 1 else f"{folds} folds of {repeats} divisions, one per seed"
    return [
        f"values are means over {divisions}; intervals and p-values are approximate, since the folds share training "
        "data (corrected resampled t-test, Nadeau and Bengio 2003)",
        *(["pooled scores are those of the predictions of all folds together"] if pooled else []),
        "scores are those of each run's best model, which was selected on the same fold: they are slightly too good; "
        "seconds include validation",
    ]
