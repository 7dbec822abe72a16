"""A chat conversation: messages, slash commands and streamed answers."""

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.lines import read_lines
from tercet.config import UserError
from tercet.messages import print_note, show

if TYPE_CHECKING:
    from tercet.generation import ChatModel, ChatPrompt
    from tercet.generation.specs import SamplingOptions

PROMPT = "> "

COMMANDS = {
    "reset": "start a new conversation; the system message stays",
    "undo": "remove your last message and its answer",
    "save": "FILE: append the conversation as a line that `tercet train finetune-chat --data FILE` reads",
    "help": "list the commands",
    "quit": "quit, like Ctrl-D",
}
COMMAND_WITH_ARGUMENT = "save"


@dataclass(frozen=True)
class ChatCommand:
    """A slash command.

    Attributes:
        name: Key of `COMMANDS`.
        argument: Text after the name; "" if there is none.
    """

    name: str
    argument: str = ""


def parse_line(line: str) -> ChatCommand | str:
    """Return the command or message on a line.

    A line that begins with one slash is a command. A message that begins with a slash is written with two of them, and
    returned with one. A blank line is the message "".

    Raises:
        UserError: If the command is unknown, or its argument is missing or not allowed.
    """
    if line.startswith("//"):
        return line[1:]
    if not line.startswith("/"):
        return line if line.strip() else ""
    name, _, argument = line[1:].strip().partition(" ")
    argument = argument.strip()
    if name not in COMMANDS:
        raise UserError(
            f"unknown command {show('/' + name)}; /help lists commands, and // starts a message with a slash"
        )
    if name == COMMAND_WITH_ARGUMENT and not argument:
        raise UserError(f"/{name} requires a file, such as /{name} chat.jsonl")
    if name != COMMAND_WITH_ARGUMENT and argument:
        raise UserError(f"/{name} takes no argument; leave {show(argument)} out")
    return ChatCommand(name, argument)


@dataclass
class ChatHistory:
    """The messages of a conversation.

    Attributes:
        system: System message, or None.
        messages: All messages as dicts with "role" and "content", in order; a system message is the first.
    """

    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Remove all messages except the system message."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def add(self, role: str, text: str) -> None:
        self.messages.append({"role": role, "content": text})

    def undo(self) -> None:
        """Remove the last message of the user and everything after it.

        Raises:
            UserError: If there is no message of the user.
        """
        users = [number for number, message in enumerate(self.messages) if message["role"] == "user"]
        if not users:
            raise UserError("there is no message to remove; write one first")
        del self.messages[users[-1] :]

    def save(self, path: Path) -> None:
        """Append the conversation to a file, as one line of JSON.

        Raises:
            UserError: If there are no messages except the system message, or the file cannot be written.
        """
        if self.messages[-1:] == [] or self.messages[-1]["role"] == "system":
            raise UserError("there is nothing to save; write a message first")
        try:
            with path.expanduser().open("a", encoding="utf-8") as file:
                file.write(json.dumps({"messages": self.messages}, ensure_ascii=False) + "\n")
        except (OSError, ValueError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"/save {show(str(path))}: cannot write it: {reason}; choose another file") from None


class Chat:
    """One conversation with a model.

    Args:
        model: Chat model that answers.
        system: System message, or None.
        options: Settings of `Sampling`. `seed` is the seed of the first answer; each further answer adds 1.
        as_json: If True, print each answer as one JSON object when it is complete; otherwise stream its text.

    Attributes:
        interactive: True if the input comes from a terminal. Errors then do not end the conversation.
    """

    def __init__(self, model: "ChatModel", system: str | None, options: "SamplingOptions", *, as_json: bool) -> None:
        self._model, self._options, self._json = model, options, as_json
        self._conversation = ChatHistory(system)
        self._answers = 0
        self._reported_dropped = False
        self.interactive = sys.stdin.isatty()

    def talk(self) -> None:
        """Read lines and answer them until the input ends or contains /quit.

        Raises:
            UserError: If the conversation is not interactive, and a line is invalid or cannot be answered.
            KeyboardInterrupt: If Ctrl-C is pressed, unless it stops an answer of an interactive conversation.
        """
        for line in _typed_lines(sys.stdout.isatty() and not self._json) if self.interactive else _piped_lines():
            try:
                message = parse_line(line)
                if isinstance(message, ChatCommand):
                    if message.name == "quit":
                        return
                    self._obey(message)
                elif message:
                    self._answer(message)
            except UserError as error:
                if not self.interactive:
                    raise
                print_note(f"tercet: error: {error}")

    def _obey(self, command: ChatCommand) -> None:
        match command.name:
            case "reset":
                self._conversation.reset()
                self._reported_dropped = False
            case "undo":
                self._conversation.undo()
            case "save":
                self._conversation.save(Path(command.argument))
            case _:
                print_note("\n".join(f"/{name:<6} {description}" for name, description in COMMANDS.items()))

    def _answer(self, text: str) -> None:
        """Add the message `text` and its answer to the conversation, and print the answer.

        If Ctrl-C stops the answer of an interactive conversation, the partial answer is kept. If there is none yet, or
        after an error, the message is removed.
        """
        options: Any = {**self._options, "seed": (self._options.get("seed", 0) + self._answers) % 2**63}
        self._conversation.add("user", text)
        partial_answer = ""
        try:
            prompt, answer = self._model.ask(self._conversation.messages, options)
            self._tell_dropped(prompt)
            for piece in answer:
                partial_answer += piece
                if not self._json:
                    print(piece, end="", flush=True)
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            print_note("\ntercet: stopped; press Ctrl-C again to quit")
            if partial_answer:
                self._conversation.add("assistant", partial_answer)
            else:
                self._conversation.undo()
            return
        except BaseException:
            self._conversation.undo()
            raise
        self._answers += 1
        self._conversation.add("assistant", answer.text)
        fields = {"prompt": text, "text": answer.text, "finish": answer.finish, "tokens": answer.n_tokens}
        fields |= {"seed": options["seed"], "dropped": prompt.dropped}
        print(json.dumps(fields, ensure_ascii=False) if self._json else "", flush=True)

    def _tell_dropped(self, prompt: "ChatPrompt") -> None:
        if prompt.dropped and not self._reported_dropped:
            self._reported_dropped = True
            reason = f"tercet: the conversation is longer than the context of {self._model.max_len:,} tokens"
            print_note(f"{reason}; its oldest turns are left out")


def _typed_lines(shows_prompt: bool) -> Iterator[str]:
    """Yield the lines that are typed on a terminal until Ctrl-D.

    Args:
        shows_prompt: If True, show the prompt on stdout and use `readline` for editing and history. Otherwise stdout
            contains only answers, and the prompt is shown on stderr.
    """
    if shows_prompt:
        with suppress(ImportError):  # not available on Windows
            importlib.import_module("readline")  # input() uses it if it is imported
    while True:
        try:
            if shows_prompt:
                yield input(PROMPT)
                continue
            print_note(PROMPT, end="")
            line = sys.stdin.readline()
            if not line:
                return
            yield line.rstrip("\n")
        except EOFError:
            print()
            return


def _piped_lines() -> Iterator[str]:
    return read_lines(sys.stdin.buffer, "stdin")
