"""The tutorials: their Python prints the documented output, and their commands run on small files."""

import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tercet.cli.main import main, make_parser, read_arguments
from tercet.training import recipe_names

LEARN = Path(__file__).parent.parent / "docs" / "tutorials"
GUIDES = sorted(page for page in LEARN.glob("[a-z]*.md") if page.name != "index.md")
BLOCK = re.compile(r"```(python|sh|yaml)\n(.*?)```(?:\n\n```output\n(.*?)```)?", re.DOTALL)
QUICK = ("training.max_steps=2", "training.validate_every=2", "training.save_every=2", "training.compile=never")
TINY = (*QUICK, "training.precision=fp32", "training.warmup_steps=0")
CASES = [
    pytest.param(page, trains, id=f"{page.stem}-{'trained' if trains else 'parsed'}", marks=marks)
    for page in GUIDES
    for trains, marks in {
        "what-your-model-learned": [(True, ())],  # its Python code opens the models that its commands train
        "from-laptop-to-cluster": [(False, ())],  # which requires several machines
        "first-model": [(False, ())],  # its commands are those of the README, which other tests run
    }.get(page.stem, [(False, ()), (True, pytest.mark.exhaustive)])
]
ENDLESS = {"serve", "watch"}  # they run until Ctrl-C, so they are only parsed


def blocks(page: Path) -> list[tuple[str, str, str | None, int]]:
    """Return for each block its language, its text, its expected output, and the number of lines before it."""
    text = page.read_text(encoding="utf-8")
    return [(block[1], block[2], block[3], text.count("\n", 0, block.start(2))) for block in BLOCK.finditer(text)]


def pairs_of_a_grammar() -> None:
    """Write `train`, `valid` and `test` in German and English, and `mono.en`, in place of image captions."""
    draw = random.Random(1)
    subjects = {"Ein Mann": "A man", "Eine Frau": "A woman", "Ein Kind": "A child", "Ein Hund": "A dog"}
    verbs = {"sieht": "sees", "kauft": "buys", "trägt": "carries", "sucht": "looks for"}
    objects = {"ein Buch": "a book", "einen Ball": "a ball", "das Brot": "the bread", "rote Blumen": "red flowers"}
    for name, count in (("train", 120), ("valid", 12), ("test", 30), ("mono", 20)):
        rows = [[draw.choice(list(part.items())) for part in (subjects, verbs, objects)] for _ in range(count)]
        for side, language in enumerate(("de", "en")):
            lines = "".join(" ".join(word[side] for word in row) + ".\n" for row in rows)
            Path(f"{name}.{language}").write_text(lines, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("page", "trains"), CASES)
def test_a_guide_runs_from_its_first_block_to_its_last(
    page: Path, trains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TERCET_OFFLINE", "1")
    text = page.read_text(encoding="utf-8")
    assert 2 <= len(re.findall(r"^<details", text, re.MULTILINE)) <= 4
    if page.stem.startswith("your-own"):
        pairs_of_a_grammar()
    names: dict[str, Any] = {"__name__": "__main__"}
    for language, code, expected_output, n_lines in blocks(page):
        location = f"after line {n_lines} of {page.name}"
        if language == "yaml":
            name = re.match(r"# (\S+\.yaml)", code)
            assert name is not None, location
            Path(name[1]).write_text(code, encoding="utf-8")
        elif language == "python":
            exec(compile("\n" * n_lines + code, page.name, "exec"), names)
            assert capsys.readouterr().out == (expected_output or ""), location
        else:
            for line in code.splitlines():
                run_line(shlex.split(line, comments=True), trains, monkeypatch)
                if trains and "> " in line:
                    Path(line.split("> ")[1]).write_text(capsys.readouterr().out, encoding="utf-8")
                capsys.readouterr()


def run_line(words: list[str], trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command, or only print its settings if nothing is to be trained; a verb that does not end is parsed."""
    if trains and words[:1] == ["cat"]:
        text = "".join(Path(word).read_text(encoding="utf-8") for word in words[1 : words.index(">")])
        return print(text, end="")
    if "tercet" not in words:
        return None
    arguments = words[words.index("tercet") + 1 :]
    arguments = arguments[: arguments.index(">")] if ">" in arguments else arguments
    if arguments[0] in ENDLESS or not trains:
        read_arguments(*make_parser(arguments), arguments)
        if arguments[0] == "train" and arguments[1] in recipe_names() and "--plan" not in arguments:
            assert main([*arguments, "--print-config"]) == 0, arguments
        return None
    fewer = [word for setting in TINY for word in ("--set", setting)] if arguments[0] == "train" else []
    assert main([*arguments, *fewer]) == 0, arguments
    return None
