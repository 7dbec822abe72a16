"""The page's files: the few that stand in the folder `page`, and no others."""

import base64
import hashlib
import re
from importlib.resources import files

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
IMPORT_MAP = re.compile(r'(?<=<script type="importmap">).*?(?=</script>)', re.DOTALL)


def page_files() -> dict[str, str]:
    """The text of each file, by its name."""
    folder = files("tercet.explorer").joinpath("page")
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if type_of(file.name) is not None
    }


def type_of(name: str) -> str | None:
    """The media type of a file of the page; None where it can be none."""
    return next((kind for suffix, kind in TYPES.items() if name.endswith(suffix)), None)


def policy(index: str) -> str:
    """What a browser may do with the page: load from where it came from, ask there, and run no script written in it."""
    import_map = IMPORT_MAP.search(index)
    sha = f" 'sha256-{_hash(import_map[0])}'" if import_map else ""
    return (
        f"default-src 'self'; script-src 'self'{sha}; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
