"""Ray Serve runs our service: the example starts with its settings, and answers as one server does.

Ray is large, and no dependency of ours: where it is not installed, nothing here runs.
"""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from http_served import trained

from tercet.api import Run
from tercet.checkpoint import Card, save_model

ROOT = Path(__file__).parent.parent.parent


def python_with_ray() -> str | None:
    """Ours, or the one that TERCET_RAY_PYTHON names."""
    given = os.environ.get("TERCET_RAY_PYTHON")
    return given or (sys.executable if importlib.util.find_spec("ray") else None)


@pytest.mark.slow
def test_ray_serve_answers_as_we_do(tmp_path: Path) -> None:
    python = python_with_ray()
    if python is None:
        pytest.skip(
            "ray is not installed, nor does TERCET_RAY_PYTHON name a Python that has it: pip install 'ray[serve]'"
        )
    one = trained("gpt")
    save_model(tmp_path / "mine", one.model, one.tokenizer, Card(name="mine"))
    settings: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "ray_serve.yaml").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        settings["http_options"]["port"] = free.getsockname()[1]
    application = settings["applications"][0]
    application["runtime_env"]["env_vars"] = {"TERCET_RUNS": str(tmp_path / "mine"), "OMP_NUM_THREADS": "1"}
    application["deployments"][0] |= {"num_replicas": 1, "ray_actor_options": {"num_cpus": 1}}
    (tmp_path / "ray_serve.yaml").write_text(yaml.safe_dump(settings))
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    environment.pop("TERCET_API_KEY", None)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [str(Path(python).with_name("serve")), "run", "ray_serve.yaml"],
            env=environment, cwd=tmp_path, stdout=log, stderr=log,
        )  # fmt: skip
    with process, httpx.Client(base_url=f"http://127.0.0.1:{settings['http_options']['port']}", timeout=60) as asking:
        try:
            wait_for(asking, process, tmp_path / "log")
            body = {"prompt": "the cat", "max_tokens": 7, "seed": 2}
            told = asking.post("/v1/completions", json=body).json()
            assert told["choices"][0]["text"] == Run(trained=one).generate("the cat", max_new_tokens=7, seed=2)
            with asking.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
            refused = asking.post("/v1/completions", json={"promt": "a"})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "promt")
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(asking: httpx.Client, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()[-3000:]
        with suppress(httpx.TransportError):
            if asking.get("/health").status_code == 200:
                return
        time.sleep(0.3)
    raise AssertionError(log.read_text()[-3000:])


def test_the_example_and_its_settings_belong_together() -> None:
    settings: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "ray_serve.yaml").read_text())
    (one,) = settings["applications"]
    module, _, name = one["import_path"].partition(":")
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    assert f"{name} = " in source
    assert all(f"class {deployment['name']}" in source for deployment in one["deployments"])
    assert all(f'"{variable}"' in source for variable in one["runtime_env"]["env_vars"])
