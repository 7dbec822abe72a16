"""Files of a page: the folder `page` of its package, and the files that all pages share."""

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from tercet.config import UserError

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
IMPORT_MAP = re.compile(r'(?<=<script type="importmap">).*?(?=</script>)', re.DOTALL)
SHARED_PACKAGE = "tercet.web"


@cache
def read_page_files(package: str) -> Mapping[str, str]:
    """Return the text of each file of a package's page by name; cached, because each request reads it."""
    paths = [file for name in (SHARED_PACKAGE, package) for file in files(name).joinpath("page").iterdir()]
    texts = {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(paths, key=lambda file: file.name)
        if type_of(file.name) is not None
    }
    return MappingProxyType(texts)


def check_page(path: Path, flag: str) -> None:
    """Raise UserError if no page can be written to `path`, before any work is done."""
    if path.is_dir():
        raise UserError(f"{flag} {path} is a folder; pass a file name, such as {path / 'page.html'}")
    if not path.parent.is_dir():
        raise UserError(f"{flag} {path}: no such folder: {path.parent}; create it first")


def hash_of(text: str) -> str:
    """Return the hash that allows a style or script in a page's policy: base64 of its SHA-256."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def type_of(name: str) -> str | None:
    """Return the media type of a page's file; None for other files."""
    return next((kind for suffix, kind in TYPES.items() if name.endswith(suffix)), None)


def policy(document: str) -> str:
    """Return a page's content security policy: only its own origin, and no inline scripts."""
    import_map = IMPORT_MAP.search(document)
    sha = f" '{hash_of(import_map[0])}'" if import_map else ""
    return (
        f"default-src 'self'; script-src 'self'{sha}; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
