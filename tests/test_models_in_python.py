"""The guide of models that are built in Python: its code runs in order, and its commands open the saved model."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import tercet
from tercet.cli.main import main

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "models-in-python.md"
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)
ENDLESS = {"serve"}
QUICK = ("training.max_steps=2", "training.warmup_steps=0", "training.compile=never", "training.precision=fp32")


@pytest.mark.slow
def test_saved_model_works_with_the_commands_of_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits.txt").write_text("0123456789" * 200)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = list[str]()
    for language, code in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(code, PAGE.name, "exec"), names)
            printed += capsys.readouterr().out.splitlines()
            continue
        for line in code.splitlines():
            words = shlex.split(line)[1:]
            if words[0] in ENDLESS:
                continue
            sets = [word for change in QUICK for word in ("--set", change)] if words[0] == "train" else []
            assert main([*words, *sets]) == 0, line
            capsys.readouterr()
    assert float(printed[0]) < 0.5  # nats per character; ln 10 = 2.3 without learning
    assert printed[1:] == ["67890", "5 7"]
    opened, model = tercet.load("models/counter").model, names["model"]
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in opened.state_dict().items())
    assert Path("runs/counter/best").is_dir()
