"""Sections about the training: curves, samples and costs."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from tercet.checkpoint import read_spec
from tercet.checkpoint.metrics import training_time
from tercet.checkpoint.run_record import PRETRAINED_COPY
from tercet.config import UserError
from tercet.messages import counted, one_line
from tercet.notebook import format_count, format_duration
from tercet.plots.loss_curve import loss_lines
from tercet.plots.svg_chart import BLUE, RED, ChartLine, chart_lines, svg_chart
from tercet.reports.markup import Markup, Section, collapsed_block, element, facts_list, join, missing
from tercet.reports.measures import MEASURES
from tercet.reports.subject import ReportSubject, strip_folder
from tercet.training.planning.flops import training_flops
from tercet.training.run_folder.changes import read_recipe
from tercet.training.run_folder.checkpoints import Checkpoints

CHART = (440, 180)  # width and height in CSS pixels: one fits on a phone, two side by side on a wider screen
MAX_SAMPLES, SAMPLE_CHARACTERS = 9, 6000  # samples that are shown, and maximum length of each
NO_RUN = "The model is not part of a run, so its training is not known here."


def curves_section(subject: ReportSubject) -> Section:
    """Return the section with charts of losses, scores, learning rates, gradient norm and speed against the step."""
    charts = list(_charts(subject))
    if subject.run is None:
        body = missing(NO_RUN)
    elif not charts:
        body = missing("No step is logged yet.")
    else:
        body = element("div", *charts, class_="charts")
    return Section(id="curves", title="Curves", body=body)


def _charts(subject: ReportSubject) -> Iterator[Markup]:
    columns = subject.columns
    losses = loss_lines(columns)
    if entropy := columns["val/unigram_entropy"]:
        losses.append(ChartLine(name="counting tokens", color="#7f7f7f", points=entropy))
    yield from _chart("Loss", losses, log=True)
    for name, measure in MEASURES.items():
        line = ChartLine(name="validation", color=RED, points=columns[name])
        yield from _chart(measure.heading, [line], highest=measure.higher_is_better)
    rates = sorted(name for name in columns if name.partition("/")[0] == "lr")
    lines = [ChartLine(name="" if name == "lr" else name, color=BLUE, points=columns[name]) for name in rates]
    yield from _chart("Learning rate", lines, highest=True)
    yield from _chart(
        "Gradient norm", [ChartLine(name="before clipping", color=BLUE, points=columns["grad_norm"])], log=True,
        highest=True,
    )  # fmt: skip
    speed = ChartLine(name="", color=BLUE, points=columns["tokens_per_second"])
    yield from _chart("Tokens per second", [speed], highest=True)


def _chart(title: str, lines: list[ChartLine], *, log: bool = False, highest: bool = False) -> Iterator[Markup]:
    """Yield a chart with a legend that describes its lines; nothing if no line has a point."""
    lines = chart_lines(lines, log=log)
    if not lines:
        return
    scale = "logarithmic scale" if log else "linear scale"
    words = [line.describe(highest=highest).removeprefix(", ") for line in lines]
    picture = svg_chart(
        lines, label=f"{title} against steps, {scale}: {'; '.join(words)}", log=log, size=CHART,
        attributes='class="chart"',
    )  # fmt: skip
    legend = [
        element("li", Markup(f'<svg class="key" viewBox="0 0 9 9" aria-hidden="true"><rect width="9" height="9" '
                             f'fill="{line.color}"/></svg>'), text)
        for line, text in zip(lines, words, strict=True)
    ]  # fmt: skip
    caption = element("figcaption", element("h3", title), element("ul", *legend, class_="legend"))
    yield element("figure", caption, Markup(picture))


def samples_section(subject: ReportSubject) -> Section:
    """Return the section with the samples of validations: the latest one is shown, earlier ones are collapsed."""
    run = subject.run
    steps = [] if run is None else run.samples()
    blocks = list[Markup]()
    for step in reversed(_choose_evenly(steps)):
        assert run is not None
        try:
            text = run.sample(step)
        except UserError as error:
            text = f"({strip_folder(str(error), run.folder)})"
        cut = text[:SAMPLE_CHARACTERS]
        omission = f"\n[{len(text) - len(cut):,} more characters]" if len(cut) < len(text) else ""
        sample_text = element("pre", cut, omission, class_="sample", dir="auto", lang="")
        heading = f"After step {step:,}"
        blocks.append(
            join(element("h3", heading), sample_text) if not blocks else collapsed_block(heading, sample_text)
        )
    if run is None:
        body = missing(NO_RUN)
    elif not blocks:
        body = missing("The run has no samples: its recipe disables them, or it was not validated yet.")
    else:
        left_out = len(steps) - len(blocks)
        body = join(
            *blocks, missing(f"{counted(left_out, 'other is', 'others are')} in the run folder.") if left_out else ""
        )
    return Section(id="samples", title="Samples", body=body)


def _choose_evenly(steps: list[int]) -> list[int]:
    """Return at most MAX_SAMPLES steps, evenly spaced, including the first and the last."""
    if len(steps) <= MAX_SAMPLES:
        return steps
    places = sorted({round(n * (len(steps) - 1) / (MAX_SAMPLES - 1)) for n in range(MAX_SAMPLES)})
    return [steps[place] for place in places]


def cost_section(subject: ReportSubject) -> Section:
    """Return the section with the time, steps, tokens, speed, FLOPs, machines and sessions of the training."""
    if subject.run is None:
        card = None if subject.trained_model is None else subject.trained_model.card
        facts = {} if card is None or not card.step else {
            "Steps": f"{card.step:,}", "Tokens read": f"{card.tokens_seen:,}"
        }  # fmt: skip
        return Section(id="cost", title="Cost", body=join(facts_list(facts), missing(NO_RUN)))
    time = training_time(subject.columns)
    if time is None:
        return Section(id="cost", title="Cost", body=missing("No time is logged yet."))
    total = None if subject.status is None else subject.status.total
    facts = {
        "Time": f"{format_duration(time.seconds)}, validations included ({time.seconds / 3600:.3g} hours)",
        "Steps": f"{time.steps:,}" + (f" of {total:,}" if total is not None and total != time.steps else ""),
        "Tokens read": "" if time.tokens is None else f"{time.tokens:,}, repeats included",
        "Speed": "" if time.tokens_per_second is None else f"{time.tokens_per_second:,.0f} tokens/s (median)",
        **_flops(subject, time.tokens, time.seconds),
        "Epochs": f"{epochs[1]:.3g}" if (epochs := subject.latest("epoch")) is not None and epochs[1] else "",
        **_machines(subject),
        "Sessions": _sessions(subject),
    }
    return Section(id="cost", title="Cost", body=facts_list(facts))


def _flops(subject: ReportSubject, tokens: int | None, seconds: float) -> dict[str, str]:
    """Return the FLOPs of a training on `tokens` tokens, by the formula of its recipe; empty if unavailable."""
    if subject.recipe.get("pretrained") and not (subject.folder / PRETRAINED_COPY).exists():
        return {}  # parsing the recipe would open the pretrained model at its path
    with suppress(UserError, OSError):
        if tokens:
            recipe = replace(read_recipe(subject.folder), model=read_spec(subject.folder))
            flops = round(training_flops(recipe).for_tokens(tokens))
            rate = f" ({format_count(round(flops / seconds))}FLOP/s over the total time)" if seconds > 0 else ""
            return {"Arithmetic": f"{format_count(flops)}FLOPs, forward and backward, counted for full rows{rate}"}
    return {}


def _machines(subject: ReportSubject) -> dict[str, str]:
    """Return the devices, instruction sets, threads, precision and ranks that the newest checkpoint records."""
    kinds = {"device": "{}", "instructions": "{}", "threads": "{} threads", "precision": "{}", "ranks": "{} ranks"}
    with suppress(UserError, OSError, RuntimeError, KeyError, ValueError):  # not complete, or being replaced
        checkpoint = Checkpoints(subject.folder, 1).newest()
        if checkpoint is not None:
            machines = [
                ", ".join(words.format(machine[name]) for name, words in kinds.items() if name in machine)
                for machine in checkpoint.arithmetic
            ]
            machines = [
                machine.replace("1 threads", "1 thread") if ", 1 threads" in machine else machine
                for machine in machines
            ]
            return {"Machine": one_line("; then ".join(dict.fromkeys(machines)))}
    return {"Machine": "unknown: no complete checkpoint is left"}


def _sessions(subject: ReportSubject) -> str:
    """Return the number of sessions, and the steps at which the training was resumed.

    The first line that a session logs has a number of tokens, but no speed.
    """
    speeds = dict(subject.columns["tokens_per_second"])
    session_starts = [step for step, value in subject.columns["tokens"] if step not in speeds and math.isfinite(value)]
    resume_steps = session_starts[1:]
    if not resume_steps:
        return "one, without a break in the metrics"
    places = ", ".join(f"{step:,}" for step in resume_steps[:20]) + (", …" if len(resume_steps) > 20 else "")
    return (
        f"{len(resume_steps) + 1:,}: resumed {len(resume_steps):,} times, first logged again at step {places}".replace(
            "resumed 1 times", "resumed once"
        )
    )
