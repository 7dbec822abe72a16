"""A whole benchmark run at tiny sizes: checks before timing, and the written files."""

import contextlib
import json
import struct
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import psutil
import pytest
import torch
from benchmarks.speed import __main__ as program
from benchmarks.speed.contender import Contender, Function, Settings
from benchmarks.speed.measure import Timing, measure, measure_peak_memory
from benchmarks.speed.own_process import OwnProcess, find_contender, place_contenders
from benchmarks.speed.peers.pytorch import PyTorchGPT, PyTorchTranslator
from benchmarks.speed.picture import draw
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.rows import ROWS
from benchmarks.speed.rows.gpt import TINY
from benchmarks.speed.table import markdown, summary
from benchmarks.speed.training import peer_settings
from torch import Tensor

from sampled_cases import sampled
from tercet.models import DecoderOnly, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import Sinusoidal

ROOT = Path(__file__).parents[2]
LIMITS = {"fp32": 200.0, "fp32 oneDNN": 400.0, "memory": 40.0}
SHORT_TIMING = Timing(rounds=2, seconds=0.0, repeats=0)
measure_quickly = partial(measure, timing=SHORT_TIMING, rest=0.0, measure_limits=lambda: dict(LIMITS))


def tiny(folder: Path, **kwargs: Any) -> Options:
    return Options(folder=folder, scale="tiny", **kwargs)


def silent(line: str) -> None:
    pass


def of(*contenders: Contender, name: str = "made") -> Row:
    def lineup(options: Options) -> Lineup:
        return Lineup(list(contenders), {"somebody": "is ill"}, ["a note"])

    return Row(name=name, title="Made by hand", lineup=lineup)


def plain(name: str, side: Any, answer: float | None = 1.0, count: int = 3) -> Function:
    def get_answer() -> Tensor | None:
        return None if answer is None else torch.full((2, 5), answer)

    return Function(name, side, lambda n: n * count, answer=get_answer)


def failing_contender(failing_step: str) -> Contender:
    class FailingContender(Contender):
        def setup(self) -> None:
            if failing_step == "setup":
                raise OSError("no such model")

        def run(self, n: int) -> float:
            raise RuntimeError("out of steam")

        def close(self) -> None:
            raise AttributeError("never got ready")

    return FailingContender("broken", "peer", Settings())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failing_step", "why"), sampled([("run", "RuntimeError: out of steam"), ("setup", "OSError: no such model")])
)
def test_failing_contender_is_reported_and_others_continue(tmp_path: Path, failing_step: str, why: str) -> None:
    messages: list[str] = []
    row = of(plain("mine", "ours"), failing_contender(failing_step), plain("theirs", "readme"))
    result = measure_quickly(row, tiny(tmp_path), log=messages.append)
    assert result.failed == {"broken": why}
    assert set(result.figures) == {"mine", "theirs"}
    assert set(result.ratios) == {"readme", "best"}
    assert any("failed: broken" in line and why in line for line in messages)


def test_row_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    def lineup(options: Options) -> Lineup:
        raise FileNotFoundError("no data")

    result = measure_quickly(Row(name="x", title="X", lineup=lineup), tiny(tmp_path), log=silent)
    assert result.failed == {"all": "FileNotFoundError: no data"}
    assert result.figures == {}


def test_only_those_asked_for_take_part() -> None:
    def names(*prefixes: str) -> tuple[list[str], dict[str, str]]:
        lineup = Lineup(contenders=[plain(name, "ours") for name in ("tercet", "tercet, int8", "other")])
        lineup.keep(prefixes)
        return [contender.name for contender in lineup.contenders], lineup.left_out

    assert names() == (["tercet", "tercet, int8", "other"], {})
    assert names("tercet", "none") == (["tercet", "tercet, int8"], {"others": "only tercet, none was asked for"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "is_rejected"),
    sampled([(1.00005, False), (1.001, True), (float("nan"), True), (None, False)], keep=(0, 1, 2)),
)
def test_contenders_with_other_answers_are_rejected_before_timing(
    tmp_path: Path, answer: float | None, is_rejected: bool
) -> None:
    result = measure_quickly(of(plain("mine", "ours"), plain("theirs", "peer", answer)), tiny(tmp_path), log=silent)
    assert ("theirs" in result.failed) is is_rejected
    assert ("theirs" in result.figures) is not is_rejected
    if is_rejected:
        assert "its answers are not ours" in result.failed["theirs"]


