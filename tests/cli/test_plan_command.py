"""`tercet train --plan` as text at 80 columns, as JSON, and from Python."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tercet
from tercet.cli.main import main
from tercet.inspect import model_table
from tercet.models import PRESETS
from tercet.notebook import format_duration

GPT2 = ["train", "gpt2-124m", "--plan", "--gpus", "8xH100", "--mfu", "0.4", "--price", "2.5"]


@pytest.mark.exhaustive
def test_people_and_programs_and_python_get_the_same_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("tercet.training.planning.plan_run")
    calls = list[Any]()  # each call's arguments, and the plan of the first call

    def plan_once(*args: object, progress: bool, **options: object) -> Any:
        calls.append((args, options, calls[0][2] if calls else plan_run(*args, **options)))
        return calls[0][2]

    plan_run = module.plan_run
    monkeypatch.setattr(module, "plan_run", plan_once)
    plan = tercet.plan("gpt2-124m", gpus="8xH100", mfu=0.4, price=2.5)
    assert main([*GPT2, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(plan.to_dict()))
    assert plan.flops_per_token == model_table(PRESETS["gpt2"]).flops_training + 6 * 768 * (50_304 - 50_257)
    assert plan.parameters == 124_439_808 + 768 * (50_304 - 50_257)  # rows of padding
    assert plan.vocabulary_at_most == {"vocab_size": 50_257}
    assert plan.tokens == 20_000 * 480 * 1024
    assert plan.memory[0].optimizer - 2 * plan.memory[0].weights < 1000  # two moments, and a step count per tensor
    assert plan.time is not None
    assert plan.time.cost == pytest.approx(2.5 * 8 * plan.time.seconds / 3600)

    monkeypatch.setattr("tercet.cli.show.WIDTH", 80)
    assert main(GPT2) == 0
    assert len(calls) == 3
    assert calls[0] == calls[1] == calls[2]
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    lines = {line[:11].strip(): line[11:].strip() for line in out.splitlines() if line[:11].strip()}
    assert lines["on"] == "8 x H100 SXM (80 GiB, 989 TFLOP/s in bf16); bf16, ddp"
    assert "480 rows of 1,024 tokens: 8 x 5 x 12 rows" in out
    assert "20,000, by max_steps" in out
    assert "40.0% of 989 TFLOP/s (assumed)" in out
    assert "activations of 12 rows" in out


@pytest.mark.slow
def test_plan_without_gpus_reports_memory_and_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["training.max_hours=1", "training.max_steps=null", "model.stack.n_layers=1"]
    assert main(["train", "demo", "--plan", *(word for setting in settings for word in ("--set", setting))]) == 0
    out = capsys.readouterr().out
    assert "1 device, as in the recipe; bf16" in out
    assert "unknown: max_hours requires a speed; pass --mfu, --measured or --here" in out
    assert "unknown; pass --mfu SHARE, --measured RUN or --here" in out
    assert "fits" not in out


@pytest.mark.exhaustive
def test_epochs_need_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--set", "training.max_epochs=2", "--data", str(tmp_path / "none.txt")]
    assert main(["train", "demo", "--plan", *flags]) == 2
    assert "no such file or folder: " in capsys.readouterr().err
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 400)
    assert main(["train", "demo", "--plan", *flags[:-1], str(tmp_path / "text.txt"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["length_from"], plan["vocabulary_at_most"]) == ("max_epochs", None)
    assert plan["tokens"] == plan["steps"] * plan["tokens_per_step"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0123, "0.0123 s"), (41, "41 s"), (60, "1 min"), (135, "2 min 15 s"), (3600, "1 h"), (8100, "2 h 15 min"),
        (86_399.9, "1 d"), (270_000, "3 d 3 h"), (59.96, "1 min"), (3599.6, "1 h"), (3661, "1 h 1 min"),
    ],
)  # fmt: skip
def test_durations_have_two_units(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words
