"""`tercet data seal`: divide data into training data and a sealed test part."""

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.data_settings import CONVERSATION_FIELDS, add_fields, add_labels, add_sources
from tercet.cli.next_steps import path_argument
from tercet.cli.parser import Parser, out_path, parse_number
from tercet.cli.show import show
from tercet.spec import Calls, ItemCount, ShareBetween

if TYPE_CHECKING:
    from tercet.data.sealing.seal_record import Seal

SETTINGS = {  # keys of `data` by the flags that set them
    **{name: name for name in (
        "encoding", "text_field", "documents", "label_field", "label_pattern", "over", "problem_type", "group_field",
        *CONVERSATION_FIELDS,
    )},
    "source_field": "source_language", "target_field": "target_language",
}  # fmt: skip
FLAGS = {"source_language": "source_field", "target_language": "target_field"}  # flags of `train` with other names


def add_seal(data: Parser) -> None:
    """Add the form `tercet data seal`."""
    parser = data.add_form(
        "seal",
        "Divide a source once into training data and a test part on which `tercet evaluate --sealed` scores models in "
        "a limited number of recorded calls. Equal texts, and texts of a group, stay in one part; of a running text, "
        "the end is the test part. A source named seal must be passed as ./seal.",
        epilog="Example: tercet data seal reviews.csv --out sealed --calls 5",
    )
    add_sources(parser.add_argument, required=True)
    parser.add_argument("--out", metavar="DIR", type=out_path, help="new folder for both parts (required)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--fraction", metavar="P", type=parse_number(ShareBetween),
        help="fraction of the texts, or of the characters of a running text, in the test part (default: 0.1)",
    )  # fmt: skip
    size.add_argument(
        "--count", metavar="N", type=parse_number(ItemCount), help="maximum number of texts in the test part"
    )
    parser.add_argument(
        "--group-field", metavar="NAME",
        help="key or column of a group, such as an author, whose texts stay in one part (data.group_field)",
    )  # fmt: skip
    parser.add_argument(
        "--calls", metavar="N", type=parse_number(Calls), default=10,
        help="number of calls that may score models on the test part (default: 10)",
    )  # fmt: skip
    _add_reading(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_reading(add: Callable[..., Any]) -> None:
    """Add the flags for reading the source, except for --dtype, since token ids cannot be sealed."""
    add("--encoding", metavar="NAME", help="encoding of the files, such as latin-1; both parts are written in UTF-8")
    add("--text-field", metavar="NAME", help="key or column of the text in JSONL, CSV, TSV, Parquet (data.text_field)")
    add(
        "--documents",
        choices=("file", "line", "blank_line"),
        help="extent of a document in a text file: the file, a line, or a block between empty lines (data.documents)",
    )
    add_labels(add)
    add_fields(add)


def run_seal(args: argparse.Namespace) -> int:
    """Divide the source, print a summary, and return the exit code 0.

    Raises:
        UserError: If the source cannot be read or divided, or the folder cannot be written.
    """
    from tercet.config import UserError
    from tercet.data.sealing.seal_data import seal_data
    from tercet.data.sources.custom_dataset import read_source

    if args.out is None:
        raise UserError("the output folder is missing; pass --out DIR")
    settings = {key: value for flag, key in SETTINGS.items() if (value := getattr(args, flag)) is not None}
    seal = seal_data(
        read_source(args.source), args.out, target=args.target, fraction=args.fraction, count=args.count,
        calls=args.calls, settings=settings,
    )  # fmt: skip
    if args.json:
        print(json.dumps({"folder": str(args.out), **seal.to_dict()}, indent=2, ensure_ascii=False))
        return 0
    show(seal.view())
    print("\n".join(["", "Next:", *(f"  {line}" for line in _next_steps(args.out, seal))]))
    return 0


def _next_steps(folder: Path, seal: "Seal") -> list[str]:
    """Return the commands that train on the training data and score the run on the test part."""
    out = path_argument(Path("runs", folder.resolve().name))
    files = [path_argument(folder / name) for name in seal.train.files]
    words = [*(["numbers", "--source", files[0], "--target", files[1]] if len(files) > 1 else files), "--out", out]
    for key, value in seal.reading.items():
        flag = FLAGS.get(key, key)
        is_flag = flag in ("text_field", "documents", "label_field", "label_pattern", "source_field", "target_field")
        words += [f"--{flag.replace('_', '-')}", str(value)] if is_flag else ["--set", f"data.{key}={value}"]
    if seal.kind == "conversations":  # fine-tuning requires a model
        return [shlex.join(["tercet", "data", *files])]
    return [
        shlex.join(["tercet", "train", *words]),
        shlex.join(["tercet", "evaluate", out, "--sealed", path_argument(folder)]),
    ]
