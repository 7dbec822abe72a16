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
    given = os.environ.get("TERCET_RAY_PYTHON")
    return given or (sys.executable if importlib.util.find_spec("ray") else None)


@pytest.mark.slow
def test_ray_serve_answers_equal_those_of_the_server(tmp_path: Path) -> None:
    python = python_with_ray()
    if python is None:
        pytest.skip(
            "ray is not installed, nor does TERCET_RAY_PYTHON name a Python that has it: pip install 'ray[serve]'"
        )
    one = trained_model("gpt")
    save_model(tmp_path / "mine", one.model, one.tokenizer, Card(name="mine"))
    settings: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "ray_serve.yaml").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        settings["http_options"]["port"] = free.getsockname()[1]
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
    with process, httpx.Client(base_url=f"http://127.0.0.1:{settings['http_options']['port']}", timeout=60) as asking:
        try:
            wait_for(asking, process, tmp_path / "log")
            body = {"prompt": "the cat", "max_tokens": 7, "seed": 2}
            told = asking.post("/v1/completions", json=body).json()
            assert told["choices"][0]["text"] == Run(trained_model=one).generate("the cat", max_new_tokens=7, seed=2)
            with asking.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
            refused = asking.post("/v1/completions", json={"promt": "a"})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "promt")
            (hanging,) = replicas(process)
            hanging.suspend()
            wait_for(asking, process, tmp_path / "log", "/ready", replaced=hanging)
            assert asking.post("/v1/completions", json=body).json()["choices"] == told["choices"]
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def replicas(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children(recursive=True) if "ServeReplica" in name_of(child)]


def name_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def wait_for(
    asking: httpx.Client,
    process: "subprocess.Popen[bytes]",
    log: Path,
    path: str = "/health",
    replaced: psutil.Process | None = None,
) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()[-3000:]
        if any(replica != replaced for replica in replicas(process)):
            with suppress(httpx.TransportError):
                if asking.get(path, timeout=5).status_code == 200:
                    return
        time.sleep(0.3)
    raise AssertionError(log.read_text()[-3000:])


def test_the_example_matches_its_settings() -> None:
    settings: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "ray_serve.yaml").read_text())
    (one,) = settings["applications"]
    module, _, name = one["import_path"].partition(":")
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    assert f"{name} = " in source
    assert all(f"class {deployment['name']}" in source for deployment in one["deployments"])
    assert all(f'"{variable}"' in source for variable in one["runtime_env"]["env_vars"])


def test_a_replica_with_a_hanging_model_fails_its_health_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example runs without Ray: its decorators are replaced by ones that record their arguments."""
    deployed = dict[str, Any]()

    def deployment(**settings: Any) -> Any:
        deployed.update(settings)
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
    (of_file,) = settings["applications"][0]["deployments"]
    assert {**deployed, "ray_actor_options": of_file["ray_actor_options"]}.items() <= of_file.items()
    assert deployed["graceful_shutdown_timeout_s"] == Limits().seconds
