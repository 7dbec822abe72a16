"""Type the README from top to bottom, with a wheel in an empty environment (docs/dev/releasing.md).

    python tests/release/readme_from_wheel.py FOLDER              # with the lengths that the README contains
    python tests/release/readme_from_wheel.py FOLDER --steps 20   # every training has 20 steps: some minutes

FOLDER must be new or empty. Two virtual environments are made in it: one with the wheel and what `pip` installs for it,
and one with the programs that open exported models, without Tercet. Then each shell line and each Python block of the
README runs in order in a folder with small files, except for `make`, and for `uvx` if uv is not installed. A server is
started, answers one request, and is stopped by Ctrl-C. All other commands must end with exit code 0.

At each conversion, the model is also converted to the formats that the comment of the line names. The other program
must write the same greedy text as `tercet generate --temperature 0`.

The recipe nanogpt-cpu reads Shakespeare: without a network, set TERCET_DATA to a folder that contains it.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics  # Python's own reference, part of each installation
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SERVERS = {"explore", "watch", "serve"}
STOPPED = {0, signal.SIGINT + 128}  # exit codes after Ctrl-C
PROGRAMS = ("transformers>=5.23,<6", "onnxruntime", "ctranslate2>=4.8,<5", "xllamacpp")
NO_BYTECODE = {"PIP_NO_COMPILE": "1"}  # most installed modules are never imported
PROMPT, N_TOKENS = "Once upon a time", 24
WORDS = {"man": "Mann", "woman": "Frau", "child": "Kind", "dog": "Hund", "king": "König", "teacher": "Lehrer"}
VERBS = {"sees": "sieht", "buys": "kauft", "wears": "trägt", "looks for": "sucht", "draws": "malt"}
OBJECTS = {"a book": "ein Buch", "a ball": "einen Ball", "bread": "Brot", "red flowers": "rote Blumen"}


def blocks(readme: str) -> list[tuple[str, str]]:
    """Return the language and the code of each shell and Python block."""
    return BLOCK.findall(readme)


def shell_lines(code: str) -> list[str]:
    """Return the commands of a block without their comments."""
    lines = [re.sub(r"(^|\s+)# .*$", "", line) for line in code.splitlines()]
    return [line for line in lines if line]


def named_formats(code: str) -> list[str]:
    """Return the formats in the line of a conversion, its comment included."""
    [line] = [line for line in code.splitlines() if line.startswith("tercet convert")] or [""]
    return re.findall(r"\b(hf|ctranslate2|gguf|onnx)\b", line.partition("--to")[2])


def shorten(command: str, steps: int | None) -> str:
    """Return a shell line or a Python block with another number of training steps; None leaves it unchanged."""
    if steps is None:
        return command
    command = re.sub(r"(--more |\"training\.max_steps\": )\d+", rf"\g<1>{steps}", command)
    if re.match(r"tercet (train|compare) ", command) and "--more" not in command:
        command = re.sub(r" --set training\.max_epochs=\d+", "", command)  # a length has one unit
        command += f" --set training.max_steps={steps}"
    return command


def install_line(line: str, wheel: Path) -> str:
    """Return a `pip install` line with the path of the wheel instead of Tercet's name."""
    return re.sub(r"'?\btercet(\[[\w,]+\])?'?(?=\s|$)", lambda match: f"'{wheel}{match[1] or ''}'", line)


