"""Products of few rows with a large matrix: Tercet's kernel and PyTorch's functions, in microseconds, uncached.

    python -m benchmarks.speed.gemv [--rows 1 2 4 8 16]

PyTorch's functions are `F.linear` (which `nn.Linear` calls), oneDNN with weights packed in advance, and for int8
`_weight_int8pack_mm`. All are run in every round; the results are the medians, and the GB/s of the kernel.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.kernel.inference_linear import inference_linear
from tercet.nn import Linear

SHAPES = [
    (768, 768),
    (3072, 768),
    (768, 3072),
    (50304, 768),
    (256, 256),
    (1024, 256),
]  # (N, K), GPT-2 and smaller
BYTES = 256 << 20  # total size of the copies of a matrix, so that none is in a cache
ROUNDS = 15


def ways(rows: int, n: int, k: int) -> dict[str, Callable[[], Tensor]]:
    copies = min(64, max(2, BYTES // (4 * n * k)))
    weights = [torch.randn(n, k) for _ in range(copies)]
    layers: dict[str, list[Any]] = {"bf16": [], "int8": []}
    for narrow, quantized_layers in layers.items():
        for weight in weights:
            layer = Linear(k, n, bias=False)
            layer.weight.data = weight
            layer.quantize(narrow)
            quantized_layers.append(layer)
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]
    x, half = torch.randn(rows, k), torch.randn(rows, k).bfloat16()
    turn = {name: cycle(range(copies)) for name in ("linear", "packed", "int8mm", "fp32", "bf16", "int8")}
    scales = torch.rand(n).bfloat16()

    def ours(narrow: str) -> Tensor:
        layer = layers[narrow][next(turn[narrow])]
        return inference_linear(x, layer.weight, layer.scale, None)

    return {
        "F.linear": lambda: F.linear(x, weights[next(turn["linear"])]),
        "oneDNN, packed": lambda: torch.ops.mkldnn._linear_pointwise(
            x, packed[next(turn["packed"])], None, "none", [], ""
        ),
        "int8pack_mm": lambda: torch._weight_int8pack_mm(half, layers["int8"][next(turn["int8mm"])].weight, scales),
        "ours, fp32": lambda: inference_linear(x, weights[next(turn["fp32"])], None, None),
        "ours, bf16": lambda: ours("bf16"),
        "ours, int8": lambda: ours("int8"),
    }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16])
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; microseconds")
    for rows in args.rows:
        for n, k in SHAPES:
            functions = ways(rows, n, k)
            microseconds: dict[str, list[float]] = {name: [] for name in functions}
            for round in range(ROUNDS + 2):
                for name, work in functions.items():
                    start = time.perf_counter()
                    for _ in range(repeats := max(1, 2_000_000 // (n * k))):
                        work()
                    if round > 1:
                        microseconds[name].append(1e6 * (time.perf_counter() - start) / repeats)
            medians = {name: statistics.median(times) for name, times in microseconds.items()}
            read = {"fp32": 4, "bf16": 2, "int8": 1}
            speeds = ", ".join(f"{w} {b * n * k / medians[f'ours, {w}'] / 1e3:.0f}" for w, b in read.items())
            medians_text = "  ".join(f"{name} {value:.0f}" for name, value in medians.items())
            print(f"{rows:2} x ({n}, {k}):  {medians_text}  | GB/s {speeds}", flush=True)


if __name__ == "__main__":
    main()
