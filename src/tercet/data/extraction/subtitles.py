"""Reader of subtitles."""

from collections.abc import Iterator

from tercet.config import UserError
from tercet.data.extraction.document_file import Document, DocumentFile, DocumentPart


def read_subtitles(file: DocumentFile) -> Iterator[Document]:
    """Yield the texts of subtitles in the order of time, one per line, without times and styles.

    Raises:
        UserError: If the file has no subtitles.
    """
    import pysubs2

    text = file.decode_text()
    kind = "vtt" if file.path.name.lower().removesuffix(".gz").endswith(".vtt") else "srt"
    subtitles = pysubs2.SSAFile.from_string(text, format_=kind)
    if text.strip() and not subtitles.events:
        raise UserError(f"{file.path} has no subtitles; check its format")
    file.drop("comments", sum(event.is_comment for event in subtitles))
    lines = [" ".join(event.plaintext.split()) for event in subtitles if not event.is_comment]
    yield Document([DocumentPart("\n".join(line for line in lines if line), "")])
