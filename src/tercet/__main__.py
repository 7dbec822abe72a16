"""Run the command line as `python -m tercet`."""

from tercet.cli.main import entry

entry()
