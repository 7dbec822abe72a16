"""`tercet inspect`: the layers of a model, their shapes, parameters, FLOPs and memory, without allocating any."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.cli.parser import Verbs
from tercet.cli.show import show

if TYPE_CHECKING:
    from tercet.models import AnySpec
    from tercet.tokens import TokenizerSpec


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "inspect",
        help="show a model's layers, shapes, parameters, FLOPs and memory",
        description="Show the layers of a model with their shapes, parameters, FLOPs and memory.",
    )
    parser.add_argument("model", metavar="RUN|PRESET|RECIPE", help="a run's or model's folder, a preset, or a recipe")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.inspect import as_dict, as_table, model_table

    spec = find(args.model)
    try:
        table = model_table(spec)
    except ValueError as error:
        raise UserError(f"{args.model}: {error}") from None
    if args.json:
        print(json.dumps(as_dict(table), indent=2))
    else:
        show(as_table(table))
    return 0


def find(name: str) -> "AnySpec":
    """The spec of what `name` means: a folder, else a preset, else a recipe.

    Raises:
        UserError: where it is none of them, with the nearest name.
    """
    from tercet.config import UserError, nearest
    from tercet.models import PRESETS

    if Path(name).is_dir():
        from tercet.checkpoint import load_model

        return load_model(name).model.spec
    if name in PRESETS:
        return PRESETS[name]

    from tercet.data import LabelsSpec
    from tercet.training.recipe import load_recipe, recipe_names
    from tercet.training.task import task_of

    if not name.endswith((".yaml", ".yml")) and name not in recipe_names():
        raise UserError(f"no folder, preset or recipe is called {name!r}{nearest(name, {*PRESETS, *recipe_names()})}")
    recipe = load_recipe(name)
    tokenizer, own = recipe.data.tokenizer, getattr(recipe.data, "source_tokenizer", None)
    size, source_size = _size(tokenizer), None if own is None else _size(own)
    labelled = isinstance(recipe.data, LabelsSpec)
    if labelled or size is None or (own is not None and source_size is None):  # the data decides
        return task_of(recipe, progress=False).recipe.model
    return recipe.with_vocabulary(size, source_size=source_size).model


def _size(tokenizer: "TokenizerSpec") -> int | None:
    return 50_257 if tokenizer.kind == "gpt2" else getattr(tokenizer, "vocab_size", None)
