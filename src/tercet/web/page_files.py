"""The files of a page: those that stand in its package's folder `page`, those that all pages share, and no others."""

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
    """The text of each file of the page that `package` has, by its name; read once, for every request asks for one."""
    paths = [file for name in (SHARED_PACKAGE, package) for file in files(name).joinpath("page").iterdir()]
    texts = {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(paths, key=lambda file: file.name)
        if type_of(file.name) is not None
    }
    return MappingProxyType(texts)


def check_page(path: Path, flag: str) -> None:
    """UserError where no page can be written there: told before the work."""
    if path.is_dir():
        raise UserError(f"{flag} {path} is a folder; give the name of a file, such as {path / 'page.html'}")
    if not path.parent.is_dir():
        raise UserError(f"{flag} {path}: there is no folder {path.parent}; make it first")


def hash_of(text: str) -> str:
    """The hash by which a page's policy lets a style or a script in it through: sha256, as base64."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def type_of(name: str) -> str | None:
    """The media type of a file of a page; None where it can be none."""
    return next((kind for suffix, kind in TYPES.items() if name.endswith(suffix)), None)


def policy(document: str) -> str:
    """What a browser may do with a page: load from where it came from, ask there, and run no script written in it."""
    import_map = IMPORT_MAP.search(document)
    sha = f" '{hash_of(import_map[0])}'" if import_map else ""
    return (
        f"default-src 'self'; script-src 'self'{sha}; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
