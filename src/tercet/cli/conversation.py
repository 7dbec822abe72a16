"""A conversation as it is typed: messages, and commands that begin with a slash; and their answers."""

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
    "reset": "begin anew; what --system says stays",
    "undo": "take the last message and its answer back",
    "save": "FILE: add the conversation to it as a line that `tercet train finetune-chat --data FILE` reads",
    "help": "these lines",
    "quit": "end, as Ctrl-D does",
}
COMMAND_WITH_ARGUMENT = "save"


@dataclass(frozen=True)
class ChatCommand:
    """A word of `COMMANDS`, and what stands behind it."""

    name: str
    argument: str = ""


def parse_line(line: str) -> ChatCommand | str:
    """A command, or a message; of two slashes at its beginning one is left out. Empty for a line of spaces.

    Raises:
        UserError: for a command that there is none, or with something behind it that it does not take.
    """
    if line.startswith("//"):
        return line[1:]
    if not line.startswith("/"):
        return line if line.strip() else ""
    name, _, argument = line[1:].strip().partition(" ")
    argument = argument.strip()
    if name not in COMMANDS:
        raise UserError(
            f"there is no command {show('/' + name)}; /help lists them, and // begins a message with a slash"
        )
    if name == COMMAND_WITH_ARGUMENT and not argument:
        raise UserError(f"/{name} needs a file: /{name} chat.jsonl")
    if name != COMMAND_WITH_ARGUMENT and argument:
        raise UserError(f"/{name} stands alone; leave {show(argument)} out")
    return ChatCommand(name, argument)


@dataclass
class ChatHistory:
    """What was said; `system` before all of it, where there is one."""

    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Back to where nothing was said."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def add(self, role: str, text: str) -> None:
        self.messages.append({"role": role, "content": text})

    def undo(self) -> None:
        """Without the last message of the user, and all behind it.

        Raises:
            UserError: where there is none.
        """
        users = [number for number, message in enumerate(self.messages) if message["role"] == "user"]
        if not users:
            raise UserError("there is nothing to take back: say something first")
        del self.messages[users[-1] :]

    def save(self, path: Path) -> None:
        """Add it to the file, as a line of JSON.

        Raises:
            UserError: where nothing was said, or the file cannot be written.
        """
        if self.messages[-1:] == [] or self.messages[-1]["role"] == "system":
            raise UserError("there is nothing to save: say something first")
        try:
            with path.expanduser().open("a", encoding="utf-8") as file:
                file.write(json.dumps({"messages": self.messages}, ensure_ascii=False) + "\n")
        except (OSError, ValueError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"/save {show(str(path))}: cannot write it: {reason}; give another file") from None


class Chat:
    """One conversation with a model.

    Args:
        options: how answers are drawn; the seed is the first one's.

    Attributes:
        interactive: somebody types, who is told of a mistake and goes on; through a pipe it ends the conversation.
    """

    def __init__(self, model: "ChatModel", system: str | None, options: "SamplingOptions", *, as_json: bool) -> None:
        self._model, self._options, self._json = model, options, as_json
        self._conversation = ChatHistory(system)
        self._answers = 0
        self._reported_dropped = False  # that turns are left out
        self.interactive = sys.stdin.isatty()

    def talk(self) -> None:
        """Answer until the input ends, or /quit.

        Raises:
            UserError: for the first mistake, where nobody is there to correct it.
            KeyboardInterrupt: by Ctrl-C where no answer is being written.
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
        """Say `text`, and print the answer; where Ctrl-C stops it, what was written of it was said."""
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
            print_note("\ntercet: stopped; Ctrl-C once more ends the conversation")
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
            reason = f"tercet: the conversation is longer than the {self._model.max_len:,} tokens that the model sees"
            print_note(f"{reason}: its oldest turns are left out from now on")


def _typed_lines(shows_prompt: bool) -> Iterator[str]:
    """What is typed, until Ctrl-D; with the editing and history of `readline` where the prompt is on stdout."""
    if shows_prompt:
        with suppress(ImportError):  # there is none on Windows
            importlib.import_module("readline")  # by which input() edits lines, once it is there
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
