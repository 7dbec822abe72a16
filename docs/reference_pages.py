"""Write the generated pages of the reference: `python docs/reference_pages.py FOLDER`.

cli.md            each verb with its arguments, from its parser
settings.md       each key of a recipe with type, range, default and meaning, from the specs and their docstrings
recipes.md        each packaged recipe
file-formats.md   each file that Tercet writes, from the docstrings of the modules that write it

The pages are made anew for each build of the site, so they agree with the code.
"""

import argparse
import dataclasses
import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from griffe import Docstring, DocstringSectionKind

from tercet.cli.main import VERBS, make_parser
from tercet.models import PRESETS, SPECS
from tercet.spec import Custom, Interval, describe, find_bounds
from tercet.training.recipe.files import recipe_names, recipe_text
from tercet.training.recipe.recipe import RECIPES, Recipe
from tercet.training.recipe.spec_keys import union_members

SCHEMAS = Path(__file__).parent / "reference" / "schemas"
FORMATS = {
    "Run folder: `run.json`": ("tercet.checkpoint.run_record", "RunRecord", "Change"),
    "Run folder: checkpoints": ("tercet.training.run_folder.saved_state",),
    "Run folder: `metrics.csv`": ("tercet.checkpoint.metrics",),
    "Model folder": ("tercet.checkpoint.folder",),
    "Model folder: `card.json` and `README.md`": ("tercet.checkpoint.card", "Card"),
    "Model folder: vectors of texts": ("tercet.checkpoint.sentence_settings", "SentenceSettings"),
    "Model folder: adapter": ("tercet.checkpoint.adapter", "Adapter"),
    "`manifest.json`": ("tercet.storage.manifest", "FileHash"),
    "JSON with a checksum": ("tercet.storage.sealed_json",),
    "Sealed test part: `seal.json`": ("tercet.data.sealing.seal_record", "Seal", "SealedPart"),
    "Token folder": ("tercet.data.shards.token_folder", "Contents"),
    "Vector file": ("tercet.encoding.vector_file", "VectorFile"),
}


