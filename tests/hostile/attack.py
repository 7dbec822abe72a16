"""Run a `tercet` command in a child process that may hang, use up memory or die, and measure it.

The child is forked, so that torch is imported once for thousands of attacks. Damage that one of them does ends with it.
"""

import contextlib
import gc
import os
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from report import current_subject, record

from tercet.cli.main import main

SECONDS = 10.0  # not counting startup, which the fork skips
MEMORY = 1 << 30  # bytes that a rejected command may use beyond the memory of the parent
END = "\x00end\x00"  # marks the end of a command's stderr, before its exit code
ADDRESS_SPACE = 6 << 30  # bytes that a child may reserve beyond its parent, so that it cannot exhaust the machine


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of an attack.

    Attributes:
        code: Exit code, or 128 + n if signal n ended the child. A hanging child is ended by SIGKILL.
        memory: Peak of the resident memory in bytes, beyond that of the parent.
    """

    code: int
    stdout: str
    stderr: str
    seconds: float
    memory: int

    def refused_in_one_line(self) -> bool:
        """Return True for exit code 2 and one line in the format of all errors, without a traceback."""
        lines = self.stderr.strip().splitlines()
        return self.code == 2 and bool(lines) and lines[-1].startswith("tercet: error: ") and not self.has_traceback()

    def has_traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.stdout + self.stderr


def attack(arguments: Sequence[str], *, seconds: float = SECONDS, stdin: bytes = b"") -> Outcome:
    """Run `tercet ARGUMENTS` in a child process."""
    return attack_function(lambda: main(list(arguments)), seconds=seconds, stdin=stdin)


def attack_in_one_child(commands: Sequence[Sequence[str]], *, seconds: float = SECONDS) -> list[Outcome]:
    """Run several commands in one child, one after the other. Each outcome has the peak memory of all."""

    def work() -> None:
        for command in commands:
            try:
                code = main(list(command))
            except SystemExit as leaving:
                code = int(leaving.code or 0)
            sys.stderr.write(f"{END}{code}{END}")
            sys.stderr.flush()

    outcome = attack_function(work, seconds=seconds * len(commands))
    *parts, rest = outcome.stderr.split(END)
    assert (outcome.code, rest, len(parts)) == (0, "", 2 * len(commands)), outcome
    return [
        replace(outcome, code=int(code), stderr=stderr) for stderr, code in zip(parts[::2], parts[1::2], strict=True)
    ]


def attack_function(work: Callable[[], int | None], *, seconds: float = SECONDS, stdin: bytes = b"") -> Outcome:
    """Run `work` in a child process; its return value is the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_bytes(stdin)
        for path in streams[1:]:  # a child may be killed before it opens them
            path.touch()
        sys.stdout.flush()
        sys.stderr.flush()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.monotonic()
        pid = os.fork()
        if not pid:
            _run_child(work, streams)
        code, peak = _wait(pid, start + seconds)
        took = time.monotonic() - start
        stdout, stderr = (path.read_text(encoding="utf-8", errors="replace") for path in streams[1:])
    memory = max(0, peak - before) * 1024
    outcome = Outcome(code=code, stdout=stdout, stderr=stderr, seconds=took, memory=memory)
    if subject := current_subject():
        record(subject, outcome)
    return outcome


def limit_address_space(spare: int) -> None:
    """Let allocations fail after this process has reserved `spare` more bytes than now."""
    reserved = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (reserved + spare, reserved + spare))


def _run_child(work: Callable[[], int | None], streams: Sequence[Path]) -> None:
    """Run `work` in the child process and exit."""
    gc.freeze()  # collecting the parent's objects would copy the pages of all of them
    code = 1
    try:
        for number, path in enumerate(streams):
            file = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8", errors="replace", closefd=False)
            for number, mode in enumerate(("r", "w", "w"))
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
        limit_address_space(ADDRESS_SPACE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            code = int(work() or 0)
        except SystemExit as leaving:
            code = int(leaving.code or 0) if isinstance(leaving.code, int | None) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(pid: int, end: float) -> tuple[int, int]:
    """Return the exit code and the peak of the resident memory in KiB."""
    child = os.pidfd_open(pid)
    if not select.select([child], [], [], max(0.0, end - time.monotonic()))[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(child)
    _, status, usage = os.wait4(pid, 0)
    return (status >> 8 if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)), usage.ru_maxrss
