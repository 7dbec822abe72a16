"""Requests to train, and their resolution to a parsed recipe and a run folder."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.checkpoint.run_record import RECIPE, RECORD, check_run_links
from tercet.config import Plain, UserError, merge, to_plain
from tercet.data.shards.find_prepared import may_be_prepared
from tercet.data.sources.custom_dataset import plain_source
from tercet.messages import is_first_process, print_note
from tercet.storage import DamagedFile
from tercet.training.recipe.files import change_settings, read_settings, recipe_names
from tercet.training.recipe.for_data import SIZED_RECIPES, choose_recipe, is_data
from tercet.training.recipe.other_data import REQUIRED, describe_other_data, describe_tail

if TYPE_CHECKING:
    from tercet.training.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A recipe, changes to it, and the folder of the run.

    Args:
        recipe: Name of a packaged recipe, path of a YAML file, run folder to resume, or file or folder of data, for
            which a packaged recipe is chosen.
        changes: Changed settings of the recipe, as nested mappings, such as {"training": {"max_steps": 500}}.
        data: File, folder or named dataset to use instead of the recipe's data, except for translation.
        source, target: Sentence pairs to use instead of the recipe's, for translation: two parallel files, or only
            `source`, a file or named dataset of pairs. If `recipe` is a file of sentences, `target` is the file of
            their translations.
        validation_source, validation_target: Sentence pairs to validate on, in the same form.
        pretrained: Folder of a run or model whose weights the new run starts from (default: that of the recipe).
        chooses_size: If True, choose a recipe with the key `model.size` for data.
        out: Run folder (default: see `choose_folder`).
        quiet: If True, do not report on stderr which recipe was chosen for data.
    """

    recipe: str
    changes: Plain = field(default_factory=dict)
    data: str | None = None
    source: str | None = None
    target: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    pretrained: str | None = None
    chooses_size: bool = False
    out: Path | None = None
    quiet: bool = True


@dataclass(frozen=True, kw_only=True)
class ResolvedRecipe:
    """A parsed recipe and its run folder.

    Attributes:
        recipe: Parsed recipe.
        folder: Run folder.
        from_run: If True, the request named a run folder, and `recipe` is the current recipe of that run with the
            changes of the request. If False, `recipe` has another origin, and is compared with the initial recipe of
            the run in `folder`, if there is one.
        notes: Messages for the user about settings that are replaced or kept because the data is not the recipe's own.
    """

    recipe: "Recipe"
    folder: Path
    from_run: bool = False
    notes: tuple[str, ...] = ()


def resolve(request: RunRequest) -> ResolvedRecipe:
    """Return the recipe of a request with all changes, and its run folder.

    Raises:
        UserError: If the recipe does not exist, a setting is invalid, arguments of the request contradict each other,
            or the recipe trains on another kind of data.
    """
    run = find_run(request.recipe)
    folder = choose_folder(request, run)
    is_data_path = is_data(request.recipe)
    if is_data_path:
        request = _choose_recipe(request, folder)
    elif request.target is not None and request.source is None:
        raise UserError(f"the target {request.target} needs its source: pass --source F as well")
    if request.validation_target is not None and request.validation_source is None:
        raise UserError(f"the target {request.validation_target} needs its source: pass --validation-source F as well")
    name, changes = request.recipe, _add_files(request)
    base = read_settings(name) if run is None else _read_run_recipe(run)
    settings = _add_pretrained(request, base, changes, folder)

    from tercet.training.recipe.recipe import (
        parse_recipe,
        task_kind,
    )  # imported late, because it loads the specs of all models

    translates = task_kind(settings, name=f"recipe {name}") == "translation"
    if translates and request.data is not None:
        raise UserError(
            f"the recipe {name} trains a translator on sentence pairs: pass --source F --target F "
            "instead of --data (a .tsv, .csv or .jsonl file or a named dataset of pairs needs no --target)"
        )
    if not translates and (request.source or request.validation_source) is not None:
        raise UserError(f"the recipe {name} does not train a translator: pass --data PATH instead of sentence pairs")
    notes: list[str | None] = []
    if not is_data_path and run is None:
        tokenizes = settings.get("pretrained") is None and not may_be_prepared(str(request.data))
        notes.append(describe_other_data(base, changes, tokenizer=tokenizes))
    recipe = parse_recipe(settings, name=f"recipe {name}", run=run)
    if run is None and not (folder / RECIPE).exists():
        notes.append(describe_tail(recipe.data))
    return ResolvedRecipe(recipe=recipe, folder=folder, from_run=run is not None, notes=tuple(filter(None, notes)))


