"""GPUs by name, with memory and peak FLOP/s.

The peaks are for dense matrix products in bfloat16 (float16 if a GPU has no bfloat16) with sums in float32.
Manufacturers often print twice the number first, for matrices with 2:4 sparsity. Sources:

    V100, T4             NVIDIA V100 and T4 datasheets (float16)
    A10, A100            NVIDIA A10 and A100 datasheets
    L4, L40S             NVIDIA L4 and L40S datasheets, halved if they are for sparse matrices
    H100, H200           NVIDIA H100 and H200 datasheets, halved
    B200                 NVIDIA HGX B200 datasheet: 4.5 PFLOP/s sparse; 180 GB
    MI300X               AMD Instinct MI300X datasheet
    RTX 3090             NVIDIA "Ampere GA102 GPU architecture", appendix A
    RTX 4090             NVIDIA "Ada GPU architecture", appendix A

Memory is the size on the datasheet; a driver reports slightly less. For GPUs with two sizes, `V100` means 16 GB and
`A100` means 80 GB.
"""

import re
from dataclasses import dataclass
from typing import Literal

from tercet.config import UserError, suggest
from tercet.messages import show

GIB = 1 << 30
MAX_GPUS = 1 << 16  # as in `spec.Machines`


@dataclass(frozen=True)
class GPU:
    """A GPU model.

    Args:
        name: Display name.
        memory_bytes: Memory of one GPU in bytes.
        peak_flops: Peak FLOP/s of dense matrix products in `precision`; None if unknown.
        precision: 16-bit format of matrix products.
    """

    name: str
    memory_bytes: int
    peak_flops: float | None
    precision: Literal["bf16", "fp16"] = "bf16"


def _gpu(name: str, gigabytes: int, tflops: float, precision: Literal["bf16", "fp16"] = "bf16") -> GPU:
    return GPU(name, gigabytes * GIB, tflops * 1e12, precision)


GPUS: dict[str, GPU] = {
    "V100": _gpu("V100 16GB", 16, 125, "fp16"),
    "V100-32GB": _gpu("V100 32GB", 32, 125, "fp16"),
    "T4": _gpu("T4", 16, 65, "fp16"),
    "A10": _gpu("A10", 24, 125),
    "A100-40GB": _gpu("A100 40GB", 40, 312),
    "A100": _gpu("A100 80GB", 80, 312),
    "L4": _gpu("L4", 24, 121),
    "L40S": _gpu("L40S", 48, 362),
    "H100": _gpu("H100 SXM", 80, 989),
    "H100-PCIe": _gpu("H100 PCIe", 80, 756),
    "H200": _gpu("H200", 141, 989),
    "B200": _gpu("B200", 180, 2250),
    "MI300X": _gpu("MI300X", 192, 1307),
    "RTX3090": _gpu("RTX 3090", 24, 71),
    "RTX4090": _gpu("RTX 4090", 24, 165),
}
ALIASES = {
    "v10016gb": "V100", "a10080gb": "A100", "h100sxm": "H100", "h10080gb": "H100", "3090": "RTX3090", "4090": "RTX4090",
}  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """A number of equal GPUs.

    Args:
        gpu: Model of the GPUs.
        count: Number of GPUs over all nodes.
        nodes: Number of nodes, which share the GPUs equally.
    """

    gpu: GPU
    count: int
    nodes: int = 1

    def describe(self) -> str:
        peak = self.gpu.peak_flops
        speed = "" if peak is None else f", {peak / 1e12:,.4g} TFLOP/s in {self.gpu.precision}"
        nodes = f" in {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.count:,} x {self.gpu.name}{nodes} ({self.gpu.memory_bytes / GIB:,.4g} GiB{speed})"


def parse_cluster(text: str) -> Cluster:
    """Parse the description of a cluster in the value of `--gpus`.

    The forms are `8xH100`, `2x8xH100` for two nodes of eight GPUs each, and `4x48GiB@150TFLOPS` or `48GiB` for other
    GPUs.

    Raises:
        UserError: If the text has another form, the GPU is unknown, or a number is out of range.
    """
    match = re.fullmatch(r"(?:(\d{1,9})x)?(?:(\d{1,9})x)?([^\s].*)", text.strip(), re.IGNORECASE)
    if match is None:
        raise _unreadable(text)
    first, second, kind = match.groups()
    nodes, count = (1, int(first or 1)) if second is None else (int(first), int(second))
    if not 1 <= nodes * count <= MAX_GPUS:
        raise UserError(f"--gpus {show(text)}: {nodes * count:,} GPUs; pass 1 to {MAX_GPUS:,}")
    return Cluster(_find(kind, text), nodes * count, nodes)


def find_by_device_name(name: str, memory_bytes: int) -> GPU | None:
    """Return the GPU with a driver's name such as "NVIDIA A100-SXM4-80GB", or None if it is unknown.

    Args:
        name: Name that the driver reports.
        memory_bytes: Memory of the returned GPU in bytes, as the driver reports it.
    """
    words, plain = {*re.findall(r"[a-z0-9]+", name.lower())}, _plain(name)
    for key in sorted(GPUS, key=len, reverse=True):
        if _plain(key) in plain if key.startswith("RTX") else {*key.lower().split("-")} <= words:
            gpu = GPUS[key]
            return GPU(gpu.name, memory_bytes, gpu.peak_flops, gpu.precision)
    return None


def _find(kind: str, text: str) -> GPU:
    """Return the GPU of the table with the name `kind`, or the GPU that `kind` describes in free form.

    Args:
        kind: Name such as "H100", or free form such as "48GiB@150TFLOPS".
        text: Whole value of `--gpus`, for error messages.
    """
    custom = re.fullmatch(r"(\d+(?:\.\d+)?)\s*Gi?B(?:\s*@\s*(\d+(?:\.\d+)?)\s*TFLOPS?)?", kind, re.IGNORECASE)
    if custom is not None:
        memory, peak = float(custom[1]), None if custom[2] is None else float(custom[2])
        if not 0 < memory <= 1 << 20 or (peak is not None and not 0 < peak <= 10**9):
            raise UserError(
                f"--gpus {show(text)}: memory must be above 0 and at most 1048576 GiB, speed above 0 and at most "
                "1000000000 TFLOPS; pass for example 4x48GiB@150TFLOPS"
            )
        return GPU("GPU", int(memory * GIB), None if peak is None else peak * 1e12)
    names = {_plain(key): key for key in GPUS} | ALIASES
    key = names.get(_plain(kind).removeprefix("nvidia").removeprefix("amd"))
    if key is not None:
        return GPUS[key]
    if re.match(r"[\d.]+\s*G|.*@|\d*x?$", kind, re.IGNORECASE) or not re.search(r"[a-z]", kind, re.IGNORECASE):
        raise _unreadable(text)
    suggestion = suggest(kind.upper(), GPUS)
    raise UserError(f"--gpus {show(text)}: unknown GPU {show(kind)} (free form: 4x48GiB@150TFLOPS){suggestion}")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _unreadable(text: str) -> UserError:
    return UserError(f"--gpus {show(text)}: not a cluster; pass 8xH100, 2x8xH100 for two nodes, or 4x48GiB@150TFLOPS")
