"""How results show themselves: on a line where Python prints them, as a small table where a notebook shows them.

Whatever comes from outside is escaped. No colour is set for words and no background, so that a light theme and a dark
one both show them; what matters less is paler than the rest, in either.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, cast

from tercet.messages import one_line, shorten

if TYPE_CHECKING:
    from rich.table import Table

MOST_CHARACTERS = 160  # of a repr
MOST_OF_TEXT = 40  # of a text within one
PALE = "opacity:.6"
RULE = "border-bottom:1px solid rgba(128,128,128,.35)"
CELL = "padding:2px 10px 2px 0;vertical-align:top;white-space:pre-wrap"


class Summary:
    """A dataclass (made with `repr=False`) that says what it holds in a line, and in a notebook in a table.

    What differs from its default is said, tensors and long lists are not.
    """

    def __repr__(self) -> str:
        return summarise(self)

    def _repr_html_(self) -> str:
        return facts_table({field: format_value(value) for field, value in _facts(self)})


def summarise(value: Any) -> str:
    """A dataclass as `Name(field=value, ...)`, without what is as by default, and cut where it is long."""
    long = _join(value, [f"{name}={_short(item)}" for name, item in _facts(value)])
    if len(long) <= MOST_CHARACTERS:
        return long
    return _join(value, [f"{name}={_short(item, deep=False)}" for name, item in _facts(value)])


def _join(value: Any, parts: list[str]) -> str:
    kept, length = list[str](), len(type(value).__name__) + 5
    for part in parts:
        length += len(part) + 2
        if kept and length > MOST_CHARACTERS:
            break
        kept.append(part)
    left_out = len(kept) < len(parts)
    return f"{type(value).__name__}({', '.join([*kept, *(['...'] if left_out else [])])})"


def _facts(value: Any) -> list[tuple[str, Any]]:
    """The fields that differ from their defaults and can be said in a few words."""
    fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    return [(field.name, item) for field, item in fields if is_short(item) and not _is_default(field, item)]


def is_short(value: Any) -> bool:
    """Whether a value can be said in a few words: a number, a text, a spec, or a few of these."""
    if isinstance(value, tuple):
        few = cast("tuple[Any, ...]", value)
        return len(few) <= 4 and all(map(is_short, few))
    return value is None or isinstance(value, str | int | float) or is_spec(value)


def is_spec(value: Any) -> bool:
    """Whether a value is made of settings alone."""
    return dataclasses.is_dataclass(value) and hasattr(type(value), "__settings__")


def _is_default(field: "dataclasses.Field[Any]", value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return value == field.default_factory()
    return field.default is not dataclasses.MISSING and type(value) is type(field.default) and value == field.default


def _short(value: Any, *, deep: bool = True) -> str:
    if is_spec(value):
        return summarise(value) if deep else f"{type(value).__name__}(...)"
    if isinstance(value, float):
        return repr(value) if len(repr(value)) <= 7 else f"{value:.4g}"
    if isinstance(value, tuple):
        parts = [_short(item, deep=deep) for item in cast("tuple[Any, ...]", value)]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if isinstance(value, str):
        return repr(value if len(value) <= MOST_OF_TEXT else f"{value[:MOST_OF_TEXT]}...")
    return repr(value)


def format_value(value: Any) -> str:
    """A value as a person reads it: 1,024, 0.3215, yes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return ", ".join(map(format_value, cast("tuple[Any, ...]", value)))
    if is_spec(value):
        return type(value).__name__
    return "" if value is None else shorten(value)


def facts_table(facts: Mapping[str, str], *, title: str = "") -> str:
    """What is empty is left out."""
    head = f'<div style="{CELL}"><b>{escape(title)}</b></div>' if title else ""
    return head + html_table([(name, value) for name, value in facts.items() if value], pale_first=True)


