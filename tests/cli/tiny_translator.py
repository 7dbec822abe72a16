"""The sentences and settings of a translator that trains in seconds, and a simulated terminal."""

import io
from pathlib import Path

import numpy as np

WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
DRAWS = np.random.default_rng(6)
LINES = [DRAWS.choice(list(WORDS), DRAWS.integers(3, 6)).tolist() for _ in range(216)]
LINES[0] = ["eins", "zwei", "drei"]
SOURCES = [" ".join(line) for line in LINES]
TARGETS = [" ".join(WORDS[word] for word in line) for line in LINES]
TINY = [
    "data.tokenizer={kind: bpe, vocab_size: 330, prefix_space: true}",
    "model.max_len=24",
    "model.encoder={d_model: 32, n_layers: 1, n_heads: 2, d_ff: 48}",
    "model.decoder={d_model: 32, n_layers: 2, n_heads: 2, d_ff: 48}",
    "training.max_steps=100",
    "training.optimizer.lr=0.03",
    "task.batch_tokens=512",
    "training.validate_every=100",
    "task.validation_sentences=4",
    "training.save_every=100",
    "training.precision=fp32",
    "training.compile=never",
]


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def training(folder: Path, out: Path, *changes: str) -> list[str]:
    sets = [word for change in (*TINY, *changes) for word in ("--set", change)]
    files = ["--source", str(folder / "train.de"), "--target", str(folder / "train.en")]
    return ["train", "numbers", *files, "--out", str(out), "--quiet", *sets]


class Terminal(io.RawIOBase):
    """A simulated user, who types each line when the previous line has been answered."""

    def __init__(self, lines: list[bytes], out: io.StringIO) -> None:
        self.lines, self.out, self.n_typed = lines, out, 0

    def isatty(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> bytes:
        assert self.out.getvalue().count("\n") == self.n_typed, "the last line is not answered yet"
        self.n_typed += 1
        return self.lines[self.n_typed - 1] if self.n_typed <= len(self.lines) else b""
