"""Malformed `state.ckpt` files: the run is rejected in one line, or resumed to the correct end.

The manifest agrees with each malformed file, because the author of the run also wrote it.
"""

import json
import os
import pickle
import re
import shutil
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from damage_runs import PreparedRuns, prepare, read_answer
from hurt_folders import safe_header, write_safe_header
from refusal import refusal
from safetensors.torch import save_file

from tercet.checkpoint import read_spec
from tercet.models import build
from tercet.storage import MANIFEST, Manifest, write_sealed_json
from tercet.training import read_recipe
from tercet.training.run_folder.checkpoints import STATE, Checkpoints
from tercet.training.run_folder.folder import check_checkpoint, find_start
from tercet.training.run_folder.sharded_state import flatten_checkpoint

sys.path.append(str(Path(__file__).parent))

NAME = "model.embedding.weight"  # a weight, whose parameter number is 0
State = dict[str, Any]


class FolderCreator:
    """Object that creates a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def edit(*keys: Any, value: Any) -> Callable[[State], None]:
    """Return a function that sets one place of a state, or deletes it if `value` is an ellipsis."""

    def change(state: State) -> None:
        *path, last = keys
        container: Any = state
        for key in path:
            container = container[key]
        if value is ...:
            del container[last]
        else:
            container[last] = value

    return change


def nest(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


OPTIMIZER = ("optimizer_states", 0)
MOMENTS = (*OPTIMIZER, "state", 0)
VALIDATION = ("callbacks", "StepActions", "Validation")
TINY = torch.zeros(1)

# Each of these is rejected in one line.
CHANGES: dict[str, Callable[[State], None]] = {
    **{f"no {key}": edit(key, value=...) for key in ("global_step", "state_dict", "optimizer_states", "callbacks")},
    **{f"no {key}": edit(key, value=...) for key in ("arithmetic", "recipe_hash")},
    **{f"step {value}": edit("global_step", value=value) for value in (-1, 10**30, float("nan"), "6", True, None)},
    "step of another moment": edit("global_step", value=4),
    "another recipe": edit("recipe_hash", value="0" * 32),
    **{f"weights are a {type(value).__name__}": edit("state_dict", value=value) for value in ([], None, 5, "a", TINY)},
    "a weight is a number": edit("state_dict", NAME, value=5),
    "a weight missing": edit("state_dict", NAME, value=...),
    "a weight more": edit("state_dict", "model.other", value=TINY),
    "a weight under a number": edit("state_dict", 5, value=TINY),
    "a weight of another shape": edit("state_dict", NAME, value=TINY),
    "a weight of another type": lambda state: edit("state_dict", NAME, value=state["state_dict"][NAME].double())(state),
    "a weight of integers": lambda state: edit("state_dict", NAME, value=state["state_dict"][NAME].long())(state),
    "tied weights that differ": edit("state_dict", "model.unembedding.weight", value=torch.zeros(19, 16)),
    "a weight not finite": lambda state: state["state_dict"][NAME].fill_(float("nan")),
    "a weight on no device": lambda state: edit("state_dict", NAME, value=state["state_dict"][NAME].to("meta"))(state),
    "a sparse weight": lambda state: edit("state_dict", NAME, value=state["state_dict"][NAME].to_sparse())(state),
    "no optimizer": edit("optimizer_states", value=[]),
    "two optimizers": lambda state: state["optimizer_states"].append(state["optimizer_states"][0]),
    "an optimizer is a list": edit("optimizer_states", value=[[]]),
    "the optimizer's state is a list": edit(*OPTIMIZER, "state", value=[]),
    "the optimizer has no state": edit(*OPTIMIZER, "state", value=...),
    "the optimizer remembers nothing": edit(*OPTIMIZER, "state", value={}),
    "the optimizer lacks a parameter": edit(*MOMENTS, value=...),
    "the optimizer has one more": edit(*OPTIMIZER, "state", 10**6, value={"step": TINY[0]}),
    "the optimizer's parameter is a tuple": edit(*OPTIMIZER, "state", (0, 1), value={}),
    "moments of SGD": edit(*MOMENTS, value={"momentum_buffer": TINY}),
    "moments are a number": edit(*MOMENTS, value=5),
    "a moment is a number": edit(*MOMENTS, "exp_avg", value=0.5),
    "a moment missing": edit(*MOMENTS, "exp_avg_sq", value=...),
    "a moment of another shape": edit(*MOMENTS, "exp_avg", value=TINY),
    "a moment of another type": lambda state: edit(*MOMENTS, "exp_avg", value=state["state_dict"][NAME].half())(state),
    "a square below zero": lambda state: state["optimizer_states"][0]["state"][0]["exp_avg_sq"].fill_(-1),
    **{f"{value} steps": edit(*MOMENTS, "step", value=torch.tensor(value)) for value in (-1.0, 1e9, float("nan"))},
    "no groups": edit(*OPTIMIZER, "param_groups", value=...),
    "groups are a dict": edit(*OPTIMIZER, "param_groups", value={}),
    "a group less": edit(*OPTIMIZER, "param_groups", 1, value=...),
    "a group is a number": edit(*OPTIMIZER, "param_groups", 0, value=5),
    "parameters are tensors": edit(*OPTIMIZER, "param_groups", 0, "params", value=[torch.ones(3)] * 8),
    "betas are tensors": edit(*OPTIMIZER, "param_groups", 0, "betas", value=(torch.ones(3), torch.ones(3))),
    "other parameters": edit(*OPTIMIZER, "param_groups", 0, "params", value=[0]),
    "parameters are a number": edit(*OPTIMIZER, "param_groups", 0, "params", value=5),
    "other betas": edit(*OPTIMIZER, "param_groups", 0, "betas", value=(0.5, 0.5)),
    "betas missing": edit(*OPTIMIZER, "param_groups", 0, "betas", value=...),
    "an eps that is a tensor": edit(*OPTIMIZER, "param_groups", 0, "eps", value=torch.ones(3)),
    "amsgrad": edit(*OPTIMIZER, "param_groups", 0, "amsgrad", value=True),
    "a rate that is a text": edit(*OPTIMIZER, "param_groups", 0, "lr", value="1"),
    "callbacks are a list": edit("callbacks", value=[]),
    "no memory of validation": edit(*VALIDATION, value=...),
    **{f"best {value}": edit(*VALIDATION, "best", value=value) for value in (float("nan"), "1", None, TINY)},
    **{f"best step {value}": edit(*VALIDATION, "best_step", value=value) for value in (-1, 10**9, 1.5)},
    **{f"without better {value}": edit(*VALIDATION, "without_better", value=value) for value in (-1, "1", ...)},
    "arithmetic is empty": edit("arithmetic", value=[]),
    "arithmetic of lists": edit("arithmetic", value=[["device", "cpu"]]),
    "arithmetic without a device": edit("arithmetic", value=[{}]),
    "arithmetic with a line end": edit("arithmetic", value=[{"device": "a\nb"}]),
    "a scaler without a scale": edit("MixedPrecision", value={}),
    "a scaler of zero": edit("MixedPrecision", value={"scale": 0.0}),
    "planted": edit("planted", value=FolderCreator()),
    "a planted weight": edit("state_dict", NAME, value=FolderCreator()),
    "bytes without end": edit("planted", value=pickle.loads(pickle.dumps(bytearray(3)))),
}  # fmt: skip

# Each of these is ignored, because it follows from the step or is not used.
HARMLESS: dict[str, Callable[[State], Any]] = {
    "loops, a version and schedulers missing": lambda state: [
        state.pop(key) for key in ("loops", "pytorch-lightning_version", "lr_schedulers", "epoch")
    ],
    "loops, a version and schedulers malformed, and keys more": lambda state: state.update(
        {"loops": {"fit_loop": -5}, "pytorch-lightning_version": [], "lr_schedulers": 5, "epoch": float("nan")},
        a=nest(200),
        hyper_parameters={"x": [1]},
        StepDataModule=5,
    ),
    "counters that share a storage": lambda state: share_counters(state),
}


def share_counters(state: State) -> None:
    """Let all parameters share one step counter, which each of them would increment."""
    moments = state["optimizer_states"][0]["state"]
    for moment in moments.values():
        moment["step"] = moments[0]["step"]


def rewrite_zip(path: Path, change: Callable[[str, bytes], bytes | None], *, packed: bool = False) -> None:
    """Rewrite each entry with `change`, or leave it out if `change` returns None."""
    with zipfile.ZipFile(path) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, data in entries:
            if (new := change(name, data)) is not None:
                archive.writestr(name, new)


def add_entry(path: Path, name: str, data: bytes) -> None:
    with (
        warnings.catch_warnings(action="ignore"),
        zipfile.ZipFile(path, "a") as archive,
    ):  # about a second entry with the same name
        archive.writestr(name, data)


def change_pickle(path: Path, change: Callable[[bytes], bytes]) -> None:
    rewrite_zip(path, lambda name, data: change(data) if name.endswith("data.pkl") else data)


def claim(path: Path, size: bytes) -> None:
    """Change the number of elements of the first storage: an integer that is pushed before the end of its tuple."""
    change_pickle(path, lambda data: re.sub(rb"M..t", lambda _: size + b"t", data, count=1, flags=re.DOTALL))


EVIL = pickle.dumps(FolderCreator(), protocol=2)
# Changes of the file itself. Each is rejected.
FILES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "without its directory": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "text": lambda path: path.write_text("a" * 1000),
    "json": lambda path: path.write_text("{}"),
    "a bare pickle": lambda path: path.write_bytes(EVIL),
    "a bare pickle of a dict": lambda path: path.write_bytes(pickle.dumps({"global_step": 6}, protocol=2)),
    "another zip": lambda path: zipfile.ZipFile(path, "w").close(),
    "no pickle in it": lambda path: rewrite_zip(path, lambda name, data: None if name.endswith(".pkl") else data),
    "compressed": lambda path: rewrite_zip(path, lambda _, data: data, packed=True),
    "a bomb": lambda path: rewrite_zip(
        path, lambda name, data: bytes(200 << 20) if name.endswith("/0") else data, packed=True
    ),
    "a storage missing": lambda path: rewrite_zip(path, lambda name, data: None if name.endswith("data/0") else data),
    "a storage too short": lambda path: rewrite_zip(
        path, lambda name, data: data[:8] if name.endswith("data/0") else data
    ),
    "a storage out of range": lambda path: claim(path, b"M\xff\xff"),
    "a storage beyond the file": lambda path: claim(path, b"J\xff\xff\xff\x7f"),
    "a storage below zero": lambda path: claim(path, b"J\xff\xff\xff\xff"),
    "a second pickle": lambda path: add_entry(path, "archive/other.pkl", EVIL),
    "a second pickle of one name": lambda path: add_entry(path, "archive/data.pkl", EVIL),
    "a second pickle in capitals": lambda path: add_entry(path, "archive/DATA.PKL", EVIL),
    "a pickle that runs": lambda path: change_pickle(path, lambda _: EVIL),
    "a pickle cut short": lambda path: change_pickle(path, lambda data: data[: len(data) // 2]),
    "no opcodes": lambda path: change_pickle(path, lambda _: b""),
    "deep tuples": lambda path: change_pickle(path, lambda _: b")" + b"\x85" * 30_000 + b"."),
    "a huge memo": lambda path: change_pickle(path, lambda _: b"\x80\x02Nr\xff\xff\xff\x7f0."),
    "a huge text": lambda path: change_pickle(path, lambda _: b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"."),
    "a tensor alone": lambda path: torch.save(TINY, path),
    "a list": lambda path: torch.save([1, 2], path),
    "a long list": lambda path: torch.save([0] * 10**5, path),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> PreparedRuns:
    return prepare("text", tmp_path_factory.getbasetemp() / "hostile" / "text")


@pytest.fixture(scope="module")
def check_run(runs: PreparedRuns) -> Callable[[Path], None]:
    """Return a function that checks a run as `train` does before it writes anything."""
    recipe = read_recipe(runs.folder / "stopped" / "run")
    spec = read_spec(runs.folder / "stopped" / "run")
    model = build(spec, seed=0)
    recipe = replace(recipe, model=spec)

    def find(run: Path) -> None:
        start = find_start(run, Checkpoints(run, 1), from_weights=False)
        assert start.checkpoint is not None
        check_checkpoint(start.checkpoint, model, recipe, fp16=False)

    return find


def lay_out(runs: PreparedRuns, place: Path) -> Path:
    """Return the only checkpoint of a stopped run."""
    runs.lay_out(place, "stopped")
    *older, newest = sorted((place / "run" / "checkpoints").iterdir())
    for folder in older:
        shutil.rmtree(folder)
    return newest


def rewrite(folder: Path, change: Callable[[State], Any]) -> None:
    state = torch.load(folder / STATE, weights_only=True)
    change(state)
    torch.save(state, folder / STATE)


def split_checkpoint(folder: Path) -> None:
    """Convert a checkpoint to one of two ranks: each has half of the embedding rows, the second everything else."""
    state = torch.load(folder / STATE, weights_only=True)
    names = [name for name in state["state_dict"] if name != "model.unembedding.weight"]
    [optimizer] = state["optimizer_states"]
    optimizer["state"] = {names[number]: values for number, values in optimizer["state"].items()}
    for group in optimizer["param_groups"]:
        group["params"] = [names[number] for number in group["params"]]
    tensors, rest = flatten_checkpoint(state)
    torch.save(rest, folder / STATE)
    halves = {name: x.chunk(2) for name, x in tensors.items() if name == EMBEDDING}
    parts = [{name: x[0] for name, x in halves.items()}, {**tensors, **{name: x[1] for name, x in halves.items()}}]
    for number, (part, start) in enumerate(zip(parts, (0, len(halves[EMBEDDING][0])), strict=True), start=1):
        offsets = {
            name: {"saved_offsets": [start if name in halves else 0, *[0] * x.dim()][: x.dim()]}
            for name, x in part.items()
        }
        metadata = {"format": "pt", "DCP_SHARDING_INFO": json.dumps(offsets)}
        save_file({name: x.clone() for name, x in part.items()}, piece(folder, number), metadata)


def piece(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}-model-00001-of-00001.safetensors"


def change_header(change: Callable[[State, State], Any]) -> Callable[[Path], None]:
    """Return a function that changes the header of the second piece and the offsets in it."""

    def rewrite_header(folder: Path) -> None:
        header, numbers = safe_header(piece(folder, 2))
        offsets = json.loads(header["__metadata__"]["DCP_SHARDING_INFO"])
        change(header, offsets)
        if header["__metadata__"].get("DCP_SHARDING_INFO"):
            header["__metadata__"]["DCP_SHARDING_INFO"] = json.dumps(offsets)
        write_safe_header(piece(folder, 2), header, numbers)

    return rewrite_header


EMBEDDING, NORM = f"weights.{NAME}", "weights.model.stack.final_norm.weight"
PIECES: dict[str, Callable[[Path], Any]] = {
    "a piece missing": lambda folder: piece(folder, 1).unlink(),
    "a piece twice": lambda folder: shutil.copy(piece(folder, 1), piece(folder, 3)),
    "a piece cut short": lambda folder: piece(folder, 2).write_bytes(piece(folder, 2).read_bytes()[:-8]),
    "a piece is text": lambda folder: piece(folder, 2).write_text("a" * 100),
    "a piece is a folder": lambda folder: (piece(folder, 2).unlink(), piece(folder, 2).mkdir()),
    "a header of 2^60 bytes": lambda folder: piece(folder, 2).write_bytes(struct.pack("<Q", 2**60) + b"{}"),
    "no offsets": change_header(lambda header, _: header["__metadata__"].pop("DCP_SHARDING_INFO")),
    "no offset of one": change_header(lambda _, offsets: offsets.pop(NORM)),
    "offsets are a list": change_header(lambda _, offsets: offsets.update({NORM: []})),
    "an offset below zero": change_header(lambda _, offsets: offsets.update({NORM: {"saved_offsets": [-1]}})),
    "an offset beyond the end": change_header(lambda _, offsets: offsets.update({NORM: {"saved_offsets": [10**12]}})),
    "an offset that is a text": change_header(lambda _, offsets: offsets.update({NORM: {"saved_offsets": ["a"]}})),
    "offsets of other dimensions": change_header(lambda _, offsets: offsets.update({NORM: {"saved_offsets": [0, 0]}})),
    "pieces that overlap": change_header(lambda _, offsets: offsets.update({EMBEDDING: {"saved_offsets": [1, 0]}})),
    "a tensor missing": change_header(lambda header, _: header.update(other=header.pop(NORM))),
    "a tensor of another shape": change_header(lambda header, _: header[NORM].update(shape=[1, 16])),
    "a tensor of another type": change_header(lambda header, _: header[NORM].update(dtype="I32")),
    "groups by number": lambda folder: rewrite(folder, edit(*OPTIMIZER, "param_groups", 0, "params", value=[0])),
    "tensors in the state too": lambda folder: rewrite(folder, edit("state_dict", NAME, value=torch.zeros(1))),
}


def seal(folder: Path) -> None:
    write_sealed_json(folder / MANIFEST, {"hash": "xxh3_128", "files": Manifest.from_folder(folder).to_plain()})


# Each of these is rejected by the same check as a form that is not in this list.
ALIKE = {
    *(f"step {value}" for value in (10**30, "6", True, None)), "no global_step", "no optimizer_states", "no callbacks",
    *(f"weights are a {kind}" for kind in ("NoneType", "int", "str")), "a weight more", "a weight of integers",
    "two optimizers", "the optimizer remembers nothing", "the optimizer's parameter is a tuple", "moments are a number",
    "a moment is a number", "1000000000.0 steps", "nan steps", "groups are a dict", "a group is a number",
    "parameters are a number", "betas are tensors", "betas missing", "amsgrad", "a rate that is a text", "best 1",
    "best None", f"best {TINY}", "best step 1.5", "without better 1", "arithmetic of lists",
    "arithmetic without a device", "a scaler without a scale", "a planted weight", "without its directory", "json",
    "a bare pickle of a dict", "a storage out of range", "a storage below zero", "a second pickle",
    "a second pickle in capitals", "no opcodes", "a huge text", "a list", "a long list", "a piece is text",
    "offsets are a list", "an offset that is a text", "offsets of other dimensions",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=pytest.mark.exhaustive if form in ALIKE else ()) for form in (*CHANGES, *FILES, *PIECES)],
)
def test_a_malformed_state_is_rejected_in_one_line(
    runs: PreparedRuns, check_run: Callable[[Path], None], tmp_path: Path, form: str
) -> None:
    folder = lay_out(runs, tmp_path / "place")
    if form in PIECES:
        split_checkpoint(folder)
        PIECES[form](folder)
    elif form in CHANGES:
        rewrite(folder, CHANGES[form])
    else:
        FILES[form](folder / STATE)
    seal(folder)
    error = refusal(lambda: check_run(tmp_path / "place" / "run"))
    assert error is not None
    assert "checkpoints/step-000006" in str(error)
    remedy = "remove it" if form == "a pipe" else "pass --from-weights to continue from its last model, or --restart"
    assert remedy in str(error)
    assert not Path("ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        "a weight of another shape",
        "a storage too short",
        *(pytest.param(form, marks=pytest.mark.exhaustive) for form in ("no arithmetic", "moments of SGD", "a bomb")),
    ],
)
def test_the_command_rejects_a_malformed_state_before_it_writes(runs: PreparedRuns, tmp_path: Path, form: str) -> None:
    folder = lay_out(runs, tmp_path / "place")
    rewrite(folder, CHANGES[form]) if form in CHANGES else FILES[form](folder / STATE)
    seal(folder)
    run = tmp_path / "place" / "run"
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    outcome = runs.call(tmp_path / "place", "train")
    assert outcome.refused_in_one_line(), outcome
    assert outcome.stderr.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        *(pytest.param(form, marks=pytest.mark.exhaustive if "missing" in form else ()) for form in HARMLESS),
        "in pieces",
    ],
)
def test_redundant_state_is_ignored(runs: PreparedRuns, tmp_path: Path, form: str) -> None:
    folder = lay_out(runs, tmp_path / "place")
    split_checkpoint(folder) if form == "in pieces" else rewrite(folder, HARMLESS[form])
    seal(folder)
    outcome = runs.call(tmp_path / "place", "train")
    assert outcome.code == 0, outcome.stderr
    assert read_answer(tmp_path / "place", "train", outcome) == runs.answer("stopped", "train")