def html_table(
    rows: Iterable[Sequence[str]],
    *,
    header: Sequence[str] = (),
    right: Sequence[bool] = (),
    pale_first: bool = False,
) -> str:
    """A table of texts, each escaped.

    Args:
        right: of each column, whether it is aligned to the right, as numbers are.
        pale_first: the first column names what stands in the others.
    """

    def cell(kind: str, column: int, text: str, more: str = "") -> str:
        align = "right" if column < len(right) and right[column] else "left"
        return f'<{kind} style="{CELL};text-align:{align}{more}">{escape(text)}</{kind}>'

    pale = f";{PALE}" if pale_first else ""
    head = "".join(cell("th", column, text, f";{RULE}") for column, text in enumerate(header))
    body = "".join(
        f"<tr>{''.join(cell('td', n, text, pale if n == 0 else '') for n, text in enumerate(row))}</tr>" for row in rows
    )
    start = '<table style="border-collapse:collapse;margin:4px 0;color:inherit;font-size:inherit">'
    return f"{start}{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def continued_text(prompt: str, text: str) -> str:
    """What was written, after what was given, which is paler."""
    return f'<div style="white-space:pre-wrap"><span style="{PALE}">{escape(prompt)}</span>{escape(text)}</div>'


def note(text: str) -> str:
    """A line below what it is about."""
    return f'<div style="{PALE};font-size:90%;white-space:pre-wrap">{escape(text)}</div>' if text.strip() else ""


def probability_table(scores: Mapping[str, float], *, of: str) -> str:
    """What may be, with its probability."""
    rows = [(one_line(shorten(name)), f"{p:.1%}") for name, p in scores.items()]
    return html_table(rows, header=(of, "probability"), right=(False, True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainTable:
    """A table that was made for the terminal, as texts; `header` () where it has none. Words without a table are the
    caption of an empty one.

    Attributes:
        right: of each column, whether it is aligned to the right, as numbers are.
    """

    title: str = ""
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    right: tuple[bool, ...] = ()
    caption: str = ""


def plain_tables(renderable: Any) -> list[PlainTable]:
    """The texts of a table that is made for the terminal, or of several with lines between them."""
    from rich.console import Group
    from rich.table import Table

    if isinstance(renderable, Group):
        return [table for each in renderable.renderables for table in plain_tables(each)]
    return [_plain_table(renderable) if isinstance(renderable, Table) else PlainTable(caption=_plain(renderable))]


def rich_html(renderable: Any) -> str:
    """A table that is made for the terminal, or several with lines between them, as HTML."""
    return "".join(
        note(table.title)
        + (html_table(table.rows, header=table.header, right=table.right) if table.right else "")
        + note(table.caption)
        for table in plain_tables(renderable)
    )


def _plain_table(table: "Table") -> PlainTable:
    columns = table.columns
    header = tuple(_plain(column.header) for column in columns)
    return PlainTable(
        title=_plain(table.title) if table.title else "",
        header=header if table.show_header and any(header) else (),
        rows=tuple(zip(*([_plain(cell) for cell in column.cells] for column in columns), strict=True)),
        right=tuple(column.justify == "right" for column in columns),
        caption=_plain(table.caption) if table.caption else "",
    )


def _plain(renderable: Any) -> str:
    from rich.text import Text

    return renderable.plain if isinstance(renderable, Text) else Text.from_markup(str(renderable)).plain


def settings_table(spec: Any) -> str:
    """All settings of a spec, those of its parts by dotted names; those that are as by default folded away."""
    changed, default = dict[str, str](), dict[str, str]()
    for name, value, is_default in _settings(spec):
        (default if is_default else changed)[name] = value
    shown = facts_table(changed, title=type(spec).__name__)
    if not default:
        return shown
    summary = f'<summary style="{PALE}">{len(default)} as by default</summary>'
    return f"{shown}<details>{summary}{facts_table(default)}</details>"


def _settings(spec: Any, before: str = "") -> Iterable[tuple[str, str, bool]]:
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        yield before + field.name, format_value(value) or "none", _is_default(field, value)
        if is_spec(value):
            yield from _settings(value, f"{before}{field.name}.")
