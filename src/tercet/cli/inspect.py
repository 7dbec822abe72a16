"""`tercet inspect`: the layers of a model, their shapes, parameters, FLOPs and memory, without allocating any."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.cli.parser import Verbs

if TYPE_CHECKING:
    from tercet.models import DecoderOnlySpec


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "inspect",
        help="show a model's layers, shapes, parameters, FLOPs and memory",
        description="Show the layers of a model with their shapes, parameters, FLOPs and memory.",
    )
    parser.add_argument("model", metavar="RUN|PRESET|RECIPE", help="a run's or model's folder, a preset, or a recipe")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    spec = find(args.model)
    return 0


def find(name: str) -> "DecoderOnlySpec":
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

    from tercet.training.recipe import load_recipe, recipe_names

    if not name.endswith((".yaml", ".yml")) and name not in recipe_names():
        raise UserError(f"no folder, preset or recipe is called {name!r}{nearest(name, {*PRESETS, *recipe_names()})}")
    recipe = load_recipe(name)
    if recipe.model.vocab_size:
        return recipe.model
    size = {"gpt2": 50_257}.get(recipe.data.tokenizer.kind) or getattr(recipe.data.tokenizer, "vocab_size", None)
    if size is None:
        from tercet.data import prepare

        size = prepare(recipe.data).tokenizer.vocab_size
    return recipe.with_vocabulary(size).model
