"""Fixtures: a tiny run to display in notebooks."""

from pathlib import Path

import pytest

import tercet

TINY = {
    "model.stack.d_model": 16, "model.stack.n_layers": 1, "model.stack.n_heads": 2, "model.max_len": 8,
    "training.max_steps": 6, "training.warmup_steps": 0, "training.validate_every": 3, "training.log_every": 2,
    "training.save_every": 6, "training.precision": "fp32", "training.compile": "never",
    "task.batch_size": 8, "task.sample_tokens": 6, "task.sample_prompt": None, "data.tokenizer": {"kind": "characters"},
}  # fmt: skip


@pytest.fixture(scope="session")
def tiny_settings() -> dict[str, object]:
    return TINY


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{n} times {m} is {n * m}, <b>isn't it?\n" for n in range(3, 9) for m in range(2, 8)))
    return path


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, tiny_text: Path) -> tercet.Run:
    return tercet.train(
        "demo", data=tiny_text, out=tmp_path_factory.mktemp("runs") / "<script>", changes=TINY, quiet=True
    )
