"""Formatting of conversations as text and as ids, with the chat template of a model.

A template (Jinja, as rendered by the `transformers` library) is a program of the model's author. `template_worker` runs
it in a sandbox, in a separate process with limited time and memory. The process is restarted if it exceeds a limit.
A special token is only recognized in the text of the template itself: its name in a message is ordinary text.
"""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import finalize

from tercet.config import UserError
from tercet.limits import MAX_PROMPT_BYTES, MAX_TEMPLATE_MEMORY, TEMPLATE_SECONDS
from tercet.messages import shorten
from tercet.tokens.library import check_unicode, prefixes_start_only
from tercet.tokens.tokenizer import Tokenizer

MISSING = "a model with a chat template needs jinja2: pip install 'tercet[serve]'"
WORKER = Path(__file__).with_name("template_worker.py")
MARK = "\ud800"  # half of a surrogate pair, which no valid text contains
# White space as defined by the tokenizers library; Python's definition has four additional separators.
WHITE_SPACE = "".join(chr(code) for code in range(0x3001) if chr(code).isspace() and not 0x1C <= code <= 0x1F)
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:\n{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)


def plain_template(tokenizer: Tokenizer) -> str:
    """Return a template for a model that has none: it writes role names, and eos after each answer.

    Raises:
        UserError: If the tokenizer has no eos.
    """
    if tokenizer.eos_id is None:
        raise UserError(
            f"the tokenizer ({tokenizer.kind}) has no eos token, and the model has no chat template; "
            "set data.chat_template, or train with a tokenizer that has eos: true"
        )
    return ("{{ bos_token }}" if tokenizer.opening else "") + PLAIN_TEMPLATE


