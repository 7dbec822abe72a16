"""`python -m tercet` is `tercet`."""

from tercet.cli.main import entry

entry()
