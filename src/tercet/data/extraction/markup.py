"""Readers of HTML, Markdown and plain text.

Markup is converted to HTML, and all HTML to text by Resiliparse: paragraphs and blocks on lines of their own, lists
with bullets or numbers, cells of a table separated by tabs.
"""

import re
from collections.abc import Iterator
from typing import Any

from tercet.data.extraction.document_file import Document, DocumentFile, DocumentPart

META = re.compile(rb"""(?i)<(?:meta[^>]+charset|\?xml[^>]+encoding)\s*=\s*["']?\s*([a-z0-9_-]+)""")
# Elements that contain no text for readers, and how they are called in the report.
LEFT_OUT = {
    "script": "scripts and styles", "style": "scripts and styles", "template": "scripts and styles",
    "noscript": "texts for browsers without JavaScript",
    "img": "pictures", "svg": "pictures", "canvas": "pictures", "picture": "pictures",
    "video": "video and audio", "audio": "video and audio",
    "iframe": "embedded objects", "object": "embedded objects", "embed": "embedded objects",
    "input": "form fields", "select": "form fields", "label": "form fields",
    "datalist": "form fields", "textarea": "form fields", "button": "form fields",
}  # fmt: skip
# Elements whose text Resiliparse drops, or joins with the text after it.
BLOCKS = re.compile(r"<(/?)(?:figure|figcaption|summary|legend)(?=[\s/>])", re.IGNORECASE)
CELL_START = re.compile(r"(<t[dh][^>]*>)\s*<p[^>]*>")
CELL_END = re.compile(r"</p>\s*(</t[dh]>)")
HIDDEN = ("[hidden]", "[style*='display:none']", "[style*='display: none']")


def read_html(file: DocumentFile) -> Iterator[Document]:
    text, title = html_to_text(file.decode_text(META), file)
    yield Document([DocumentPart(text, "")], title)


def html_to_text(html: str, file: DocumentFile, *, main_text: bool | None = None) -> tuple[str, str]:
    """Return the text of a page, and its title. Left out elements are counted in `file`.

    Args:
        html: The page.
        file: The file that contains it.
        main_text: If True, remove boilerplate; `file.main_text` by default.
    """
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    tree: Any = HTMLTree.parse(BLOCKS.sub(r"<\1div", html))
    for name, reason in LEFT_OUT.items():
        file.drop(reason, len(tree.document.get_elements_by_tag_name(name)))
    file.drop("hidden elements", len(tree.document.query_selector_all(", ".join(HIDDEN))))
    settings: dict[str, Any] = {
        "alt_texts": False, "links": False, "form_fields": False, "noscript": False, "skip_elements": list(HIDDEN),
    }  # fmt: skip
    text = str(extract_plain_text(tree, main_content=False, **settings))
    if file.main_text if main_text is None else main_text:
        main = str(extract_plain_text(tree, main_content=True, **settings))
        file.drop("characters of boilerplate", max(0, len(text) - len(main)))
        text = main
    return text, " ".join((tree.title or "").split())


def keep_rows(html: str) -> str:
    """Return HTML without the paragraphs around the texts of cells, so that a row of a table stays on one line."""
    return CELL_END.sub(r"\1", CELL_START.sub(r"\1", html))


def read_plain_text(file: DocumentFile) -> Iterator[Document]:
    yield Document([DocumentPart(file.decode_text(), "")])


def read_markdown(file: DocumentFile) -> Iterator[Document]:
    text, title = markdown_to_text(file.decode_text(), file)
    yield Document([DocumentPart(text, "")], title)


def markdown_to_text(text: str, file: DocumentFile) -> tuple[str, str]:
    """Return the text of Markdown without its markup, and its first heading or the title in its front matter."""
    from markdown_it import MarkdownIt

    title = ""
    if match := re.match(r"---\n(.*?)\n---\n", text, re.DOTALL):
        text = text[match.end() :]
        file.drop("front matter")
        if named := re.search(r"^title:\s*[\"']?(.*?)[\"']?\s*$", match[1], re.MULTILINE):
            title = named[1]
    parser = MarkdownIt("commonmark").enable("table")
    parser.block.ruler.at("reference", _read_reference)
    html = str(parser.render(text))
    if not title and (heading := re.search(r"<h[1-6]>(.*?)</h[1-6]>", html, re.DOTALL)):
        title = html_to_text(heading[1], file, main_text=False)[0].strip()
    return html_to_text(html, file, main_text=False)[0], title


def _read_reference(state: Any, start: int, end: int, silent: bool) -> bool:
    """Read the definition of a link at the line `start`, unless it is a footnote, whose text would be lost."""
    from markdown_it.rules_block import reference

    begin = state.bMarks[start] + state.tShift[start]
    return not state.src.startswith("[^", begin) and reference(state, start, end, silent)
