"""Shell completion: the candidates that the program prints, and real completion in bash, zsh and fish."""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.checkpoint.conversion import WRITERS
from tercet.cli import candidates
from tercet.cli.candidates import WORDS, cached_recipe_keys, find_candidates, split_line
from tercet.cli.main import VERBS, main, make_parser
from tercet.training import recipe_names
from tercet.training.recipe.keys import recipe_keys

SHELLS = ("bash", "zsh", "fish")
UNITS = ("words", "tokens", "spans")
NORMS = ("layer", "layer_std", "rms")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two runs, one with a space in its name, a model in a file, and other files."""
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "place"
    for name in ("runs/mine", "runs/my other", "texts"):
        (folder / name).mkdir(parents=True)
    for name in ("runs/mine", "runs/my other"):
        (folder / name / "run.json").write_text("{}")
    (folder / "model.gguf").write_text("")
    (folder / "texts/a.txt").write_text("")
    monkeypatch.chdir(folder)
    return folder


def complete_line(line: str) -> tuple[str, list[str]]:
    words = split_line(f"tercet {line}")
    kind, matches = find_candidates(make_parser(words)[0], words)
    return kind, [word for word, _ in matches]


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("", "words", list(VERBS)),
        ("tr", "words", ["train", "translate"]),
        ("train --restart --fr", "words", ["--from-weights"]),
        ("train nanogpt-cpu-", "paths", ["nanogpt-cpu-modern"]),
        ("train runs/m", "paths", ["runs/mine", "runs/my other"]),
        ("generate ", "paths", ["model.gguf", "runs/"]),
        ("generate runs/mi", "paths", ["runs/mine"]),
        ("generate --temperature 0.5 'runs/my o", "paths", ["runs/my other"]),
        ("generate runs/mine --draft ru", "paths", ["runs/"]),
        ("serve runs/mine runs/my", "paths", ["runs/my other"]),
        ("generate texts", "files", []),
        ("train demo --data te", "files", []),
        ("train demo --data=te", "files", []),
        ("train demo --documents ", "words", ["file", "line", "blank_line"]),
        ("train demo --documents=bl", "words", ["--documents=blank_line"]),
        ("train demo --set tr", "words", ["training."]),
        ("train demo --set training.optim", "words", ["training.optimizer=", "training.optimizer."]),
        ("train demo --set training.optimizer=m", "words", ["training.optimizer=muon"]),
        ("train demo --set=model.stack.rot", "words", []),
        ("train demo --set=task.masking.unit=", "words", [f"--set=task.masking.unit={unit}" for unit in UNITS]),
        ("train demo --plan --set a --set logging.pro", "words", ["logging.project="]),
        ("compare demo --vary model.stack.norm=", "words", [f"model.stack.norm={norm}" for norm in NORMS]),
        ("sweep demo --vary training.optimizer.l", "words", ["training.optimizer.lr="]),
        ("recipes grok", "words", ["grokking"]),
        ("data prepare texts --recipe grok", "paths", ["grokking"]),
        ("data l", "paths", ["look"]),
        ("learn ", "words", ["start", "check", "--help", "--json"]),
        ("learn st", "words", ["start"]),
        ("learn check 3 te", "files", []),
        ("data look texts --max", "words", ["--max-len"]),
        ("plot mod", "paths", ["model", "model.gguf"]),
        ("plot model transformer-b", "paths", ["transformer-base", "transformer-big"]),
        ("convert runs/mine out --to g", "words", ["gguf"]),
        ("fill runs/mine text --device c", "words", ["cpu", "cuda"]),
        ("--print-completion ", "words", list(SHELLS)),
        ("nosuch ", "words", ["--help", "--print-completion", "--version"]),
        ("train --nosuch=", "words", []),
    ],
)  # fmt: skip
def test_completion_candidates(place: Path, line: str, kind: str, words: list[str]) -> None:
    completion_kind, matches = complete_line(line)
    assert (completion_kind, sorted(matches)) == (kind, sorted(words))


@pytest.mark.slow
def test_all_recipes_keys_and_flags_are_offered(place: Path) -> None:
    assert set(recipe_names()) <= set(complete_line("train ")[1])
    keys = recipe_keys()
    level, key_paths = [""], set[str]()
    while level:
        key_paths |= (deeper := {word for prefix in level for word in complete_line(f"train x --set {prefix}")[1]})
        level = [word for word in deeper if word.endswith(".")]
    leaves = {key for key in keys if not any(longer.startswith(f"{key}.") for longer in keys)}
    assert leaves <= {word.removesuffix("=") for word in key_paths} <= {*keys, *key_paths - set(keys)}
    assert {key for key in keys if keys[key]} <= {word.removesuffix("=") for word in key_paths}
    for verb in VERBS:
        parser = make_parser([verb])[1].choices[verb]
        assert set(complete_line(f"{verb} --")[1]) == set(parser.flags())
        for name, form in parser.forms.items():
            assert set(complete_line(f"{verb} {name} --")[1]) == set(form.flags())


def test_completion_words_equal_the_formats() -> None:
    assert set(WORDS["to"]) == set(WRITERS)


@pytest.mark.slow
def test_keys_are_cached_until_their_files_change(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = cached_recipe_keys()
    cache_file = Path(os.environ["TERCET_CACHE"]) / candidates.KEYS_FILE
    content = json.loads(cache_file.read_text())
    assert len(content["files"]) > 8
    content["keys"]["model.mark"] = []
    cache_file.write_text(json.dumps(content))
    assert "model.mark" in cached_recipe_keys()
    file = next(iter(content["files"]))
    content["files"][file] += 1
    cache_file.write_text(json.dumps(content))
    assert cached_recipe_keys() == keys
    for damaged_content in ("", "[]", '{"files": 3}', "\0"):
        cache_file.write_text(damaged_content)
        assert cached_recipe_keys() == keys


ODD = ("model", "--set", "--data", "--json", "x", "=", "-", "--", "'", '"', "\\", "a b", "~")


@pytest.mark.slow
@given(st.lists(st.sampled_from([*VERBS, *ODD])))
def test_any_line_can_be_completed(arguments: list[str]) -> None:
    words = split_line(" ".join(["tercet", *arguments]))
    reply = find_candidates(make_parser(words)[0], words)
    assert reply.kind in ("words", "paths", "files")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1))
def test_a_line_is_split_as_a_shell_does(words: list[str]) -> None:
    assert split_line(shlex.join(["tercet", *words])) == words


@pytest.mark.slow
def test_it_is_quick_and_needs_no_torch(place: Path) -> None:
    """The limit is the processor time allowed for `tercet --help`: measured at 0.09 s. No heavy module is imported."""
    program = """
