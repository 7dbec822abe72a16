"""State and losses of a run as text."""

import shutil
import sys
from pathlib import Path

from tercet.checkpoint.metrics import read_metrics
from tercet.checkpoint.run_folder import RunFolder
from tercet.checkpoint.run_record import METRICS
from tercet.messages import one_line
from tercet.plots.text_curve import MAX_WIDTH, shows_colors, text_curve


def describe_run(folder: Path) -> str:
    """Return the state of a run in one line, followed by its problems and, if it has losses, its loss curve.

    The curve is colored if `shows_colors` accepts stdout.

    Raises:
        UserError: If the files of the run are damaged.
    """
    run = RunFolder(folder)
    run.metrics.refresh()
    status = run.status()
    steps = f"step {status.step:,}" + ("" if status.total is None else f" of {status.total:,}")
    left = "" if status.left is None else f", {status.left:,.0f} s left"
    detail = f" ({status.detail})" if status.detail else ""
    head = one_line(f"{folder}: {status.state}{detail}, {steps}{left}")
    if not (folder / METRICS).is_file():
        return head
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else MAX_WIDTH
    curve = text_curve(read_metrics(folder / METRICS), width=width, color=shows_colors(sys.stdout))
    problems = (f"step {problem.step:,}: {problem.text}" for problem in run.problems())
    return "\n".join(filter(None, (head, *problems, curve)))
