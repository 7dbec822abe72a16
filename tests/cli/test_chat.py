"""`tercet chat` on a tiny model with random weights: through a pipe, on a terminal, and with invalid arguments."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest
import torch
from forked_program import start_forked
from hypothesis import given
from hypothesis import strategies as st

import tercet
from tercet.checkpoint import Card, save_model
from tercet.cli.conversation import COMMANDS, ChatCommand, ChatHistory, parse_line
from tercet.cli.main import main
from tercet.config import UserError
from tercet.models import build
from tercet.models.presets import model_spec
from tercet.tokens import Characters, Tokenizer
from tercet.tokens.chat_template import plain_template

ALPHABET = "abcdefghijklmnopqrstuvwxyz :\n/?"
MAX_LEN = 96
LIMIT = ["--max-new-tokens", "8"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model with a chat template (`chat`), one without (`plain`), and an encoder."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(3)
    tokenizer = Tokenizer.train(Characters(eos=True, pad=True, mask=True, bos=True), [ALPHABET])
    sizes = {"vocab_size": tokenizer.vocab_size, "stack": {"d_model": 24, "n_layers": 1, "n_heads": 3}}
    decoder = build(model_spec({"preset": "gpt2", "max_len": MAX_LEN, **sizes}, name="model"))
    save_model(folder / "chat", decoder, tokenizer, Card(), chat_template=plain_template(tokenizer))
    save_model(folder / "plain", decoder, tokenizer, Card())
    encoder = build(model_spec({"preset": "bert-base", "max_len": MAX_LEN, **sizes}, name="model"))
    save_model(folder / "encoder", encoder, tokenizer, Card())
    return folder


def talk(
    model: Path, lines: str, flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    code = main(["chat", str(model), *flags])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
def test_pipe_gets_only_answers(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = talk(models / "chat", "hello\n\n  \nwho are you?\n", LIMIT, monkeypatch, capsys)
    run = tercet.load(models / "chat")
    first = run.chat("hello", max_new_tokens=8)
    history = [("user", "hello"), ("assistant", first), ("user", "who are you?")]
    second = run.chat([{"role": role, "content": text} for role, text in history], max_new_tokens=8, seed=1)
    assert (code, out, err) == (0, f"{first}\n{second}\n", "")


def test_json_has_finish_reason_and_commands_work(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my chat.jsonl"
    lines = f"one\ntwo\n/undo\n/save {path}\n/reset\n//three\n/save {path}\n/quit\nfour\n"
    flags = [*LIMIT, "--json", "--system", "be short", "--seed", "5", "--temperature", "0.5"]
    code, out, _ = talk(models / "chat", lines, flags, monkeypatch, capsys)
    assert code == 0
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["prompt"] for answer in answers] == ["one", "two", "/three"]
    assert [answer["seed"] for answer in answers] == [5, 6, 7]
    assert all(answer["tokens"] <= 8 and answer["finish"] in ("eos", "length") for answer in answers)
    saved_chats = [json.loads(line)["messages"] for line in path.read_text().splitlines()]
    system = {"role": "system", "content": "be short"}
    assert saved_chats == [
        [system, {"role": "user", "content": requests["prompt"]}, {"role": "assistant", "content": requests["text"]}]
        for requests in (answers[0], answers[2])
    ]


@pytest.mark.slow
def test_oldest_turns_are_dropped_with_one_note(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*LIMIT, "--json", "--system", "be short"]
    code, out, err = talk(models / "chat", "how are you today?\n" * 4, flags, monkeypatch, capsys)
    dropped = [json.loads(line)["dropped"] for line in out.splitlines()]
    assert code == 0
    assert dropped == [0, 2, 4, 6] or dropped == [0, 0, 2, 4]  # the system message is never dropped
    assert err.count("its oldest turns are left out") == 1
    assert f"longer than the context of {MAX_LEN} tokens" in err


@pytest.mark.parametrize(
    ("model", "lines", "flags", "message"),
    [
        ("plain", "", [], r"a language model without a chat template; use `tercet generate \S+plain`, or train"),
        ("encoder", "", [], r"a masked language model, which cannot generate text; use `tercet fill \S+encoder`"),
        ("chat", "/nosuch\n", [], r"unknown command '/nosuch'; /help lists commands"),
        ("chat", "/undo\n", [], r"there is no message to remove"),
        ("chat", "/save\n", [], r"/save requires a file"),
        ("chat", "/save x.jsonl\n", [], r"there is nothing to save"),
        ("chat", "a\n/save nosuch/x.jsonl\n", LIMIT, r"/save 'nosuch/x.jsonl': cannot write it: No such file"),
        ("chat", "/quit now\n", [], r"/quit takes no argument; leave 'now' out"),
        ("chat", "a" * MAX_LEN + "\n", [], r"the last message, with its markers .*, has .* tokens, .* shorten one"),
        ("chat", "Ä\n", [], r"vocabulary has no 'Ä'"),
        ("chat", "a\n", ["--stop", ""], r"stop"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    models: Path, model: str, lines: str, flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    code, _, err = talk(models / model, lines, flags, monkeypatch, capsys)
    assert code == 2, err
    assert re.search(message, err), err
    assert err.count("\n") == 1


def test_python_rejects_chat_without_template(models: Path) -> None:
    with pytest.raises(UserError, match="without a chat template"):
        tercet.load(models / "plain").chat("hello")


@pytest.mark.slow
@given(st.text())
def test_any_line_is_command_message_or_error(line: str) -> None:
    try:
        parsed = parse_line(line)
    except UserError:
        assert line.startswith("/")
        assert not line.startswith("//")
        return
    if isinstance(parsed, ChatCommand):
        assert line.startswith("/")
        assert parsed.name in COMMANDS
        assert bool(parsed.argument) == (parsed.name == "save")
    elif line.strip():
        assert parsed == (line[1:] if line.startswith("//") else line)
    else:
        assert parsed == ""


@given(st.sampled_from(sorted(COMMANDS)), st.text("ab /.", max_size=5))
def test_spaces_around_a_command_do_not_matter(name: str, rest: str) -> None:
    try:
        parsed = parse_line(f"/{name} {rest} ")
    except UserError:
        assert bool(rest.strip()) != (name == "save")
        return
    assert parsed == ChatCommand(name, rest.strip())


@given(st.lists(st.sampled_from(["say", "undo", "reset"])), st.sampled_from([None, "be short"]))
def test_conversation_keeps_system_message_before_turns(deeds: list[str], system: str | None) -> None:
    conversation, turns = ChatHistory(system), 0
    for number, deed in enumerate(deeds):
        if deed == "say":
            conversation.add("user", str(number))
            conversation.add("assistant", f"{number} it is")
            turns += 1
        elif deed == "undo" and turns:
            conversation.undo()
            turns -= 1
        elif deed == "reset":
            conversation.reset()
            turns = 0
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["system"] * (system is not None) + ["user", "assistant"] * turns


class Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self, model: Path, *flags: str) -> None:
        self._ours, theirs = pty.openpty()
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
        self.process = start_forked("chat", model, *flags, environment={"TERM": "dumb"}, **streams)
        os.close(theirs)
        self.unread = ""

    def send(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Send SIGINT to the whole foreground process group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def until(self, pattern: str, seconds: float = 90) -> str:
        """Return the output up to a match of the pattern."""
        end, match = time.monotonic() + seconds, None
        while (match := re.search(pattern, self.unread)) is None:
            assert time.monotonic() < end, f"no {pattern!r} in {self.unread!r}"
            if select.select([self._ours], [], [], 1)[0]:
                try:
                    self.unread += os.read(self._ours, 4096).decode(errors="replace")
                except OSError:  # the other end is closed
                    raise AssertionError(f"no {pattern!r} in {self.unread!r}") from None
        matched, self.unread = self.unread[: match.end()], self.unread[match.end() :]
        return matched

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.mark.slow
def test_a_session_on_a_terminal(models: Path) -> None:
    with Terminal(models / "chat", "--max-new-tokens", "1000000") as terminal:
        assert "/help lists commands" in terminal.until("> ")
        terminal.send("/help\n")
        assert "/undo" in terminal.until("/quit.*\r\n> ")
        terminal.send("/nosuch\n")
        terminal.until("tercet: error: unknown command.*\r\n> ")
        terminal.send("hello\n")
        terminal.until("hello\r\n[^>]+")  # the answer is being generated
        terminal.interrupt()
        terminal.until("stopped; press Ctrl-C again to quit\r\n> ")
        terminal.send("/reset\n")
        terminal.until("> ")
        terminal.send("and now?\n")  # the template's separate process has survived the interrupt
        terminal.until("and now\\?\r\n[^>]+")
        terminal.interrupt()
        terminal.until("stopped.*\r\n> ")
        for _ in range(30):  # Python's readline misses a signal between its prompt and its read
            terminal.interrupt()
            with suppress(subprocess.TimeoutExpired):
                terminal.process.wait(2)
                break
        assert terminal.process.wait(0) == 130
        assert "tercet: stopped" in terminal.until("stopped")


@pytest.mark.slow
def test_the_end_of_the_input_ends_a_session(models: Path) -> None:
    with Terminal(models / "chat", *LIMIT) as terminal:
        terminal.until("> ")
        terminal.send("hello\n")
        terminal.until("hello\r\n[^>]*\r\n> ")
        terminal.send("\x04")
        assert terminal.process.wait(60) == 0
