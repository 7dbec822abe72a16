"""Items of a data source that are divided: documents, sentence pairs, labeled texts or conversations."""

from collections.abc import Iterator
from typing import NamedTuple

from tercet.config import UserError
from tercet.data.datasets.label_datasets import find_labels
from tercet.data.datasets.pair_datasets import open_pairs
from tercet.data.datasets.text_datasets import find_text
from tercet.data.examples.conversations import find_conversations
from tercet.data.label_spec import LabelsSpec
from tercet.data.sources.documents import DocumentFiles, DocumentSource
from tercet.data.sources.id_files import IdFile
from tercet.data.specs import ConversationsSpec, PairsSpec, TextSpec

Spec = TextSpec | PairsSpec | LabelsSpec | ConversationsSpec


class DividedItem(NamedTuple):
    """Part of the data that is never cut.

    Attributes:
        content: Text that must not be in two parts: the document, the source sentence, the labeled text, or the
            messages before the first answer.
        group: Group of the item; empty if the source has no groups.
        is_empty: True if nothing can be learned from the item.
    """

    content: str
    group: str
    is_empty: bool


def read_items(spec: Spec) -> Iterator[DividedItem]:
    """Yield every item of a source, including empty ones.

    Raises:
        UserError: If the source cannot be read, or contains token ids.
    """
    match spec:
        case TextSpec():
            for text, group in read_documents(find_document_source(spec)):
                yield DividedItem(text, group, not text.strip())
            return
        case PairsSpec():
            examples = ((pair, pair.source) for pair in open_pairs(spec, spec.source, spec.target).examples())
        case LabelsSpec():
            examples = ((example, "\0".join(example.texts)) for example in find_labels(spec).examples())
        case ConversationsSpec():
            examples = ((example, example.identity) for example in find_conversations(spec).examples())
    for example, content in examples:
        yield DividedItem(content, getattr(example, "group", ""), example.is_empty)


def find_document_source(spec: TextSpec) -> DocumentSource:
    """Return the documents of a source.

    Raises:
        UserError: If it does not exist, or contains token ids.
    """
    source = find_text(spec)
    if isinstance(source, IdFile):
        raise UserError(f"{spec.source} contains token ids, which have no text; pass the text that they were made from")
    return source


def read_documents(source: DocumentSource) -> Iterator[tuple[str, str]]:
    """Yield the text and the group of each document; empty documents of files have an empty text."""
    parts = list[str]()
    for piece in source.all_pieces() if isinstance(source, DocumentFiles) else source.pieces():
        parts.append(piece.text)
        if piece.last:
            yield "".join(parts), piece.group
            parts.clear()
