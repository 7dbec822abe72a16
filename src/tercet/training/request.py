"""A recipe, that of a run, or the one that suits data, with what the command line or a caller from Python lays over it:
other data, another beginning, keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.checkpoint.run_record import RECIPE, RECORD, check_run_links
from tercet.config import Plain, UserError, merge, to_plain
from tercet.data.find_prepared import may_be_prepared
from tercet.messages import is_first_process, print_note
from tercet.storage import DamagedFile
from tercet.training.recipe.files import change_settings, read_settings, recipe_names
from tercet.training.recipe.for_data import is_data, suit
from tercet.training.recipe.other_data import REQUIRED, describe_other_data

if TYPE_CHECKING:
    from tercet.training.recipe.recipe import Recipe


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
    quiet: bool = True,
    notes: list[str] | None = None,
) -> "Recipe":
    """The recipe with `changes`, other data and another beginning; arguments as in `tercet.train`. Of a run's folder it
    is the recipe by which the run goes on, of data a packaged one that suits it.

    A recipe that names no model to go on from describes one of its own, which the pretrained one takes the place of.

    Args:
        quiet: nothing on stderr of the recipe that suits data.
        notes: Gets a line about the settings that belong to the recipe's own data, if other data takes its place.

    Raises:
        UserError: where there is no such recipe, something in it does not fit, or its family learns from other data.
    """
    of_data = is_data(name)
    if of_data and (data or source) is not None:
        raise UserError(f"{name} is data, and {data or source} is as well; give one, or a recipe in the first place")
    if target is not None and source is None and not of_data:
        raise UserError(f"the target {target} needs its source: give --source F as well")
    if validation_target is not None and validation_source is None:
        raise UserError(f"the target {validation_target} needs its source: give --validation-source F as well")
    if of_data:
        given = changes.get("data")
        suited = suit(name, target, given if isinstance(given, Mapping) else {}, pretrained=pretrained is not None)
        data, source = (None, name) if suited.kind == "pairs" else (name, None)
        if not quiet and is_first_process():
            print_note(f"{name} is {suited.kind}: trained on as `tercet recipes {suited.recipe}` says")
        name, changes = suited.recipe, merge(suited.changes, changes)
    files: Plain = {"source": data} if source is None else {"source": source, "target": target}
    if validation_source is not None:
        files["validation"] = {"kind": "held_out", "source": validation_source, "target": validation_target}
    if files := {key: value for key, value in files.items() if value is not None}:
        changes = merge(changes, {"data": files})
    run = find_run(name)
    recipe = read_settings(name) if run is None else _recipe_of(run)
    settings = change_settings(recipe, changes)

    from tercet.training.recipe.pretrained import model_keys_beside  # once there is something to parse
    from tercet.training.recipe.recipe import parse_recipe, task_kind, with_pretrained_copy

    if pretrained is not None:
        settings = merge(settings, {"pretrained": pretrained})
    settings = with_pretrained_copy(settings, out, name=f"recipe {name}")
    translates = task_kind(settings, name=f"recipe {name}") == "translation"
    if (folder := settings.get("pretrained")) is not None:
        if (tokenizer := _tokenizer_in(changes)) is not None:
            raise UserError(f"the tokenizer is that of {folder}: leave data.{tokenizer} out, or pretrained")
        if recipe.get("pretrained") in (None, REQUIRED):
            own, given = ({} if (part := of.get("model")) is None else part for of in (recipe, changes))
            if isinstance(own, Mapping) and isinstance(given, Mapping):  # else refused as it is parsed
                settings["model"] = merge(model_keys_beside(Path(folder), own), given)
    if translates and data is not None:
        raise UserError(
            f"the recipe {name} trains a translator, which learns from pairs: give --source F --target F "
            "in place of --data (a .tsv, .csv or .jsonl file or a named dataset of pairs needs no --target)"
        )
    if not translates and (source or validation_source) is not None:
        raise UserError(f"the recipe {name} trains a language model, which learns from text: give --data PATH")
    if notes is not None and not of_data and run is None:
        tokenizes = settings.get("pretrained") is None and not may_be_prepared(str(data))
        notes += filter(None, [describe_other_data(recipe, changes, tokenizer=tokenizes)])
    return parse_recipe(settings, name=f"recipe {name}", run=run)


def _tokenizer_in(changes: Plain) -> str | None:
    """The key by which the changes choose a tokenizer."""
    data = changes.get("data")
    keys = data if isinstance(data, Mapping) else {}
    return next((key for key in ("tokenizer", "source_tokenizer") if keys.get(key) is not None), None)


def find_run(name: str) -> Path | None:
    """The run's folder that a name means; None where it is a recipe's, or data.

    Raises:
        UserError: where the folder of that name holds no run, or a link leads out of it.
    """
    folder = Path(name)
    if name.endswith((".yaml", ".yml")) or not folder.is_dir() or name in recipe_names() or is_data(name):
        return None
    if not (folder / RECORD).exists() and not (folder / RECIPE).exists():
        raise UserError(
            f"{name} holds no run: it has no {RECORD}, and no data to read; give a run's folder, or a recipe and "
            f"--out {name}"
        )
    if not (folder / RECIPE).exists():
        raise UserError(f"{folder / RECIPE} is missing; put it back, or give a recipe and --out {name} --restart")
    check_run_links(folder)
    return folder


def choose_folder(recipe: str, out: Path | None) -> Path:
    """Where a run goes: `out`, else the folder that a recipe has by default, or the run that `recipe` is itself.

    Raises:
        UserError: where a run is to go on elsewhere.
    """
    run = find_run(recipe)
    if run is None:
        return Path("runs", Path(recipe.removesuffix(".gz")).stem) if out is None else out
    if out is not None and out.resolve() != run.resolve():
        raise UserError(f"{run} is a run, which goes on in its own folder; leave --out out, or give {run / RECIPE}")
    return run


def _recipe_of(run: Path) -> Plain:
    """The recipe of a run as it is now. What is damaged is refused by who trains it, or not: there are choices."""
    from tercet.training.run_folder.changes import read_begun, read_recipe

    try:
        return to_plain(read_recipe(run))
    except DamagedFile:
        return to_plain(read_begun(run, None))
