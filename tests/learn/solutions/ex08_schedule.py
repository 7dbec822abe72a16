"""Reference solution of exercise 8, for tests of its checks."""

import math


def learning_rate(step: int, peak: float, warmup: int, total: int, final: float = 0.1) -> float:
    if step < warmup:
        return (step + 1) / warmup * peak
    p = min(1.0, (step - warmup) / (total - 1 - warmup))
    return (final + (1 - final) * (1 + math.cos(math.pi * p)) / 2) * peak
