"""The documentation is correct: its code runs, every setting is described, and every link has a target."""

import dataclasses
import importlib
import importlib.util
import re
import subprocess
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from own_cache import fill_cache
from tercet.cli.main import VERBS
from tercet.config import UserError
from tercet.models import PRESETS
from tercet.training import Recipe, load_recipe, recipe_names
from tercet.training.recipe.files import recipes_from_scratch

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n\n```output\n(.*?)```)?", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)


def keys(spec: type) -> set[str]:
    """Return all keys that a recipe can contain, at any depth."""
    names: set[str] = set()
    for name, hint in get_type_hints(spec).items():
        names.add(name)
        members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        for member in members:
            if dataclasses.is_dataclass(member) and isinstance(member, type):
                names |= keys(member)
    return names


def choices(spec: type) -> set[str]:
    """Return all values of enumerated settings that a recipe can contain."""
    values: set[str] = set()
    for hint in get_type_hints(spec).values():
        for member in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
            if get_origin(member) is Literal:
                values |= set(get_args(member))
            elif dataclasses.is_dataclass(member) and isinstance(member, type):
                values |= choices(member)
    return values


def documented_words() -> set[str]:
    """Return every word in code marks."""
    text = generated_pages()[DOCS / "reference" / "settings.md"]
    return set(re.findall(r"[a-z_0-9-]+", " ".join(re.findall(r"`([^`]*)`", text))))


@pytest.mark.slow
def test_every_setting_and_choice_is_described() -> None:
    assert {"bleu", "encoder-decoder", "held_out", "inverse_square_root", "relu_squared"} <= choices(Recipe)
    assert (keys(Recipe) | choices(Recipe) | set(PRESETS)) - documented_words() == set()
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| (.*) \|$", generated_pages()[DOCS / "reference" / "settings.md"], re.MULTILINE
    )
    assert len(rows) > 150
    assert [key for key, meaning in rows if not meaning.strip()] == []


def test_every_environment_variable_is_described() -> None:
    source = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    described = set(re.findall(r"`(\w+)`", (DOCS / "reference" / "environment.md").read_text()))
    assert set(re.findall(r"\bTERCET_[A-Z]+\b", source)) <= described


@pytest.mark.parametrize("name", list(recipe_names()))
def test_every_recipe_begins_with_a_sentence_and_parses(name: str) -> None:
    assert len(recipe_names()[name]) > 20
    if name in recipes_from_scratch():
        load_recipe(name)
    else:
        with pytest.raises(UserError, match=f"recipe {name} requires a pretrained model; pass --pretrained"):
            load_recipe(name)


@pytest.mark.slow
def test_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    (tmp_path / "my_texts").mkdir()
    for i in range(20):
        (tmp_path / "my_texts" / f"{i}.txt").write_text(f"Once upon a time there were {i} bears. " * 40)
    blocks = PYTHON.findall((ROOT / "README.md").read_text())
    assert len(blocks) >= 2
    names: dict[str, Any] = {}  # shared, since the blocks run one after the other
    for block in blocks:
        code = block.replace('"training.max_steps": 500', '"training.max_steps": 3, "model.stack.d_model": 32')
        exec(compile(code, "README.md", "exec"), names)
    assert "." in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("page", ["add-a-task.md"])
