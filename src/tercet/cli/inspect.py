"""`tercet inspect`: the layers of a model, their shapes, parameters, FLOPs and memory, without allocating any; and of a
trained one the path of a sentence, what its heads do, and what a logit is made of."""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.parser import Verbs, parse_number, passed_flags
from tercet.cli.show import WIDTH, show
from tercet.spec import Candidates, Index

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tercet.checkpoint import TrainedModel
    from tercet.models import AnySpec


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "inspect",
        help=summary,
        description="Show the layers of a model: shapes, parameters, FLOPs and memory. With --prompt, show of each "
        "token what the model would say after each block, and the loss of what came.",
        epilog='Example: tercet inspect runs/mine --prompt "To be or not" --ablate 1.3',
    )
    parser.add_argument("model", metavar="RUN|PRESET|RECIPE", help="a run's or model's folder, a preset, or a recipe")
    parser.add_argument("--prompt", metavar="TEXT", help="show the path of this text; it may have masks")
    parser.add_argument("--target", metavar="TEXT", help="what a translator writes (default: its own translation)")
    parser.add_argument(
        "--top", metavar="N", type=parse_number(Candidates), help="tokens shown for each block (default: 1)"
    )
    parser.add_argument(
        "--ablate", metavar="NAME[:HEADS]", action="append",
        help="set this to zero, a tensor's name or BLOCK.HEAD, and show what changes; may be given several times",
    )  # fmt: skip
    parser.add_argument("--heads", action="store_true", help="show where each head looks, and what it is worth")
    parser.add_argument(
        "--attribution", metavar="TOKEN", nargs="?", const="",
        help="show which parts speak for a token (default: the likeliest)",
    )  # fmt: skip
    parser.add_argument(
        "--at",
        metavar="ROW",
        type=parse_number(Index),
        help="the row for --attribution (default: the last, or the mask)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    _check(args)
    trained_model = _load_trained(args.model) if args.prompt is not None or args.heads else None
    spec, vocabulary = find_spec(args.model) if trained_model is None else (trained_model.model.spec, None)

    from tercet.inspect import model_table

    tables: list[RenderableType] = []
    answer: dict[str, Any] = {}
    if trained_model is not None:
        _add_views(args, trained_model, answer, tables)
    if args.json or trained_model is None:
        try:
            summary = model_table(spec)
        except ValueError as error:
            raise UserError(f"{args.model}: {error}") from None
        answer = summary.to_dict() | {"vocab_size_at_most": vocabulary} | answer
        tables.append(summary.view())
        if vocabulary is not None:
            tables.append(describe_sizes(vocabulary))
    if args.json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
        return 0
    for number, table in enumerate(tables):
        if number:
            print()
        show(table)
    return 0


def _check(args: argparse.Namespace) -> None:
    from tercet.config import UserError

    flags = passed_flags(args, ("target", "top", "ablate", "attribution", "at"))
    if flags and args.prompt is None:
        raise UserError(f'{flags[0]} is about the path of a text; give one with --prompt "TEXT"')
    if args.at is not None and args.attribution is None:
        raise UserError("--at is the row that --attribution looks at; give both")


def _load_trained(name: str) -> "TrainedModel":
    from tercet.checkpoint.find_model import find_model
    from tercet.config import UserError

    if not Path(name).is_dir():
        find_spec(name)  # tells the nearest name, where it is none
        raise UserError(f"{name} has no weights to look into; give the folder of a trained run")
    find_model(Path(name))  # refused before torch is imported

    from tercet.checkpoint import load_model

    return load_model(name)


def _add_views(
    args: argparse.Namespace, trained_model: "TrainedModel", answer: dict[str, Any], tables: "list[RenderableType]"
) -> None:
    """The parts that need a trained model: into `answer` for programs, into `tables` for people."""
    from tercet.inspect.attribution_table import attribution_to_dict, render_attribution
    from tercet.inspect.edit_effect import effect_to_dict, parse_edit, read_with_edits, render_effect
    from tercet.inspect.head_table import render_heads
    from tercet.inspect.heads import ablate_heads, heads_to_dicts, score_heads
    from tercet.inspect.lens_table import lens_table, lens_to_dict, render_lens

    rises: dict[str, tuple[float, ...]] = {}
    if args.prompt is not None:
        edits = [parse_edit(trained_model, text) for text in args.ablate or ()]
        recordings = read_with_edits(trained_model, args.prompt, target=args.target, edits=edits)
        baseline, edited = (lens_table(trained_model, recording, top=args.top or 1) for recording in recordings)
        answer["prompt"] = {"text": args.prompt} | lens_to_dict(edited)
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        tables.append(render_lens(edited, width=width, original=baseline if edits else None))
        if edits:
            answer["ablated"] = effect_to_dict(args.ablate, baseline, edited)
            tables.append(render_effect(answer["ablated"]))
        if args.heads:
            rises = ablate_heads(trained_model, baseline.recording, edits=edits)
        if args.attribution is not None:
            text = args.attribution or None
            answer["attribution"] = attribution_to_dict(trained_model, edited.recording, row=args.at, text=text)
            tables.append(render_attribution(answer["attribution"], edited.recording))
    if args.heads:
        scores = score_heads(trained_model)
        answer["heads"] = heads_to_dicts(list(rises or scores.previous), scores, rises)
        tables.append(render_heads(answer["heads"]))


def find_spec(name: str, *, settle: bool = True) -> "tuple[AnySpec, dict[str, int] | None]":
    """The spec of what `name` means: a folder, else a preset, else a recipe.

    Args:
        settle: whether to prepare a recipe's data where they alone know how large its vocabulary is, or its labels;
            else these stay unknown: 0, and none.

    Returns:
        the spec; and, where its vocabulary is still to be learnt from a recipe's data, the most tokens that it may get,
        by side: the spec has these.

    Raises:
        UserError: where it is none of them, with the nearest name.
    """
    from tercet.config import UserError, suggest
    from tercet.models import PRESETS

    if Path(name).is_dir():
        from tercet.checkpoint.find_model import find_model

        find_model(Path(name))  # refused before torch is imported

        from tercet.checkpoint import load_model

        return load_model(name).model.spec, None
    if name in PRESETS:
        return PRESETS[name], None

    from tercet.training.recipe.files import recipe_names
    from tercet.training.recipe.recipe import load_recipe

    if not name.endswith((".yaml", ".yml")) and name not in recipe_names():
        raise UserError(f"no folder, preset or recipe is called {name!r}{suggest(name, {*PRESETS, *recipe_names()})}")

    from tercet.training.tasks.model_sizes import size_recipe

    result = size_recipe(load_recipe(name), read_data=settle)
    return result.recipe.model, result.vocabulary_limits


def describe_sizes(vocabulary: dict[str, int]) -> str:
    sizes = " and ".join(f"{side} {size:,}" for side, size in vocabulary.items())
    return f"counted with {sizes} (at most: learnt from the data)"
