"""`tercet train`: train a model from a recipe or on data, resume a run, or plan a run."""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.hours import add_hours, check_hours, describe_outcome, print_forecast
from tercet.cli.next_steps import next_steps, quote_path
from tercet.cli.parser import Verbs, out_path, parse_number, passed_flags
from tercet.cli.plan import add_plan, check_plan, print_plan
from tercet.cli.texts import DATA_FLAGS, add_reading, recipe_changes
from tercet.config import UserError, merge
from tercet.messages import is_first_process, print_note
from tercet.spec import Machines, Steps

if TYPE_CHECKING:
    from tercet.evaluate.verdicts import Verdict
    from tercet.training.run_folder.choices import Start

STARTS = ("more", "until", "restart", "from_weights", "exact")
SAMPLING = (
    "--temperature",
    "0.8",
    "--top-p",
    "0.95",
)  # for --try: with these settings, a small model makes fewer errors
TRY_VERBS = (
    "generate",
    "translate",
    "fill",
    "classify",
    "evaluate",
)  # verbs that --try runs, since they need no input and terminate
UNIT = {
    "masked": "masked token",
    "labels": "label",
    "chat": "answer token",
    "vectors": "query",
}  # unit of the loss, by task


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "train",
        help=summary,
        description="Train a model from a recipe. To resume a run that was stopped, repeat the command, or pass the "
        "run folder instead of the recipe. If you pass data instead of a recipe, a packaged recipe is chosen for it: "
        "text, sentence pairs, labeled texts or conversations. With --plan, print the resources that the run needs.",
        epilog="Examples: tercet train demo --try; tercet train my_text.txt; "
        "tercet train demo --data my_texts/ --out runs/mine --set training.max_steps=500; "
        "tercet train runs/mine --more 500; "
        "tercet train numbers --source train.de --target train.en --out runs/de-en; "
        "tercet train gpt2-124m --plan --gpus 8xH100 --mfu 0.4 --price 2.5",
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE|RUN|DATA",
        help="name of a packaged recipe (see `tercet recipes`), a .yaml file, a run folder to resume, or a file or "
        "folder of data",
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="file, folder, named dataset, or MODULE:CLASS of your own dataset to train on: text, labeled texts or "
        "conversations (data.source)",
    )
    parser.add_argument(
        "--source",
        metavar="FILE",
        help="source sentences of a translator, line by line; without --target, a .tsv, .csv or .jsonl file or named "
        "dataset of sentence pairs (data.source)",
    )
    parser.add_argument("--target", metavar="FILE", help="translations of --source, line by line (data.target)")
    parser.add_argument(
        "--validation-source", metavar="FILE", help="source sentences for validation, line by line (data.validation)"
    )
    parser.add_argument("--validation-target", metavar="FILE", help="translations of --validation-source, line by line")
    parser.add_argument(
        "--pretrained",
        metavar="RUN",
        help="folder of a run or model (or hf://user/name) to start from, with its sizes, tokenizer and weights",
    )
    add_reading(parser.add_argument)
    parser.add_argument("--label-field", metavar="NAME", help="key or column of the label (data.label_field)")
    parser.add_argument(
        "--label-pattern", metavar="REGEX", help="pattern of the label in a FASTA header (data.label_pattern)"
    )
    parser.add_argument(
        "--source-field", metavar="NAME", help="key or column of the source sentence (data.source_language)"
    )
    parser.add_argument(
        "--target-field", metavar="NAME", help="key or column of its translation (data.target_language)"
    )
    _add_run(parser.add_argument)
    add_hours(parser)
    add_plan(parser)


def _add_run(add: Callable[..., Any]) -> None:
    """Add the flags of a training run."""
    add("--out", metavar="DIR", type=out_path, help="run folder (default: runs/<recipe>)")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="override a key of the recipe; can be repeated")
    add("--more", metavar="STEPS", type=parse_number(Steps), help="extend the planned length of the run by STEPS steps")
    add("--until", metavar="STEPS", type=parse_number(Steps), help="change the total length of the run to STEPS steps")
    add("--devices", metavar="N", type=parse_number(Machines), help="number of devices per node (training.devices)")
    add("--nodes", metavar="N", type=parse_number(Machines), help="number of nodes (training.nodes)")
    add("--print-config", action="store_true", help="print the complete recipe, without training")
    add("--restart", action="store_true", help="delete the existing run and start again")
    add(
        "--from-weights",
        action="store_true",
        help="if all checkpoints are lost, resume from the weights of the last saved model, with a new optimizer",
    )
    add(
        "--exact",
        action="store_true",
        help="resume only if the result is bitwise identical to that of an uninterrupted run",
    )
    add(
        "--page",
        action="store_true",
        help="serve the dashboard of `tercet watch` during training, and print its address",
    )
    add("--report", action="store_true", help="after training, write report.html to the run folder")
    add(
        "--try", dest="try_out", action="store_true",
        help="after training, run those of the suggested commands that generate, translate, fill, classify or evaluate",
    )  # fmt: skip
    add("--quiet", action="store_true", help="print no progress to stderr")


