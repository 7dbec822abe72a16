"""The Ray Serve example starts, answers as one server does, and replaces a replica that hangs.

Ray is large and no dependency of Tercet: the test is skipped if it is not installed.
"""

import importlib.util
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
import yaml
from http_served import registry, trained_model

from tercet.api import Run
from tercet.checkpoint import Card, save_model
from tercet.serve.engine import Limits
from tercet.serve.http.app import application

ROOT = Path(__file__).parent.parent.parent


def python_with_ray() -> str | None:
    """Return the interpreter named by TERCET_RAY_PYTHON, or the current one if it has Ray."""
    path = os.environ.get("TERCET_RAY_PYTHON")
    return path or (sys.executable if importlib.util.find_spec("ray") else None)


@pytest.mark.slow
def test_ray_serve_answers_equal_those_of_the_server(tmp_path: Path) -> None:
    python = python_with_ray()
    if python is None:
        pytest.skip(
            "ray is not installed, nor does TERCET_RAY_PYTHON name a Python that has it: pip install 'ray[serve]'"
        )
    gpt = trained_model("gpt")
    save_model(tmp_path / "mine", gpt.model, gpt.tokenizer, Card(name="mine"))
    settings: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "ray_serve.yaml").read_text())
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        settings["http_options"]["port"] = free_socket.getsockname()[1]
    application = settings["applications"][0]
    application["runtime_env"]["env_vars"] = {"TERCET_RUNS": str(tmp_path / "mine"), "OMP_NUM_THREADS": "1"}
    application["deployments"][0] |= {
        "num_replicas": 1, "ray_actor_options": {"num_cpus": 1},
        "health_check_period_s": 1, "health_check_timeout_s": 2,
    }  # fmt: skip
    (tmp_path / "ray_serve.yaml").write_text(yaml.safe_dump(settings))
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    environment.pop("TERCET_API_KEY", None)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [str(Path(python).with_name("serve")), "run", "ray_serve.yaml"],
            env=environment, cwd=tmp_path, stdout=log, stderr=log,
        )  # fmt: skip
    with (
        process,
        httpx.Client(base_url=f"http://127.0.0.1:{settings['http_options']['port']}", timeout=60) as ray_client,
    ):
        try:
            wait_until_ready(ray_client, process, tmp_path / "log")
            body = {"prompt": "the cat", "max_tokens": 7, "seed": 2}
            completion = ray_client.post("/v1/completions", json=body).json()
            assert completion["choices"][0]["text"] == Run(trained_model=gpt).generate(
                "the cat", max_new_tokens=7, seed=2
            )
            with ray_client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
            rejection = ray_client.post("/v1/completions", json={"promt": "a"})
            assert (rejection.status_code, rejection.json()["error"]["param"]) == (400, "promt")
            (hanging,) = replicas(process)
            hanging.suspend()
            wait_until_ready(ray_client, process, tmp_path / "log", "/ready", replaced_replica=hanging)
            assert ray_client.post("/v1/completions", json=body).json()["choices"] == completion["choices"]
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def replicas(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    return [
        child for child in psutil.Process(process.pid).children(recursive=True) if "ServeReplica" in command_line(child)
    ]


def command_line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def wait_until_ready(
    ray_client: httpx.Client,
    process: "subprocess.Popen[bytes]",
    log: Path,
    path: str = "/health",
    replaced_replica: psutil.Process | None = None,
) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()[-3000:]
        if any(replica != replaced_replica for replica in replicas(process)):
            with suppress(httpx.TransportError):
                if ray_client.get(path, timeout=5).status_code == 200:
                    return
        time.sleep(0.3)
    raise AssertionError(log.read_text()[-3000:])


def test_the_example_matches_its_settings() -> None:
    settings: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "ray_serve.yaml").read_text())
    (application_settings,) = settings["applications"]
    module, _, name = application_settings["import_path"].partition(":")
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    assert f"{name} = " in source
    assert all(f"class {deployment['name']}" in source for deployment in application_settings["deployments"])
    assert all(f'"{variable}"' in source for variable in application_settings["runtime_env"]["env_vars"])


def test_a_replica_with_a_hanging_model_fails_its_health_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example runs without Ray: its decorators are replaced by ones that record their arguments."""
    recorded_settings = dict[str, Any]()

    def deployment(**settings: Any) -> Any:
        recorded_settings.update(settings)
        return lambda kind: SimpleNamespace(bind=lambda: kind)

    ray = ModuleType("ray")
    ray.serve = SimpleNamespace(deployment=deployment, ingress=lambda service: lambda kind: kind)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    replica = runpy.run_path(str(ROOT / "examples" / "ray_serve.py"))["app"]()
    with registry("bert") as models:
        replica.app = application(models)
        replica.check_health()
        monkeypatch.setattr(type(models), "is_alive", False)
        with pytest.raises(RuntimeError, match="a model hangs"):
            replica.check_health()
    settings: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "ray_serve.yaml").read_text())
    (file_settings,) = settings["applications"][0]["deployments"]
    assert {
        **recorded_settings,
        "ray_actor_options": file_settings["ray_actor_options"],
    }.items() <= file_settings.items()
    assert recorded_settings["graceful_shutdown_timeout_s"] == Limits().seconds
