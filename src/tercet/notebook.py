"""Display of results: one line in the Python shell, a table in a notebook and on a terminal.

The method `view` of a result returns its tables; only this module converts tables to HTML and to text for a terminal.
All text is escaped. No color is set for text or background, so that both are readable in light and dark themes;
secondary text is paler.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, cast

from tercet.messages import one_line, shorten

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_REPR = 160  # approximate maximum characters of a repr
MAX_TEXT = 40  # maximum characters of a string within a repr
# Name of a unit, then of its smaller unit: name, seconds, number per unit, and number per next larger unit.
DURATION_UNITS = (("min", "s", 1, 60, 3600), ("h", "min", 60, 60, 24 * 60), ("d", "h", 3600, 24, math.inf))
PREFIXES = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"]
PALE = "opacity:.6"
RULE = "border-bottom:1px solid rgba(128,128,128,.35)"
CELL = "padding:2px 10px 2px 0;vertical-align:top;white-space:pre-wrap"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts. Rows and columns are numbered from 0.

    On a terminal, a table without a header is a plain grid, to which only `rows` and `bold` apply.

    Attributes:
        rows: Texts of the cells, row by row.
        header: Headings of the columns; () for a table without a header.
        left: Numbers of the columns that are aligned to the left. The others, usually of numbers, are aligned to the
            right.
        caption: Text below the table; "" for none.
        pale_first: If True, the first column contains the names of the rows, and is paler in HTML.
        bold: Cells in bold type on a terminal, as pairs of row and column.
        folded: Columns in which words that are too long are folded, with their minimum width in characters. In other
            columns, such words are cut.
        unbroken: Numbers of the columns that are never wrapped on a terminal.
        flush: If True, table and caption begin at the left edge of a terminal.
    """

    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()
    left: Collection[int] = (0,)
    caption: str = ""
    pale_first: bool = False
    bold: Collection[tuple[int, int]] = ()
    folded: Mapping[int, int] = dataclasses.field(default_factory=dict[int, int])
    unbroken: Collection[int] = ()
    flush: bool = False

    @property
    def right(self) -> tuple[bool, ...]:
        """True for each column that is aligned to the right."""
        width = max(map(len, (self.header, *self.rows)), default=0)
        return tuple(column not in self.left for column in range(width))

    def to_html(self) -> str:
        """Return the table as HTML, with its caption below."""
        table = html_table(self.rows, header=self.header, right=self.right, pale_first=self.pale_first)
        return table + note(self.caption)

    def to_rich(self) -> "RenderableType":
        """Return the table for a terminal, as a `rich` table."""
        from rich import table as rich
        from rich.markup import escape as escape_markup
        from rich.text import Text

        table = rich.Table.grid(padding=(0, 2))
        if self.header:
            table = rich.Table(box=None, pad_edge=not self.flush, caption_justify="left" if self.flush else "center")
            table.caption = escape_markup(self.caption) or None
            for column, heading in enumerate(self.header):
                table.add_column(
                    Text(heading),
                    justify="left" if column in self.left else "right",
                    overflow="fold" if column in self.folded else "ellipsis",
                    min_width=self.folded.get(column),
                    no_wrap=column in self.unbroken,
                )
        for number, row in enumerate(self.rows):
            styles = ["bold" if (number, column) in self.bold else "" for column in range(len(row))]
            table.add_row(*map(Text, row, styles))
        return table


