"""MkDocs hooks: the navigation, the generated reference pages, and links to files outside `docs`.

The navigation consists of the sections and lists of `index.md`. Each package of Tercet that exports names gets one page
with the docstrings of these names. The pages that `reference_pages.py` wrote to `build/reference` join the reference.

The site also contains `llms.txt`, a list of all pages for language models (https://llmstxt.org), and the Markdown of
these pages.
"""

import ast
import os
import re
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SOURCE = ROOT / "src"
GENERATED = ROOT / "build" / "reference"
FETCHED = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=\"?https?://[^>]*>")
LISTED = re.compile(r"^- \[(.+?)\]\((\S+?\.md)\)", re.MULTILINE)
ENTRY = re.compile(r"^- \[.+?\]\(\S+?\.md\): .+$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.[^)\s#]+)(#[^)\s]*)?\)")


def exported_names(init: Path) -> list[str]:
    """Return the names that an `__init__.py` exports, by `__all__` or by `import name as name`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(init.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names |= set(ast.literal_eval(node.value))
    return sorted(names)


def exports() -> dict[str, list[str]]:
    """Return the packages of Tercet that export names, each with these names."""
    packages = {".".join(init.parent.relative_to(SOURCE).parts): init for init in SOURCE.rglob("__init__.py")}
    return {package: names for package in sorted(packages) if (names := exported_names(packages[package]))}


def navigation() -> list[dict[str, Any]]:
    """Return the sections of `index.md`, each with the pages that its list names; the Python API ends the reference."""
    parts = (DOCS / "index.md").read_text(encoding="utf-8").split("\n## ")[1:]
    sections = {part.splitlines()[0]: [{title: path} for title, path in LISTED.findall(part)] for part in parts}
    sections["Reference"].append({"Python API": [{package: f"reference/python/{package}.md"} for package in exports()]})
    return [{"Tercet": "index.md"}, *({title: pages} for title, pages in sections.items())]


def llms_text() -> str:
    """Return `llms.txt`: the title of `index.md`, its first paragraph, and its sections with their lists of pages."""
    head, *parts = (DOCS / "index.md").read_text(encoding="utf-8").split("\n## ")
    title, summary = head.split("\n\n")[:2]
    sections = [f"## {part.splitlines()[0]}\n\n" + "\n".join(ENTRY.findall(part)) for part in parts]
    return "\n\n".join([title, "> " + " ".join(summary.split()), *sections]) + "\n"


def repository_url() -> str | None:
    """Return the project's address from `project.urls` of pyproject.toml, or None if it has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository")


def on_config(config: Any) -> None:
    config.nav = navigation()


def on_files(files: Any, config: Any) -> None:
    from mkdocs.structure.files import File

    for page in sorted(GENERATED.glob("*.md")):
        files.append(File.generated(config, f"reference/{page.name}", content=page.read_text(encoding="utf-8")))
    for package, names in exports().items():
        text = f"# {package}\n\n::: {package}\n    options:\n      members: {names}\n"
        files.append(File.generated(config, f"reference/python/{package}.md", content=text))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links that leave `docs` to the repository; without a repository's address, keep only their text."""
    url = repository_url()

    def outside(link: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join("docs", os.path.dirname(page.file.src_uri), link[2]))
        if path.startswith("docs" + os.sep):
            return link[0]
        return f"[{link[1]}]({url}/blob/main/{path}{link[3] or ''})" if url else link[1]

    return LINK.sub(outside, markdown)


def on_post_page(output: str, page: Any, config: Any) -> None:
    """Write the Markdown of a page next to its HTML, for `llms.txt`.

    A page that would make a browser fetch fonts, scripts or pictures from another site is rejected.
    """
    from mkdocs.exceptions import PluginError

    if fetched := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} fetches {fetched[0]}")
    path = Path(config.site_dir, page.file.src_uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page.markdown, encoding="utf-8")


def on_post_build(config: Any) -> None:
    Path(config.site_dir, "llms.txt").write_text(llms_text(), encoding="utf-8")
