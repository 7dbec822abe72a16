"""HTML by functions: what is not `Markup` already is escaped, so that no text of a run or a model can become any."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tercet.messages import escape as escape_character

VOID = ("meta", "img", "br")
CONTROL = ("Cc", "Cs")  # control characters, and halves of characters


class Markup(str):
    """HTML that is to stand as it is."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page with a heading; `body` "" where there is nothing to say."""

    id: str
    title: str
    body: Markup


def element(tag: str, /, *children: str, **attributes: str) -> Markup:
    """An element; `class_` and `aria_label` are written class and aria-label."""
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(visible(value))}"' for key, value in attributes.items()
    )
    if tag in VOID:
        return Markup(f"<{tag}{attribute_text}>")
    return Markup(f"<{tag}{attribute_text}>{join(*children)}</{tag}>")


def join(*children: str) -> Markup:
    """Markup one after another; what is text is escaped."""
    return Markup("".join(child if isinstance(child, Markup) else escape(visible(child)) for child in children))


def visible(text: str) -> str:
    """The text with characters that no page may hold, written as Python escapes them."""
    text = text.replace("\r\n", "\n")
    if text.isprintable():
        return text
    return "".join(escape_character(c) if c not in "\n\t" and unicodedata.category(c) in CONTROL else c for c in text)


def paragraph(text: str, *, class_: str = "") -> Markup:
    """A paragraph; what stands between backticks is code."""
    parts = text.split("`")
    words = [element("code", part) if n % 2 and n < len(parts) - 1 else part for n, part in enumerate(parts)]
    return element("p", *words, **({"class_": class_} if class_ else {}))


def missing(text: str) -> Markup:
    """What is not known, and how it could be."""
    return paragraph(text, class_="missing")


def collapsed_block(summary: str, *children: str) -> Markup:
    """What is shown when somebody asks for it, and printed always."""
    return element("details", element("summary", summary), *children)


def facts_list(facts: Mapping[str, str]) -> Markup:
    """A table of names and values; what is empty is left out."""
    rows = [(name, value) for name, value in facts.items() if value]
    return scrolling_table(rows, label="") if rows else Markup()


def scrolling_table(
    rows: Iterable[Sequence[str]], *, label: str, header: Sequence[str] = (), right: Sequence[bool] = ()
) -> Markup:
    """A table in a box that scrolls sideways where it is wider than the page; the first cell of a row is its heading.

    Args:
        label: its caption; "" for a table that its section's heading says all of.
        right: of each column, whether it is aligned to the right, as numbers are.
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