def test_a_row_larger_than_the_memory_is_left_out(tmp_path: Path) -> None:
    row = Row(name="huge", title="Huge", lineup=lambda options: Lineup([plain("mine", "ours")]), gigabytes=1e6)
    result = measure_quickly(row, Options(folder=tmp_path), log=silent)
    assert "needs about 1000000 GiB of memory" in result.left_out["all"]


TRAINING_ROWS = ("gpt-char", "bert", "translation")
DECODING_ROWS = ("greedy-1", "greedy-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "gpt-char",
        "tokenizing",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in (*TRAINING_ROWS[1:], *DECODING_ROWS, "loading")),
    ],
)
def test_rows_run_at_tiny_sizes_with_equal_answers_for_equal_weights(tmp_path: Path, name: str) -> None:
    messages: list[str] = []
    result = measure_quickly(ROWS[name], tiny(tmp_path), log=messages.append)
    assert not result.failed
    assert "best" in result.ratios
    assert any(figure["side"] == "ours" for figure in result.figures.values())
    n_same = sum("same answer" in line for line in messages)
    if name in TRAINING_ROWS:
        assert n_same >= 2  # transformers in several ways, or PyTorch's Transformer
        for figure in result.figures.values():
            assert figure["bound"] == "matmul"
    if name in DECODING_ROWS and "CTranslate2, fp32" in result.figures:
        assert any("CTranslate2, fp32" in line and "same answer" in line for line in messages)
        assert result.figures["CTranslate2, int8"]["gbytes"] is not None
        assert "best in fp32" in result.ratios


@pytest.mark.slow
def test_misplaced_weight_is_detected(tmp_path: Path) -> None:
    find_contender = ROWS["gpt-char"].lineup(tiny(tmp_path))
    mine = next(contender for contender in find_contender.contenders if contender.name == "tercet")
    theirs = next(contender for contender in find_contender.contenders if contender.name.startswith("torch.nn"))

    def astray() -> torch.nn.Module:
        model = PyTorchGPT(DecoderOnly(TINY.spec(), seed=1))
        weights = model.stack.layers[1].self_attn.in_proj_weight.data  # pyright: ignore
        weights.copy_(weights.flip(0))
        return model

    theirs._build = astray  # pyright: ignore
    row = Row(name="x", title="X", lineup=lambda options: Lineup([mine, theirs]))
    result = measure_quickly(row, tiny(tmp_path), log=silent)
    assert "its answers are not ours" in result.failed[theirs.name]


@torch.no_grad()
def test_pytorchs_translator_holds_our_weights() -> None:
    side = StackSpec(
        d_model=20, n_layers=2, n_heads=2, d_ff=31, position=Sinusoidal(), placement="post", activation="relu"
    )
    model = EncoderDecoder(
        EncoderDecoderSpec(vocab_size=23, max_len=17, scale_embedding=True, encoder=side, decoder=side), seed=3
    ).eval()
    source = torch.tensor([[5, 7, 11, 2], [3, 2, 0, 0]])
    target = torch.tensor([[1, 4, 6], [1, 9, 8]])
    theirs = PyTorchTranslator(model, pad=0).eval()
    expected = model(source, target, source_token_mask=source != 0)
    torch.testing.assert_close(theirs(source, target), expected, atol=1e-5, rtol=0)


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


