"""The call path from `tercet.train` to the first step is short and enters no file twice.

The test counts calls of functions of `tercet.api` or `tercet.training` from another file during startup, if an argument
is a state of the run: the request, the resolved recipe, a later state, or the training loop.
"""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tercet
from tercet.training.loop.fit import TrainingLoop
from tercet.training.request import ResolvedRecipe, RunRequest
from tercet.training.run.states import BuiltModel, LockedRun, OpenedRun, StartedRun, TrainedRun

RUN = (RunRequest, ResolvedRecipe, OpenedRun, LockedRun, BuiltModel, StartedRun, TrainedRun, TrainingLoop)
SMALL = {
    "data.tokenizer": {"kind": "characters"},
    "model.stack.n_layers": 1,
    "model.stack.d_model": 16,
    "model.stack.n_heads": 2,
    "model.max_len": 32,
    "task.batch_size": 4,
    "task.sample_prompt": "to",
    "training.max_steps": 1,
}


@pytest.mark.slow
def test_call_path_is_short_and_enters_no_file_twice(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question " * 200)
    path = list[tuple[str, str]]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code, caller = frame.f_code, frame.f_back
        file = code.co_filename.rpartition("/tercet/")[2]
        if event != "call" or not file.startswith(("api.py", "training/")):
            return
        if code.co_name == "training_step":
            sys.setprofile(None)
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        has_run = any(isinstance(frame.f_locals.get(name), RUN) for name in names)
        if has_run and caller is not None and caller.f_code.co_filename != code.co_filename:
            path.append((file, code.co_name))

    sys.setprofile(note)
    try:
        tercet.train("demo", data=tmp_path / "text.txt", out=tmp_path / "run", changes=SMALL, quiet=True)
    finally:
        sys.setprofile(None)
    functions, files = [name for _, name in path if not name.startswith("__")], [file for file, _ in path]
    assert functions == [
        "resolve", "train_resolved", "open_run", "lock_run", "start_run", "read_or_create_record", "train_run", "run",
    ]  # fmt: skip
    assert len(files) == len(set(files))
