"""The figures as Markdown: the machine first, then a table per row with its ratios below."""

from collections.abc import Sequence
from typing import Any

from benchmarks.speed.figures import Spread
from benchmarks.speed.measure import Result
from benchmarks.speed.rounds import LIMIT


def markdown(machine: dict[str, Any], results: Sequence[Result]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    lines = [
        "# Speed compared with other libraries",
        "",
        f"{machine['cpu']} ({', '.join(machine['flags'])}), {machine['cores']} cores, {machine['threads']} threads, "
        f"{machine['memory_gib']} GiB; {packages}; {machine['date']}. "
        "Medians of rounds in turn, quartiles in brackets.",
        "",
        *summary(results),
    ]
    for result in results:
        lines += ["", f"## {result.name}", "", result.title + ".", ""]
        lines += [*_contenders(result), "", *_ratios(result), *_remarks(result)]
    return "\n".join(lines) + "\n"


def summary(results: Sequence[Result]) -> list[str]:
    """Return one line per row with the ratios only."""
    lines = [
        "| row | ours | x as its README runs it | x best | x best in fp32 | disturbed rounds |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        cells = [
            _spread(result.ratios[label].spread) if label in result.ratios else "-"
            for label in ("readme", "best", "best in fp32")
        ]
        ours = next(iter(result.ratios.values())).ours if result.ratios else "-"
        lines.append(f"| {result.name} | {ours} | {' | '.join(cells)} | {result.disturbed} of {len(result.rounds)} |")
    return lines


def _contenders(result: Result) -> list[str]:
    speed_unit = "seconds" if result.seconds_each else f"{result.unit}/s"
    lines = [
        f"| contender | {speed_unit} | GFLOP/s or GB/s | share of the limit | peak memory | settings |",
        "|---|---|---|---|---|---|",
    ]
    order = sorted(result.figures.items(), key=lambda item: -item[1]["speed"]["median"])
    for name, figure in order:
        spread = Spread(**figure["speed"])
        speed = _spread(spread.inverse() if result.seconds_each else spread)
        rate = "-"
        if figure["gflops"] is not None:
            rate = f"{figure['gflops']:.0f} GFLOP/s"
        elif figure["gbytes"] is not None:
            rate = f"{figure['gbytes']:.1f} GB/s"
        share = "-" if figure["share"] is None else f"{figure['share']:.0%} of {figure['bound']}"
        peak = "-" if figure["peak_memory"] is None else f"{figure['peak_memory'] / 2**30:.2f} GiB"
        remarks = "; ".join(filter(None, (figure["settings"], figure["quality"])))
        bold = "**" if figure["side"] == "ours" else ""
        lines.append(f"| {bold}{name}{bold} | {speed} | {rate} | {share} | {peak} | {remarks} |")
    return lines


def _ratios(result: Result) -> list[str]:
    words = {"readme": "as its README runs it", "best": "best-configured", "best in fp32": "best in fp32"}
    return [
        f"- {ratio.ours} is **{ratio.spread.median:.2f} x** {ratio.theirs} ({words.get(label, 'worth')}; middle half "
        f"of the rounds {ratio.spread.low:.2f} to {ratio.spread.high:.2f})"
        for label, ratio in result.ratios.items()
    ]


def _remarks(result: Result) -> list[str]:
    lines = [f"- {note}" for note in result.notes]
    if result.limits:
        limits = [f"{name} {value:.0f} GFLOP/s" for name, value in result.limits.items() if name != "memory"]
        lines.append(f"- limits before or after: {', '.join(limits)}, memory read {result.limits['memory']:.1f} GB/s")
    if result.disturbed:
        highest = max(round_.others for round_ in result.rounds)
        lines.append(
            f"- {result.disturbed} of {len(result.rounds)} rounds stayed disturbed after being repeated: something "
            f"else took more than {LIMIT:.0%} of a core, at most {highest:.0%}"
        )
    lines += [f"- left out: {name}: {why}" for name, why in result.left_out.items()]
    lines += [f"- failed: {name}: {why}" for name, why in result.failed.items()]
    return lines


def _spread(spread: Spread) -> str:
    return f"{_number(spread.median)} ({_number(spread.low)} to {_number(spread.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
