"""The names and addresses that are recognized as loopback."""

import pytest

from tercet.loopback import is_loopback, names_loopback


@pytest.mark.parametrize("host", ["localhost", "me.localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_addresses_are_recognized(host: str) -> None:
    assert is_loopback(host)
    header = f"[{host}]" if ":" in host else host.upper()
    assert names_loopback(header)
    assert names_loopback(f"{header}:8000")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_reachable_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
    assert not names_loopback(f"[{host}]:80" if ":" in host else f"{host}:80")
