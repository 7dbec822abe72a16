"""Readers of translation memories: gettext (.po), TMX, and spreadsheets with two columns."""

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tercet.config import UserError
from tercet.data.datasets.recognize import LANGUAGE, PAIR_FIELDS
from tercet.data.extraction.document_file import DocumentFile, TextPair
from tercet.data.extraction.office import read_sheets

CHARSET = re.compile(rb'"Content-Type:[^"\n]*charset=([\w-]+)')
LANG = "{http://www.w3.org/XML/1998/namespace}lang"
INLINE = ("bpt", "ept", "it", "ph", "ut")  # TMX elements that contain codes of a file format, not text


def read_po(file: DocumentFile, languages: Sequence[str]) -> Iterator[TextPair]:
    """Yield the messages of a gettext file and their translations.

    Args:
        file: The file.
        languages: Wanted languages of source and target; either may be "".
    """
    import polib

    catalog = polib.pofile(file.decode_text(CHARSET))
    language = catalog.metadata.get("Language", "")
    if languages[1] and language and not _is_language(language, languages[1]):
        file.drop("translations into other languages", len(catalog))
        return
    for number, entry in enumerate(catalog, 1):
        if entry.obsolete:
            file.drop("obsolete translations")
        elif entry.fuzzy:
            file.drop("fuzzy translations")
        elif not entry.translated():
            file.drop("messages without a translation")
        else:
            plurals = entry.msgstr_plural
            target = plurals[min(plurals)] if plurals else entry.msgstr
            yield TextPair(entry.msgid, target, f"message {number}", "", language)
            if plurals:  # the first form belongs to the singular, and the last one, maybe the same, to large numbers
                yield TextPair(entry.msgid_plural, plurals[max(plurals)], f"message {number}, plural", "", language)
                file.drop("further plural forms", max(0, len(plurals) - 2))


def read_tmx(file: DocumentFile, languages: Sequence[str]) -> Iterator[TextPair]:
    """Yield the translation units of a TMX file that have a segment in both languages.

    Args:
        file: The file.
        languages: Wanted languages of source and target. If either is "", the file must have two languages, of which
            the one in its header is the source.

    Raises:
        UserError: If the file is damaged, or has other than two languages and none were chosen.
    """
    from lxml import etree  # type: ignore[reportAttributeAccessIssue]  # it has no stubs

    first, second = languages
    try:
        units = etree.iterparse(
            io.BytesIO(file.read_bytes()), tag=("{*}header", "{*}tu"), resolve_entities=False, no_network=True,
            load_dtd=False,
        )  # fmt: skip
        header_language, number = "", 0
        for _, element in units:
            if etree.QName(element).localname == "header":
                header_language = element.get("srclang", "")
                continue
            number += 1
            segments = _segments(element, file)
            if not (first and second):
                first, second = _choose_languages(list(segments), header_language, languages, file)
            sides = [next((text for name, text in segments.items() if _is_language(name, side)), None)
                     for side in (first, second)]  # fmt: skip
            file.drop("segments in other languages", len(segments) - sum(side is not None for side in sides))
            if sides[0] is None or sides[1] is None:
                file.drop("units without both languages")
            else:
                yield TextPair(sides[0], sides[1], f"unit {number}", first, second)
            element.clear()
    except etree.XMLSyntaxError as error:
        raise UserError(f"{file.path} is not valid TMX ({error}); export it again") from None


def _segments(unit: Any, file: DocumentFile) -> dict[str, str]:
    """Return the first segment of a unit in each language."""
    segments = dict[str, str]()
    for variant in unit.iterfind("{*}tuv"):
        language = variant.get(LANG, variant.get("lang", ""))
        if language in segments:
            file.drop("further segments in the same language")
        else:
            segments[language] = _segment(variant)
    return segments


def _segment(unit: Any) -> str:
    """Return the text of a segment, without codes of the translated file's format."""
    segment = unit.find("{*}seg")
    if segment is None:
        return ""
    texts = [segment.text or ""]
    for part in segment.iterdescendants():
        if part.tag.rpartition("}")[2] not in INLINE:
            texts.append(part.text or "")
        texts.append(part.tail or "")
    return " ".join("".join(texts).split())


def _choose_languages(
    names: list[str], header_language: str, languages: Sequence[str], file: DocumentFile
) -> tuple[str, str]:
    """Return the languages of source and target of a file whose first unit has the languages `names`."""
    first, second = languages
    first = first or next((name for name in names if _is_language(name, header_language)), names[0] if names else "")
    if second and not languages[0]:
        first = next((name for name in names if not _is_language(name, second)), "")
    others = [name for name in names if not _is_language(name, first)]
    if len(names) != 2 or len(others) != 1:
        raise UserError(
            f"{file.path} has the languages {', '.join(names) or '(none)'}; pass --source-language and "
            "--target-language"
        )
    return first, second or others[0]


def _is_language(name: str, wanted: str) -> bool:
    """Return True if a code such as "en-US" is the wanted language, such as "en" or "en_us"."""
    parts = [re.split("[-_]", code.lower()) for code in (name, wanted)]
    return bool(wanted) and parts[0][: len(parts[1])] == parts[1]


def read_sheet_pairs(file: DocumentFile, languages: Sequence[str]) -> Iterator[TextPair]:
    """Yield the rows of each sheet with two columns.

    The first row names the columns if it contains the wanted languages, two codes of languages, or "source" and
    "target". A sheet with more columns needs such a row.

    Args:
        file: The file.
        languages: Names of the columns of source and target; "" for any.
    """
    for sheet, rows in read_sheets(file):
        header = [cell.lower() for cell in rows[0]] if rows else []
        wanted = [name.lower() for name in languages]
        names = ("", "")
        if all(wanted) and {*wanted} <= {*header}:
            names = (wanted[0], wanted[1])
        elif found := next((pair for pair in PAIR_FIELDS if {*pair} <= {*header}), None):
            names = found
        elif len(header) == 2 and all(LANGUAGE.fullmatch(name) for name in header):
            names = (header[0], header[1])
        if not all(names) and len(header) != 2:
            file.drop("rows of sheets that have no columns named source and target", len(rows))
            continue
        columns = [header.index(name) for name in names] if all(names) else [0, 1]
        for number, row in enumerate(rows[1:] if all(names) else rows, 2 if all(names) else 1):
            yield TextPair(row[columns[0]], row[columns[1]], f"sheet {sheet}, row {number}", *names)
