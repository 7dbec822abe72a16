"""The arithmetic of the time-to-quality benchmark: every target once, the verdict, and parsing of a process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.quality import time_to_quality as bench
from hypothesis import given
from hypothesis import strategies as st

NANOGPT = '''
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool

class GPT(nn.Module):
    """Counts which character follows which."""

    def __init__(self, config):
        super().__init__()
        self.table = nn.Embedding(config.vocab_size, config.vocab_size)

    def configure_optimizers(self, decay, rate, betas, device):
        return torch.optim.AdamW(self.parameters(), lr=rate, betas=betas, weight_decay=decay)

    def forward(self, x, y):
        logits = self.table(x)
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
'''


@given(count=st.integers(2, 700), batch_size=st.integers(1, 5))
def test_every_target_counts_once(count: int, batch_size: int) -> None:
    ids = np.arange(count, dtype=np.uint16)
    seen_targets: list[int] = []

    def loss(inputs: Any, targets: Any) -> Any:
        assert inputs.shape == targets.shape
        assert inputs.shape[1] <= bench.BLOCK
        assert (targets == inputs + 1).all()
        seen_targets.extend(targets.flatten().tolist())
        return targets.double().mean()

    mean, targets = bench.whole_set(loss, ids, batch_size)
    assert seen_targets == list(range(1, count))
    assert targets == count - 1
    assert mean == pytest.approx(sum(seen_targets) / len(seen_targets))


def result(loss: float, seconds: float, steps: int = 100) -> dict[str, Any]:
    return {"loss": loss, "to_number": seconds, "seconds": seconds + 1, "steps": steps, "curve": [(1.0, 3.0)]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "seconds", "word"), [(1.89, 19.0, "reached"), (1.91, 19.0, "missed"), (1.89, 21.0, "missed")]
)
def test_the_verdict_needs_both(loss: float, seconds: float, word: str, tmp_path: Path) -> None:
    figures = {f"nanogpt {seed}": result(1.9, 120.0) for seed in (1, 2)}
    figures |= {f"ours {seed} 1": result(loss, seconds) for seed in (1, 2)}
    figures["ours 1 4"] = result(1.6, 500.0, steps=400)  # runs of another length do not count for the verdict
    table = bench.table(figures)
    assert table.endswith(word)
    assert f"in 1 / {120 / seconds:.2f} of" in table
    bench.draw(figures, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000


@pytest.mark.exhaustive
def test_their_run_is_a_process_that_ends_with_the_number(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(NANOGPT)
    ids = np.arange(4000, dtype=np.uint16) % 7
    for name in ("train", "val"):
        ids.tofile(tmp_path / f"{name}.bin")
    run = bench.run_theirs(tmp_path, tmp_path, 3, tmp_path / "out", 300)
    assert run["characters"] == 3999
    assert run["loss"] < run["curve"][0][1]
    assert 0 < run["to_number"] <= run["seconds"]
    assert len(run["curve"]) == 3  # at the start, after 250 steps, and at the end


def test_a_run_without_a_number_is_an_error() -> None:
    with pytest.raises(SystemExit, match="exit code 0, loss nan"):
        bench.run_timed(["true"])
