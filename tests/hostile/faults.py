"""Watch file changes of a command with Python's audit hook, which can also fail them or kill the process.

Opens, renames, new folders and removals are intercepted before they happen, and so is each `fsync`. Later writes, also
by native code, are rejected by the system: no file may grow (RLIMIT_FSIZE), as on a full disk. Use it only in children,
since an audit hook cannot be removed.
"""

import errno
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import tercet

SOURCE = str(Path(tercet.__file__).parent) + "/"
# These modules write for others, so the place is that of their caller.
WRITERS = ("checkpoint/atomic.py", "storage/")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
EVENTS = {
    "os.rename": "rename",
    "os.mkdir": "mkdir",
    "os.remove": "remove",
    "os.rmdir": "rmdir",
    "os.truncate": "truncate",
    "os.link": "link",
    "os.symlink": "link",
}


@dataclass(frozen=True)
class Change:
    """A change of a file.

    Attributes:
        operation: "open" (to write), "fsync", or one of `EVENTS`.
        path: Path, or the new name for a rename.
        place: Place in the package, as file:line function.
    """

    operation: str
    path: str
    place: str


def watch(folders: Sequence[Path], act: Callable[[Change], None]) -> None:
    """Call `act` before each later change below the folders in this process."""
    roots = [os.path.realpath(folder) + "/" for folder in folders]
    busy = False

    def check_operation(operation: str, path: Any) -> None:
        nonlocal busy
        if busy or not isinstance(path, str | bytes | os.PathLike):
            return
        whole = os.path.abspath(os.fsdecode(path))
        whole = os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
        if any(whole.startswith(root) for root in roots):
            busy = True
            try:
                act(Change(operation, whole, _place(sys._getframe(2))))
            finally:
                busy = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING:
                check_operation("open", path)
        elif event in EVENTS:
            check_operation(EVENTS[event], arguments[1 if event in ("os.rename", "os.link", "os.symlink") else 0])

    def fsync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        check_operation("fsync", os.readlink(f"/proc/self/fd/{number}"))

    os.fsync = fsync
    sys.addaudithook(hook)


def _place(frame: FrameType | None) -> str:
    last = "outside of the package"
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(SOURCE):
            name = name.removeprefix(SOURCE)
            last = f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
            if not name.startswith(WRITERS):
                break
        frame = frame.f_back
    return last


def die(*, after: int) -> Callable[[Change], None]:
    """Return an action that sends SIGKILL just before the change of that number, from 1."""
    count = 0

    def act(change: Change) -> None:
        nonlocal count
        count += 1
        if count == after:
            os.kill(os.getpid(), signal.SIGKILL)

    return act


@dataclass(frozen=True)
class Fault:
    """An error of the file system.

    Attributes:
        error: Error number. ENOENT simulates a folder that another process has removed, and EFBIG a disk that is full
            as soon as something is written to it.
        stays: If True, later operations fail as well. On a full disk files can still be removed.
    """

    error: int
    operations: tuple[str, ...]
    stays: bool = False

    @property
    def name(self) -> str:
        return errno.errorcode[self.error]


MAKING = ("open", "mkdir", "rename", "fsync")
FAULTS = (
    Fault(errno.ENOSPC, MAKING, stays=True),
    Fault(errno.EFBIG, ("open",), stays=True),
    Fault(errno.EDQUOT, MAKING),
    Fault(errno.EROFS, (*MAKING, "remove", "rmdir", "truncate"), stays=True),
    Fault(errno.EACCES, (*MAKING, "remove", "rmdir", "truncate")),
    Fault(errno.EIO, (*MAKING, "remove", "rmdir", "truncate")),
    Fault(errno.EXDEV, ("rename",), stays=True),
    Fault(errno.ENOENT, ("open", "rename")),
)


def fail(fault: Fault, target: Change) -> Callable[[Change], None]:
    """Return an action that fails the first change with the operation and place of `target`."""
    has_failed = False

    def refuse(change: Change) -> NoReturn:
        raise OSError(fault.error, os.strerror(fault.error), change.path)

    def act(change: Change) -> None:
        nonlocal has_failed
        is_target = (change.operation, change.place) == (target.operation, target.place)
        if not has_failed and is_target:
            has_failed = True
            if fault.error == errno.ENOENT:
                shutil.rmtree(Path(change.path).parent, ignore_errors=True)
            elif fault.error == errno.EFBIG:
                _fill_disk()
            else:
                refuse(change)
        elif has_failed and fault.stays and fault.error != errno.EFBIG and change.operation in fault.operations:
            refuse(change)

    return act


def _fill_disk() -> None:
    """Limit files to 10 bytes: longer data is written in part and then rejected."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))


def run_with_piped_output(main: Callable[[], int]) -> int:
    """Run `main` with its output in pipes, so that a limit on file sizes does not affect it."""
    ends = [os.pipe() for _ in range(2)]
    files = [os.dup(number) for number in (1, 2)]
    for number, (_, write) in enumerate(ends, 1):
        os.dup2(write, number)
        os.close(write)
        os.set_blocking(number, False)  # excess output is lost
    code = 1
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for number, (read, _) in enumerate(ends, 1):
        os.set_blocking(read, False)
        data = b""
        while block := _read(read):
            data += block
        os.dup2(files[number - 1], number)
        os.write(number, data)
    return code


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return b""


def reject_write(change: Change) -> NoReturn:
    """Fail as a read-only file system does."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), change.path)


def set_clock_back() -> None:
    """Let each reading of the clock be a minute before the last one."""
    import time

    current = time.time()

    def earlier_time() -> float:
        nonlocal current
        current -= 60.0
        return current

    time.time = earlier_time
