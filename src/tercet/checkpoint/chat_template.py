"""Files of a model's chat template (Jinja), which turns a conversation into a text.

chat_template.jinja      the template as a file, written by Tercet and by newer versions of transformers
tokenizer_config.json    the key chat_template, in older folders

This module only reads and writes the template. It never runs it, since a template is a program by the model's author.
"""

from pathlib import Path
from typing import Any, cast

from tercet.config import UserError
from tercet.limits import MAX_TEMPLATE_BYTES
from tercet.reading.bounded_json import read_json_file
from tercet.reading.files import read_text_file
from tercet.storage import write_atomically

FILE = "chat_template.jinja"
DEFAULT_NAME = "default"  # name of the template that is read if a folder has several


def read_chat_template(folder: Path) -> str | None:
    """Read a folder's chat template; None if it has none.

    Raises:
        UserError: If a file cannot be read, or the template is not a text or is too long.
    """
    path = folder / FILE
    if path.is_file():
        return read_text_file(path, MAX_TEMPLATE_BYTES)
    settings = folder / "tokenizer_config.json"
    if not settings.is_file():
        return None
    return _find_template(read_json_file(settings).get("chat_template"), settings)


def write_chat_template(folder: Path, template: str) -> None:
    """Write a chat template to `chat_template.jinja` in `folder`. Raises like `write_atomically`."""
    write_atomically(folder / FILE, template.encode())


def _find_template(settings: Any, path: Path) -> str | None:
    """Return the template in the key chat_template: its text, or the default one in a list of named templates."""
    template = settings
    if isinstance(settings, list):
        entries = [entry for entry in cast("list[Any]", settings) if isinstance(entry, dict)]
        template = next((entry.get("template") for entry in entries if entry.get("name") == DEFAULT_NAME), None)
    if template is not None and not isinstance(template, str):
        raise UserError(f"{path} has a chat_template that is not a text; put back the file that was saved")
    if template is not None and len(template) > MAX_TEMPLATE_BYTES:
        raise UserError(f"{path} has a chat_template of {len(template)} characters, which is too long; remove it")
    return template
