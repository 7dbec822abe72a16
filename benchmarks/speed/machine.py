"""A description of the machine on which the figures were measured."""

import platform
import re
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from tercet.kernel import BF16, cpu_instructions, cpu_model

FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16")
PACKAGES = (
    "torch", "triton", "pytorch-lightning", "transformers", "liger-kernel", "x-transformers", "ctranslate2",
    "tokenizers", "tiktoken", "numpy", "tercet",
)  # fmt: skip


def machine() -> dict[str, Any]:
    flags = cpu_instructions()
    return {
        "cpu": cpu_model(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "bf16": has_bf16(),
        "gpu": _gpu(),
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: installed_version for name in PACKAGES if (installed_version := _version(name))},
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "load": list(psutil.getloadavg()),
    }


def has_bf16() -> bool:
    """Return whether bf16 is multiplied in hardware.

    Otherwise, and if oneDNN is restricted (`ONEDNN_MAX_CPU_ISA`), it is emulated, some hundred times as slowly.
    """
    return bool(cpu_instructions() & BF16) and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def peak_memory() -> int:
    """Return the peak memory of this process in bytes, without that of its parent."""
    status = Path("/proc/self/status")
    if status.is_file() and (match := re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(), re.MULTILINE)):
        return 1024 * int(match[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else 1024 * peak


def held_memory(device: torch.device) -> int:
    """Return the bytes of tensors on a GPU, 0 for the CPU, and reset the peak."""
    if device.type == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak_above(device: torch.device, held_bytes: int) -> int | None:
    """Return the peak bytes of tensors on a GPU since `held_memory`, above `held_bytes`; None for the CPU."""
    return None if device.type == "cpu" else torch.cuda.max_memory_allocated(device) - held_bytes


def _gpu() -> dict[str, Any] | None:
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