class ChatTemplate:
    """A chat template with the tokenizer of its model.

    Raises:
        UserError: If jinja2 is not installed, the template cannot be read, or a special token only matches whole words.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        if importlib.util.find_spec("jinja2") is None:
            raise UserError(MISSING)
        self._renderer = _Renderer(source)
        try:
            self._renderer.start()
        except ValueError as error:
            raise UserError(f"the chat template cannot be read ({error}); restore the model's own") from None
        self._tokenizer = tokenizer
        self._special = {tokenizer.tokens([token])[0]: token for token in sorted(tokenizer.special_ids)}
        self._special.pop("", None)
        self._starts_only = tokenizer.adds_prefix and prefixes_start_only(json.loads(tokenizer.to_json()))
        tokens = tokenizer.special_tokens
        if whole := [name for name, number in self._special.items() if number in tokens and tokens[number].single_word]:
            raise UserError(
                f"the special token {whole[0]!r} only matches whole words (single_word), which Tercet does not support"
            )

    def encode(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of the prompt for an answer to the last message.

        Args:
            messages: The conversation; each message has a "role" and a "content".

        Raises:
            UserError: If the template rejects the messages or writes no text, or a text cannot be encoded.
        """
        ids = self._encode(self.render(self._mark(messages)))
        if not ids:
            raise UserError("the chat template gives an empty text for these messages; send a message with text")
        return ids

    def encode_conversation(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], list[bool]]:
        """Return the ids of a conversation up to its last answer, and True for the ids that belong to answers.

        An answer is the text that the template adds to the prompt for it, including the token that ends the turn. Text
        after that token, such as a line break, is not part of it. Each answer is encoded separately, since a generated
        answer also starts with a new token. A message with `weight` "0" is not counted as an answer, only as context.

        Raises:
            UserError: If the template does not write an answer after the unchanged prompt for it, or rejects the
                messages, or a text cannot be encoded.
        """
        marked_messages = self._mark(messages)
        ids, answers, text = list[int](), list[bool](), ""
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = self.render(marked_messages[:number])
            whole = self.render(marked_messages[: number + 1], generation_prompt=False)
            if not (prompt.startswith(text) and whole.startswith(prompt)):
                raise UserError(
                    f"the chat template writes message {number + 1}, an answer, differently from the prompt for it, "
                    "so the text would never be generated; set data.chat_template to one that only appends text"
                )
            question = self._encode(prompt[len(text) :], continued=text != "")
            answer = self._encode(whole[len(prompt) :], continued=prompt != "")
            ids += question + answer
            ends = [place for place, token in enumerate(answer, 1) if token in self._tokenizer.special_ids]
            n_learned = 0 if message.get("weight") == "0" else ends[-1] if ends else len(answer)
            answers += [False] * len(question) + [place < n_learned for place in range(len(answer))]
            text = whole
        return ids, answers

    def render(self, messages: Sequence[Mapping[str, str]], *, generation_prompt: bool = True) -> str:
        """Return the conversation as text.

        Args:
            messages: The conversation.
            generation_prompt: If True, the text ends with the start of the next answer.

        Raises:
            UserError: If the template rejects the messages or exceeds a limit.
        """
        tokenizer = self._tokenizer
        names = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
        token_names = {name: "" if token is None else tokenizer.tokens([token])[0] for name, token in names.items()}
        try:
            return self._renderer.render(
                {"messages": messages, "add_generation_prompt": generation_prompt, "tools": None, **token_names}
            )
        except ValueError as error:
            raise UserError(f"the model's chat template rejects these messages: {error}") from None

    def _mark(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        return [{key: self._escape(value) for key, value in message.items() if key != "weight"} for message in messages]

    def _encode(self, text: str, *, continued: bool = False) -> list[int]:
        """Return the ids of a rendered text. If `continued` is True, it follows another part of the conversation."""
        ids, pieces = list[int](), self._pieces(text)
        for previous_piece, piece, next_piece in zip(["", *pieces], pieces, [*pieces[1:], ""], strict=False):
            token = self._special.get(piece)
            if token is not None:
                ids.append(token)
            elif piece := self._strip(previous_piece, piece, next_piece):
                is_inside = self._starts_only and (continued or bool(ids))
                ids += self._tokenizer.encode_batch([piece.replace(MARK, "")], continued=[is_inside])[0].tolist()
        return ids

    def _strip(self, previous_piece: str, text: str, next_piece: str) -> str:
        """Remove the white space that an adjacent special token absorbs (rstrip, lstrip)."""
        special_tokens = self._tokenizer.special_tokens
        if (token := special_tokens.get(self._special.get(previous_piece, -1))) is not None and token.rstrip:
            text = text.lstrip(WHITE_SPACE)
        if (token := special_tokens.get(self._special.get(next_piece, -1))) is not None and token.lstrip:
            text = text.rstrip(WHITE_SPACE)
        return text

    def _pieces(self, text: str) -> list[str]:
        if not self._special:
            return [text]
        longest_first = sorted(self._special, key=len, reverse=True)
        pieces = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
        return [piece for piece in pieces if piece]

    def _escape(self, text: str) -> str:
        """Insert a mark into every name of a special token in a message, so that it remains text."""
        check_unicode(text)
        for name in self._special:
            text = text.replace(name, name[:1] + MARK + name[1:])
        return text


class _Renderer:
    """The process that renders a template, one conversation at a time."""

    def __init__(self, source: str) -> None:
        self._source, self._lock = source, Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. Raises ValueError if the template cannot be read."""
        with self._lock:
            self._start()

    def render(self, names: Mapping[str, Any]) -> str:
        """Render the template. Raises ValueError for errors of the template and exceeded limits."""
        with self._lock:
            if self._process is None:
                self._start()
            return self._request(names)

    def _start(self) -> None:
        bounds = map(str, (TEMPLATE_SECONDS, MAX_TEMPLATE_MEMORY, MAX_PROMPT_BYTES))
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), *bounds],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._end = finalize(self, _end, self._process)
        self._request({"source": self._source})

    def _request(self, request: Mapping[str, Any]) -> str:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        line = b""
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
        except BaseException:  # Ctrl-C: a pending answer would be taken for the next one
            self._process = None
            self._end()
            raise
        if not line.endswith(b"\n"):  # the process has ended
            self._process = None
            self._end()
            megabytes = MAX_TEMPLATE_MEMORY >> 20
            raise ValueError(f"it takes more than {TEMPLATE_SECONDS} seconds or {megabytes} MiB")
        answer: dict[str, str] = json.loads(line)
        if "error" in answer:
            raise ValueError(shorten(answer["error"]))
        return answer["text"]


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    with suppress(OSError):
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
    process.wait()
