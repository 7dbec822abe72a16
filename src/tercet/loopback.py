"""This machine's own names and addresses, which no other machine can reach."""

import ipaddress

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(host_header: str) -> str:
    """The name or address in a Host header, in lower case, without its port."""
    is_ipv6 = host_header.startswith("[")  # an IPv6 address
    return (host_header[1:].partition("]") if is_ipv6 else host_header.partition(":"))[0].lower()


def names_loopback(host_header: str) -> bool:
    """Whether a request's Host header, with or without a port, is a name of this machine.

    A page on another site can lead a browser here under a name of its own (DNS rebinding), but not under one of these.
    """
    return is_loopback(host_name(host_header))