@dataclasses.dataclass(frozen=True)
class View:
    """A sequence of tables and lines of text, which notebooks and `rich.print` display.

    Attributes:
        parts: Tables and lines; the line "" is an empty line on a terminal, and nothing in HTML.
    """

    parts: tuple[Table | str, ...]

    def to_html(self) -> str:
        return "".join(note(part) if isinstance(part, str) else part.to_html() for part in self.parts)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __rich__(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        return Group(*(Text(part) if isinstance(part, str) else part.to_rich() for part in self.parts))


class Summary:
    """Base class of result dataclasses, which notebooks display as a `View` and Python as one line.

    Subclasses are declared with `repr=False`. By default, the displays leave out fields that equal their defaults and
    values that are not short (`is_short`), such as tensors and lists.
    """

    def __repr__(self) -> str:
        return summarize(self)

    def view(self) -> View:
        """Return the view that notebooks display; by default, one table of names and values of the fields."""
        facts = [(name, format_value(value)) for name, value in _facts(self)]
        return View((Table(rows=[fact for fact in facts if fact[1]], left=(0, 1), pale_first=True),))

    def _repr_html_(self) -> str:
        return self.view().to_html()


def summarize(value: Any) -> str:
    """Return a dataclass as `Name(field=value, ...)`, without default values and values that are not short.

    If the text would be longer than about `MAX_REPR` characters, the last fields or nested specs are shown as "...".
    """
    long = _join(value, [f"{name}={_short(item)}" for name, item in _facts(value)])
    if len(long) <= MAX_REPR:
        return long
    return _join(value, [f"{name}={_short(item, deep=False)}" for name, item in _facts(value)])


def _join(value: Any, parts: list[str]) -> str:
    shown, length = list[str](), len(type(value).__name__) + 5
    for part in parts:
        length += len(part) + 2
        if shown and length > MAX_REPR:
            break
        shown.append(part)
    left_out = len(shown) < len(parts)
    return f"{type(value).__name__}({', '.join([*shown, *(['...'] if left_out else [])])})"


def _facts(value: Any) -> list[tuple[str, Any]]:
    """Return the fields with short values that differ from their defaults."""
    fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    return [(field.name, item) for field, item in fields if is_short(item) and not _is_default(field, item)]


def is_short(value: Any) -> bool:
    """Return whether a value is None, a number, a text, a spec, or a tuple of at most four of these."""
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        return len(items) <= 4 and all(map(is_short, items))
    return value is None or isinstance(value, str | int | float) or is_spec(value)


def is_spec(value: Any) -> bool:
    """Return whether a value is a spec: an instance of a class that `tercet.spec.spec` decorates."""
    return dataclasses.is_dataclass(value) and hasattr(type(value), "__settings__")


def _is_default(field: "dataclasses.Field[Any]", value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return value == field.default_factory()
    return field.default is not dataclasses.MISSING and type(value) is type(field.default) and value == field.default


def _short(value: Any, *, deep: bool = True) -> str:
    if is_spec(value):
        return summarize(value) if deep else f"{type(value).__name__}(...)"
    if isinstance(value, float):
        return repr(value) if len(repr(value)) <= 7 else f"{value:.4g}"
    if isinstance(value, tuple):
        parts = [_short(item, deep=deep) for item in cast("tuple[Any, ...]", value)]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if isinstance(value, str):
        return repr(value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}...")
    return repr(value)


def format_value(value: Any) -> str:
    """Return a value as text for display, such as "1,024", "0.3215" or "yes".

    None is "", a spec its class name, and a tuple its items separated by commas.
    """
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


def format_count(number: int) -> str:
    """Return a count with three significant digits and a decimal prefix, such as "85.1 M"."""
    power, value = _scale(number, base=1000, digits=3)
    return f"{value} {PREFIXES[power]}".strip()


def format_bytes(number: int) -> str:
    """Return a number of bytes with four significant digits and a binary prefix, such as "475.2 MiB"."""
    power, value = _scale(number, base=1024, digits=4)
    return f"{value} {PREFIXES[power].upper()}{'iB' if power else 'B'}"


def _scale(number: int, *, base: int, digits: int) -> tuple[int, str]:
    """Return the power of a prefix and the number in its unit, which is below `base` after rounding if possible.

    Args:
        number: Number to scale, at least 0.
        base: Ratio of two consecutive prefixes.
        digits: Significant digits of the scaled number.
    """
    for power in range(len(PREFIXES)):
        value = f"{number / base**power:.{digits}g}"
        if float(value) < base:
            return power, value
    return len(PREFIXES) - 1, f"{number / base ** (len(PREFIXES) - 1):,.0f}"


def format_duration(seconds: float) -> str:
    """Return a duration: below a minute in seconds, such as "0.0123 s", else in one or two units, such as "3 d 4 h"."""
    short = f"{seconds:.3g}"
    if float(short) < 60:
        return f"{short} s"
    name, smaller, part, ratio, _ = next(unit for unit in DURATION_UNITS if round(seconds / unit[2]) < unit[4])
    whole, rest = divmod(round(seconds / part), ratio)
    return f"{whole:,} {name} {rest} {smaller}" if rest else f"{whole:,} {name}"


def facts_table(facts: Mapping[str, str], *, title: str = "") -> str:
    """Return a table of names and values as HTML, below its title; entries with an empty value are left out."""
    head = f'<div style="{CELL}"><b>{escape(title)}</b></div>' if title else ""
    return head + html_table([(name, value) for name, value in facts.items() if value], pale_first=True)


def html_table(
    rows: Iterable[Sequence[str]],
    *,
    header: Sequence[str] = (),
    right: Sequence[bool] = (),
    pale_first: bool = False,
) -> str:
    """Return a table of texts as HTML, each text escaped.

    Args:
        rows: Texts of the cells, row by row.
        header: Headings of the columns; () for a table without a header.
        right: True for each column that is aligned to the right; further columns are aligned to the left.
        pale_first: If True, the first column contains the names of the rows, and is paler.
    """

    def cell(kind: str, column: int, text: str, extra_style: str = "") -> str:
        align = "right" if column < len(right) and right[column] else "left"
        return f'<{kind} style="{CELL};text-align:{align}{extra_style}">{escape(text)}</{kind}>'

    pale = f";{PALE}" if pale_first else ""
    head = "".join(cell("th", column, text, f";{RULE}") for column, text in enumerate(header))
    body = "".join(
        f"<tr>{''.join(cell('td', n, text, pale if n == 0 else '') for n, text in enumerate(row))}</tr>" for row in rows
    )
    start = '<table style="border-collapse:collapse;margin:4px 0;color:inherit;font-size:inherit">'
    return f"{start}{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def continued_text(prompt: str, text: str) -> str:
    """Return a prompt and its continuation as HTML; the prompt is paler."""
    return f'<div style="white-space:pre-wrap"><span style="{PALE}">{escape(prompt)}</span>{escape(text)}</div>'


def note(text: str) -> str:
    """Return secondary text as HTML; "" if the text is blank."""
    return f'<div style="{PALE};font-size:90%;white-space:pre-wrap">{escape(text)}</div>' if text.strip() else ""


def probability_table(scores: Mapping[str, float], *, of: str) -> Table:
    """Return a table of the names in `scores` and their probabilities; `of` is the heading of the names."""
    rows = [(one_line(shorten(name)), f"{p:.1%}") for name, p in scores.items()]
    return Table(header=(of, "probability"), rows=rows)


def settings_table(spec: Any) -> str:
    """Return a table of all settings of a spec as HTML.

    Settings of nested specs have dotted names. Settings with default values are in a section that is closed at first.
    """
    changed, default = dict[str, str](), dict[str, str]()
    for name, value, is_default in _settings(spec):
        (default if is_default else changed)[name] = value
    table = facts_table(changed, title=type(spec).__name__)
    if not default:
        return table
    summary = f'<summary style="{PALE}">{len(default)} with default values</summary>'
    return f"{table}<details>{summary}{facts_table(default)}</details>"


def _settings(spec: Any, prefix: str = "") -> Iterable[tuple[str, str, bool]]:
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        yield prefix + field.name, format_value(value) or "none", _is_default(field, value)
        if is_spec(value):
            yield from _settings(value, f"{prefix}{field.name}.")
