"""Build HTML with functions.

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
    """A section of the page.

    Attributes:
        id: Id of the section's element.
        title: Heading.
        body: Content below the heading.
    """

    id: str
    title: str
    body: Markup


def element(tag: str, /, *children: str, **attributes: str) -> Markup:
    """Return an HTML element.

    Args:
        tag: Name of the element.
        children: Content; text that is not `Markup` is escaped.
        attributes: Values of attributes. In their names, trailing underscores are removed (`class_`), and others become
            hyphens (`aria_label`).
    """
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
    """Return the text with control characters and surrogates as Python escapes, except tabs and line ends."""
    text = text.replace("\r\n", "\n")
    if text.isprintable():
        return text
    return "".join(escape_character(c) if c not in "\n\t" and unicodedata.category(c) in CONTROL else c for c in text)


def paragraph(text: str, *, class_: str = "") -> Markup:
    """Return a paragraph, in which text between backticks becomes code; `class_` is its CSS class."""
    parts = text.split("`")
    words = [element("code", part) if n % 2 and n < len(parts) - 1 else part for n, part in enumerate(parts)]
    return element("p", *words, **({"class_": class_} if class_ else {}))


def missing(text: str) -> Markup:
    """Return a paragraph in the style of notes about missing content."""
    return paragraph(text, class_="missing")


def collapsed_block(summary: str, *children: str) -> Markup:
    """Return content below a summary; it is collapsed on a screen until the summary is clicked, but always printed."""
    return element("details", element("summary", summary), *children)


def facts_list(facts: Mapping[str, str]) -> Markup:
    """Return a table of names and values without rows for empty values; no table if all are empty."""
    rows = [(name, value) for name, value in facts.items() if value]
    return scrolling_table(rows, label="") if rows else Markup()


def scrolling_table(
    rows: Iterable[Sequence[str]], *, label: str, header: Sequence[str] = (), right: Sequence[bool] = ()
) -> Markup:
    """Return a table that scrolls sideways if it is too wide; the first cell of each row is its header.

    Args:
        rows: Cells of each row.
        label: Caption; "" if the heading of the section is sufficient.
        header: Headings of the columns; none by default.
        right: For each column, True if it is right-aligned, as numbers are.
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
    region = {"role": "region", "aria_label": label} if label else {}
    return element("div", table, class_="wide", tabindex="0", **region)  # so that the arrow keys scroll it
