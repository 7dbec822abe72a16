"""Reader of reStructuredText, also of Sphinx documentation, through docutils and HTML."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, ClassVar

from tercet.data.extraction.document_file import Document, DocumentFile, DocumentPart
from tercet.data.extraction.markup import html_to_text, keep_rows

DIRECTIVE = re.compile(r"^\s*(?:\.\. )+([\w:+.-]+)::", re.MULTILINE)
ROLE = re.compile(r":([\w:+.-]+):`")
INCLUSION = re.compile(r"^\s*\.\. (?:include|raw|literalinclude)::", re.MULTILINE)
CLASSIFIER = '<span class="classifier">'
ERROR_LEVEL = 3  # of messages of docutils about markup that is not read; warnings have 2
SETTINGS = {
    "file_insertion_enabled": False, "raw_enabled": False, "_disable_config": True, "report_level": 5, "halt_level": 5,
    "embed_stylesheet": False, "stylesheet_path": "", "syntax_highlight": "none", "math_output": "LaTeX",
}  # fmt: skip


def read_rst(file: DocumentFile) -> Iterator[Document]:
    """Yield the text of reStructuredText.

    Other files are not included, and raw HTML is left out. Directives and roles of Sphinx are read as their content.
    """
    from docutils.core import publish_parts

    text = file.decode_text()
    _register_unknown_names(text)
    file.drop("included files and raw HTML", len(INCLUSION.findall(text)))
    reader = _make_reader(file)
    parts: dict[str, Any] = {**publish_parts(text, reader=reader, writer="html5", settings_overrides=SETTINGS)}
    heading, _ = html_to_text(parts["title"], file, main_text=False)
    html = keep_rows(parts["html_body"]).replace(CLASSIFIER, f" : {CLASSIFIER}")  # the style sheet adds the colon
    body, _ = html_to_text(html, file, main_text=False)
    yield Document([DocumentPart(body, "")], heading)


def _register_unknown_names(text: str) -> None:
    """Register the directives and roles of a text that docutils does not have.

    Otherwise, docutils would replace them by error messages. Sphinx has more options for blocks of code than docutils.
    """
    from docutils.parsers.rst import directives, roles
    from docutils.parsers.rst.languages import en
    from docutils.utils import new_document

    # The type stubs of docutils are stricter than its code.
    document: Any = new_document("")
    language: Any = en
    document.reporter.report_level = 5
    for name in ("code", "code-block", "sourcecode"):
        directives.register_directive(name, _make_directive(is_code=True))
    for name in {name.lower() for name in DIRECTIVE.findall(text)}:
        if directives.directive(name, language, document)[0] is None:
            directives.register_directive(name, _make_directive())
    for name in {name.lower() for name in ROLE.findall(text)}:
        if roles.role(name, language, 0, document.reporter)[0] is None:
            roles.register_local_role(name, _read_role)


def _make_reader(file: DocumentFile) -> Any:
    """Return a reader that keeps the source of markup with errors, and counts comments in `file`.

    Otherwise, docutils would replace this source by an error message, which is not shown.
    """
    from docutils import nodes
    from docutils.readers import standalone
    from docutils.transforms import Transform

    class KeepSources(Transform):
        default_priority = 860  # before docutils removes the messages

        def apply(self) -> None:
            file.drop("comments", len(list(self.document.findall(nodes.comment))))
            for message in list(self.document.findall(nodes.system_message)):
                sources = [node for node in message.children if isinstance(node, nodes.literal_block)]
                if message["level"] >= ERROR_LEVEL and sources and message.parent is not None:
                    message.parent.replace(message, sources)

    class Reader(standalone.Reader):
        def get_transforms(self) -> list[type[Transform]]:
            return [*super().get_transforms(), KeepSources]

    return Reader()


def _make_directive(*, is_code: bool = False) -> type:
    """Return a directive that consists of its argument and its content, with any options.

    Args:
        is_code: If True, the content is code, and the argument its language, which is left out.
    """
    from docutils import nodes
    from docutils.parsers.rst import Directive, directives

    class Content(Directive):
        has_content, optional_arguments, final_argument_whitespace = True, 1, not is_code
        option_spec: ClassVar[Any] = defaultdict(lambda: directives.unchanged, name=directives.unchanged)

        def run(self) -> list[nodes.Node]:
            container = nodes.container()
            if is_code:
                caption = self.options.get("caption", "")
                container += [nodes.paragraph("", caption)] if caption else []
                container += nodes.literal_block("", "\n".join(self.content))
                return [container]
            if self.arguments:
                inline, _ = self.state.inline_text(self.arguments[0], self.lineno)
                container += nodes.paragraph("", "", *inline)
            self.state.nested_parse(self.content, self.content_offset, container)
            return [container]

    return Content


def _read_role(_name: str, raw: str, text: str, *_: object, **__: object) -> tuple[list[Any], list[Any]]:
    """Return the text of a role without the target that may follow it: "title <target>"."""
    from docutils import nodes

    return [nodes.inline(raw, re.sub(r"(?<=\S)\s*<[^<>]+>$", "", text))], []
