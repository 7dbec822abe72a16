"""The folder of a sweep: the requested settings and the arithmetic of its runs, in `settings.json`."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tercet.config import Plain, UserError, find_differences
from tercet.storage import check_output_folder, read_sealed_json, write_sealed_json
from tercet.training.recipe.recipe import Recipe

SETTINGS = "settings.json"
CONFIRMATION = "confirmation"  # folder in that of a search
SEALED = "sealed.json"  # in the folder of a confirmation, so that a repeated command needs no second call


def check_out(out: Path, requested: Plain, *, what: str = "comparison") -> None:
    """Check that the folder of a sweep does not exist, is empty or contains the same sweep.

    Args:
        out: Folder of the sweep.
        requested: Requested settings.
        what: Name of the content in messages.

    Raises:
        UserError: If `out` contains something else.
    """
    check_output_folder(out, "--out")
    if not (out / SETTINGS).exists():
        if out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir()):
            raise UserError(f"{out} is not empty and contains no {what}; pass another --out")
        return
    previous = _read_settings(out)
    if differences := find_differences(previous["asked"], json.loads(json.dumps(requested))):
        raise UserError(f"{out} contains a {what} with other settings ({'; '.join(differences)}); pass another --out")


def settle_arithmetic(out: Path, requested: Plain, recipes: Iterable[Recipe]) -> dict[str, Any]:
    """Return `precision` and `matmul` for all recipes whose precision is `auto`; empty if there are none.

    Both are chosen once per sweep and kept in `settings.json`, because variants could otherwise also differ in
    rounding.

    Args:
        out: Folder of the sweep, which is created.
        requested: Requested settings.
        recipes: Recipes of the runs.

    Raises:
        UserError: If the folder cannot be created, or its settings are damaged.
    """
    from tercet.training.compute.auto_arithmetic import choose_arithmetic

    path = out / SETTINGS
    if path.exists():
        return _read_settings(out)["arithmetic"]
    open_recipes = [recipe for recipe in recipes if recipe.training.precision == "auto"]
    arithmetic = choose_arithmetic(open_recipes[0].training) if open_recipes else {}
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {out}: {error.strerror}; pass another --out") from None
    write_sealed_json(path, {"asked": requested, "arithmetic": arithmetic})
    return arithmetic


def _read_settings(out: Path) -> dict[str, Any]:
    """Read the requested settings, and `precision` and `matmul`, of a comparison.

    Raises:
        UserError: If the file is damaged, or was not written by a comparison.
    """
    settings = read_sealed_json(out / SETTINGS, since="checksum")
    if any(not isinstance(settings.get(key), dict) for key in ("asked", "arithmetic")):
        raise UserError(f"{out / SETTINGS} was not written by a comparison; pass another --out")
    return settings
