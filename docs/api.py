"""What MkDocs asks while it builds the site: pages of the API reference, and the navigation.

A package of Tercet has one page, with the docstrings of what its `__init__.py` exports; no module's name is written
here. The navigation is the lists of `index.md`.
"""

import ast
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src"
FETCHED = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=\"?https?://[^>]*>")
LINK = re.compile(r"^- \[(.+?)\]\((\S+?\.md)\)", re.MULTILINE)


def exported_names(init: Path) -> list[str]:
    """The names that an `__init__.py` exports, by `__all__` or by `import name as name`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(init.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names |= set(ast.literal_eval(node.value))
    return sorted(names)


def exports() -> dict[str, list[str]]:
    """The packages of Tercet that export something, each with its names."""
    packages = {".".join(init.parent.relative_to(SOURCE).parts): init for init in SOURCE.rglob("__init__.py")}
    return {package: names for package in sorted(packages) if (names := exported_names(packages[package]))}


def navigation() -> list[dict[str, Any]]:
    """The sections of `index.md` with the pages that their lists begin with, and the API reference."""
    sections = (DOCS / "index.md").read_text(encoding="utf-8").split("\n## ")[1:]
    doors = [
        {section.splitlines()[0]: [{title: path} for title, path in LINK.findall(section)]} for section in sections
    ]
    reference = {"API reference": [{package: f"api/{package}.md"} for package in exports()]}
    return [{"Tercet": "index.md"}, *doors, reference]


def on_config(config: Any) -> None:
    config.nav = navigation()


def on_files(files: Any, config: Any) -> None:
    from mkdocs.structure.files import File

    for package, names in exports().items():
        page = f"# {package}\n\n::: {package}\n    options:\n      members: {names}\n"
        files.append(File.generated(config, f"api/{package}.md", content=page))


def on_post_page(output: str, page: Any, config: Any) -> None:
    """Hold that a reader's browser asks no other site for fonts, scripts or pictures."""
    from mkdocs.exceptions import PluginError

    if fetched := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} fetches {fetched[0]}")
