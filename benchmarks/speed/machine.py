"""What the figures were measured on: they mean nothing without it."""

import platform
import re
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16")
PACKAGES = ("torch", "transformers", "x-transformers", "ctranslate2", "tokenizers", "tiktoken", "numpy", "tercet")


def machine() -> dict[str, Any]:
    flags = cpu_flags()
    return {
        "cpu": cpu_name(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "bf16": has_bf16(flags),
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "load": list(psutil.getloadavg()),
    }


def cpu_name() -> str:
    found = re.search(r"^model name\s*: (.+)$", _cpuinfo(), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    found = re.search(r"^(?:flags|Features)\s*: (.+)$", _cpuinfo(), re.MULTILINE)
    return set(found[1].split()) if found else set()


def has_bf16(flags: set[str]) -> bool:
    """Whether bf16 is multiplied in hardware; elsewhere it is emulated, some hundred times as slowly."""
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def peak_memory() -> int:
    """The most bytes of memory that this process ever had, not counting those of whoever started it."""
    status = Path("/proc/self/status")
    if status.is_file() and (found := re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(), re.MULTILINE)):
        return 1024 * int(found[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else 1024 * peak


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.is_file() else ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
