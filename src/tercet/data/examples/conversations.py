"""Conversations as a stream of lists of messages.

Files are JSONL with a list of messages or a prompt and its response per line, or tables of prompts and responses. A
message has a role and a text, as in OpenAI's API or in ShareGPT's files. An answer of weight 0 is read by the model but
not learned.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

from tercet.config import UserError, suggest
from tercet.data.examples.dataset_examples import DatasetExamples
from tercet.data.examples.example_files import ExampleFile
from tercet.data.examples.example_source import ExampleSource
from tercet.data.sources.custom_dataset import CustomDataset, Source
from tercet.data.sources.files import check_field, find_path, get_text, read_lines, read_objects
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.sources.tables import read_table
from tercet.data.specs import ConversationsSpec
from tercet.messages import show

EXAMPLE_NAME = "conversation with an answer (the role assistant)"
ROLES = ("system", "user", "assistant")
SHAREGPT = {"human": "user", "gpt": "assistant"}  # roles by the value of `from`
MESSAGES_FIELDS = ("messages", "conversations")  # the default key of the messages, and its alternative
EXCHANGE_FIELDS = ("prompt", "response")
# Keys in OpenAI's files, other than role and content, that would change what is learned.
UNREAD_OF_OBJECT = ("tools", "functions", "parallel_tool_calls")
UNREAD_OF_MESSAGE = ("name", "tool_calls", "tool_call_id", "function_call", "audio", "refusal")


class Conversation(NamedTuple):
    """Messages of a conversation, and their location in the file.

    Each message is a mapping with a `role` and a `content`, and with the `weight` "0" if its text is not learned.
    """

    messages: tuple[Mapping[str, str], ...]
    location: str

    @property
    def texts(self) -> list[str]:
        return [message["content"] for message in self.messages]

    @property
    def is_empty(self) -> bool:
        """True if no answer is learned. Blank answers and answers of weight 0 are not learned."""
        return not any(
            message["role"] == "assistant" and message["content"].strip() and "weight" not in message
            for message in self.messages
        )

    @property
    def identity(self) -> str:
        """Contents of the messages before the first answer, joined."""
        roles = [message["role"] for message in self.messages]
        first = roles.index("assistant") if "assistant" in roles else len(roles)
        return "\0".join(message["content"] for message in self.messages[:first])

    def training_texts(self) -> Iterator[str]:
        """Yield the texts to learn a vocabulary from: each answer, and before it the messages up to it, with roles."""
        context = ""
        for message in self.messages:
            context += f"{message['role']}:\n"
            if message["role"] == "assistant":
                yield from (context, message["content"])
                context = "\n\n"
            else:
                context += f"{message['content']}\n\n"


ConversationSource = ExampleSource[Conversation]


class DatasetConversations(DatasetExamples[Conversation]):
    """Conversations of a dataset in another package."""

    example_name: ClassVar[str] = EXAMPLE_NAME


@dataclass(frozen=True, kw_only=True)
class ConversationFile(ExampleFile):
    """Conversations in the JSONL, CSV or TSV file `path`.

    The other fields are those of `ConversationsSpec`; `errors` is that of `read_text`.
    """

    example_name: ClassVar[str] = EXAMPLE_NAME
    plural: ClassVar[str] = "conversations"
    line: ClassVar[str] = '{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}'
    messages_field: str = MESSAGES_FIELDS[0]
    prompt_field: str = EXCHANGE_FIELDS[0]
    response_field: str = EXCHANGE_FIELDS[1]

    def examples(self) -> Iterator[Conversation]:
        """Yield every conversation, including those without an answer.

        Raises:
            UserError: If the file cannot be read, or a line has no messages.
        """
        self._check()
        if uncompressed_suffix(self.path) == ".jsonl":
            for location, values in read_objects(self.path, self.encoding, self.errors, [self.messages_field]):
                yield self.read_object(values, location)
        else:
            required_fields = {self.prompt_field: "data.prompt_field", self.response_field: "data.response_field"}
            for location, row in read_table(
                read_lines(self.path, self.encoding, self.errors), str(self.path), required_fields
            ):
                yield Conversation(_exchange(row[self.prompt_field], row[self.response_field]), location)

    def read_object(self, values: dict[str, object], location: str) -> Conversation:
        """Return the conversation in an object of JSONL.

        Args:
            values: The object.
            location: Location of the object in messages.

        Raises:
            UserError: If it has no messages, or an invalid one.
        """
        return Conversation(self._read_messages(values, location), location)

    def _read_messages(self, values: dict[str, object], location: str) -> tuple[dict[str, str], ...]:
        """Return the messages of an object, or its prompt and response as messages.

        A prompt and response are read if their field names were set and both exist, or if there are no messages.
        """
        exchange_fields, has_custom_fields = (
            (self.prompt_field, self.response_field),
            (self.prompt_field, self.response_field) != EXCHANGE_FIELDS,
        )
        if has_custom_fields and values.keys() >= {*exchange_fields}:
            return self._read_exchange(values, location)
        keys = MESSAGES_FIELDS if self.messages_field == MESSAGES_FIELDS[0] else (self.messages_field,)
        if (key := next((key for key in keys if key in values), None)) is not None:
            _check_unread(values, UNREAD_OF_OBJECT, location)
            return _read_messages(values[key], location)
        if not has_custom_fields and values.keys().isdisjoint(exchange_fields):
            settings = "data.messages_field, or data.prompt_field and data.response_field"
            check_field(values, self.messages_field, location, settings)  # raises with the nearest name
        return self._read_exchange(values, location)

    def _read_exchange(self, values: dict[str, object], location: str) -> tuple[dict[str, str], ...]:
        prompt = get_text(values, self.prompt_field, location, "data.prompt_field")
        return _exchange(prompt, get_text(values, self.response_field, location, "data.response_field"))


def find_conversations(spec: ConversationsSpec, source: Source | None = None) -> ConversationSource:
    """Return the conversations that `spec` describes, or those of another source with the same settings."""
    source = spec.source if source is None else source
    path = Path(str(source)) if isinstance(source, CustomDataset) else find_path(source)
    file = ConversationFile(path=path, encoding=spec.encoding, **spec.fields)
    return DatasetConversations(dataset=source, read=file.read_object) if isinstance(source, CustomDataset) else file


def _exchange(prompt: str, response: str) -> tuple[dict[str, str], ...]:
    return {"role": "user", "content": prompt}, {"role": "assistant", "content": response}


def _read_messages(value: object, location: str) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{location}: its messages are {show(value)[:80]}; write a list of one or more messages")
    return tuple(
        _read_message(message, f"{location}: message {number}")
        for number, message in enumerate(cast("list[object]", value), 1)
    )


def _read_message(value: object, location: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise UserError(f'{location} is not an object; write {{"role": "user", "content": ...}}')
    message = cast("dict[str, object]", value)
    if "role" not in message and "from" in message:
        role, content, known_roles = message["from"], message.get("value"), (*SHAREGPT, *ROLES)
        role = SHAREGPT.get(role, role) if isinstance(role, str) else role
    else:
        role, content, known_roles = message.get("role"), message.get("content"), ROLES
    if not isinstance(role, str) or role not in ROLES:
        guess = suggest(role, known_roles) if isinstance(role, str) else f"; known: {', '.join(known_roles)}"
        raise UserError(f"{location} has the role {show(role)[:80]}{guess}")
    if not isinstance(content, str):
        raise UserError(f"{location} has {show(content)[:80]} as its content; write a text")
    _check_unread(message, UNREAD_OF_MESSAGE, location)
    weight = message.get("weight", 1)
    if weight not in (0, 1, None):
        raise UserError(f"{location} has the weight {show(weight)[:80]}; it must be 0 (not learned) or 1")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise UserError(f"{location}: the text has half a surrogate pair (\\ud800...); remove it") from None
    return {"role": role, "content": content, **({"weight": "0"} if weight == 0 else {})}


def _check_unread(values: Mapping[str, object], keys: tuple[str, ...], location: str) -> None:
    if unread := [key for key in keys if values.get(key)]:
        raise UserError(
            f"{location} has {unread[0]!r}, which is not learned; remove it, or write it into the content of a message"
        )