def run(args: argparse.Namespace) -> int:
    from tercet.training.request import RunRequest, resolve

    check_plan(args)
    check_hours(args)
    if args.json and (args.try_out or args.print_config):
        raise UserError("--json prints one object, and --try and --print-config print more; leave one of them out")
    changes = recipe_changes(args)
    machines = {name: value for name in ("devices", "nodes") if (value := getattr(args, name)) is not None}
    if machines:
        changes = merge(changes, {"training": machines})
    start, files = _start(args), {name: getattr(args, name) for name in DATA_FLAGS}
    request = RunRequest(recipe=args.recipe, changes=changes, out=args.out, quiet=args.quiet, **files)
    if args.plan:
        return _stoppable(lambda: (print_plan if args.hours is None else print_forecast)(args, request))
    if args.hours is not None:
        from tercet.training.budget.train_hours import train_hours

        return _stoppable(lambda: _report_run(args, train_hours(request, args.hours, restart=args.restart)))
    resolved = resolve(request)
    if args.print_config:
        from tercet.settings_yaml import write_yaml

        print(write_yaml(resolved.recipe), end="")
        for note in [] if args.quiet else resolved.notes:
            print_note(note)
        return 0

    from tercet.dashboard import background_dashboard
    from tercet.training.run.open import is_first
    from tercet.training.run.train import train_resolved

    with background_dashboard(resolved.folder) if args.page else nullcontext():
        return _stoppable(
            lambda: _report_run(
                args, train_resolved(resolved, start, quiet=args.quiet), prints=is_first(resolved.recipe)
            )
        )


def _stoppable(work: Callable[[], int]) -> int:
    """Return the exit code of `work`, or that of the signal that stopped a training in it."""
    from tercet.training.run.finish import Interrupted

    try:
        return work()
    except Interrupted as error:
        if is_first_process():
            print_note(f"tercet: stopped by {signal.Signals(error.signal).name}: {error}")
        return 128 + error.signal


def _report_run(args: argparse.Namespace, folder: Path, *, prints: bool = True) -> int:
    """Print the result of a training, and return the exit code.

    Args:
        args: Flags of the command.
        folder: Run folder.
        prints: If False, do not print the result, because another process does.
    """
    if not prints:
        return 0
    if not args.quiet:
        show_losses(folder)
    report = _report(folder) if args.report else None
    from tercet.training.run.judge import judge_run  # imports torch

    verdicts = judge_run(folder)
    if args.json:
        print(json.dumps(_result(folder, report, verdicts), indent=2))
    else:
        print(summary(folder, report=report, verdicts=verdicts))
    return _try_out(folder) if args.try_out else 0


def _result(folder: Path, report: Path | None, verdicts: "Sequence[Verdict]") -> dict[str, Any]:
    """Return the result of a training for JSON: its folder, steps, best metrics, report and verdicts."""
    from tercet.checkpoint import read_card
    from tercet.checkpoint.forecast import read_forecast
    from tercet.evaluate.score_summary import finite

    card = read_card(folder)
    last = read_card(folder / "last").step if (folder / "last").is_dir() else card.step
    metrics = {name: finite(value) for name, value in card.metrics.items()}
    facts = {"folder": str(folder), "step": card.step, "last_step": last, "metrics": metrics}
    named_report = None if report is None else str(report)
    forecast = read_forecast(folder)
    facts |= {"forecast": None if forecast is None else forecast.to_dict()}
    return {**facts, "report": named_report, "verdicts": [verdict.to_dict() for verdict in verdicts]}


