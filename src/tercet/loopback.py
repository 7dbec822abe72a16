"""Loopback host names and addresses, which only programs on this machine can reach."""

import ipaddress

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address is a loopback one, such as localhost or 127.0.0.1."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(host_header: str) -> str:
    """Return the name or address in a Host header, in lower case, without its port."""
    is_ipv6 = host_header.startswith("[")  # such as "[::1]:8000"
    return (host_header[1:].partition("]") if is_ipv6 else host_header.partition(":"))[0].lower()


def names_loopback(host_header: str) -> bool:
    """Return whether the Host header of a request, with or without a port, is a loopback name.

    A page of another site can make a browser send requests to this machine under the host name of that site (DNS
    rebinding), but not under a loopback name.
    """
    return is_loopback(host_name(host_header))
