"""HTML from functions.

Everything that is not `Markup` is escaped, so no text of a run or model can become HTML.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tercet.messages import escape as escape_character

VOID = ("meta", "img", "br")
CONTROL = ("Cc", "Cs")  # control characters and surrogates


class Markup(str):
    """HTML that is not escaped."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page with a heading; `body` is "" if it has no content."""

    id: str
    title: str
    body: Markup


def element(tag: str, /, *children: str, **attributes: str) -> Markup:
    """Return an element; trailing underscores of attribute names are removed, others become hyphens."""
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(visible(value))}"' for key, value in attributes.items()
    )
    if tag in VOID:
        return Markup(f"<{tag}{attribute_text}>")
    return Markup(f"<{tag}{attribute_text}>{join(*children)}</{tag}>")


def join(*children: str) -> Markup:
    """Concatenate markup; plain text is escaped."""
    return Markup("".join(child if isinstance(child, Markup) else escape(visible(child)) for child in children))


def visible(text: str) -> str:
    """Return the text with characters that are invalid in HTML as Python escapes."""
    text = text.replace("\r\n", "\n")
    if text.isprintable():
        return text
    return "".join(escape_character(c) if c not in "\n\t" and unicodedata.category(c) in CONTROL else c for c in text)


def paragraph(text: str, *, class_: str = "") -> Markup:
    """Return a paragraph; text between backticks becomes code."""
    parts = text.split("`")
    words = [element("code", part) if n % 2 and n < len(parts) - 1 else part for n, part in enumerate(parts)]
    return element("p", *words, **({"class_": class_} if class_ else {}))


def missing(text: str) -> Markup:
    """Return a note about a missing value, and how to get it."""
    return paragraph(text, class_="missing")


def collapsed_block(summary: str, *children: str) -> Markup:
    """Return content that is collapsed on a screen, and always printed."""
    return element("details", element("summary", summary), *children)


def facts_list(facts: Mapping[str, str]) -> Markup:
    """Return a table of names and values, without empty values."""
    rows = [(name, value) for name, value in facts.items() if value]
    return scrolling_table(rows, label="") if rows else Markup()


def scrolling_table(
    rows: Iterable[Sequence[str]], *, label: str, header: Sequence[str] = (), right: Sequence[bool] = ()
) -> Markup:
    """Return a table that scrolls sideways if it is too wide; the first cell of each row is its header.

    Args:
        label: Caption; "" if the section's heading is sufficient.
        right: For each column, whether it is right-aligned, as numbers are.
    """

    def side(column: int) -> dict[str, str]:
        return {"class_": "number"} if column < len(right) and right[column] else {}

    head = [
        element("th", text, scope="col", **side(column)) if text else element("td")
        for column, text in enumerate(header)
    ]
    body = [
        element(
            "tr",
            *(
                element("td", text, **side(column)) if column else element("th", text, scope="row")
                for column, text in enumerate(row)
            ),
        )
        for row in rows
    ]
    caption = element("caption", label) if label else ""
    top = element("thead", element("tr", *head)) if any(header) else ""
    table = element("table", *filter(None, (caption, top)), element("tbody", *body))
    region = {"role": "region", "aria_label": label, "tabindex": "0"} if label else {}
    return element("div", table, class_="wide", **region)
