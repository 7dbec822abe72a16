"""`tercet train`: a recipe, or data that one suits, and a folder to put the run in; or a run that is to go on; or what
such a run will need."""

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.next_steps import next_steps, quote_path
from tercet.cli.parser import Verbs, out_path, parse_number, passed_flags
from tercet.cli.plan import add_plan, check_plan, print_plan
from tercet.cli.texts import DATA_FLAGS, add_reading, recipe_changes
from tercet.config import UserError, merge
from tercet.messages import is_first_process, print_note
from tercet.spec import Machines, Steps

if TYPE_CHECKING:
    from tercet.training.run_folder.choices import Start

STARTS = ("more", "until", "restart", "from_weights", "exact")
SAMPLING = ("--temperature", "0.8", "--top-p", "0.95")  # fewer slips of a model that is small
TRY_VERBS = ("generate", "translate", "fill", "classify", "evaluate")  # verbs that need no input and end
UNIT = {"masked": "masked token", "labels": "label", "chat": "answer token"}


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "train",
        help=summary,
        description="Train a model as a recipe says. The same command again resumes a run that was stopped, and so "
        "does the run's folder in place of the recipe. Data in place of the recipe is trained on as a packaged recipe "
        "says that suits it: text, pairs, labelled texts or conversations. With --plan, print what the run will need.",
        epilog="Examples: tercet train demo --try; tercet train my_text.txt; "
        "tercet train demo --data my_texts/ --out runs/mine --set training.max_steps=500; "
        "tercet train runs/mine --more 500; "
        "tercet train numbers --source train.de --target train.en --out runs/de-en; "
        "tercet train gpt2-124m --plan --gpus 8xH100 --mfu 0.4 --price 2.5",
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE|RUN|DATA",
        help="a name that `tercet recipes` lists, the path of a .yaml, the folder of a run that is to go on, or a file "
        "or folder to learn from",
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="train on this file, folder or named dataset, of text, labels or conversations (data.source)",
    )
    parser.add_argument(
        "--source",
        metavar="FILE",
        help="train a translator on these sentences; or, without --target, on a .tsv, .csv, .jsonl or named dataset",
    )
    parser.add_argument("--target", metavar="FILE", help="and their translations, line by line (data.target)")
    parser.add_argument("--validation-source", metavar="FILE", help="validate on these pairs (data.validation)")
    parser.add_argument("--validation-target", metavar="FILE", help="and their translations")
    parser.add_argument(
        "--pretrained", metavar="RUN", help="go on from this run's or folder's model: sizes, tokenizer and weights"
    )
    add_reading(parser.add_argument)
    _add_run(parser.add_argument)
    add_plan(parser)


def _add_run(add: Callable[..., Any]) -> None:
    """Add the flags of a run."""
    add("--out", metavar="DIR", type=out_path, help="the run's folder (default: runs/<recipe>)")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="change a key of the recipe; may be repeated")
    add("--more", metavar="STEPS", type=parse_number(Steps), help="go on for so many steps beyond the run's end")
    add("--until", metavar="STEPS", type=parse_number(Steps), help="go on until so many steps are done in all")
    add("--devices", metavar="N", type=parse_number(Machines), help="train on so many devices of each node")
    add("--nodes", metavar="N", type=parse_number(Machines), help="and on so many nodes")
    add("--print-config", action="store_true", help="print the whole recipe and train nothing")
    add("--restart", action="store_true", help="delete the run that is there, and begin anew")
    add("--from-weights", action="store_true", help="go on from the last model where every checkpoint is lost")
    add("--exact", action="store_true", help="go on only where the end is an unbroken run's to the last bit")
    add("--page", action="store_true", help="show it on a page meanwhile, as `tercet watch` does")
    add("--report", action="store_true", help="write its report when it ends: report.html in its folder")
    add("--try", dest="try_out", action="store_true", help="when it ends, use the model once, and evaluate it")
    add("--quiet", action="store_true", help="no progress on stderr")


