"""`tercet errors`: list the worst predictions of a model, as tables, JSON or an HTML page."""

import argparse
import json
from pathlib import Path
from typing import Any

from tercet.cli.device import add_device, add_quantize, place_model, select_device
from tercet.cli.parser import Verbs, out_path, parse_number
from tercet.cli.show import show
from tercet.cli.texts import READING_FLAGS, add_batches, add_reading
from tercet.spec import Rows, StepsOrNone

DATA_FLAGS = ("data", "source", "target", "part", *READING_FLAGS)


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "errors",
        help=summary,
        description="List the worst predictions of a model on the held-out part of its training data, or on other "
        "data: the texts and tokens with the highest losses; the worst translations with their references; the "
        "confusions of a classifier with the most confident mistakes; the largest errors of a regression.",
        epilog="The losses are those that `tercet evaluate` averages. Example: tercet errors "
        "runs/translator --rank-by chrf --html errors.html",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run or model, .gguf file, or hf://user/name")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--html", metavar="FILE", type=out_path, help="also write a page with all texts to this file")
    _add_data(parser.add_argument_group("data"))
    _add_selection(parser.add_argument_group("selection"))
    add_batches(parser.add_argument)
    add_quantize(parser.add_argument, on_gpu="none")
    add_device(parser)


def _add_data(group: Any) -> None:
    group.add_argument(
        "--data",
        metavar="PATH",
        help="file, folder or named dataset to use, in full (for translators: --source)",
    )
    group.add_argument(
        "--source", metavar="FILE", help="source sentences; or a .tsv, .csv, .jsonl or named dataset of pairs"
    )
    group.add_argument("--target", metavar="FILE", help="reference translations of --source, line by line")
    group.add_argument(
        "--part",
        choices=("validation", "test"),
        help="part of the data (default: test for a named dataset, validation for other training data)",
    )
    add_reading(group.add_argument)
    group.add_argument(
        "--where", metavar="COLUMN=VALUE",
        help="only rows of --data (also of all files in a folder) or --source with this value in a column or JSON key, "
        "such as domain=news",
    )  # fmt: skip


def _add_selection(group: Any) -> None:
    group.add_argument(
        "--top", metavar="N", type=parse_number(Rows), default=10, help="maximum length of each list (default: 10)"
    )
    group.add_argument(
        "--min-length", metavar="N", type=parse_number(StepsOrNone),
        help="minimum length of a text in tokens (for pairs: of the reference)",
    )  # fmt: skip
    group.add_argument(
        "--max-length", metavar="N", type=parse_number(StepsOrNone),
        help="maximum length of a text in tokens (for pairs: of the reference)",
    )  # fmt: skip
    group.add_argument(
        "--rare", metavar="N", type=parse_number(StepsOrNone),
        help="only errors with a token that occurs at most N times in the training data",
    )  # fmt: skip
    group.add_argument(
        "--rank-by", choices=("mean", "total", "chrf"), default="mean",
        help="order of texts: loss per token, sum of the losses, or chrF of the translation, for which all sources are "
        "translated (default: mean)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.storage import check_output_file, write_atomically

    if args.min_length is not None and args.max_length is not None and args.min_length > args.max_length:
        raise UserError(f"--min-length {args.min_length} exceeds --max-length {args.max_length}; swap them")
    if args.source is None and args.data is None:
        for name in READING_FLAGS:
            if getattr(args, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} requires --data or --source; add one of them")
    if args.where is not None and ((args.source is None and args.data is None) or args.target is not None):
        raise UserError(
            "--where selects rows of a file, or of the files in a folder; pass it as --data, or for translators as "
            "--source"
        )
    if args.target is not None and args.source is None:
        raise UserError(f"--target {args.target} requires --source; add it")
    if args.html is not None:
        check_output_file(args.html, "--html", example="errors.html", inputs=(args.data, args.source, args.target))
    device = select_device(args.device, models=[args.run])

    from tercet.api import load
    from tercet.evaluate import find_errors

    trained_model = load(args.run).trained_model
    place_model(trained_model.model, device, args.quantize or "none")
    errors = find_errors(
        trained_model,
        **{name: value for name in DATA_FLAGS if (value := getattr(args, name)) is not None},
        top=args.top,
        min_length=args.min_length,
        max_length=args.max_length,
        rare=args.rare,
        rank_by=args.rank_by,
        where=args.where,
        batch_tokens=args.batch_tokens,
    )
    if args.html is not None:
        from tercet.reports.errors_page import errors_page

        write_atomically(args.html, errors_page(errors, trained_model, _name(args.run)).encode())
    if args.json:
        print(json.dumps(errors.to_dict(), indent=2, ensure_ascii=False))
    else:
        show(errors.view())
    return 0


def _name(run: str) -> str:
    """Return the name of a run for the page, without the folders above it, because pages are shared."""
    return Path(run).resolve().name if Path(run).exists() else run
