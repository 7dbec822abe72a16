"""The desk of a newcomer: a folder with an environment, a plain shell, and checks of the results."""

import contextlib
import json
import re
import shlex
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from readme_from_wheel import SERVERS, Session, install_line, shell_lines, shorten

SETTINGS = ("TERCET_", "OMP_", "GOMP_", "HF_")  # variables that a new user has not set


class Desk(Session):
    """A session of one person.

    Args:
        folder: Folder in which commands run.
        environment: Virtual environment with the programs of the commands.
        wheel: Wheel that `pip install tercet` installs. If it is None, `pip` commands are left out.
        steps: Number of steps of every training; None leaves the commands unchanged.
    """

    def __init__(self, folder: Path, environment: Path, *, wheel: Path | None, steps: int | None) -> None:
        super().__init__(folder, environment)
        self.variables = {key: value for key, value in self.variables.items() if not key.startswith(SETTINGS)}
        self.wheel, self.steps, self.seconds_of_pip = wheel, steps, 0.0

    def type(self, lines: str) -> str:
        """Run shell lines in order, without their comments, and return the output of the last one."""
        output = ""
        for line in filter(None, map(str.strip, shell_lines(re.sub(r"\\\n\s*", "", lines)))):
            words = line.split()
            if words[0] == "pip":
                self.install(line)
            elif words[0] == "tercet" and words[1] in SERVERS and "--export" not in words:
                self.serve(line)
            else:
                output = self.run(shorten(line, self.steps))
        return output

    def install(self, line: str) -> None:
        """Run a `pip install` line with the wheel instead of the published package, apart from the measured time."""
        start = time.monotonic()
        if self.wheel is not None:
            self.run(install_line(line, self.wheel), label=line)
        self.seconds_of_pip += time.monotonic() - start

    def ask(self, command: str, questions: Mapping[str, object]) -> dict[str, Any]:
        """Start a server, and return the answer of each route to its JSON object, or the page of a route to None."""
        answers = dict[str, Any]()

        def ask(address: str) -> str:
            try:
                for route, question in questions.items():
                    answers[route] = _fetch(f"{address.rstrip('/')}{route}", question)
            except OSError as error:
                return f"{route}: {error}"
            return "answered"

        self.serve(command, ask)
        return answers

    def kill(self, command: str, *, when: Callable[[], bool]) -> None:
        """Run a command, and end it by SIGKILL as soon as a condition holds."""
        start, log = time.monotonic(), self.folder / "killed.log"
        words = shlex.split(shorten(command, self.steps))
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [self.environment / "bin" / words[0], *words[1:]], cwd=self.folder, env=self.variables,
                stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
            )  # fmt: skip
            while process.poll() is None and not when():
                time.sleep(0.02)
            killed = process.poll() is None
            process.kill()
            process.wait()
        self.report(f"{command}  # SIGKILL", killed, start, f"it ended before it was killed\n{log.read_text()}")

    @contextlib.contextmanager
    def check(self, label: str, *, trained: bool = False) -> Iterator[None]:
        """Report an error in the block as a failure.

        Args:
            label: What the person checks.
            trained: If True, failed assertions count only if trainings have their whole length.
        """
        start, problem = time.monotonic(), ""
        try:
            yield
        except AssertionError:
            problem = "" if trained and self.steps is not None else traceback.format_exc()
        except Exception:
            problem = traceback.format_exc()
        self.report(f"check: {label}", not problem, start, problem)

    def read(self, name: str) -> Any:
        """Return the content of a JSON file, or the list of objects of a JSON Lines file."""
        text = (self.folder / name).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()] if name.endswith(".jsonl") else json.loads(text)

    def check_counts(self, name: str) -> None:
        """Check in the JSON result of `tercet evaluate` that a language model is better than token counts."""
        with self.check(f"{name}: the model is better than token counts", trained=True):
            scores = self.read(name)
            loss, unigram = scores["loss_nats_per_token"], scores["baselines"]["unigram"]["loss_nats_per_token"]
            assert loss < unigram, f"{loss} nats per token, unigram {unigram}"


def _fetch(address: str, question: object) -> Any:
    if question is None:
        with urlopen(address, timeout=60) as response:
            return response.read().decode()
    body = json.dumps(question).encode()
    with urlopen(Request(address, body, {"Content-Type": "application/json"}), timeout=60) as response:
        return json.loads(response.read())
