"""A self-contained HTML document: styles and pictures are in the file, and a policy forbids every request."""

from collections.abc import Sequence

from tercet.checkpoint import current_versions
from tercet.reports.markup import Markup, Section, element, paragraph
from tercet.web.page_files import hash_of, read_page_files


def html_document(*, title: str, header: Markup, sections: Sequence[Section], noun: str = "report") -> str:
    """Return a document with a header, links to its sections, and the sections.

    Args:
        title: Title of the document.
        header: Content of the header, including the only heading of the first level.
        sections: Sections; their ids are unique.
        noun: Name of the content, in one word.
    """
    files = read_page_files("tercet.reports")
    style = files["base.css"] + files["report.css"]
    policy = f"default-src 'none'; style-src '{hash_of(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        Markup(f"<style>{style}</style>"),
    )
    contents = element(
        "ul", *(element("li", element("a", section.title, href=f"#{section.id}")) for section in sections)
    )
    body = element(
        "body",
        element("a", f"Skip to the {noun}", class_="skip", href=f"#{noun}"),
        header,
        element("nav", contents, aria_label="Contents"),
        element("main", *map(_section, sections), id=noun),
        element("footer", paragraph(f"Made by Tercet {current_versions()['tercet']}.")),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _section(section: Section) -> Markup:
    heading = element("h2", section.title, id=f"{section.id}-title")
    return element("section", heading, section.body, id=section.id, aria_labelledby=f"{section.id}-title")
