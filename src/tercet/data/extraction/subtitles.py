"""Reader of subtitles."""

import re
from collections.abc import Iterator

from tercet.config import UserError
from tercet.data.extraction.document_file import Document, DocumentFile, DocumentPart

BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")
WEBVTT_NOTE = re.compile(r"NOTE(?=\s|$)")
WEBVTT_SETTINGS = re.compile(r"(?:STYLE|REGION)[ \t]*(?=\n|$)")
WEBVTT_TIME = re.compile(r"<[\d:.]+>")  # of a word within a cue


def read_subtitles(file: DocumentFile) -> Iterator[Document]:
    """Yield the texts of subtitles in the order of time, one per line, without times and styles.

    Raises:
        UserError: If the file has no subtitles.
    """
    import pysubs2

    text = file.decode_text()
    kind = "vtt" if file.path.name.lower().removesuffix(".gz").endswith(".vtt") else "srt"
    if kind == "vtt":
        text = _without_notes(text, file)
    subtitles = pysubs2.SSAFile.from_string(text, format_=kind)
    if text.strip() and not subtitles.events:
        raise UserError(f"{file.path} has no subtitles; check its format")
    file.drop("comments", sum(event.is_comment for event in subtitles))
    lines = [" ".join(event.plaintext.split()) for event in subtitles if not event.is_comment]
    yield Document([DocumentPart("\n".join(line for line in lines if line), "")])


def _without_notes(text: str, file: DocumentFile) -> str:
    """Return the text of a WebVTT file without what pysubs2 would append to a cue: notes, styles and times of words."""
    blocks = BLANK_LINES.split(text.replace("\r\n", "\n"))
    cues = [block for block in blocks if not (WEBVTT_NOTE.match(block) or WEBVTT_SETTINGS.match(block))]
    file.drop("comments", sum(WEBVTT_NOTE.match(block) is not None for block in blocks))
    return WEBVTT_TIME.sub("", "\n\n".join(cues))
