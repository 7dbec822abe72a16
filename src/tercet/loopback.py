"""Loopback names and addresses, which only this machine can reach."""

import ipaddress

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Return whether a name or address belongs to this machine only."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(host_header: str) -> str:
    """Return the name or address in a Host header, in lower case, without its port."""
    is_ipv6 = host_header.startswith("[")  # an IPv6 address
    return (host_header[1:].partition("]") if is_ipv6 else host_header.partition(":"))[0].lower()


def names_loopback(host_header: str) -> bool:
    """Return whether the Host header of a request, with or without a port, is a loopback name.

    A page on another site can direct a browser here under its own host name (DNS rebinding), but not under these names.
    """
    return is_loopback(host_name(host_header))
