"""An engineer with a folder of documents: extract, look, train on them, embed, search, serve.

The folder has web pages, Markdown, PDF and DOCX files of Python's reference and of its library, one page about
bicycles, and a damaged PDF file.
"""

import ast
import html
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from newcomers.desk import Desk

sys.path.append(str(Path(__file__).parents[2] / "data"))  # document_files.py

from document_files import paragraph, write_docx, write_pdf

TITLE = "Bicycles at the office"
BICYCLES = """Employees park their bicycles in the garage below the office. The bicycle racks are next to the elevator.
Ask the reception for a bicycle permit before you park there for the first time. A bicycle without a permit is removed
after two weeks. Electric bicycles are charged at the racks with a green mark. The office pays for repairs of a bicycle
once a year."""
WIKI = """<html><head><title>{title}</title><script>var page = 1;</script></head><body>
<nav><a href="/">Home</a> <a href="/all">All pages</a></nav>
<main><h1>{title}</h1>{body}</main><footer>Internal use only</footer></body></html>"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the title and the text of each page: Python's reference, and docstrings of modules."""
    for _, text in sorted(topics.items()):
        title, _, body = text.partition("\n")
        yield title.replace('"', ""), body.lstrip("*=-\n")
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8", errors="replace"))) or ""
        title, _, body = docstring.partition("\n")
        if len(body) > 400:
            yield f"{path.stem}: {title}", body.strip()


def write_files(folder: Path) -> None:
    handbook = folder / "handbook"
    for kind in ("wiki", "notes", "manuals", "letters"):
        (handbook / kind).mkdir(parents=True)
    for number, (title, text) in enumerate(pages()):
        paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
        if number % 4 == 0:
            body = "".join(f"<p>{html.escape(part)}</p>" for part in paragraphs)
            page = WIKI.format(title=html.escape(title), body=body)
            (handbook / "wiki" / f"page{number}.html").write_text(page, encoding="utf-8")
        elif number % 4 == 1:
            front = f"---\nowner: team {number % 7}\n---\n\n# {title}\n\n"
            (handbook / "notes" / f"note{number}.md").write_text(front + "\n\n".join(paragraphs), encoding="utf-8")
        elif number % 4 == 2:
            lines = [line.encode("ascii", "replace").decode() for line in [title, "", *text.splitlines()]]
            sheets = [lines[start : start + 50] for start in range(0, len(lines), 50)]
            write_pdf(handbook / "manuals" / f"manual{number}.pdf", sheets, title.replace("(", "").replace(")", ""))
        else:
            body = "".join(map(paragraph, [title, *paragraphs]))
            write_docx(handbook / "letters" / f"letter{number}.docx", body, title if number % 8 == 3 else "")
    lines = [TITLE, *BICYCLES.split("\n")]
    write_docx(handbook / "letters" / "bicycles.docx", "".join(map(paragraph, lines)), TITLE)
    (handbook / "manuals" / "damaged.pdf").write_bytes(b"%PDF-1.4\nnot a PDF file\n")


def work(desk: Desk) -> None:
    desk.type("""
        pip install 'tercet[documents,serve]'
        tercet data extract handbook/ --out texts.jsonl --main-text --json > report.json || test $? -eq 2
        tercet data look texts.jsonl
    """)
    with desk.check("all documents but the damaged one were extracted"):
        report, texts = desk.read("report.json"), desk.read("texts.jsonl")
        n_files = sum(path.is_file() for path in (desk.folder / "handbook").rglob("*"))
        assert len(texts) == report["count"] == n_files - 1
        assert [file["path"] for file in report["unreadable"]] == ["handbook/manuals/damaged.pdf"]
        assert not any("All pages" in text["text"] or "var page" in text["text"] for text in texts)
    desk.type("""
        tercet train texts.jsonl --out runs/handbook
        tercet evaluate runs/handbook --json > scores.json
        tercet generate runs/handbook --prompt "The statement"
    """)
    with desk.check("the language model is better than token counts and gzip", trained=True):
        scores = desk.read("scores.json")
        assert not scores["verdicts"]
    search(desk)
    answers = desk.ask(
        "tercet serve runs/handbook runs/vectors",
        {
            "/v1/completions": {"model": "handbook", "prompt": "The statement", "max_tokens": 8},
            "/v1/embeddings": {"model": "vectors", "input": ["one text", "another"]},
            "/": None,
        },
    )
    with desk.check("the server completes texts, embeds them and has a page"):
        assert answers["/v1/completions"]["choices"][0]["text"]
        assert len(answers["/v1/embeddings"]["data"]) == 2
        assert "<html" in answers["/"]


def search(desk: Desk) -> None:
    """Train an encoder and text vectors, and find the page about bicycles."""
    question = "where can I park my bicycle at the office?"
    desk.type(f"""
        tercet train bert-python-docs --data texts.jsonl --out runs/bert
        tercet evaluate runs/bert --json > masked.json
        grep '"title": ' texts.jsonl > titled.jsonl
        tercet train finetune-vectors --pretrained runs/bert --data titled.jsonl --set data.query_field=title \\
            --set data.document_field=text --set training.max_epochs=60 --out runs/vectors
        tercet evaluate runs/vectors
        rm handbook/manuals/damaged.pdf
        tercet embed runs/vectors --input handbook/ --query "{question}" --top 5 --json > found.json
        tercet embed runs/vectors --input texts.jsonl --output vectors.npz
        tercet embed runs/vectors --vectors vectors.npz --query "{question}" --json > again.json
    """)
    with desk.check("the masked language model is better than token counts", trained=True):
        assert not desk.read("masked.json")["verdicts"]
    with desk.check("the search finds the page about bicycles first", trained=True):
        first: dict[str, Any] = desk.read("found.json")["neighbors"][0]
        assert str(first["id"]).startswith("letters/bicycles.docx"), first
        assert TITLE in desk.read("again.json")["neighbors"][0]["text"]
