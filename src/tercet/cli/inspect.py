"""`tercet inspect`: show the structure of a model, or what the model computes for a text.

The layers, shapes, parameters, FLOPs and memory of a preset or recipe are determined without allocating the model.
"""

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


WITH_PROMPT = ("target", "top", "ablate", "attribution", "at")  # flags that require --prompt


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "inspect",
        help=summary,
        description="Show the layers of a model: shapes, parameters, FLOPs and memory. With --prompt, show for each "
        "token the prediction after each block (logit lens), and the loss of the next token.",
        epilog='Example: tercet inspect runs/mine --prompt "To be or not" --ablate 1.3',
    )
    parser.add_argument("model", metavar="RUN|PRESET|RECIPE", help="folder of a run or model, a preset, or a recipe")
    parser.add_argument("--prompt", metavar="TEXT", help="text to run through the model; may contain masks")
    parser.add_argument("--target", metavar="TEXT", help="target text of a translator (default: its own translation)")
    parser.add_argument(
        "--top", metavar="N", type=parse_number(Candidates), help="predictions to show per block (default: 1)"
    )
    parser.add_argument(
        "--ablate", metavar="NAME[:HEADS]", action="append",
        help="set a tensor (NAME), some heads of a tensor (NAME:3,5), or a head of the last stack (BLOCK.HEAD, from 0, "
        "such as 1.3) to zero, and show the effect; can be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--heads",
        action="store_true",
        help="show how much each head attends to the previous token, and how much it continues repeated tokens "
        "(induction); with --prompt, also show how much the loss increases without the head",
    )
    parser.add_argument(
        "--attribution", metavar="TOKEN", nargs="?", const="",
        help="show the contribution of each part to the logit of a token (default: the most likely one)",
    )  # fmt: skip
    parser.add_argument(
        "--at",
        metavar="ROW",
        type=parse_number(Index),
        help="position whose logit --attribution explains, from 0 (default: the first mask, or else the last position)",
    )
    parser.add_argument(
        "--widths", metavar="SIZES",
        help="coordinate check of a recipe with model.size: train models of these widths, such as 64,128,256, for a "
        "few steps and compare the scales of their activations; exit code 1 if a scale depends on the width",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    _check(args)
    if args.widths is not None:
        return _check_coordinates(args)
    trained_model = _load_trained(args.model) if args.prompt is not None or args.heads else None
    spec, vocabulary = find_spec(args.model) if trained_model is None else (trained_model.model.spec, None)

    from tercet.checkpoint.export_problems import describe_export_problems, export_problems
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
        problems = export_problems(spec)
        answer = summary.to_dict() | {"vocab_size_at_most": vocabulary, "export_problems": problems} | answer
        tables.append(summary.view())
        if (note := describe_export_problems(problems)) is not None:
            tables.append(f"this model {note}")
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


def _check_coordinates(args: argparse.Namespace) -> int:
    """Print the coordinate check of a recipe, and return the exit code: 1 if a scale depends on the width."""
    from tercet.config import UserError
    from tercet.training.planning.coordinates import check_coordinates
    from tercet.training.request import RunRequest

    try:
        sizes = [int(size) for size in args.widths.split(",")]
    except ValueError:
        raise UserError(f"--widths {args.widths}: expected widths separated by commas, such as 64,128,256") from None
    check = check_coordinates(RunRequest(recipe=args.model), sizes=sizes)
    if args.json:
        print(json.dumps(check.to_dict(), indent=2, ensure_ascii=False))
    else:
        show(check.view())
    return 1 if check.drifting else 0


def _check(args: argparse.Namespace) -> None:
    from tercet.config import UserError

    if args.widths is not None and (flags := passed_flags(args, ("prompt", "heads", *WITH_PROMPT))):
        raise UserError(f"{flags[0]} has no effect with --widths, which trains models of a recipe; leave it out")
    flags = passed_flags(args, WITH_PROMPT)
    if flags and args.prompt is None:
        raise UserError(f'{flags[0]} requires --prompt "TEXT"; add it')
    if args.at is not None and args.attribution is None:
        raise UserError("--at requires --attribution; add it")


def _load_trained(name: str) -> "TrainedModel":
    from tercet.checkpoint.find_model import find_model
    from tercet.checkpoint.hub import is_on_hub
    from tercet.config import UserError

    if not Path(name).is_dir() and not is_on_hub(name):
        find_spec(name)  # raises with the nearest name if it is unknown
        raise UserError(f"{name} has no weights; pass the folder of a trained run or model")
    find_model(Path(name))  # reject invalid models before torch is imported

    from tercet.checkpoint import load_model

    return load_model(name)


def _add_views(
    args: argparse.Namespace, trained_model: "TrainedModel", answer: dict[str, Any], tables: "list[RenderableType]"
) -> None:
    """Run a trained model as the flags request, and add the results.

    Args:
        args: Parsed command line.
        trained_model: Model to run.
        answer: Object for JSON output, to which the results are added.
        tables: Tables for the terminal, to which the results are added.
    """
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
    """Return the spec of a folder, a preset or a recipe.

    Args:
        name: A folder, a preset, or the name or path of a recipe.
        settle: If True, read the data of a recipe if its vocabulary size or labels depend on the data. Otherwise the
            spec then has the vocabulary size 0 and no labels.

    Returns:
        The spec, and None. If the spec contains maximum sizes, because the vocabulary of a recipe is learned from data
        that was not read, these sizes by side instead of None, such as {"vocab_size": 8000}.

    Raises:
        UserError: If there is no such folder, preset or recipe; the message contains the nearest name.
    """
    from tercet.checkpoint.hub import is_on_hub
    from tercet.config import UserError, suggest
    from tercet.models import PRESETS

    if Path(name).is_dir() or is_on_hub(name):
        from tercet.checkpoint.find_model import find_model

        find_model(Path(name))  # reject invalid models before torch is imported

        from tercet.checkpoint import load_model

        return load_model(name).model.spec, None
    if name in PRESETS:
        return PRESETS[name], None

    from tercet.training.recipe.files import recipe_names
    from tercet.training.recipe.recipe import load_recipe

    if not name.endswith((".yaml", ".yml")) and name not in recipe_names():
        hint = "" if "/" in name else suggest(name, {*PRESETS, *recipe_names()})  # a path is that of a folder
        raise UserError(f"no folder, preset or recipe is called {name!r}{hint}")

    from tercet.training.tasks.model_sizes import size_recipe

    result = size_recipe(load_recipe(name), read_data=settle)
    return result.recipe.model, result.vocabulary_limits


def describe_sizes(vocabulary: dict[str, int]) -> str:
    sizes = " and ".join(f"{side} {size:,}" for side, size in vocabulary.items())
    return f"counted with {sizes} (maximum: the vocabulary is learned from the data)"