@pytest.mark.slow
def test_a_run_writes_json_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["loading", "--scale", "tiny", "--rounds", "2", "--seconds", "0.001", "--no-memory", "--out", str(out)]
    assert program.main(arguments) == 0
    report = json.loads((out / "speed.json").read_text())
    assert set(report) == {"machine", "timing", "rows"}
    assert {"cpu", "flags", "threads", "packages", "date", "cores", "bf16", "load"} <= set(report["machine"])
    assert report["machine"]["packages"]["torch"] == torch.__version__
    assert report["timing"]["rounds"] == 2
    (row,) = report["rows"]
    assert row["name"] == "loading"
    assert len(row["rounds"]) == 2
    for round_ in row["rounds"]:
        assert set(round_) == {"speeds", "others", "tries"}
        assert set(round_["speeds"]) == set(row["figures"])
    for name, figure in row["figures"].items():
        low, median, high = (figure["speed"][key] for key in ("low", "median", "high"))
        speeds = [round_["speeds"][name] for round_ in row["rounds"]]
        assert min(speeds) <= low <= median <= high <= max(speeds)
        assert figure["side"] in ("ours", "readme", "peer", "limit")
    for ratio in row["ratios"].values():
        assert {ratio["ours"], ratio["theirs"]} <= set(row["figures"])
        assert ratio["spread"]["median"] > 0
    table = (out / "speed.md").read_text()
    assert "| **tercet** |" in table
    assert report["machine"]["cpu"] in table
    assert "limits before or after" in table
    assert "loading" in capsys.readouterr().out
    width, height = png_size(out / "speed.png")
    assert width > 800
    assert height > 200


@pytest.mark.slow
def test_the_picture_has_a_bar_of_each_kind(tmp_path: Path) -> None:
    contenders = [plain("mine", "ours"), plain("theirs", "readme"), plain("tuned", "peer"), plain("floor", "limit")]
    result = measure_quickly(of(*contenders), tiny(tmp_path), log=silent)
    draw([result, result], tmp_path / "two.png", title="here")
    draw([result], tmp_path / "one.png")
    pixels = (255 * matplotlib.image.imread(tmp_path / "two.png")[..., :3]).round().astype(int)
    for color in ((192, 80, 77), (154, 165, 177), (91, 124, 153), (227, 227, 227)):
        assert np.all(pixels == color, axis=-1).sum() > 2000  # more than the patch of a legend
    assert png_size(tmp_path / "two.png")[1] > png_size(tmp_path / "one.png")[1]


@pytest.mark.slow
def test_no_results_give_no_plot(tmp_path: Path) -> None:
    result = measure_quickly(of(failing_contender("setup")), tiny(tmp_path), log=silent)
    draw([result], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
    assert "| made | - | - |" in "\n".join(summary([result]))


@pytest.mark.slow
def test_table_lists_missing_contenders_and_disturbed_rounds(tmp_path: Path) -> None:
    class Noisy:
        def begin(self) -> None:
            pass

        def share(self) -> float:
            return 0.5

    result = measure_quickly(
        of(plain("mine", "ours"), failing_contender("run")), tiny(tmp_path), log=silent, meter=Noisy()
    )
    machine = {
        "cpu": "C",
        "flags": ["avx2"],
        "cores": 2,
        "threads": 1,
        "memory_gib": 3,
        "packages": {},
        "date": "today",
    }
    table = markdown(machine, [result])
    assert "- left out: somebody: is ill" in table
    assert "- failed: broken: RuntimeError: out of steam" in table
    assert "- a note" in table
    assert "2 of 2 rounds stayed disturbed" in table
    assert "at most 50%" in table


def test_rows_by_name_and_by_beginning() -> None:
    assert [row.name for row in program.choose_rows(["greedy"], ROWS)] == ["greedy-1", "greedy-8"]
    assert [row.name for row in program.choose_rows(["bert", "gpt-char"], ROWS)] == ["gpt-char", "bert"]
    assert [row.name for row in program.choose_rows([], ROWS)] == list(ROWS)
    assert [row.name for row in program.choose_rows([], ROWS, quick=True)][-1] == "start-up-import"
    with pytest.raises(SystemExit, match="unknown row gptchar"):
        program.choose_rows(["gptchar"], ROWS)


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ROWS)


def test_libraries_without_a_path_are_left_out_with_a_note(tmp_path: Path) -> None:
    left_out = ROWS["gpt-char"].lineup(tiny(tmp_path)).left_out
    assert left_out["nanoGPT"] == "give --nanogpt the folder of a checkout"
    assert (
        ROWS["translation"].lineup(tiny(tmp_path)).left_out["JoeyNMT"]
        == "pass --joeynmt with the folder of an installation"
    )
    missing = ROWS["beam"].lineup(tiny(tmp_path, translator=tmp_path / "none")).left_out
    assert "--translator" in missing["all"]


