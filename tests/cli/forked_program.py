"""`tercet` as a separate process that is a fork of the test's process, with all imports and kernels loaded."""

import gc
import io
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

from tercet.cli.main import entry


def start_forked(
    *arguments: object, environment: Mapping[str, str] | None = None, **streams: Any
) -> "subprocess.Popen[str]":
    """Start a command; `streams` are those of Popen."""

    def become() -> NoReturn:
        code = 1
        try:
            os.closerange(3, 4096)  # one of them signals to Popen that the program has started, which is `entry` here
            gc.freeze()  # collecting the parent's objects would copy the pages of all of them
            gc.enable()
            os.environ.update(environment or {})
            for number, (name, mode) in enumerate({"stdin": "rb", "stdout": "wb", "stderr": "wb"}.items()):
                file = os.fdopen(number, mode, closefd=False)
                setattr(sys, name, io.TextIOWrapper(file, encoding="utf-8", line_buffering=name == "stderr"))
            sys.argv = ["tercet", *map(str, arguments)]
            entry()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    return subprocess.Popen(["tercet"], preexec_fn=become, restore_signals=False, text=True, **streams)
