"""What `tercet` gives to Python beside `Run` and `Engine`: train, load, compare, convert."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tercet.checkpoint import convert as convert
from tercet.checkpoint import load_model
from tercet.checkpoint import verify as verify
from tercet.config import Plain, UserError, merge, nest
from tercet.diagnosis import doctor as doctor
from tercet.messages import show
from tercet.run import Run as Run
from tercet.serve.engine import Engine as Engine
from tercet.training.compare_runs import compare as compare


def train(
    recipe: str | Path,
    *,
    data: str | Path | None = None,
    source: str | Path | None = None,
    target: str | Path | None = None,
    validation_source: str | Path | None = None,
    validation_target: str | Path | None = None,
    pretrained: str | Path | None = None,
    out: str | Path | None = None,
    set: Mapping[str, Any] | None = None,  # the name of the command line's flag
    restart: bool = False,
    from_weights: bool = False,
    exact: bool = False,
    quiet: bool = False,
) -> Run:
    """Train as the recipe says, as `tercet train` does.

    Args:
        recipe: a packaged recipe's name or a YAML file's path.
        data: a file, folder or named dataset in place of the recipe's, where it trains a language model.
        source, target: the same where it trains a translator: two files, line by line; or, without target, one .tsv or
            .jsonl file of pairs or a named dataset.
        validation_source, validation_target: pairs to validate on, in files of their own.
        pretrained: the folder of a model to go on from: its sizes, tokenizer and weights.
        out: the run's folder, runs/<recipe> by default; a run that is there already is resumed.
        set: changes such as {"training.max_steps": 500}.
        restart: delete the run that is there, and begin anew.
        from_weights: go on from the last model's weights, where every checkpoint of the run is lost.
        exact: go on only where the end is an unbroken run's to the last bit.

    Raises:
        UserError: where recipe, data or settings do not fit, or another process trains there.
    """
    from tercet import training

    changes: Plain = {}
    for path, value in _check_changes(set).items():
        changes = merge(changes, nest(path, value))
    recipe = str(recipe)
    files = {
        "data": data, "source": source, "target": target,
        "validation_source": validation_source, "validation_target": validation_target, "pretrained": pretrained,
    }  # fmt: skip
    paths = {name: str(path) for name, path in files.items() if path is not None}
    out = default_folder(recipe) if out is None else Path(out)
    made = recipe_with(recipe, changes, out=out, **paths)
    return load(training.train(made, out, quiet=quiet, restart=restart, from_weights=from_weights, exact=exact))


def _check_changes(changes: object) -> Mapping[str, Any]:
    """Whoever writes Python may give anything."""
    if changes is None:
        return {}
    if not isinstance(changes, Mapping) or not all(isinstance(key, str) for key in changes):
        raise UserError(f'set={show(changes)} must be a mapping such as {{"training.max_steps": 500}}')
    return changes


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
) -> Any:
    """The recipe with `changes`, other data and another beginning; arguments as in `train`.

    Raises:
        UserError: where there is no such recipe, something in it does not fit, or its family learns from other data.
    """
    from tercet.training.recipe import parse_recipe, read_settings, task_kind, with_pretrained_copy

    if target is not None and source is None:
        raise UserError(f"the target {target} needs its source: give --source F as well")
    if validation_target is not None and validation_source is None:
        raise UserError(f"the target {validation_target} needs its source: give --validation-source F as well")
    settings = read_settings(name, changes)
    if pretrained is not None:
        settings = merge(settings, {"pretrained": pretrained})
    settings = with_pretrained_copy(settings, out)
    translates = task_kind(settings, name=f"recipe {name}") == "translation"
    if translates and data is not None:
        raise UserError(
            f"the recipe {name} trains a translator, which learns from pairs: give --source F --target F "
            "in place of --data (a .tsv or .jsonl file or a named dataset of pairs needs no --target)"
        )
    if not translates and (source or validation_source) is not None:
        raise UserError(f"the recipe {name} trains a language model, which learns from text: give --data PATH")
    if data is not None:
        settings = merge(settings, {"data": {"source": data}})
    if source is not None:
        # The recipe's languages are those of its own data; files that need none to be read may be in any.
        unknown = target is not None or source.endswith((".tsv", ".tsv.gz"))
        languages = dict.fromkeys(("source_language", "target_language")) if unknown else {}
        given = changes.get("data")
        chosen = {key: given[key] for key in languages if key in given} if isinstance(given, Mapping) else {}
        settings = merge(settings, {"data": {**languages, **chosen, "source": source, "target": target}})
    if validation_source is not None:
        held_out = {"kind": "held_out", "source": validation_source, "target": validation_target}
        settings = merge(settings, {"data": {"validation": held_out}})
    return parse_recipe(settings, name=f"recipe {name}")


def load(path: str | Path) -> Run:
    """The model in a run's folder (the best one) or in a model's.

    Raises:
        UserError: where there is none, or its files are broken.
    """
    return Run(trained=load_model(path))


def default_folder(recipe: str) -> Path:
    return Path("runs", Path(recipe).stem)
