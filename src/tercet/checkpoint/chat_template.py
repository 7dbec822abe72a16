"""How a conversation becomes one text: a template (Jinja) that a model folder may carry beside its tokenizer.

chat_template.jinja      the template alone, as we keep it, and transformers since version 5
tokenizer_config.json    the key chat_template, as older folders have it

It is kept, passed on and never run here: a template is a program of the model's maker.
"""

import json
from pathlib import Path
from typing import Any, cast

from tercet.config import UserError
from tercet.storage import write_atomically

FILE = "chat_template.jinja"
USUAL = "default"  # the name, where a folder has a list of several
MOST_BYTES = 1 << 20  # the longest in use have a few thousand


def read_chat_template(folder: Path) -> str | None:
    """The folder's template; None where it has none.

    Raises:
        UserError: where it cannot be read as a template.
    """
    path = folder / FILE
    if path.is_file():
        return _text(path)
    settings = folder / "tokenizer_config.json"
    if not settings.is_file():
        return None
    try:
        data = json.loads(settings.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{settings} is not valid JSON ({error}); put back the file that was saved") from None
    return _template_in(data.get("chat_template"), settings) if isinstance(data, dict) else None


def write_chat_template(folder: Path, template: str) -> None:
    """Write the template."""
    write_atomically(folder / FILE, template.encode())


def _text(path: Path) -> str:
    if path.stat().st_size > MOST_BYTES:
        raise UserError(
            f"{path} has more than {MOST_BYTES} bytes, which no template needs; remove it, or copy it again"
        )
    try:
        return path.read_bytes().decode()  # its line ends are part of it
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"cannot read {path}: {reason}; copy it again, or remove it") from None


def _template_in(settings: Any, path: Path) -> str | None:
    """A template stands there as its text, or in a list of several with their names."""
    template = settings
    if isinstance(settings, list):
        named = [entry for entry in cast("list[Any]", settings) if isinstance(entry, dict)]
        template = next((entry.get("template") for entry in named if entry.get("name") == USUAL), None)
    if template is not None and not isinstance(template, str):
        raise UserError(f"{path} has a chat_template that is no text; put back the file that was saved")
    return template