def _try_out(folder: Path) -> int:
    """Run the commands of `next_steps` whose verbs are in `TRY_VERBS`, until one fails; return its exit code, or 0."""
    from tercet.checkpoint import read_card
    from tercet.cli.main import run_command

    for line in next_steps(folder, read_card(folder).recipe):
        words = shlex.split(line)[1:]
        if words[0] in TRY_VERBS:
            words += SAMPLING if words[0] == "generate" else ()
            sys.stdout.flush()
            print_note(f"\n$ {shlex.join(['tercet', *words])}")
            if code := run_command(words):
                return code
    return 0


def _start(args: argparse.Namespace) -> "Start":
    """Return the start point and length of the run that the flags select.

    Raises:
        UserError: If flags exclude each other.
    """
    from tercet.training.run_folder.choices import FromWeights, More, RecipeLength, Restart, Resume, Until

    passed = passed_flags(args, STARTS)
    for flag, *conflicts in (("--from-weights", "--restart", "--exact"), ("--restart", "--more", "--until"),
                         ("--more", "--until")):  # fmt: skip
        if flag in passed and (conflict := next((conflict for conflict in conflicts if conflict in passed), None)):
            raise UserError(f"{flag} and {conflict} exclude each other; pass one of them")
    length = RecipeLength() if args.more is None else More(args.more)
    length = length if args.until is None else Until(args.until)
    if args.restart:
        return Restart()
    return FromWeights(length) if args.from_weights else Resume(length, exact=args.exact)


def _report(folder: Path) -> Path:
    from tercet.reports.write import report

    return report(folder)


def show_losses(folder: Path) -> None:
    """Print the loss curve of a run to stderr, if it is a terminal that shows one."""
    from tercet.checkpoint.find_run import find_metrics
    from tercet.checkpoint.metrics import read_metrics
    from tercet.plots.text_curve import terminal_curve

    if (metrics := find_metrics(folder)) is not None and (curve := terminal_curve(read_metrics(metrics))):
        print_note(curve)


def _unit(recipe: Mapping[str, Any]) -> str:
    """Return the unit of the loss of a recipe, for messages."""
    if recipe.get("data", {}).get("problem_type") == "regression":
        return "of the variance"
    return "nats per " + UNIT.get(recipe["task"]["kind"], "token")


def summary(folder: Path, *, report: Path | None = None, verdicts: "Sequence[Verdict]" = ()) -> str:
    """Return the text printed after training: run folder, report, saved models, best scores and next commands.

    Args:
        folder: Run folder.
        report: Report of the run; None if none was written.
        verdicts: Baselines that the model is not better than, from `judge_run`.
    """
    from tercet.checkpoint import read_card

    card = read_card(folder)
    metrics = card.metrics
    formats = {
        "val/loss": "validation loss {:.4f} " + _unit(card.recipe),
        "val/objective": "objective {:.4g}",
        "val/unigram_entropy": "{:.4f} by counting tokens",
        "val/bleu": "BLEU {:.2f} (greedy, cased, detokenized)",
        "val/accuracy": "accuracy {:.1%}",
        "val/f1": "F1 {:.1%}",
        "val/pearson": "Pearson correlation {:.3f}",
        "val/spearman": "Spearman correlation {:.3f}",
        "val/rmse": "RMSE {:.4g}",
        "val/ndcg_at_10": "nDCG@10 {:.3f}",
        "val/mrr": "MRR {:.3f}",
        "val/recall_at_1": "recall@1 {:.1%}",
        "val/recall_at_10": "recall@10 {:.1%}",
    }
    best = f"val/{card.best_by}"
    names = [best, *(name for name in formats if name != best)]
    words = ", ".join(formats[name].format(metrics[name]) for name in names if name in metrics)
    last = read_card(folder / "last").step if (folder / "last").is_dir() else card.step
    models = f"last, at step {last:,}"
    if words:
        rank = "best" if card.best_by == "loss" else "highest"
        models = f"{rank} {words}, at step {card.step:,}{', the last' if last == card.step else f'; {models}'}"
    name = quote_path(folder)
    lines = (f"  {line}" for line in next_steps(folder, card.recipe))
    heading = [f"The run is in {name}; {models}."] + (
        [] if report is None else [f"Its report is {quote_path(report)}."]
    )
    warnings = [f"Warning: {verdict.text}." for verdict in verdicts]
    outcome = describe_outcome(folder)
    return "\n".join([*heading, *([] if outcome is None else [outcome]), *warnings, "Next:", *lines])