def find_run(name: str) -> Path | None:
    """Return the path of a run folder, or None if `name` is a recipe or data, or is not a folder.

    Raises:
        UserError: If the folder contains neither a run nor data, its `recipe.yaml` is missing, or a link in it leads
            out of it.
    """
    folder = Path(name)
    if name.endswith((".yaml", ".yml")) or not folder.is_dir() or name in recipe_names() or is_data(name):
        return None
    if not (folder / RECORD).exists() and not (folder / RECIPE).exists():
        raise UserError(
            f"{name} contains no run: it has neither {RECORD} nor readable data; pass a run folder, or a recipe and "
            f"--out {name}"
        )
    if not (folder / RECIPE).exists():
        raise UserError(f"{folder / RECIPE} is missing; put it back, or pass a recipe and --out {name} --restart")
    check_run_links(folder)
    return folder


def choose_folder(request: RunRequest, run: Path | None = None) -> Path:
    """Return the run folder of a request.

    It is `run`, the run that is resumed, or for a new run `request.out`. The default for a new run is `runs/NAME`; NAME
    is the name of the recipe or data, without its folder and suffix.

    Raises:
        UserError: If `request.out` is another folder than `run`.
    """
    if run is None:
        return request.out or Path("runs", Path(request.recipe.removesuffix(".gz")).stem)
    if request.out is not None and request.out.resolve() != run.resolve():
        raise UserError(
            f"{run} is a run, which is resumed in its own folder; omit --out, or pass {run / RECIPE} to start a new run"
        )
    return run


def name_recipe(request: RunRequest) -> RunRequest:
    """Return a request whose `recipe` is no data: a packaged recipe is chosen for data.

    Raises:
        UserError: If the data cannot be read, or the request names data twice.
    """
    return _choose_recipe(request, choose_folder(request)) if is_data(request.recipe) else request


def _choose_recipe(request: RunRequest, folder: Path) -> RunRequest:
    """Return a request whose `recipe`, the path of data, is replaced by a packaged recipe for that data.

    If the folder contains a run that holds out the end of its text, the request does, too, so that it resumes the run.
    """
    name = request.recipe
    if (other_data := request.data or request.source) is not None:
        raise UserError(f"{name} and {other_data} are both data; pass only one of them, or a recipe first")
    data_changes = request.changes.get("data")
    choice = choose_recipe(
        name,
        request.target,
        data_changes if isinstance(data_changes, Mapping) else {},
        pretrained=request.pretrained is not None,
        draws_documents=_recorded_split(folder) != "tail",
    )
    if request.chooses_size:
        choice = choice._replace(recipe=SIZED_RECIPES.get(choice.recipe, choice.recipe))
    if not request.quiet and is_first_process():
        kind = f"{choice.kind}, {choice.fields}" if choice.fields else choice.kind
        changed_data = choice.changes.get("data")
        is_drawn = isinstance(changed_data, Mapping) and "validation" in changed_data
        drawn = "; the validation part is drawn over documents (data.validation)" if is_drawn else ""
        print_note(
            f"{name} contains {kind}; training with the recipe that `tercet recipes {choice.recipe}` shows{drawn}"
        )
    field_name = "source" if choice.kind == "pairs" else "data"
    return replace(request, recipe=choice.recipe, changes=merge(choice.changes, request.changes), **{field_name: name})


