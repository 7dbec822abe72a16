"""The program that renders chat templates, in a separate process that can be ended at any time.

A template is a program of the model's author. A sandbox prevents access to Python's internals, but not loops and long
texts. Therefore this process has limited memory and a timer that ends it. The timer measures CPU time, so that waiting
for other programs does not count.

    line in    {"source": ...} | {"messages": ..., "bos_token": ...}        line out    {"text": ...} | {"error": ...}
"""

import json
import signal
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def serve(seconds: float, memory: int, max_bytes: int) -> None:
    """Answer requests on standard input, one JSON object per line.

    Args:
        seconds: CPU time per request after which the process is ended.
        memory: Maximum bytes of the process, which ends if it needs more.
        max_bytes: Maximum bytes of an answer; a longer one becomes an error.
    """
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is handled by the parent; this process ends when its input is closed
    _limit_memory(memory)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    template = jinja2.Template("")
    for line in sys.stdin.buffer:
        request: dict[str, Any] = json.loads(line)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            if "source" in request:
                helpers = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
                template, text = environment.from_string(request["source"], helpers), ""
            else:
                text = template.render(request)
            answer = json.dumps({"text": text}).encode()
            if len(answer) > max_bytes:
                answer = json.dumps({"error": f"its text is longer than {max_bytes} bytes"}).encode()
        except MemoryError:
            return
        except Exception as error:  # a template can raise any exception
            answer = json.dumps({"error": (str(error) or type(error).__name__)[:300]}).encode()
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


def _limit_memory(memory: int) -> None:
    with suppress(ImportError, ValueError, OSError):  # if it is not supported, only the time is limited
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """Serialize without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
