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


def flags_of(arguments: list[str]) -> Any:
    verbs = Parser(prog="tercet").add_subparsers(parser_class=Parser)
    verb.register(verbs, "")
    return verbs.choices["serve"].parse_args(arguments)


def test_the_unit_waits_for_the_drain_and_is_confined() -> None:
    program, name, *arguments = shlex.split(SETTINGS["ExecStart"])
    assert (Path(program).name, name) == ("tercet", "serve")
    flags = flags_of(arguments)
    assert int(SETTINGS["TimeoutStopSec"]) > flags.shutdown_delay + flags.grace + LAST_ANSWER_SECONDS
    wanted = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "DynamicUser": "yes", "KillSignal": "SIGTERM"}
    assert {name: SETTINGS[name] for name in wanted} == wanted
    assert flags.host is None  # local only, so that it starts without an API key


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if (systemd := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed: nothing to verify the unit with")
    program = SETTINGS["ExecStart"].split()[0]
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(program, "/bin/true"))  # not installed here
    done = subprocess.run([systemd, "verify", str(copy)], capture_output=True, text=True)
    about_it = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, about_it) == (0, [])


def test_the_image_serves_mounted_models_as_any_user() -> None:
    of = dict(STEPS)
    shell, option, command, own_name = json.loads(of["ENTRYPOINT"])
    assert (shell, option, own_name) == ("sh", "-c", "tercet")
    program, name, *arguments = shlex.split(command.removeprefix("exec "))
    assert (program, name) == ("tercet", "serve")
    flags = flags_of([word for word in arguments if word != "$@"])
    assert (flags.host, str(flags.port), flags.no_key) == ("0.0.0.0", of["EXPOSE"], False)
    assert Path(flags.runs[0]).parent == Path(of["VOLUME"]) == Path(of["WORKDIR"])
    assert f"http://127.0.0.1:{flags.port}/ready" in of["HEALTHCHECK"]
    kinds = [step for step, _ in STEPS]
    last = len(kinds) - kinds[::-1].index("FROM")
    assert of["USER"] != "root"
    assert "USER" in kinds[last:]
    images = [what.split()[0] for step, what in STEPS if step == "FROM"]
    assert set(images) == {"python:3.13-slim"}
    assert "://" not in DOCKERFILE.replace("http://127.0.0.1", "")


def test_the_image_copies_existing_files() -> None:
    """Copied files are also allowed by .dockerignore."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [what.split()[:-1] for step, what in STEPS if step == "COPY" and "--from" not in what]
    assert {name for names in copied for name in names} == kept
    assert all((ROOT / name).exists() for name in kept)
