"""Parse a report and find errors in its markup."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

VOID = {"meta", "img", "br"}
LINKS = ("src", "href", "action", "data", "poster", "xlink:href", "srcset", "formaction", "background")


class Page(HTMLParser):
    """A parsed report.

    Attributes:
        tags: Each tag with its attributes, in order.
        words: Text of each section by its id, with "" for text outside of sections.
        tables: Rows of cells for each table.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.open, self.tags = list[tuple[str, dict[str, str]]](), list[tuple[str, dict[str, str]]]()
        self.words = dict[str, str]()
        self.rows = list[list[str]]()
        self.feed(html)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append((tag, attributes))
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append((tag, attributes))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()[0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        section = next((attributes.get("id", "") for tag, attributes in self.open if tag == "section"), "")
        self.words[section] = self.words.get(section, "") + data
        if any(tag in ("th", "td") for tag, _ in self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return "".join(self.words.values())

    def cell(self, name: str) -> str:
        """Return the cell after a row's heading."""
        return next(row[1] for row in self.rows if row[0] == name)


def read_page(path: Path) -> Page:
    page = Page(path.read_text(encoding="utf-8"))
    assert faults(page) == []
    return page


def faults(page: Page) -> list[str]:
    """Return forbidden parts: addresses, scripts, inline styles, and headings in the wrong order or without text."""
    found = list[str]()
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    for tag, attributes in page.tags:
        for name in LINKS:
            value = attributes.get(name)
            if value is not None and not value.startswith("data:image/png;base64,") and value[1:] not in ids:
                found.append(f"{tag} {name}={value[:80]}")
        found += [f"{tag} {name}" for name in attributes if name.startswith("on") or name == "style"]
        if tag in ("script", "iframe", "object", "embed", "link", "base", "form"):
            found.append(f"<{tag}>")
        if tag == "img" and not attributes.get("alt"):
            found.append("an image without words")
        if tag == "svg" and "aria-label" not in attributes and attributes.get("aria-hidden") != "true":
            found.append("a picture without words")
        if tag == "th" and attributes.get("scope") not in ("row", "col"):
            found.append("a heading of no cells")
    if len(ids) != len(set(ids)):
        found.append("an id twice")
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    if levels[0] != 1 or levels.count(1) != 1 or any(b - a > 1 for a, b in pairwise(levels)):
        found.append(f"headings {levels}")
    names = [tag for tag, _ in page.tags]
    found += [
        f"{names.count(landmark)} {landmark}"
        for landmark in ("main", "header", "nav", "footer", "title")
        if names.count(landmark) != 1
    ]
    style = re.search(r"<style>(.*?)</style>", page.html, re.DOTALL)
    if style is None or re.search(r"url\(|@import|https?:", style[1]):
        found.append("a style that asks for something")
    if dict(page.tags)["html"].get("lang") != "en":
        found.append("no language")
    return found
