"""What may stand at the end of a command line, for the shells' completion: no torch, and a fraction of a second."""

import argparse
import json
import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from tercet.cli.parser import Parser, Verbs, dashed

Candidates = list[tuple[str, str]]  # each with what it is about
FILES = ("FILE", "FOLDER", "PATH", "DIR", "SOURCE", "DATA")  # words of a metavar
MODELS = ("run.json", "recipe.yaml", "config.json")  # of which a run's or a model's folder has one
DEEP = 2  # folders below which runs are looked for
MOST = 2000  # entries of a folder that are looked at
WORDS = {  # of an argument that takes others as well, or says which it takes once it is read
    "device": ("auto", "cpu", "cuda", "mps"),
    "to": ("hf", "ctranslate2", "gguf", "onnx", "peft"),
}
KEYS_FILE = "completion-keys.json"


class Completions(NamedTuple):
    """`kind`: "files" leaves it to the shell to complete a path; "paths" are ones that it may quote as such."""

    kind: Literal["words", "paths", "files"]
    candidates: Candidates


def split_line(line: str) -> list[str]:
    """The words behind the program's name, the last as far as it is typed, which may be within quotes."""
    end = "\0"
    for closing in ("", '"', "'"):
        with suppress(ValueError):
            words = shlex.split(line + end + closing)
            return [*words[1:-1], words[-1].partition(end)[0]] if len(words) > 1 else [""]
    return [""]


def find_candidates(parser: Parser, words: list[str]) -> Completions:
    """Args:
    words: those behind `tercet`; the last one is completed.
    """
    *before, current = words
    chosen, value_of, positionals = _walk(parser, dashed(before))
    flag, equals, value = current.partition("=")
    if value_of is not None and not (value_of.nargs and current.startswith("-")):
        return _values(chosen, value_of, current)
    if current.startswith("--") and equals:
        action = chosen._option_string_actions.get(dashed([flag])[0])  # type: ignore[reportPrivateUsage]
        if action is None:
            return Completions("words", [])
        kind, found = _values(chosen, action, value)
        return Completions(kind, [(f"{flag}={word}", about) for word, about in found])
    if current.startswith("-") or not positionals:
        return Completions("words", [pair for pair in _flags(chosen) if pair[0].startswith(current)])
    return _values(chosen, positionals[0], current, chosen.forms if len(before) == 1 else ())


def _walk(parser: Parser, before: list[str]) -> tuple[Parser, argparse.Action | None, list[argparse.Action]]:
    """The parser that the words have led to, the flag whose value is next, and the positionals that are left."""
    positionals, value_of = _positionals(parser), None
    for number, word in enumerate(before):
        if number == 1 and word in parser.forms:
            parser = parser.forms[word]
            positionals = _positionals(parser)
        elif word.startswith("-") and word != "-":
            action = parser._option_string_actions.get(word)  # type: ignore[reportPrivateUsage]
            value_of = None if action is None or action.nargs == 0 else action
        elif value_of is not None:
            if value_of.nargs not in ("+", "*"):
                value_of = None
        elif positionals:
            first = positionals[0]
            if isinstance(first, Verbs):
                chosen = first.choices.get(word)
                if chosen is None:
                    return parser, None, []
                parser, positionals = chosen, _positionals(chosen)
            elif first.nargs not in ("+", "*"):
                positionals = positionals[1:]
    return parser, value_of, positionals


def _positionals(parser: Parser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]  # type: ignore[reportPrivateUsage]


def _flags(parser: Parser) -> Candidates:
    actions = (action for action in parser._actions if action.help != argparse.SUPPRESS)  # type: ignore[reportPrivateUsage]
    return [(flag, action.help or "") for action in actions for flag in action.option_strings if flag.startswith("--")]


