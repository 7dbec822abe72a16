"""`tercet doctor` reports correct facts about this machine."""

import json
import socket
import sys
import time
from pathlib import Path

import pytest
import torch

import tercet
from tercet.cli.main import main
from tercet.diagnosis import machine
from tercet.kernel import build_id
from tercet.kernel.build import choose_kernels
from tercet.memory import large_pages
from tercet.training.compute.auto_arithmetic import choose_precision
from tercet.training.recipe.specs import TrainingSpec


def test_doctor_reports_this_process() -> None:
    report, kernels = tercet.doctor(), choose_kernels()
    assert (report.tercet, report.torch) == (tercet.__version__, torch.__version__)
    assert sys.version.startswith(report.python)
    assert (report.kernel_level, report.kernel_origin, report.kernel_reason) == (
        kernels.level, kernels.origin, kernels.reason
    )  # fmt: skip
    assert report.kernel_build == build_id()
    assert report.threads == torch.get_num_threads()
    assert report.precision == choose_precision(TrainingSpec(max_steps=1))
    assert report.memory_bytes is None or report.memory_bytes > 1 << 28
    assert report.large_pages == large_pages()
    assert report.free_bytes > 0
    facts = report.cluster
    assert len(facts.gpus) == torch.cuda.device_count() or [gpu.name for gpu in facts.gpus] == ["mps"]
    assert ("gloo" in facts.backends) == torch.distributed.is_gloo_available()
    assert ("nccl" in facts.backends) == torch.distributed.is_nccl_available() == (facts.nccl is not None)
    assert facts.host == socket.gethostname()
    assert set(facts.interfaces) <= {name for _, name in socket.if_nameindex()} - {"lo"}


@pytest.mark.slow
def test_doctor_prints_text_or_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no\033[31mwhere"))
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache\033[2J"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # set by tests/conftest.py, and reported if it is set
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    names = ["tercet", "cpu", "threads", "memory", "kernels", "table", "cache", "disk", "precision", "gpu", "compiler",
             "backends", "network", "launch"]  # fmt: skip
    assert [line.split()[0] for line in out.splitlines()] == names
    assert "\033" not in out
    assert "compiler   none" in out
    assert "free: writable" in out
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kernel_build"] == build_id()
    assert report["compiler"] is None
    assert report["cache"] == str(tmp_path / "cache\033[2J")


@pytest.mark.slow
def test_unusable_cache_is_reported_with_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, shared_folder = tmp_path / "file", tmp_path / "open"
    file.write_text("")
    shared_folder.mkdir()
    shared_folder.chmod(0o777)
    for place, words in (
        (file / "cache", f"{file} is not a folder; remove it"),
        (shared_folder, "other users can write to "),
    ):
        monkeypatch.setenv("TERCET_CACHE", str(place))
        assert (tercet.doctor().cache_refusal or "").startswith(words)
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    assert tercet.doctor().cache_refusal == f"{tmp_path} cannot be written; set TERCET_CACHE to a writable folder"


@pytest.mark.slow
def test_compiler_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\nsleep 600\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setattr(machine, "ANSWER_SECONDS", 0.2)
    start = time.monotonic()
    report = tercet.doctor()
    assert (report.compiler, report.compiler_version) == (str(script), None)
    assert time.monotonic() - start < 60


def test_unknown_instruction_set_is_a_user_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tercet.kernel.api.choose_kernels", choose_kernels.__wrapped__)  # as in a new process
    monkeypatch.setenv("TERCET_KERNEL", "x86-64-v9")
    assert main(["doctor"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tercet: error: TERCET_KERNEL='x86-64-v9' is not a level of this machine; set it to one of ")