def write_files(folder: Path) -> None:
    """Write the files that the README takes: texts, labeled texts and sentence pairs."""
    texts = [text for _, text in sorted(topics.items())]
    (folder / "my_texts").mkdir(parents=True)
    for n in range(5):
        (folder / "my_texts" / f"part{n}.txt").write_text("\n".join(texts[n::5])[:60_000], encoding="utf-8")
    (folder / "my_texts.txt").write_text("\n".join(texts)[:200_000], encoding="utf-8")
    pairs = [
        (f"the {noun} {verb} {thing} {n} times .", f"{WORDS[noun]} {VERBS[verb]} {OBJECTS[thing]} {n} mal .")
        for n in range(2, 5) for noun in WORDS for verb in VERBS for thing in OBJECTS
    ]  # fmt: skip
    (folder / "pairs.tsv").write_text("".join(f"{en}\t{de}\n" for en, de in pairs), encoding="utf-8")
    labels = "".join(f"{en},{'flowers' if 'flowers' in en else 'other'}\n" for en, _ in pairs)
    (folder / "labels.csv").write_text(f"text,label\n{labels}", encoding="utf-8")
    (folder / "texts.txt").write_text("".join(f"{en}\n" for en, _ in pairs[:20]), encoding="utf-8")


class Session:
    """Runs commands in one folder, with one environment first in PATH, and records exit codes and seconds.

    The output of the commands is in `log.txt` in the folder.
    """

    def __init__(self, folder: Path, environment: Path) -> None:
        self.folder, self.environment = folder, environment
        self.failures: list[str] = []
        (folder / "home").mkdir(exist_ok=True)
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "TERCET_CACHE")
        self.variables = {key: value for key, value in os.environ.items() if key not in hidden}
        self.variables |= {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "HOME": str(folder / "home")}
        self.variables |= NO_BYTECODE

    def run(self, command: str, *, label: str | None = None) -> str:
        """Run a shell command, print how it ended, and return its stdout."""
        start = time.monotonic()
        result = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.variables, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        with (self.folder / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"$ {command}\n{result.stdout}{result.stderr}\n")
        self.report(label or command, result.returncode == 0, start, f"exit code {result.returncode}\n{result.stderr}")
        return result.stdout

    def report(self, label: str, succeeded: bool, start: float, details: str = "") -> None:
        print(f"{time.monotonic() - start:7.1f} s  {'ok    ' if succeeded else 'FAILED'}  {label}", flush=True)
        if not succeeded:
            self.failures.append(label)
            print(details[-3000:], flush=True)

    def serve(self, command: str, ask: Callable[[str], str] | None = None) -> None:
        """Start a server on a free port, call `ask` with its address, and stop it by Ctrl-C.

        `ask` returns "answered", or a problem (default: `request`, which sends one request).
        """
        start, words = time.monotonic(), [*shlex.split(command), "--port", "0"]
        with tempfile.TemporaryFile("w+") as stderr:
            server = subprocess.Popen(
                [self.environment / "bin" / words[0], *words[1:]], cwd=self.folder, env=self.variables, text=True,
                stdout=subprocess.PIPE, stderr=stderr,
            )  # fmt: skip
            assert server.stdout is not None
            try:
                address = server.stdout.readline().strip()
                ask = ask or partial(request, completion=words[1] == "serve")
                answer = ask(address) if address else "no address"
                server.send_signal(signal.SIGINT)
                code = server.wait(60)
            finally:
                server.kill()
            stderr.seek(0)
            details = f"{answer}; exit code {code}\n{stderr.read()}"
        self.report(command, answer == "answered" and code in STOPPED, start, details)


def request(address: str, *, completion: bool) -> str:
    """Request the page of a server, or a completion of the first model that it lists; return "answered"."""
    if not completion:
        with urlopen(address, timeout=60) as response:
            return "answered" if b"<html" in response.read() else "no page"
    with urlopen(f"{address.rstrip('/')}/v1/models", timeout=60) as response:
        model = json.loads(response.read())["data"][0]["id"]
    body = json.dumps({"model": model, "prompt": PROMPT, "max_tokens": 8}).encode()
    query = Request(f"{address.rstrip('/')}/v1/completions", body, {"Content-Type": "application/json"})
    with urlopen(query, timeout=60) as response:
        return "answered" if json.loads(response.read())["choices"][0]["text"] else "an empty completion"


