"""Dockerfile and systemd unit: their commands parse, they wait for a drain, and they run with few privileges."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tercet.cli import serve as verb
from tercet.cli.parser import Parser
from tercet.web.server import LAST_ANSWER_SECONDS

ROOT = Path(__file__).parent.parent.parent
UNIT = ROOT / "examples" / "systemd" / "tercet-serve.service"
SETTINGS = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
DOCKERFILE = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
STEPS = [line.split(maxsplit=1) for line in DOCKERFILE.splitlines() if line]


def parse_flags(arguments: list[str]) -> Any:
    verbs = Parser(prog="tercet").add_subparsers(parser_class=Parser)
    verb.register(verbs, "")
    return verbs.choices["serve"].parse_args(arguments)


def test_the_unit_waits_for_the_drain_and_is_confined() -> None:
    program, name, *arguments = shlex.split(SETTINGS["ExecStart"])
    assert (Path(program).name, name) == ("tercet", "serve")
    flags = parse_flags(arguments)
    assert int(SETTINGS["TimeoutStopSec"]) > flags.shutdown_delay + flags.grace + LAST_ANSWER_SECONDS
    expected = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "DynamicUser": "yes", "KillSignal": "SIGTERM"}
    assert {name: SETTINGS[name] for name in expected} == expected
    assert flags.host is None  # local only, so that it starts without an API key


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if (systemd := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed: nothing to verify the unit with")
    program = SETTINGS["ExecStart"].split()[0]
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(program, "/bin/true"))  # not installed here
    process = subprocess.run([systemd, "verify", str(copy)], capture_output=True, text=True)
    messages = [line for line in process.stderr.splitlines() if UNIT.name in line]
    assert (process.returncode, messages) == (0, [])


def test_the_image_serves_mounted_models_as_any_user() -> None:
    arguments_of_step = dict(STEPS)
    shell, option, command, shell_name = json.loads(arguments_of_step["ENTRYPOINT"])
    assert (shell, option, shell_name) == ("sh", "-c", "tercet")
    program, name, *arguments = shlex.split(command.removeprefix("exec "))
    assert (program, name) == ("tercet", "serve")
    flags = parse_flags([word for word in arguments if word != "$@"])
    assert (flags.host, str(flags.port), flags.no_key) == ("0.0.0.0", arguments_of_step["EXPOSE"], False)
    assert Path(flags.runs[0]).parent == Path(arguments_of_step["VOLUME"]) == Path(arguments_of_step["WORKDIR"])
    assert f"http://127.0.0.1:{flags.port}/ready" in arguments_of_step["HEALTHCHECK"]
    kinds = [step for step, _ in STEPS]
    last = len(kinds) - kinds[::-1].index("FROM")
    assert arguments_of_step["USER"] != "root"
    assert "USER" in kinds[last:]
    images = [argument.split()[0] for step, argument in STEPS if step == "FROM"]
    assert set(images) == {"python:3.13-slim"}
    assert "://" not in DOCKERFILE.replace("http://127.0.0.1", "")


def test_the_image_copies_existing_files() -> None:
    """Copied files are also allowed by .dockerignore."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = [argument.split()[:-1] for step, argument in STEPS if step == "COPY" and "--from" not in argument]
    assert {name for names in sources for name in names} == allowed
    assert all((ROOT / name).exists() for name in allowed)