def parse_docstring(item: Any) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring, and the description of each attribute or argument that it lists."""
    text, fields = "", dict[str, str]()
    for section in Docstring(inspect.getdoc(item) or "").parse("google", warnings=False):
        if section.kind is DocstringSectionKind.text:
            text = text or section.value
        elif section.kind in (DocstringSectionKind.attributes, DocstringSectionKind.parameters):
            for entry in section.value:
                fields |= {name.strip(): " ".join(entry.description.split()) for name in entry.name.split(",")}
    return text, fields


def describe_fields(spec: type) -> dict[str, str]:
    """Return the descriptions of a dataclass's fields, its base classes' included."""
    return {name: text for base in reversed(spec.__mro__) for name, text in parse_docstring(base)[1].items()}


def specs_in(hint: Any) -> list[type]:
    inner = get_args(hint)[:1] if get_origin(hint) is tuple else (hint,)
    return [
        one for part in inner for one in union_members(part) if isinstance(one, type) and dataclasses.is_dataclass(one)
    ]


def kind_of(spec: type) -> str | None:
    """Return the value of `kind` (or `family`, for a model) by which a recipe selects this spec."""
    hints = get_type_hints(spec)
    hint = hints.get("kind", hints.get("family"))
    return get_args(hint)[0] if get_origin(hint) is Literal else None


def describe_type(hint: Any) -> str:
    """Return the values that a field accepts, in words."""
    words = list[str]()
    intervals = [bounds for bounds in find_bounds(hint) if isinstance(bounds, Interval)]
    bounds = " and ".join(dict.fromkeys(describe(interval).removeprefix("be ") for interval in intervals))
    for member in union_members(hint):
        if get_origin(member) is Literal:
            words += [f"`{word}`" for word in get_args(member)]
        elif get_origin(member) is tuple:
            words.append("list")
        elif member is type(None):
            words.append("`null`")
        elif dataclasses.is_dataclass(member):
            words.append(f"`{kind_of(member)}`" if kind_of(member) else "keys")
        elif isinstance(member, type) and issubclass(member, Custom):
            words.append("import path")
        else:
            words.append({bool: "`true`, `false`", int: "integer", float: "number", str: "text"}.get(member, "any"))
    return ", ".join(dict.fromkeys(words)) + (f"; {bounds}" if bounds else "")


def show_value(value: Any) -> str:
    """Return a default as a recipe writes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(show_value, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return kind_of(type(value)) or "defaults" if dataclasses.is_dataclass(value) else str(value)


def show_default(field: "dataclasses.Field[Any]") -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{show_value(field.default_factory())}`"
    return "required" if field.default is dataclasses.MISSING else f"`{show_value(field.default)}`"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def settings_table(spec: type) -> Iterator[str]:
    hints, descriptions = get_type_hints(spec, include_extras=True), describe_fields(spec)
    yield from ("| key | values | default | meaning |", "|---|---|---|---|")
    for field in dataclasses.fields(spec):
        if field.name not in ("kind", "family"):
            values, meaning = describe_type(hints[field.name]), descriptions.get(field.name, "")
            yield f"| `{field.name}` | {cell(values)} | {show_default(field)} | {cell(meaning)} |"
    yield ""


SETTINGS_INTRODUCTION = """# Settings

A recipe is a YAML file. `tercet recipes NAME` prints one with its comments, `tercet train NAME
--print-config` prints all keys with their values, and `--set part.key=value` changes one. If a key
takes one of several specs, its `kind` selects one; without other keys the kind is enough:
`position: rotary` is `position: {kind: rotary}`. In the same way `task: language` is `task: {kind:
language}`.

A number outside its range is rejected, in a recipe with its line, by `--set`, and in Python:
`AdamW(lr=-1)` raises a `ValueError`. The upper bounds are far above common values and exist to
catch typing errors. A text that names a file, a column, an encoding or a language has 1 to 4,096
characters without control characters. Combinations, such as `batch_size` and `devices`, are checked
afterwards. A recipe has at most 1 MiB, 10,000 keys and values, and 32 levels. Each key occurs once
in a mapping. YAML's dates, sets and objects are not accepted; anchors, aliases and `<<` are.

`metrics.csv` and `loss.png` are always written. `model.family` selects the kind of model.
`model.preset` names a model to start from, and the other keys of `model` are merged into it:
"""


SIZE = """\
`model.size` is the width of the model, such as 128. It replaces the width, depth, heads and feed-forward width of the
preset; other keys of `model` override it ([how](../how-to/hours.md#settings)).
"""


def find_tasks() -> dict[type, set[str]]:
    """Return the tasks whose recipes contain each spec."""
    found = dict[type, set[str]]()

    def walk(spec: type, task: str) -> None:
        if task not in found.setdefault(spec, set()):
            found[spec].add(task)
            for hint in get_type_hints(spec, include_extras=True).values():
                for inner in specs_in(hint):
                    walk(inner, task)

    for task, recipe in RECIPES.items():
        walk(recipe, task)
    return found


def settings_page() -> str:
    """Return the page of a recipe's keys: one section per spec, in the order in which a recipe reaches them."""
    lines, tasks, seen = [SETTINGS_INTRODUCTION.rstrip(), ""], find_tasks(), set[type]()
    for family, spec in SPECS.items():
        names = [f"`{name}`" for name, preset in PRESETS.items() if isinstance(preset, spec)]
        lines.append(f"- {family}: {', '.join(names)}")
    lines += ["", SIZE]

    lines += ["## Parts of a recipe", "", parse_docstring(Recipe)[0], "", *settings_table(Recipe)]

    def add(spec: type, path: str) -> None:
        if spec in seen:
            return
        seen.add(spec)
        kind, only = kind_of(spec), sorted(tasks[spec])
        scope = "" if len(only) == len(RECIPES) or path == "task" else f" (task: {', '.join(only)})"
        lines.extend([f"## `{path}{f': {kind}' if kind else ''}`{scope}", ""])
        lines.extend([parse_docstring(spec)[0], "", *settings_table(spec)])
        for name, hint in get_type_hints(spec, include_extras=True).items():
            for inner in specs_in(hint):
                add(inner, f"{path}.{name}")

    for part in get_type_hints(Recipe):
        for recipe in RECIPES.values():
            for inner in specs_in(get_type_hints(recipe, include_extras=True)[part]):
                add(inner, part)
    return "\n".join(lines)


def cli_page() -> str:
    """Return the page of all verbs, with their arguments."""
    lines = ["# Command line", "", "`tercet VERB --help` prints the same.", ""]
    for verb in VERBS:
        parser = make_parser([verb])[1].choices[verb]
        lines += [f"## {verb}", "", parser.description or "", "", "```text", parser.format_usage().strip(), "```", ""]
        for group in parser._action_groups:  # argparse has no public list of its groups
            actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
            if actions := [action for action in actions if action.dest != "help"]:
                lines += [f"**{(group.title or '').capitalize()}**", "", "| argument | meaning |", "|---|---|"]
                for action in actions:
                    metavar = (
                        parser._get_formatter()._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
                    )
                    names = ", ".join(action.option_strings) or metavar
                    value = f" {metavar}" if action.option_strings and metavar else ""
                    lines.append(f"| `{cell(names + value)}` | {cell(action.help or '')} |")
                lines.append("")
        if parser.epilog:
            lines += ["```text", parser.epilog, "```", ""]
    return "\n".join(lines)


def recipes_page() -> str:
    """Return the page of the packaged recipes, each with its comments."""
    lines = ["# Recipes", "", "`tercet recipes NAME` prints one of them.", ""]
    for name, summary in recipe_names().items():
        lines += [f"## {name}", "", summary, "", "```yaml", recipe_text(name).strip(), "```", ""]
    return "\n".join(lines)


def formats_page() -> str:
    """Return the page of the file formats."""
    lines = [
        "# File formats",
        "",
        "Every file can be read without Tercet: JSON, YAML, CSV, safetensors, and NumPy arrays.",
        "",
    ]
    for title, (module_name, *classes) in FORMATS.items():
        module = importlib.import_module(module_name)
        lines += [f"## {title}", "", inspect.getdoc(module) or "", ""]
        for name in classes:
            described = getattr(module, name)
            text, fields = parse_docstring(described)
            hints = get_type_hints(described)
            lines += [f"### {name}", "", text, "", "| field | type | meaning |", "|---|---|---|"]
            for field in dataclasses.fields(described):
                kind = str(getattr(hints[field.name], "__name__", hints[field.name])).replace("typing.", "")
                lines.append(f"| `{field.name}` | `{cell(kind)}` | {cell(fields.get(field.name, ''))} |")
            lines.append("")
    return "\n".join(lines)


JSON_INTRODUCTION = """# JSON results

With `--json`, a verb prints its result to stdout as JSON: one object, or for verbs that read lines
one object per line. Each verb has a [JSON Schema](https://json-schema.org) (draft 2020-12) in
`docs/reference/schemas`, which a test compares with real output of the verb. A number that is not
finite is `null`. `watch`, `explore` and `serve` have no result.
"""


def json_page() -> str:
    """Return the page of the results with `--json`: the fields of each result of each verb, from its schema."""
    lines = [JSON_INTRODUCTION]
    for verb in VERBS:
        path = SCHEMAS / f"{verb}.schema.json"
        if path.is_file():
            document = json.loads(path.read_text(encoding="utf-8"))
            lines += [f"## {verb}", "", f"`docs/reference/schemas/{path.name}`", ""]
            for part in document.get("anyOf", [document]):
                lines += [part.get("description", "").split("\n\n")[0], "", "| field | type |", "|---|---|"]
                for name, field in part["properties"].items():
                    optional = "" if name in part.get("required", []) else ", optional"
                    lines.append(f"| `{name}` | {cell(json_type(field))}{optional} |")
                lines.append("")
    return "\n".join(lines)


def json_type(field: dict[str, Any]) -> str:
    """Return the type of a field of a JSON Schema in words."""
    if "anyOf" in field:
        return " or ".join(map(json_type, field["anyOf"]))
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    kind = field.get("type", "any")
    if kind == "array" and "items" in field:
        return f"array of {json_type(field['items'])}"
    return kind if isinstance(kind, str) else " or ".join(kind)


PAGES = {
    "json.md": json_page,
    "cli.md": cli_page,
    "settings.md": settings_page,
    "recipes.md": recipes_page,
    "file-formats.md": formats_page,
}


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (out / name).write_text(page() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
