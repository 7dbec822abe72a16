"""Conversations as a stream: what was asked and answered, message by message.

Files are JSONL, an object with a list of messages on each line, or tables of prompts and responses. What a message is,
its role and its text, is as in OpenAI's API.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from tercet.config import UserError, suggest
from tercet.data.files import check_field, read_json_objects, read_lines, uncompressed_suffix
from tercet.data.sources import DocumentFiles
from tercet.data.tables import SEPARATORS, read_table
from tercet.messages import show

ROLES = ("system", "user", "assistant")
COLUMNS = ("prompt", "response")  # of a table
SUFFIXES = (".jsonl", *SEPARATORS)


class Conversation(NamedTuple):
    """Messages, each with its `role` and `content`, and where they stand in their file."""

    messages: tuple[Mapping[str, str], ...]
    location: str

    @property
    def has_answer(self) -> bool:
        return any(message["role"] == "assistant" and message["content"].strip() for message in self.messages)

    @property
    def prompt(self) -> str:
        """What the first answer is to."""
        roles = [message["role"] for message in self.messages]
        first = roles.index("assistant") if "assistant" in roles else len(roles)
        return "\0".join(message["content"] for message in self.messages[:first])

    @property
    def n_bytes(self) -> int:
        return sum(len(message["content"].encode()) for message in self.messages)

    def texts(self) -> Iterator[str]:
        """What a vocabulary is learnt on: the answers, and what stands before each of them, with the names of roles."""
        before = ""
        for message in self.messages:
            before += f"{message['role']}:\n"
            if message["role"] == "assistant":
                yield from (before, message["content"])
                before = "\n\n"
            else:
                before += f"{message['content']}\n\n"


@dataclass(frozen=True, kw_only=True)
class ConversationFile:
    """The conversations in the JSONL, CSV or TSV file `path`; `messages_field` as in `ConversationsSpec`."""

    path: Path
    messages_field: str = "messages"
    encoding: str = "utf-8"

    @property
    def name(self) -> str:
        return str(self.path)

    def conversations(self) -> Iterator[Conversation]:
        """Every conversation; it may be without an answer.

        Raises:
            UserError: where the file cannot be read, or a line has no messages.
        """
        self._check()
        if uncompressed_suffix(self.path) == ".jsonl":
            lines = read_lines(self.path, self.encoding)
            for location, values in read_json_objects(lines, self.path, [self.messages_field]):
                check_field(values, self.messages_field, location, "data.messages_field")
                yield Conversation(_read_messages(values[self.messages_field], location), location)
        else:
            needed: dict[str, str] = dict.fromkeys(COLUMNS, "the header to prompt and response, or use .jsonl")
            for location, row in read_table(read_lines(self.path, self.encoding), str(self.path), needed):
                prompt, response = (row[column] for column in COLUMNS)
                user, assistant = {"role": "user", "content": prompt}, {"role": "assistant", "content": response}
                yield Conversation((user, assistant), location)

    def hash(self) -> str:
        self._check()
        return DocumentFiles(root=self.path).hash()

    def size(self) -> int | None:
        self._check()
        return None  # a role is no text

    def _check(self) -> None:
        example = '{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}'
        if not self.path.is_file():
            DocumentFiles(root=self.path).files()  # names the nearest path, or what the folder lacks
            raise UserError(f"{self.path} is a folder; give one file of conversations ({', '.join(SUFFIXES)})")
        if uncompressed_suffix(self.path) not in SUFFIXES:
            raise UserError(
                f"{self.path} is none of {', '.join(SUFFIXES)}, which conversations come in; "
                f"write {example} on each line of a .jsonl file"
            )


def _read_messages(value: object, location: str) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{location}: its messages are {show(value)[:80]}; give a list of one or more messages")
    return tuple(
        _read_message(message, f"{location}: message {number}")
        for number, message in enumerate(cast("list[object]", value), 1)
    )


def _read_message(value: object, location: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise UserError(f'{location} is no object; write {{"role": "user", "content": ...}}')
    message = cast("dict[str, object]", value)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in ROLES:
        guess = suggest(role, ROLES) if isinstance(role, str) else f"; known: {', '.join(ROLES)}"
        raise UserError(f"{location} has the role {show(role)[:80]}{guess}")
    if not isinstance(content, str):
        raise UserError(f"{location} has {show(content)[:80]} as its content; give a text")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise UserError(f"{location}: the text has half a surrogate pair (\\ud800...); remove it") from None
    return {"role": role, "content": content}