def test_python_in_the_how_tos_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code runs in a separate process: here types are checked at each call, which would reject a new scheme."""
    monkeypatch.setenv("TERCET_CACHE", fill_cache(tmp_path / "cache"))
    blocks = PYTHON.findall((DOCS / "how-to" / page).read_text())
    assert len(blocks) >= 3
    subprocess.run([sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=pytest.mark.exhaustive if page.name.startswith(("2", "4")) else ())
        for page in sorted((DOCS / "tutorials").glob("[0-9]-*.md"))
    ],
)
def test_python_in_chapters_prints_documented_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The answers to exercises are run too, with the assertions that they contain."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    assert len(re.findall(r"^<details", text, re.MULTILINE)) >= 3
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in EXAMPLE.finditer(text):
        lines = "\n" * text.count("\n", 0, block.start(1))  # so that the line number of an error is that of the page
        exec(compile(lines + block[1], page.name, "exec"), names)
        assert capsys.readouterr().out == (block[2] or ""), f"after line {lines.count(chr(10))} of {page.name}"


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("[0-9]-*.md")), ids=lambda page: page.name)
def test_each_chapter_shows_the_tools_that_answer_its_questions(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tools = ("compare", "explore", "plot attention", "plot masks", "train")
    assert [tool for tool in tools if f"tercet {tool} " not in text] == []


def links(page: Path) -> list[tuple[Path, str]]:
    """Return the file and the anchor of every link within the documentation."""
    targets = (a or b for a, b in LINK.findall(CODE.sub("", page.read_text())))
    parts = (link.partition("#") for link in targets if "://" not in link)
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in parts]


@cache
def generated_pages() -> dict[Path, str]:
    """Return the pages that `docs/reference_pages.py` generates when the site is built."""
    pages = load_script("reference_pages").PAGES
    return {DOCS / "reference" / name: page() for name, page in pages.items()}


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and the site generate for the headings of a page."""
    text = page.read_text() if page.exists() else generated_pages()[page]
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower())) for heading in headings}


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CHANGELOG.md", *PAGES], ids=lambda page: page.name)
def test_every_link_has_a_target(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists() or target in generated_pages(), f"{page.name} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {target.name}#{anchor}, which is no heading there"


def test_every_page_is_linked_from_the_index() -> None:
    reached, new = set[Path](), {DOCS / "index.md"}
    while new:
        reached |= new
        new = {target for page in new for target, _ in links(page) if target in PAGES} - reached
    assert set(PAGES) - reached == set()


@pytest.mark.slow
def test_the_glossarys_names_are_in_the_code() -> None:
    source = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    names = re.findall(r"`(\w+)`", (DOCS / "explanation" / "glossary.md").read_text())
    assert len(names) > 30
    assert [name for name in names if not re.search(rf"\b{name}\b", source)] == []


@pytest.mark.parametrize("page", sorted((ROOT / "benchmarks" / "log").glob("*.md")), ids=lambda page: page.name)
def test_measurements_are_narrow(page: Path) -> None:
    assert max(map(len, page.read_text().splitlines())) <= 120


def load_script(name: str) -> Any:
    """Import a script of `docs`, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_generated_reference_has_every_verb_recipe_and_key() -> None:
    pages = {page.name: text for page, text in generated_pages().items()}
    assert [verb for verb in VERBS if f"\n## {verb}\n" not in pages["cli.md"]] == []
    assert [name for name in recipe_names() if f"\n## {name}\n" not in pages["recipes.md"]] == []
    assert "| `--set KEY=VALUE` |" in pages["cli.md"]
    assert [
        row for text in pages.values() for row in text.splitlines() if row.startswith("| `-") and row.endswith("|  |")
    ] == []


def test_the_api_reference_has_every_exported_name() -> None:
    exports = load_script("site_hooks").exports()
    assert {"tercet", "tercet.nn", "tercet.models", "tercet.inspect"} <= set(exports)
    for package, names in exports.items():
        module = importlib.import_module(package)
        assert [name for name in names if not hasattr(module, name)] == []
        assert set(getattr(module, "__all__", names)) == set(names)
        for name in names:  # an entry at the start of a docstring would not be parsed as an argument
            members = [getattr(module, name)]
            members += vars(members[0]).values() if isinstance(members[0], type) else []
            malformed = [member for member in members if (getattr(member, "__doc__", None) or "").startswith("Args:")]
            assert malformed == []


def test_llms_txt_has_each_page_of_the_index_with_one_line() -> None:
    text = load_script("site_hooks").llms_text()
    title, quote, *sections = text.removesuffix("\n").split("\n\n")
    assert title == "# Tercet"
    assert re.fullmatch(r"> [^\n]+", quote)
    assert sections[::2] == ["## Tutorials", "## How-to guides", "## Reference", "## Explanation", "## Development"]
    lines = [line for entries in sections[1::2] for line in entries.splitlines()]
    assert [line for line in lines if not re.fullmatch(r"- \[[^\]]+\]\([\w/.-]+\.md\): \S.*", line)] == []
    paths = [line.split("](")[1].split(")")[0] for line in lines]
    assert len(set(paths)) == len(paths) > 40
    listed = {DOCS / path for path in paths}
    assert [page for page in listed if not page.exists() and page not in generated_pages()] == []
    assert {page for page in PAGES if page.parent.name != "decisions"} - listed == {DOCS / "index.md"}


def test_the_navigation_has_five_sections() -> None:
    titles = [title for section in load_script("site_hooks").navigation() for title in section]
    assert titles == ["Tercet", "Tutorials", "How-to guides", "Reference", "Explanation", "Development"]
