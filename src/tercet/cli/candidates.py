"""Candidates for shell completion, computed within a fraction of a second and without importing torch."""

import argparse
import json
import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from tercet.cli.parser import FILES, Parser, Verbs, normalize_flags

Candidates = list[tuple[str, str]]  # words and their descriptions, which may be empty
MODELS = ("run.json", "recipe.yaml", "config.json")  # files of a run or model folder; one is sufficient
MAX_DEPTH = 2  # levels of folders that are searched for runs
MAX_ENTRIES = 2000  # entries of a folder that are read
WORDS = {  # candidates of arguments without `choices`
    "device": ("auto", "cpu", "cuda", "mps"),
    "to": ("hf", "sentence-transformers", "ctranslate2", "gguf", "onnx", "peft"),
}
KEYS_FILE = "completion-keys.json"


class Completions(NamedTuple):
    """The candidates for one word, and how the shell treats them.

    Attributes:
        kind: "words" for plain words; "paths" for paths, which the shell quotes and completes like file names; or
            "files" if there are no candidates and the shell completes file names itself.
        candidates: Words or paths, with their descriptions.
    """

    kind: Literal["words", "paths", "files"]
    candidates: Candidates


def split_line(line: str) -> list[str]:
    """Return the words of a command line after the program's name, without quotes.

    The last word is the one to complete. It may be empty, and its closing quote may be missing.
    """
    end = "\0"
    for closing in ("", '"', "'"):
        with suppress(ValueError):
            words = shlex.split(line + end + closing)
            return [*words[1:-1], words[-1].partition(end)[0]] if len(words) > 1 else [""]
    return [""]


def find_candidates(parser: Parser, words: list[str]) -> Completions:
    """Return the candidates for the last word of a command line.

    Args:
        parser: Parser of the command line, as `tercet.cli.main.make_parser` returns it.
        words: Words after `tercet` up to the cursor; the last one is incomplete or empty.
    """
    *preceding, current = words
    selected, flag_action, positionals = _walk(parser, normalize_flags(preceding))
    flag, equals, value = current.partition("=")
    if flag_action is not None and not (flag_action.nargs and current.startswith("-")):
        return _values(selected, flag_action, current)
    if current.startswith("--") and equals:
        action = selected._option_string_actions.get(normalize_flags([flag])[0])  # type: ignore[reportPrivateUsage]
        if action is None:
            return Completions("words", [])
        kind, candidates = _values(selected, action, value)
        return Completions(kind, [(f"{flag}={word}", description) for word, description in candidates])
    if current.startswith("-") or not positionals:
        forms = [(name, "") for name in selected.forms] if len(preceding) == 1 else []
        return _words([*forms, *_flags(selected)], current)
    return _values(selected, positionals[0], current, selected.forms if len(preceding) == 1 else ())


def _walk(parser: Parser, preceding: list[str]) -> tuple[Parser, argparse.Action | None, list[argparse.Action]]:
    """Follow the complete words of a command line.

    Returns:
        The parser of the selected verb or form; the flag whose value comes next, or None; and the positional arguments
        that are still missing.
    """
    positionals, flag_action = _positionals(parser), None
    for number, word in enumerate(preceding):
        if number == 1 and word in parser.forms:
            parser = parser.forms[word]
            positionals = _positionals(parser)
        elif word.startswith("-") and word != "-":
            action = parser._option_string_actions.get(word)  # type: ignore[reportPrivateUsage]
            flag_action = None if action is None or action.nargs == 0 else action
        elif flag_action is not None:
            if flag_action.nargs not in ("+", "*"):
                flag_action = None
        elif positionals:
            first = positionals[0]
            if isinstance(first, Verbs):
                subparser = first.choices.get(word)
                if subparser is None:
                    return parser, None, []
                parser, positionals = subparser, _positionals(subparser)
            elif first.nargs not in ("+", "*"):
                positionals = positionals[1:]
    return parser, flag_action, positionals


def _positionals(parser: Parser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]  # type: ignore[reportPrivateUsage]


def _flags(parser: Parser) -> Candidates:
    actions = (action for action in parser._actions if action.help != argparse.SUPPRESS)  # type: ignore[reportPrivateUsage]
    return [(flag, action.help or "") for action in actions for flag in action.option_strings if flag.startswith("--")]


