"""Files of web pages: those in the folder `page` of a package, and those that all pages share."""

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
IMPORT_MAP = re.compile(r'(?<=<script type="importmap">).*?(?=</script>)', re.DOTALL)
SHARED_PACKAGE = "tercet.web"


@cache
def read_page_files(package: str) -> Mapping[str, str]:
    """Return the text of each file of a page by name, including the shared files.

    The texts are cached, because each request needs them.

    Args:
        package: Package with the folder `page`, such as "tercet.explorer".
    """
    paths = [file for name in (SHARED_PACKAGE, package) for file in files(name).joinpath("page").iterdir()]
    texts = {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(paths, key=lambda file: file.name)
        if type_of(file.name) is not None
    }
    return MappingProxyType(texts)


def hash_of(text: str) -> str:
    """Return the source expression by which a content security policy allows an inline style or script.

    It is "sha256-" and the SHA-256 hash of the text in base64, without the quotes that the policy requires.
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def type_of(name: str) -> str | None:
    """Return the media type of a page's file by its suffix; None for other files."""
    return next((kind for suffix, kind in TYPES.items() if name.endswith(suffix)), None)


def policy(document: str) -> str:
    """Return the content security policy of an HTML document.

    It allows only files of the page's own origin and images in data: and blob: URLs, and no inline scripts except the
    import map in `document`.
    """
    import_map = IMPORT_MAP.search(document)
    sha = f" '{hash_of(import_map[0])}'" if import_map else ""
    return (
        f"default-src 'self'; script-src 'self'{sha}; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
