"""`tercet recipes`: list the packaged recipes, or print one."""

import argparse
import json

from tercet.cli.parser import Verbs


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "recipes",
        help=summary,
        description="List the packaged recipes, or print one with its comments.",
        epilog="To write your own: tercet recipes demo > mine.yaml, edit it, then tercet train mine.yaml",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="recipe to print")
    parser.add_argument("--json", action="store_true", help="print the list as one JSON object")


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.training.recipe.files import recipe_names, recipe_text

    if args.name is not None and args.json:
        raise UserError("--json prints the list of recipes, and a recipe is YAML; leave one of them out")
    if args.name is not None:
        print(recipe_text(args.name), end="")
        return 0
    names = recipe_names()
    if args.json:
        print(json.dumps({"recipes": names}, indent=2, ensure_ascii=False))
        return 0
    width = max(map(len, names))
    for name, description in names.items():
        print(f"{name:<{width}}  {description}")
    return 0
