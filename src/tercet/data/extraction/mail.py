"""Readers of mail: single messages (.eml) and mailboxes (.mbox)."""

import re
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import MIMEPart
from typing import cast

from tercet import limits
from tercet.config import UserError
from tercet.data.extraction.document_file import Document, DocumentFile, DocumentPart
from tercet.data.extraction.markup import html_to_text
from tercet.data.sources.files import open_file

QUOTE = re.compile(r"^(?:>.*|.{0,200}(?:wrote|schrieb|a écrit|escribió|ha scritto|schreef) ?:)\n?", re.MULTILINE)
SIGNATURE = re.compile(r"^-- \n.*", re.MULTILINE | re.DOTALL)
FROM_LINE = re.compile(rb"From \S.*\d\d:\d\d")  # start of a message in a mailbox


def read_message(file: DocumentFile) -> Iterator[Document]:
    """Yield the text of a message, whose title is the subject. Attachments and headers are left out."""
    yield _read_message(file.read_bytes(), "", file)


def read_mailbox(file: DocumentFile) -> Iterator[Document]:
    """Yield each message of a mailbox as a document. The mailbox may be larger than the memory."""
    for number, data in enumerate(_split_mailbox(file), 1):
        yield _read_message(data, f"message {number}", file)


def _split_mailbox(file: DocumentFile) -> Iterator[bytes]:
    """Yield the messages of a mailbox. `mailbox.mbox` of the standard library cannot read compressed files."""
    lines, size, after_blank = list[bytes](), 0, True
    with open_file(file.path) as mailbox:
        for number, line in enumerate(mailbox):
            if after_blank and FROM_LINE.match(line):
                if size:
                    yield b"".join(lines)
                lines, size = [], 0
            elif number == 0:
                raise UserError(f"{file.path} is not a mailbox, whose first line begins with 'From '; name it .eml")
            else:
                size += len(line)
                if size > limits.DOCUMENT_BYTES:
                    raise UserError(
                        f"{file.path} has a message of more than {limits.DOCUMENT_BYTES:,} bytes; remove it"
                    )
                lines.append(re.sub(rb"^>(>*From )", rb"\1", line))
            after_blank = not line.strip()
    if size:
        yield b"".join(lines)


def _read_message(data: bytes, place: str, file: DocumentFile) -> Document:
    message = message_from_bytes(data, policy=policy.default)
    body = message.get_body(("plain", "html"))
    text = ""
    if body is not None:
        text = _content(body, file)
        if body.get_content_subtype() == "html":
            text, _ = html_to_text(text, file, main_text=False)
    for part in message.walk():
        if part is body or part.is_multipart():
            continue
        is_alternative = part.get_content_maintype() == "text" and not part.is_attachment()
        file.drop("other parts of messages" if is_alternative else "attachments")
    if file.main_text:
        for pattern in (SIGNATURE, QUOTE):
            shorter = pattern.sub("", text)
            file.drop("characters of quoted replies and signatures", len(text) - len(shorter))
            text = shorter
    return Document([DocumentPart(text, place)], " ".join(str(message.get("subject", "")).split()))


def _content(part: MIMEPart, file: DocumentFile) -> str:
    """Return the text of a part of a message, in its declared encoding or else the detected one."""
    data = cast("bytes", part.get_payload(decode=True) or b"")
    return file.decode(data, part.get_content_charset() or "")
