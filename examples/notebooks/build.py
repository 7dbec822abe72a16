"""Build the notebooks next to this file from their sources: `python examples/notebooks/build.py`.

A source is one of two things:

- A Python file of cells. Each cell follows a line `# %%`, or `# %% [markdown]` for text in comments. Editors run such a
  file cell by cell. Its notebook has no outputs until it is run.
- A chapter of `docs/tutorials`. Each `python` block becomes a cell and the `output` block after it becomes that cell's
  output (a test compares the two). Folded answers stay folded: text everywhere, code and output in JupyterLab. Images
  are attached to their cells, so a notebook can be passed on as one file.
"""

import json
import re
from base64 import b64encode
from pathlib import Path
from posixpath import normpath
from typing import Any

HERE = Path(__file__).parent
CHAPTERS = HERE.parents[1] / "docs" / "tutorials"
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n```output\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
DETAILS = re.compile(r"^<(/?)details.*\n?", re.MULTILINE)
IMAGES = {".png": "image/png", ".svg": "image/svg+xml"}
IMAGE = re.compile(r"(!\[[^\]]*\]\()\.\./\.\./(docs/images/[^)\s]+\))")
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)\s]+\))")


def sources() -> list[Path]:
    return sorted(path for path in HERE.glob("*.py") if path.name != "build.py")


def chapters() -> list[Path]:
    return sorted(CHAPTERS.glob("[0-9]-*.md"))


def notebooks() -> dict[Path, str]:
    """Return the expected text of each notebook file."""
    written = {path.with_suffix(".ipynb"): to_json(to_notebook(path.read_text(encoding="utf-8"))) for path in sources()}
    for path in chapters():
        name = f"learn_{path.stem.replace('-', '_')}.ipynb"
        written[HERE / name] = to_json(chapter_to_notebook(path.read_text(encoding="utf-8")))
    return written


def to_notebook(source: str) -> dict[str, Any]:
    """Return the notebook of a file of cells, in version 4.5 of Jupyter's format."""
    _, *parts = CELL.split(source)
    cells = list[dict[str, Any]]()
    for markdown, text in zip(parts[::2], parts[1::2], strict=True):
        text = text.strip("\n")
        cells.append(markdown_cell(re.sub(r"^# ?", "", text, flags=re.MULTILINE)) if markdown else code_cell(text))
    return of_cells(cells)


def relocate_links(text: str) -> str:
    """Make the relative links of a chapter relative to the notebooks' folder."""
    return LINK.sub(lambda link: link[1] + normpath(f"../../docs/tutorials/{link[2]}"), text)


def chapter_to_notebook(page: str) -> dict[str, Any]:
    """Return the notebook of a chapter."""
    texts, codes, outputs = (BLOCK.split(page)[start::3] for start in range(3))
    cells, folded = list[dict[str, Any]](), False
    for number, text in enumerate(texts):
        first, *others = DETAILS.split(relocate_links(text))
        cells += text_cells(first, folded=folded)
        for closes, part in zip(others[::2], others[1::2], strict=True):
            folded = not closes
            cells += text_cells(part, folded=folded) or ([markdown_cell("**Answer**")] if folded else [])
        if number < len(codes):
            cells.append(code_cell(codes[number].strip("\n"), output=outputs[number], folded=folded))
    return of_cells(cells)


def text_cells(text: str, *, folded: bool) -> list[dict[str, Any]]:
    """Return the cell of a text as a list, empty if there is no text."""
    text = text.strip("\n")
    if not text:
        return []
    return [markdown_cell(f"<details><summary>Answer</summary>\n\n{text}\n\n</details>" if folded else text)]


def markdown_cell(text: str) -> dict[str, Any]:
    """Return a cell of text, to which its images are attached."""
    attachments = dict[str, dict[str, str]]()

    def attach(image: re.Match[str]) -> str:
        path = HERE.parents[1] / image[2].rstrip(")")
        attachments[path.name] = {IMAGES[path.suffix]: b64encode(path.read_bytes()).decode("ascii")}
        return f"{image[1]}attachment:{path.name})"

    cell = {"metadata": {}, "cell_type": "markdown", "source": IMAGE.sub(attach, text)}
    return cell | ({"attachments": attachments} if attachments else {})


def code_cell(code: str, *, output: str | None = None, folded: bool = False) -> dict[str, Any]:
    outputs = [{"output_type": "stream", "name": "stdout", "text": output}] if output else []
    metadata = {"jupyter": {"source_hidden": True, "outputs_hidden": True}} if folded else {}
    return {"metadata": metadata, "cell_type": "code", "execution_count": None, "outputs": outputs, "source": code}


def of_cells(cells: list[dict[str, Any]]) -> dict[str, Any]:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    cells = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells, start=1)]
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def to_json(notebook: dict[str, Any]) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, text in notebooks().items():
        path.write_text(text, encoding="utf-8")
