"""`tercet recipes`: list the packaged recipes, or print one."""

import argparse

from tercet.cli.parser import Verbs


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "recipes",
        help=summary,
        description="List the packaged recipes, or print one with its comments.",
        epilog="To write your own: tercet recipes demo > mine.yaml, edit it, then tercet train mine.yaml",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="recipe to print")


def run(args: argparse.Namespace) -> int:
    from tercet.training.recipe.files import recipe_names, recipe_text

    if args.name is not None:
        print(recipe_text(args.name), end="")
        return 0
    names = recipe_names()
    width = max(map(len, names))
    for name, description in names.items():
        print(f"{name:<{width}}  {description}")
    return 0
