"""Checks of the Host and Origin headers: the names and origins that a server accepts.

A page of another site can make its own host name resolve to this machine (DNS rebinding), or send a cross-site
request. The first kind of request has a foreign Host header, the second a foreign Origin header, and a page cannot
change either of them. A Host header with an IP address is safe, because DNS rebinding requires a name.
"""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tercet.loopback import host_name, is_loopback

ANY_NAME = "*"
SECURITY_HEADERS = {  # defaults for all responses
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}


@dataclass(frozen=True)
class Rejection:
    """The reason why a request is rejected; `code` is machine-readable, and the caller adds a remedy to `message`."""

    message: str
    code: Literal["wrong_host", "wrong_origin"]


@dataclass(frozen=True, kw_only=True)
class AllowedNames:
    """Host names and origins that a server accepts.

    Attributes:
        local: If True, accept only loopback names and addresses; else also this machine's host name and any IP address.
        hosts: Further host names, in lower case; "*" accepts any.
        origins: Origins of other sites whose pages may send requests, such as https://example.org; "*" accepts any.
    """

    local: bool = True
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def check_headers(self, headers: Mapping[str, str]) -> Rejection | None:
        """Return the reason to reject a request with these headers; None if it is accepted.

        Args:
            headers: Headers of the request, with names in lower case.
        """
        host = headers.get("host", "")
        if not self._is_allowed(host_name(host)):
            return Rejection(f"{host[:80]!r} is not a name of this machine", "wrong_host")
        origin = headers.get("origin")
        if origin is None or ANY_NAME in self.origins or origin in self.origins:
            return None
        if origin.partition("://")[2].lower() == host.lower():
            return None
        return Rejection(f"requests of pages from {origin[:80]!r} are not allowed", "wrong_origin")

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