def test_a_package_that_is_missing_is_named() -> None:
    def make() -> list[Contender]:
        raise ModuleNotFoundError("No module named 'gone'", name="gone")

    lineup = Lineup()
    lineup.try_to("Gone", make)
    assert lineup.left_out == {"Gone": "the package gone is not installed"}


def test_peak_memory_of_one_contender(tmp_path: Path) -> None:
    peak = measure_peak_memory(ROWS["loading"], tiny(tmp_path), "tercet")
    assert 2**20 < peak < 2**36
    with pytest.raises(ValueError, match="has no contender 'nobody'"):
        measure_peak_memory(ROWS["loading"], tiny(tmp_path), "nobody")


@pytest.mark.exhaustive
def test_contender_that_keeps_memory_runs_in_separate_process_with_same_answer(tmp_path: Path) -> None:
    row, options = ROWS["gpt-char"], tiny(tmp_path)
    local = find_contender(row, options, "tercet")
    assert place_contenders([local], row, options) == [local]
    local.setup()
    (separate,) = place_contenders([local], row, replace(options, scale="quick"))
    assert isinstance(separate, OwnProcess)
    assert separate.describe() == local.describe()
    separate = OwnProcess(local, row.name, options)
    try:
        separate.setup()
        near_answer, separate_answer = local.answer(), separate.answer()
        assert near_answer is not None
        assert separate_answer is not None
        torch.testing.assert_close(near_answer, separate_answer)
        assert separate.run(3) == local.run(3)
        assert separate.peak_memory() > 2**20
    finally:
        separate.close()


START_AND_DIE = """
import os
from pathlib import Path
from benchmarks.speed.own_process import OwnProcess, find_contender
from benchmarks.speed.row import Options
from benchmarks.speed.rows import ROWS

row, options = ROWS["gpt-char"], Options(folder=Path("."), scale="tiny")
separate = OwnProcess(find_contender(row, options, "tercet"), row.name, options)
separate.setup()
print(*separate._pool._processes, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.exhaustive
def test_contender_process_ends_with_its_parent() -> None:
    result = subprocess.run([sys.executable, "-c", START_AND_DIE], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == -9, result.stderr
    with contextlib.suppress(psutil.NoSuchProcess):
        process, end = psutil.Process(int(result.stdout)), time.monotonic() + 30
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end
            time.sleep(0.1)


@pytest.mark.slow
def test_better_of_two_limit_measurements_counts(tmp_path: Path) -> None:
    looks = iter([{"fp32": 50.0, "memory": 40.0}, {"fp32": 70.0, "memory": 20.0}])
    result = measure_quickly(of(plain("mine", "ours")), tiny(tmp_path), log=silent, measure_limits=lambda: next(looks))
    assert result.limits == {"fp32": 70.0, "memory": 40.0}


@pytest.mark.exhaustive
def test_peak_memory_in_a_separate_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.speed.measure import memory_meter

    monkeypatch.chdir(Path(__file__).parents[2])
    messages: list[str] = []
    peak = memory_meter(["--scale", "tiny", "--folder", str(tmp_path)], messages.append)
    peak_bytes = peak("loading", "tercet")
    assert peak_bytes is not None
    assert 2**20 < peak_bytes < 2**34
    assert peak("loading", "nobody") is None
    assert "no peak memory of nobody" in messages[0]


@pytest.mark.exhaustive
def test_starts_are_timed(tmp_path: Path) -> None:
    for name in ("start-up-help", "start-up-import", "start-up-token"):
        result = measure_quickly(ROWS[name], tiny(tmp_path), log=silent)
        assert not result.failed
        assert result.seconds_each


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("quick", [False, True])
def test_libraries_run_in_bf16_if_the_machine_supports_it(compiles: bool, quick: bool) -> None:
    precisions = {
        bf16: [way.precision for way in peer_settings(bf16=bf16, quick=quick, compiles=compiles)]
        for bf16 in (False, True)
    }
    assert "bf16" not in precisions[False]
    assert "bf16" in precisions[True]