import sys
from tercet.cli.main import main
code = main(["--complete", "bash", sys.argv[1]])
heavy = {"torch", "numpy", "tokenizers", "pydantic", "tercet.training.recipe.recipe"} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""

    def seconds(*arguments: str) -> float:
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return used.ru_utime + used.ru_stime

    cached_recipe_keys()  # cached from now on
    lines = ("tercet tr", "tercet train g", "tercet generate r", "tercet train --set model.stack.p")
    assert max(seconds("-c", program, line) for line in lines) < 0.3


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", shell]) == 0
    out = capsys.readouterr().out
    assert f"tercet --complete {shell} " in out
    program = shutil.which(shell)
    if program is not None:
        result = subprocess.run([program, "-n", "/dev/stdin"], input=out, capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")


def find_shell(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the shell's path, and put `tercet` of this checkout on PATH."""
    if (path := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed here")
    program = place.parent / "bin/tercet"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tercet "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return path


BASH = """
eval "$(tercet --print-completion bash)"
complete -p tercet
offered() {
    COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _tercet
    echo "${COMPREPLY[@]}"
}
offered 'tercet reci'
offered 'tercet train demo --set training.optimizer=mu'
offered 'tercet train demo --data te'
offered 'tercet generate runs/'
"""


@pytest.mark.slow
def test_bash_completes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bash = find_shell("bash", place, monkeypatch)
    completed = subprocess.run([bash, "--norc", "-c", BASH], capture_output=True, text=True)
    assert completed.stdout.splitlines() == [
        "complete -o default -F _tercet tercet", "recipes", "muon", "", "runs/mine runs/my other"
    ], completed.stderr  # fmt: skip


FISH = (
    "tercet reci",
    "tercet train demo --set training.optimizer=mu",
    "tercet generate runs/",
    "tercet train demo --data=te",
)


def test_fish_completes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fish = find_shell("fish", place, monkeypatch)
    queries = "\n".join(f"complete -C {shlex.quote(line)}" for line in FISH)
    completed = subprocess.run(
        [fish, "--no-config", "-c", f"tercet --print-completion fish | source\n{queries}"],
        capture_output=True, text=True, env={**os.environ, "HOME": str(place.parent)},
    )  # fmt: skip
    words = [line.split("\t")[0] for line in completed.stdout.splitlines()]
    assert words == ["recipes", "training.optimizer=muon", "runs/mine", "runs/my other", "--data=texts/"], (
        completed.stderr
    )


COMPLETIONS = {  # typed text, and the line to which the shell completes it
    "tercet reci\t": "tercet recipes ",
    "tercet train demo --set training.optimizer=mu\t": "training.optimizer=muon ",
    "tercet train demo --set training.max_st\t": "training.max_steps=",
    "tercet generate runs/mi\t": "tercet generate runs/mine",
    "tercet generate runs/my\t": r"tercet generate runs/my\ other",
    "tercet train demo --data te\t": "--data texts/",
    "tercet train demo --data=te\t": "--data=texts/",
}
SET_UP = {
    "bash": (["--norc", "--noprofile", "-i"], 'PS1="% "; eval "$(tercet --print-completion bash)"'),
    "zsh": (["-f", "-i"], 'PS1="%% "; autoload -Uz compinit; compinit -u -D; eval "$(tercet --print-completion zsh)"'),
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SET_UP)
def test_completion_on_a_terminal(shell: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = find_shell(shell, place, monkeypatch)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    flags, set_up = SET_UP[shell]
    process = subprocess.Popen(
        [path, *flags], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "TERM": "dumb", "HOME": str(place.parent)},
    )  # fmt: skip
    os.close(theirs)

    def until(end: str) -> None:
        output, deadline = "", time.monotonic() + 60
        while end not in output:
            assert time.monotonic() < deadline, f"no {end!r} in {output!r}"
            if select.select([ours], [], [], 1)[0]:
                output = re.sub(
                    r"\x1b\[\S*?[a-zA-Z]|[\r\x07]", "", output + os.read(ours, 4096).decode(errors="replace")
                )

    try:
        os.write(ours, f"{set_up}; echo re''ady\n".encode())
        until("ready")
        for text, completed_line in COMPLETIONS.items():
            os.write(ours, text.encode())
            until(completed_line)
            os.write(ours, b"\x15")  # Ctrl-U clears the line
    finally:
        process.kill()
        process.wait()
        os.close(ours)