def run(args: argparse.Namespace) -> int:
    from tercet.training.request import RunRequest, resolve

    check_plan(args)
    changes = recipe_changes(args)
    machines = {name: value for name in ("devices", "nodes") if (value := getattr(args, name)) is not None}
    if machines:
        changes = merge(changes, {"training": machines})
    start, files = _start(args), {name: getattr(args, name) for name in DATA_FLAGS}
    request = RunRequest(recipe=args.recipe, changes=changes, out=args.out, quiet=args.quiet, **files)
    if args.plan:
        return print_plan(args, request)
    resolved = resolve(request)
    if args.print_config:
        from tercet.settings_yaml import write_yaml

        print(write_yaml(resolved.recipe), end="")
        for note in [] if args.quiet else resolved.notes:
            print_note(note)
        return 0

    from tercet.dashboard import page_beside
    from tercet.training.run.finish import Interrupted
    from tercet.training.run.open import is_first
    from tercet.training.run.train import train_resolved

    try:
        with page_beside(resolved.folder) if args.page else nullcontext():
            folder = train_resolved(resolved, start, quiet=args.quiet)
    except Interrupted as error:
        if is_first_process():
            print_note(f"tercet: stopped by {signal.Signals(error.signal).name}: {error}")
        return 128 + error.signal
    if is_first(resolved.recipe):
        if not args.quiet:
            show_losses(folder)
        print(summary(folder, report=_report(folder) if args.report else None))
        if args.try_out:
            return _try_out(folder)
    return 0


def _try_out(folder: Path) -> int:
    """Run the commands of the summary that use the model once or evaluate it; return the first exit code above 0."""
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
    """Raises:
    UserError: If flags exclude each other.
    """
    from tercet.training.run_folder.choices import FromWeights, More, RecipeLength, Restart, Resume, Until

    passed = passed_flags(args, STARTS)
    for flag, *conflicts in (("--from-weights", "--restart", "--exact"), ("--restart", "--more", "--until"),
                         ("--more", "--until")):  # fmt: skip
        if flag in passed and (conflict := next((conflict for conflict in conflicts if conflict in passed), None)):
            raise UserError(f"{flag} and {conflict} exclude each other; leave one out")
    length = RecipeLength() if args.more is None else More(args.more)
    length = length if args.until is None else Until(args.until)
    if args.restart:
        return Restart()
    return FromWeights(length) if args.from_weights else Resume(length, exact=args.exact)


def _report(folder: Path) -> Path:
    from tercet.reports.write import report

    return report(folder)


def show_losses(folder: Path) -> None:
    """The losses on stderr, where that is a terminal."""
    from tercet.checkpoint.find_run import find_metrics
    from tercet.checkpoint.metrics import read_metrics
    from tercet.plots.text_curve import terminal_curve

    if (metrics := find_metrics(folder)) is not None and (curve := terminal_curve(read_metrics(metrics))):
        print_note(curve)


def _unit(recipe: Mapping[str, Any]) -> str:
    """Of the loss."""
    if recipe.get("data", {}).get("problem_type") == "regression":
        return "of the variance"
    return "nats per " + UNIT.get(recipe["task"]["kind"], "token")


def summary(folder: Path, *, report: Path | None = None) -> str:
    """Where the run and its report are, which models it has kept, how good the best one is, and what to do with it."""
    from tercet.checkpoint import read_card

    card = read_card(folder)
    metrics = card.metrics
    formats = {
        "val/loss": "validation loss {:.4f} " + _unit(card.recipe),
        "val/unigram_entropy": "{:.4f} by counting words",
        "val/bleu": "BLEU {:.2f} (greedy, cased, detokenised)",
        "val/accuracy": "accuracy {:.1%}",
        "val/f1": "F1 {:.1%}",
        "val/pearson": "Pearson correlation {:.3f}",
        "val/spearman": "Spearman correlation {:.3f}",
        "val/rmse": "RMSE {:.4g}",
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
    return "\n".join([*heading, "Next:", *lines])