def _recorded_split(folder: Path) -> object:
    """Return the kind of the validation part of the run in a folder; None if there is no run or it is damaged."""
    from tercet.settings_yaml import read_yaml

    with suppress(UserError, OSError):
        data = read_yaml(folder / RECIPE).get("data") if (folder / RECIPE).exists() else None
        validation = data.get("validation") if isinstance(data, Mapping) else None
        return validation.get("kind") if isinstance(validation, Mapping) else validation
    return None


def _add_files(request: RunRequest) -> Plain:
    """Return the changes, with the files of the request as keys of `data`."""
    source = request.data if request.source is None else request.source
    files: Plain = {
        "source": None if source is None else plain_source(source),
        "target": None if request.source is None else request.target,
    }
    if request.validation_source is not None:
        files["validation"] = {
            "kind": "held_out", "source": plain_source(request.validation_source), "target": request.validation_target,
        }  # fmt: skip
    if data := {key: value for key, value in files.items() if value is not None}:
        return merge(request.changes, {"data": data})
    return request.changes


def _add_pretrained(request: RunRequest, base: Plain, changes: Plain, folder: Path) -> Plain:
    """Return the settings of the recipe with the changes and the pretrained model of the request.

    A recipe without a pretrained model describes a model to build from scratch in its `model` section. Of this section,
    only the keys that apply to the pretrained model are kept (see `compatible_model_keys`).

    Args:
        request: Request to train.
        base: Settings of the recipe without changes.
        changes: Changed settings.
        folder: Run folder, which may contain a copy of the pretrained model.

    Raises:
        UserError: If the changes select a tokenizer, although the pretrained model has its own.
    """
    from tercet.training.recipe.pretrained import compatible_model_keys, has_row_len, keep_row_len, limit_context
    from tercet.training.recipe.recipe import use_pretrained_copy

    settings = change_settings(base, changes)
    if request.pretrained is not None:
        settings = merge(settings, {"pretrained": request.pretrained})
    settings = use_pretrained_copy(settings, folder, name=f"recipe {request.recipe}")
    if (pretrained := settings.get("pretrained")) is None:
        return settings
    if (tokenizer := _find_tokenizer_key(changes)) is not None:
        raise UserError(f"the tokenizer is that of {pretrained}: omit data.{tokenizer}, or pretrained")
    if base.get("pretrained") in (None, REQUIRED):
        base_model, changed_model = (
            {} if (part := settings_part.get("model")) is None else part for settings_part in (base, changes)
        )
        if isinstance(base_model, Mapping) and isinstance(changed_model, Mapping):  # otherwise parsing rejects it
            keys = compatible_model_keys(Path(pretrained), base_model, requires=base.get("pretrained") == REQUIRED)
            settings["model"] = merge(keys, changed_model)
    settings = keep_row_len(settings, base, changes)
    return settings if has_row_len(folder) else limit_context(settings, Path(pretrained))


def _find_tokenizer_key(changes: Plain) -> str | None:
    """Return the key of `data` with which the changes select a tokenizer, or None."""
    data = changes.get("data")
    keys = data if isinstance(data, Mapping) else {}
    return next((key for key in ("tokenizer", "source_tokenizer") if keys.get(key) is not None), None)


def _read_run_recipe(run: Path) -> Plain:
    """Return the current recipe of a run.

    If `run.json` or `recipe.yaml` is damaged, return the initial recipe without a check. Whether the damage is an error
    is decided when the run starts, because the user may choose to recover from it.
    """
    from tercet.training.run_folder.changes import read_initial_recipe, read_recipe

    try:
        return to_plain(read_recipe(run))
    except DamagedFile:
        return to_plain(read_initial_recipe(run, None))
