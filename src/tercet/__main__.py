"""Run the command line as `python -m tercet`."""

import os
import sys
from contextlib import suppress

with suppress(FileNotFoundError):  # if the current folder was removed
    # Python puts the current folder first. The command `tercet` does not have it on its path either, and a file in a
    # folder of someone else must not replace a package.
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]

from tercet.cli.main import entry

entry()
