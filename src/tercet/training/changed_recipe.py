"""A recipe with what the command line, or a caller from Python, lays over it: other data, another beginning, keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.config import Plain, UserError, merge
from tercet.training.recipe_files import read_settings

if TYPE_CHECKING:
    from tercet.training.recipe import Recipe


def recipe_with(
    name: str,
    changes: Plain,
    *,
    out: Path,
    data: str | None = None,
    source: str | None = None,
    target: str | None = None,
    validation_source: str | None = None,
    validation_target: str | None = None,
    pretrained: str | None = None,
) -> "Recipe":
    """The recipe with `changes`, other data and another beginning; arguments as in `tercet.train`.

    Raises:
        UserError: where there is no such recipe, something in it does not fit, or its family learns from other data.
    """
    if target is not None and source is None:
        raise UserError(f"the target {target} needs its source: give --source F as well")
    if validation_target is not None and validation_source is None:
        raise UserError(f"the target {validation_target} needs its source: give --validation-source F as well")
    settings = read_settings(name, changes)

    from tercet.training.recipe import parse_recipe, task_kind, with_pretrained_copy  # once there is something to parse

    if pretrained is not None:
        settings = merge(settings, {"pretrained": pretrained})
    settings = with_pretrained_copy(settings, out)
    translates = task_kind(settings, name=f"recipe {name}") == "translation"
    if translates and data is not None:
        raise UserError(
            f"the recipe {name} trains a translator, which learns from pairs: give --source F --target F "
            "in place of --data (a .tsv, .csv or .jsonl file or a named dataset of pairs needs no --target)"
        )
    if not translates and (source or validation_source) is not None:
        raise UserError(f"the recipe {name} trains a language model, which learns from text: give --data PATH")
    if data is not None:
        settings = merge(settings, {"data": {"source": data}})
    if source is not None:
        # The recipe's languages are those of its own data; files that need none to be read may be in any, and columns
        # of a table are source and target unless somebody says otherwise.
        unknown = target is not None or source.removesuffix(".gz").endswith((".tsv", ".csv"))
        languages = dict.fromkeys(("source_language", "target_language")) if unknown else {}
        given = changes.get("data")
        chosen = {key: given[key] for key in languages if key in given} if isinstance(given, Mapping) else {}
        settings = merge(settings, {"data": {**languages, **chosen, "source": source, "target": target}})
    if validation_source is not None:
        held_out = {"kind": "held_out", "source": validation_source, "target": validation_target}
        settings = merge(settings, {"data": {"validation": held_out}})
    return parse_recipe(settings, name=f"recipe {name}")


def default_folder(recipe: str) -> Path:
    return Path("runs", Path(recipe).stem)
