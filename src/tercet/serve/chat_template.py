"""A conversation as one text, by the template that a model was trained with, and that text as ids.

A template is a program of the model's maker (Jinja, as the `transformers` library renders it), so it runs in a sandbox.
The special tokens in it are its own: what a person writes is text, even where it spells one of them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tercet.config import UserError
from tercet.tokens import Tokenizer

MISSING = "a model with a chat template needs jinja2: pip install 'tercet[serve]'"
PRIVATE_USE = range(0xE000, 0xF8FF)  # characters without a meaning of their own


class ChatTemplate:
    """Raises UserError where the template cannot be read."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        try:
            import jinja2
            from jinja2.ext import loopcontrols
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ModuleNotFoundError:
            raise UserError(MISSING) from None
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        self._errors = jinja2.TemplateError
        try:
            self._template = environment.from_string(
                source, {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
            )
        except jinja2.TemplateError as error:
            raise UserError(f"the chat template cannot be read ({error}); put back the one of the model") from None
        self._tokenizer = tokenizer
        self._special = {tokenizer.tokens([token])[0]: token for token in sorted(tokenizer.special_ids)}
        self._special.pop("", None)

    def encode(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids that a model goes on from to answer the last message.

        Raises:
            UserError: where the template refuses the messages, or a text cannot be encoded.
        """
        mark = _unused_character(messages)
        marked = [{key: self._as_text(value, mark) for key, value in message.items()} for message in messages]
        ids = list[int]()
        for piece in self._pieces(self.render(marked)):
            token = self._special.get(piece)
            ids += self._tokenizer.encode(piece.replace(mark, "")) if token is None else [token]
        if not ids:
            raise UserError("the chat template makes nothing of these messages; send one with some text")
        return ids

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The conversation as text, up to where the answer begins."""
        tokenizer = self._tokenizer
        names = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
        token_names = {name: "" if token is None else tokenizer.tokens([token])[0] for name, token in names.items()}
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, tools=None, **token_names)
        except (self._errors, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise UserError(f"the model's chat template refuses these messages: {error}") from None

    def _pieces(self, text: str) -> list[str]:
        if not self._special:
            return [text]
        longest_first = sorted(self._special, key=len, reverse=True)
        cut = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
        return [piece for piece in cut if piece]

    def _as_text(self, text: str, mark: str) -> str:
        """What a person wrote, with a mark inside everything that would be read as a special token."""
        for name in self._special:
            text = text.replace(name, name[:1] + mark + name[1:])
        return text


def _unused_character(messages: Sequence[Mapping[str, str]]) -> str:
    used = {character for message in messages for text in message.values() for character in text}
    return next(chr(code) for code in PRIVATE_USE if chr(code) not in used)


def _raise_exception(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """Without the escapes for HTML that Jinja's own filter writes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