def _values(parser: Parser, action: argparse.Action, current: str, forms: Iterable[str] = ()) -> Completions:
    """What may stand for the action's value, or a form in its place, as far as it begins with `current`."""
    if isinstance(action, Verbs):
        return _words([(choice.dest, choice.help or "") for choice in action._choices_actions], current)  # type: ignore[reportPrivateUsage]
    if action.choices is not None:
        return _words([(str(choice), "") for choice in action.choices], current)
    metavar = str(action.metavar)
    if metavar.startswith("KEY="):
        return _words(_settings(current, recipe_keys_at_hand()), current)
    known: Candidates = [(word, "") for word in (*WORDS.get(action.dest, ()), *forms)]
    if "RECIPE" in metavar or parser.prog == "tercet recipes":
        from tercet.training.recipe.files import recipe_names

        known += recipe_names().items()
    if "PRESET" in metavar:
        known += [(name, "") for name in recipe_keys_at_hand()["model.preset"]]
    names = [pair for pair in known if pair[0].startswith(current)]
    takes_files = any(word in metavar for word in FILES)
    if "RUN" in metavar and (runs := find_runs(current)):
        return Completions("paths", names + [(run, "") for run in runs])
    if (takes_files or "RUN" in metavar or "RECIPE" in metavar) and not names:
        return Completions("files", [])
    if takes_files or "RECIPE" in metavar:
        return Completions("paths", names + [(path, "") for path in _paths(current)])
    return Completions("words", names)


def _words(words: Iterable[tuple[str, str]], current: str) -> Completions:
    return Completions("words", [pair for pair in words if pair[0].startswith(current)])


def _settings(current: str, keys: dict[str, tuple[str, ...]]) -> Candidates:
    """The values of a key that is typed, or the keys and groups of keys of one level more than what is typed."""
    key, equals, _ = current.partition("=")
    if equals:
        return [(f"{key}={choice}", "") for choice in keys.get(key, ())]
    level = key.count(".")
    found: dict[str, str] = {}
    for known, choices in keys.items():
        parts = known.split(".")
        if len(parts) == level + 1 and (choices or not any(k.startswith(f"{known}.") for k in keys)):
            found[f"{known}="] = ", ".join(choices)
        elif len(parts) > level + 1:
            found[".".join(parts[: level + 1]) + "."] = ""
    return list(found.items())


def find_runs(current: str) -> list[str]:
    """The folders of runs and models, GGUF files, and folders that lead to some, whose path begins with this."""
    return [found for path in _entries(current) if (found := _as_run(path))]


def _as_run(path: str, deep: int = DEEP) -> str:
    """The path; with a slash where it leads to runs, empty where it does not."""
    if not os.path.isdir(path):
        return path if path.endswith(".gguf") else ""
    if any(os.path.exists(os.path.join(path, name)) for name in MODELS):
        return path
    return f"{path}/" if deep and any(_as_run(inner, deep - 1) for inner in _entries(f"{path}/")) else ""


def _paths(current: str) -> list[str]:
    return [f"{path}/" if os.path.isdir(path) else path for path in _entries(current)]


def _entries(current: str) -> list[str]:
    """What lies in the folder that is typed, by name; hidden entries where the name begins with a dot."""
    folder, _, start = current.rpartition("/")
    folder = f"{folder}/" if "/" in current else ""
    names = list[str]()
    with suppress(OSError, ValueError), os.scandir(folder or ".") as entries:
        for _, entry in zip(range(MOST), entries, strict=False):
            if entry.name.startswith(start) and (start.startswith(".") or not entry.name.startswith(".")):
                names.append(entry.name)
    return [folder + name for name in sorted(names)]


def recipe_keys_at_hand() -> dict[str, tuple[str, ...]]:
    """`recipe_keys`, which costs the import of all specs, once for each state of their files: then from the cache."""
    from tercet.cache_dir import cache_dir

    path = cache_dir() / KEYS_FILE
    with suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
        kept = json.loads(path.read_bytes())
        if all(os.stat(file).st_mtime_ns == changed for file, changed in kept["files"].items()):
            return {str(key): tuple(map(str, choices)) for key, choices in kept["keys"].items()}

    import sys

    from tercet.storage import write_atomically
    from tercet.training.recipe.keys import recipe_keys, spec_files
    from tercet.training.recipe.recipe import RECIPES

    keys = recipe_keys()
    modules = {"tercet.models.presets", *(name for spec in RECIPES.values() for name in spec_files(spec))}
    files = [str(sys.modules[name].__file__) for name in sorted(modules)]
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        stamps = {file: Path(file).stat().st_mtime_ns for file in files}
        write_atomically(path, json.dumps({"files": stamps, "keys": keys}).encode())
    return keys
