"""Every command of the README and the documentation is valid: its verb, flags, recipes and keys.

Commands that need no model and little time are also run. The commands of data.md, large-corpora.md and stories.md are
run by other test files.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tercet.cli.draw import DRAWINGS
from tercet.cli.main import VERBS, main, make_parser, read_arguments
from tercet.models import PRESETS
from tercet.settings_yaml import merge_assignments
from tercet.training import recipe_names
from tercet.training.recipe.files import recipes_from_scratch
from tercet.training.recipe.keys import recipe_keys

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
SHELLS = ("", "sh", "bash", "console")
# Commands that are also run, since they need no model: by their first word, by the name of a plot, or by this flag.
MARKS = {
    "recipes": (), "--print-completion": (), "--plan": pytest.mark.exhaustive,
    **dict.fromkeys(DRAWINGS, pytest.mark.exhaustive),
}  # fmt: skip
KEYS = recipe_keys()


def commands(page: Path) -> list[list[str]]:
    """Return the words of each `tercet` command, without pipes and redirections."""
    word_lists = list[list[str]]()
    for language, block in BLOCK.findall(page.read_text()):
        if language not in SHELLS:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if not re.search(r"(^|[|$] *)tercet ", line.strip()):
                continue
            lexer = shlex.shlex(line.strip().removeprefix("$ "), posix=True, punctuation_chars="|<>&;")
            lexer.whitespace_split = True
            words, skip = list[str](), False
            for word in [*lexer, ";"]:
                if word in ("|", ";", "&", "&&", "||"):
                    word_lists += [words[1:]] if words[:1] == ["tercet"] else []
                    words, skip = [], False
                elif word in ("<", ">", ">>"):
                    skip = True
                elif skip:
                    skip = False
                else:
                    words.append(word)
    return word_lists


COMMANDS = [(page, words) for page in PAGES for words in commands(page)]


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) > 170
    assert {words[0] for _, words in COMMANDS} >= set(VERBS) - {"doctor"}
    assert ["translate", "runs/numbers"] in [words for _, words in COMMANDS]  # after a pipe
    assert ["classify", "runs/classifier"] in [words for _, words in COMMANDS]  # before <


def check_command(page: Path, words: list[str]) -> None:
    """Fail unless the program accepts the command: its verb and flags, its recipes, and the keys that it sets."""
    args = read_arguments(*make_parser(words), words)
    known_names = {*recipe_names(), *(PRESETS if args.verb in ("plot", "inspect") else ())}
    for name in named_recipes(args):
        if not re.search(r"[/.]", name) and name not in known_names:
            assert name in names_of_folders(page), f"{name} is no recipe, and no command of {page.name} makes it"
    changes = merge_assignments({}, getattr(args, "set", None) or [])
    for key, value in flat(changes):
        assert key in KEYS, f"there is no key {key}"
        if isinstance(value, str) and (choices := KEYS[key]) and value != "auto" and ":" not in value:
            assert value in choices, f"{key} is none of {choices}"


@pytest.mark.slow
def test_every_command_is_valid() -> None:
    mistakes = []
    for page, words in COMMANDS:
        try:
            check_command(page, words)
        except (Exception, SystemExit) as error:
            mistakes.append(f"{page.name}: {shlex.join(words)}: {error}")
    assert mistakes == []


def named_recipes(args: Any) -> list[str]:
    if args.verb in ("train", "doctor", "compare", "sweep", "inspect", "plot"):
        values = [getattr(args, name, None) for name in ("recipe", "names", "model")]
        return [name for value in values if value for name in (value if isinstance(value, list) else [value])]
    names = [getattr(args, "recipe", None) if args.verb == "data" else None]
    names += [args.name] if args.verb == "recipes" else []
    return [name for name in names if name]


def names_of_folders(page: Path) -> set[str]:
    """Return the words of the page's commands, among them the folders that they write or resume."""
    return {word.rstrip("/") for command_page, words in COMMANDS for word in words if command_page == page}


def flat(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of settings; a mapping with the import path of a custom part is one value."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and ":" not in value.get("kind", ""):
            yield from flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


@pytest.mark.parametrize(
    "line",
    ["nosuch", "train demo --nosuch", "train demo --set training.max_stepz=5", "train demoo", "recipes nosuch",
     "train demo --set model.stack.position=rotory", "compare nosuch demo --seeds 1", "train nosuch --plan",
     "inspect nosuch", "plot model nosuch", "doctor nosuch", "data look x.txt --recipe nosuch",
     "generate runs/mine --temperature -1"],
)  # fmt: skip
def test_invalid_command_is_detected(line: str) -> None:
    with pytest.raises(Exception, match=r"unknown|no key|is none of|no recipe|at least"):
        check_command(ROOT / "README.md", shlex.split(line))


def mark_key(words: list[str]) -> str:
    """Return the key of the command in `MARKS`, or its verb if it has none."""
    if words[0] == "plot":
        return words[1] if len(words) > 1 else words[0]
    return "--plan" if "--plan" in words else words[0]


@pytest.mark.slow
def test_recipes_accept_keys_of_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The keys of a command are parsed together, since their values must fit, if its recipe trains from scratch."""
    monkeypatch.chdir(tmp_path)
    count = 0
    for words, page in {tuple(words): page for page, words in COMMANDS if words[0] == "train"}.items():
        args = read_arguments(*make_parser(list(words)), list(words))
        if args.plan or args.allow_code:  # guides of custom parts are run by cli/test_custom_parts.py
            continue
        if args.recipe in recipes_from_scratch() and args.pretrained is None:
            assert main([*words, "--print-config"]) == 0, f"{page.name}: {shlex.join(words)}"
            assert "training:" in capsys.readouterr().out
            count += 1
    assert count > 20


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=shlex.join(words)[:100], marks=MARKS.get(mark_key(words), ()))
        for _, words in COMMANDS
        if mark_key(words) in MARKS or words == ["data"]
    ],
)
def test_commands_without_model_run(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--measured" in words or "--here" in words or words[-1].startswith("runs/") or words[-1].endswith(".yaml"):
        pytest.skip("needs a run or a file of its page, or measures this machine")
    monkeypatch.chdir(tmp_path)
    code = main(words)
    out, err = capsys.readouterr()
    assert code == 0, err
    assert out
