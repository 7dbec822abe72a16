"""Under which names a server may be asked, and by whose pages: the Host and Origin headers of a request.

A page on another site can lead a browser here under a name of its own (DNS rebinding), or simply ask across sites. The
first has a foreign Host, the second a foreign Origin; neither header can be set by a page. An address in digits is no
name that somebody else could point here.
"""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tercet.loopback import host_name, is_loopback

ANY_NAME = "*"
SECURITY_HEADERS = {  # of every answer, unless it says otherwise
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}


@dataclass(frozen=True)
class Rejection:
    """Why a request is not answered, without the remedy; `code` is a word for programs."""

    message: str
    code: Literal["wrong_host", "wrong_origin"]


@dataclass(frozen=True, kw_only=True)
class AllowedNames:
    """Attributes:
    local: only names of this machine's own loopback are its names; else also its host name and addresses in digits.
    hosts: further names, in lower case; "*" is any.
    origins: of pages that may ask, beside those that come from here; "*" is any.
    """

    local: bool = True
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def check_headers(self, headers: Mapping[str, str]) -> Rejection | None:
        """Why a request with these headers (names in lower case) gets no answer; None where it gets one."""
        host = headers.get("host", "")
        if not self._is_allowed(host_name(host)):
            return Rejection(f"{host[:80]!r} is not a name of this machine", "wrong_host")
        origin = headers.get("origin")
        if origin is None or ANY_NAME in self.origins or origin in self.origins:
            return None
        if origin.partition("://")[2].lower() == host.lower():
            return None
        return Rejection(f"pages of {origin[:80]!r} may not ask here", "wrong_origin")

    def _is_allowed(self, name: str) -> bool:
        if ANY_NAME in self.hosts or name in self.hosts or is_loopback(name):
            return True
        return not self.local and (_is_address(name) or name in _host_names())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _host_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, f"{name}.local"}