def compare_formats(session: Session, programs: Path, run: str, formats: list[str]) -> None:
    """Convert a run to each format, and compare the greedy text of the program that opens it."""
    options = f"--prompt {shlex.quote(PROMPT)} --temperature 0 --max-new-tokens {N_TOKENS} --json"
    expected = json.loads(session.run(f"tercet generate {run} {options}"))["text"].removeprefix(PROMPT)
    for to in formats:
        folder = session.folder / f"mine-{to}"
        if not folder.exists():
            session.run(f"tercet convert {run} {folder.name} --to {to}")
        start = time.monotonic()
        words = [programs / "bin" / "python", Path(__file__).with_name("greedy_texts.py"), to, folder, PROMPT]
        result = subprocess.run([*words, str(N_TOKENS)], capture_output=True, text=True, check=False)
        lines = result.stdout.splitlines()
        found = json.loads(lines[-1]) if result.returncode == 0 and lines else None
        details = f"Tercet: {expected!r}\nother:  {found!r}\n{result.stderr}"
        session.report(f"same greedy text from {to}", found == expected, start, details)


def type_readme(session: Session, programs: Path, wheel: Path, steps: int | None) -> None:
    python = list[str]()
    for language, code in blocks((ROOT / "README.md").read_text(encoding="utf-8")):
        if language == "python":
            python.append(code)
            continue
        for line in shell_lines(code):
            name, *arguments = shlex.split(line)
            if name == "make" or (name == "uvx" and shutil.which("uvx") is None):
                print(f"           skipped {line}")
            elif name in ("pip", "uvx"):
                session.run(install_line(line, wheel), label=line)
            elif name == "tercet" and arguments[0] in SERVERS:
                session.serve(line)
            else:
                session.run(shorten(line, steps))
            if arguments[:1] == ["convert"]:
                compare_formats(session, programs, arguments[1], named_formats(code))
    (session.folder / "readme.py").write_text(shorten("\n".join(python), steps), encoding="utf-8")
    session.run("python readme.py", label=f"{len(python)} blocks of Python")


def make_environment(folder: Path, packages: tuple[str, ...] = ()) -> Path:
    """Create a virtual environment with PyTorch and other packages, and return its folder."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    for arguments in (("-r", str(ROOT / "requirements-torch.lock")), packages):
        if arguments:
            command = [folder / "bin" / "pip", "install", "--quiet", *arguments]
            subprocess.run(command, env={**os.environ, **NO_BYTECODE}, check=True)
    return folder


def build_wheel(folder: Path) -> Path:
    """Build the wheel for any machine from the files of this checkout."""
    sys.path.append(str(ROOT))
    from wheels import copy_project

    import release

    release.build(copy_project(folder / "source"), folder / "dist", epoch=1_600_000_000)
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


def versions(environment: Path) -> Iterator[str]:
    names = "tercet|torch|transformers|onnxruntime|ctranslate2|xllamacpp|gguf|onnx|tokenizers"
    listed = subprocess.run([environment / "bin" / "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    yield from (line.partition(" @ ")[0] for line in listed.splitlines() if re.match(rf"({names})(==| @ )", line))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, help="number of steps of every training (default: as in the README)")
    parser.add_argument("--wheel", type=Path, help="wheel to install (default: built from this checkout)")
    parser.add_argument("--programs", type=Path, help="environment of a previous run, for the programs without Tercet")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    start, typed = time.monotonic(), folder / "typed"
    wheel = build_wheel(folder) if options.wheel is None else options.wheel.resolve()
    write_files(typed)
    session = Session(typed, make_environment(folder / "environment"))
    programs = options.programs or make_environment(folder / "programs", PROGRAMS)
    type_readme(session, programs, wheel, options.steps)
    for environment in (session.environment, programs):
        print(f"{environment.name}: {', '.join(versions(environment))}")
    print(f"{time.monotonic() - start:.0f} s, {len(session.failures)} failures")
    return 1 if session.failures else 0


if __name__ == "__main__":
    sys.exit(main())
