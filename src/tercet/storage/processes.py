"""Whether the process that wrote a temporary file or locked a folder is still running."""

import ctypes
import os
import sys

MAX_PID = 2**31 - 1
# Constants of the Windows API
SYNCHRONIZE = 0x100000  # access right with which a process can be waited for
WAIT_TIMEOUT = 0x102  # result of a wait: the process has not ended
ERROR_ACCESS_DENIED = 5


def is_alive(pid: int) -> bool:
    """Return whether a process with this id is running on this machine, for this user or another one."""
    if not 0 < pid <= MAX_PID:
        return False
    if sys.platform == "win32":  # os.kill(pid, 0) would send Ctrl-C, or end the process
        windows = ctypes.WinDLL("kernel32", use_last_error=True)
        windows.OpenProcess.restype = ctypes.c_void_p
        handle = windows.OpenProcess(SYNCHRONIZE, False, pid)
        if handle is None:
            return ctypes.get_last_error() == ERROR_ACCESS_DENIED  # a process of another user
        try:
            return windows.WaitForSingleObject(ctypes.c_void_p(handle), 0) == WAIT_TIMEOUT
        finally:
            windows.CloseHandle(ctypes.c_void_p(handle))
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        return True
    return True