def _values(parser: Parser, action: argparse.Action, current: str, forms: Iterable[str] = ()) -> Completions:
    """Return the values of an argument that complete the text `current`; `forms` are further candidates."""
    if isinstance(action, Verbs):
        return _words([(choice.dest, choice.help or "") for choice in action._choices_actions], current)  # type: ignore[reportPrivateUsage]
    if action.choices is not None:
        return _words([(str(choice), "") for choice in action.choices], current)
    metavar = str(action.metavar)
    if metavar.startswith("KEY="):
        return _words(_settings(current, cached_recipe_keys()), current)
    candidates: Candidates = [(word, "") for word in (*WORDS.get(action.dest, ()), *forms)]
    if "RECIPE" in metavar or parser.prog == "tercet recipes":
        from tercet.training.recipe.files import recipe_names

        candidates += recipe_names().items()
    if "PRESET" in metavar:
        candidates += [(name, "") for name in cached_recipe_keys()["model.preset"]]
    names = [pair for pair in candidates if pair[0].startswith(current)]
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
    """Return the candidates for an argument of --set.

    After an equals sign, these are the values of the key. Before it, they are the keys and groups of keys at the level
    of the typed text, which is the number of its dots.
    """
    key, equals, _ = current.partition("=")
    if equals:
        return [(f"{key}={choice}", "") for choice in keys.get(key, ())]
    level = key.count(".")
    candidates: dict[str, str] = {}
    for name, choices in keys.items():
        parts = name.split(".")
        if len(parts) == level + 1 and (choices or not any(k.startswith(f"{name}.") for k in keys)):
            candidates[f"{name}="] = ", ".join(choices)
        elif len(parts) > level + 1:
            candidates[".".join(parts[: level + 1]) + "."] = ""
    return list(candidates.items())


def find_runs(current: str) -> list[str]:
    """Return the paths of runs, models and GGUF files that complete `current`, and of folders that contain runs."""
    return [run for path in _entries(current) if (run := _run_path(path))]


def _run_path(path: str, depth: int = MAX_DEPTH) -> str:
    """Return a path that is a run, model or GGUF file; with a slash if it is a folder that contains some; else ""."""
    if not os.path.isdir(path):
        return path if path.endswith(".gguf") else ""
    if any(os.path.exists(os.path.join(path, name)) for name in MODELS):
        return path
    return f"{path}/" if depth and any(_run_path(inner, depth - 1) for inner in _entries(f"{path}/")) else ""


def _paths(current: str) -> list[str]:
    return [f"{path}/" if os.path.isdir(path) else path for path in _entries(current)]


def _entries(current: str) -> list[str]:
    """Return the paths that complete `current`, sorted.

    These are the entries of its folder whose names begin with its last part. Hidden entries are included only if that
    part begins with a dot. Only the first `MAX_ENTRIES` entries are read.
    """
    folder, _, start = current.rpartition("/")
    folder = f"{folder}/" if "/" in current else ""
    names = list[str]()
    with suppress(OSError, ValueError), os.scandir(folder or ".") as entries:
        for _, entry in zip(range(MAX_ENTRIES), entries, strict=False):
            if entry.name.startswith(start) and (start.startswith(".") or not entry.name.startswith(".")):
                names.append(entry.name)
    return [folder + name for name in sorted(names)]


def cached_recipe_keys() -> dict[str, tuple[str, ...]]:
    """Return the result of `recipe_keys`, which is cached in a file, since it has to import all specs.

    The result is computed again if a file that defines specs has changed.
    """
    from tercet.cache_dir import cache_dir

    path = cache_dir() / KEYS_FILE
    with suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
        cached = json.loads(path.read_bytes())
        if all(os.stat(file).st_mtime_ns == mtime for file, mtime in cached["files"].items()):
            return {str(key): tuple(map(str, choices)) for key, choices in cached["keys"].items()}

    import sys

    from tercet.storage import write_atomically
    from tercet.training.recipe.keys import recipe_keys
    from tercet.training.recipe.recipe import RECIPES
    from tercet.training.recipe.spec_keys import spec_modules

    keys = recipe_keys()
    modules = {"tercet.models.presets", *(name for spec in RECIPES.values() for name in spec_modules(spec))}
    files = [str(sys.modules[name].__file__) for name in sorted(modules)]
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        stamps = {file: Path(file).stat().st_mtime_ns for file in files}
        write_atomically(path, json.dumps({"files": stamps, "keys": keys}).encode())
    return keys
