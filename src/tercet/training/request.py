"""What somebody asks to train, and the recipe that it comes to: of its name, of a run, or one that suits data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.checkpoint.run_record import RECIPE, RECORD, check_run_links
from tercet.config import Plain, UserError, merge, to_plain
from tercet.data.shards.find_prepared import may_be_prepared
from tercet.messages import is_first_process, print_note
from tercet.storage import DamagedFile
from tercet.training.recipe.files import change_settings, read_settings, recipe_names
from tercet.training.recipe.for_data import choose_recipe, is_data
from tercet.training.recipe.other_data import REQUIRED, describe_other_data

if TYPE_CHECKING:
    from tercet.training.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A recipe and what is to be different in it.

    Args:
        recipe: A packaged recipe's name, a YAML file's path, the folder of a run that is to go on, or a file or folder
            of data, for which a packaged recipe is chosen.
        changes: Keys of the recipe with other values, nested.
        data: A file, folder or named dataset in place of the recipe's, if it trains a language model.
        source, target: The same if it trains a translator.
        validation_source, validation_target: Pairs to validate on.
        pretrained: The folder of a model to go on from, in place of a new model that the recipe describes.
        out: The run's folder.
        quiet: If True, nothing on stderr of the recipe that suits data.
    """

    recipe: str
    changes: Plain = field(default_factory=dict)
    data: str | None = None
    source: str | None = None
    target: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    pretrained: str | None = None
    out: Path | None = None
    quiet: bool = True


@dataclass(frozen=True, kw_only=True)
class ResolvedRecipe:
    """A recipe that is parsed, and where it is trained.

    Attributes:
        recipe: The recipe.
        folder: The run's folder.
        from_run: The recipe is the one of the run in `folder` as it is now, with changes, and not the one that the run
            was begun with.
        notes: Lines about the recipe, such as the settings that other data replaces.
    """

    recipe: "Recipe"
    folder: Path
    from_run: bool = False
    notes: tuple[str, ...] = ()


def resolve(request: RunRequest) -> ResolvedRecipe:
    """Return the recipe of a request, with all changes.

    Raises:
        UserError: If there is no such recipe, something in it does not fit, or its family learns from other data.
    """
    run = find_run(request.recipe)
    folder = choose_folder(request, run)
    is_data_path = is_data(request.recipe)
    if is_data_path:
        request = _choose_recipe(request)
    elif request.target is not None and request.source is None:
        raise UserError(f"the target {request.target} needs its source: give --source F as well")
    if request.validation_target is not None and request.validation_source is None:
        raise UserError(f"the target {request.validation_target} needs its source: give --validation-source F as well")
    name, changes = request.recipe, _add_files(request)
    base = read_settings(name) if run is None else _read_run_recipe(run)
    settings = _add_pretrained(request, base, changes, folder)

    from tercet.training.recipe.recipe import parse_recipe, task_kind  # once there is something to parse

    translates = task_kind(settings, name=f"recipe {name}") == "translation"
    if translates and request.data is not None:
        raise UserError(
            f"the recipe {name} trains a translator, which learns from pairs: give --source F --target F "
            "in place of --data (a .tsv, .csv or .jsonl file or a named dataset of pairs needs no --target)"
        )
    if not translates and (request.source or request.validation_source) is not None:
        raise UserError(f"the recipe {name} trains a language model, which learns from text: give --data PATH")
    notes: list[str | None] = []
    if not is_data_path and run is None:
        tokenizes = settings.get("pretrained") is None and not may_be_prepared(str(request.data))
        notes.append(describe_other_data(base, changes, tokenizer=tokenizes))
    recipe = parse_recipe(settings, name=f"recipe {name}", run=run)
    return ResolvedRecipe(recipe=recipe, folder=folder, from_run=run is not None, notes=tuple(filter(None, notes)))


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


def choose_folder(request: RunRequest, run: Path | None = None) -> Path:
    """Where a run goes: `out`, else the folder that a recipe has by default, or the run that is asked for."""
    if run is None:
        return request.out or Path("runs", Path(request.recipe.removesuffix(".gz")).stem)
    if request.out is not None and request.out.resolve() != run.resolve():
        raise UserError(f"{run} is a run, which goes on in its own folder; leave --out out, or give {run / RECIPE}")
    return run


def _choose_recipe(request: RunRequest) -> RunRequest:
    """The request for a packaged recipe that suits the data which stands in the place of a recipe."""
    name = request.recipe
    if (other_data := request.data or request.source) is not None:
        raise UserError(f"{name} is data, and {other_data} is as well; give one, or a recipe in the first place")
    data_changes = request.changes.get("data")
    choice = choose_recipe(
        name,
        request.target,
        data_changes if isinstance(data_changes, Mapping) else {},
        pretrained=request.pretrained is not None,
    )
    if not request.quiet and is_first_process():
        print_note(f"{name} is {choice.kind}: trained on as `tercet recipes {choice.recipe}` says")
    field_name = "source" if choice.kind == "pairs" else "data"
    return replace(request, recipe=choice.recipe, changes=merge(choice.changes, request.changes), **{field_name: name})


def _add_files(request: RunRequest) -> Plain:
    """The changes, with the files of the request as keys of `data`."""
    source = request.data if request.source is None else request.source
    files: Plain = {"source": source, "target": None if request.source is None else request.target}
    if request.validation_source is not None:
        files["validation"] = {
            "kind": "held_out", "source": request.validation_source, "target": request.validation_target,
        }  # fmt: skip
    if data := {key: value for key, value in files.items() if value is not None}:
        return merge(request.changes, {"data": data})
    return request.changes


def _add_pretrained(request: RunRequest, base: Plain, changes: Plain, folder: Path) -> Plain:
    """The changed settings, and in them the model to go on from. A recipe that names none describes a model of its own,
    whose place the pretrained one takes."""
    from tercet.training.recipe.pretrained import compatible_model_keys
    from tercet.training.recipe.recipe import use_pretrained_copy

    settings = change_settings(base, changes)
    if request.pretrained is not None:
        settings = merge(settings, {"pretrained": request.pretrained})
    settings = use_pretrained_copy(settings, folder, name=f"recipe {request.recipe}")
    if (pretrained := settings.get("pretrained")) is None:
        return settings
    if (tokenizer := _find_tokenizer_key(changes)) is not None:
        raise UserError(f"the tokenizer is that of {pretrained}: leave data.{tokenizer} out, or pretrained")
    if base.get("pretrained") in (None, REQUIRED):
        base_model, changed_model = (
            {} if (part := settings_part.get("model")) is None else part for settings_part in (base, changes)
        )
        if isinstance(base_model, Mapping) and isinstance(changed_model, Mapping):  # else refused as it is parsed
            settings["model"] = merge(compatible_model_keys(Path(pretrained), base_model), changed_model)
    return settings


def _find_tokenizer_key(changes: Plain) -> str | None:
    """The key by which the changes choose a tokenizer."""
    data = changes.get("data")
    keys = data if isinstance(data, Mapping) else {}
    return next((key for key in ("tokenizer", "source_tokenizer") if keys.get(key) is not None), None)


def _read_run_recipe(run: Path) -> Plain:
    """The recipe of a run as it is now. What is damaged is refused by who trains it, or not: there are choices."""
    from tercet.training.run_folder.changes import read_initial_recipe, read_recipe

    try:
        return to_plain(read_recipe(run))
    except DamagedFile:
        return to_plain(read_initial_recipe(run, None))
