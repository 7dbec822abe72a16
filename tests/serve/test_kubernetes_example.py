"""The manifests of examples/kubernetes agree with each other and with the server. No cluster is needed."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from http_served import client

from tercet.cli import serve as verb
from tercet.cli.parser import Parser
from tercet.serve.http.guard import AccessRules
from tercet.serve.server import KEY
from tercet.web.server import LAST_ANSWER_SECONDS

FILE = Path(__file__).parent.parent.parent / "examples" / "kubernetes" / "tercet.yaml"
MANIFESTS: dict[str, dict[str, Any]] = {manifest["kind"]: manifest for manifest in yaml.safe_load_all(FILE.read_text())}
DEPLOYMENT, BUDGET, SERVICE = (MANIFESTS[kind]["spec"] for kind in ("Deployment", "PodDisruptionBudget", "Service"))
POD = DEPLOYMENT["template"]["spec"]
(CONTAINER,) = POD["containers"]


@pytest.fixture(scope="module")
def flags() -> Any:
    """Return the flags of `tercet serve` as parsed from the manifest."""
    verbs = Parser(prog="tercet").add_subparsers(parser_class=Parser)
    verb.register(verbs, "")
    program, name, *arguments = CONTAINER["command"] + CONTAINER["args"]
    assert (program, name) == ("tercet", "serve")
    return verbs.choices["serve"].parse_args(arguments)


def test_a_pod_has_the_time_to_drain(flags: Any) -> None:
    delay, grace = flags.shutdown_delay, flags.grace
    assert POD["terminationGracePeriodSeconds"] > delay + grace + LAST_ANSWER_SECONDS
    readiness_probe = CONTAINER["readinessProbe"]
    assert readiness_probe["periodSeconds"] * readiness_probe["failureThreshold"] < delay
    assert "lifecycle" not in CONTAINER


def test_a_pod_stops_only_when_another_is_ready() -> None:
    assert DEPLOYMENT["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert DEPLOYMENT["strategy"]["rollingUpdate"]["maxSurge"] > 0
    assert 0 < BUDGET["minAvailable"] < DEPLOYMENT["replicas"]


def test_the_probes_are_answered_without_the_key() -> None:
    probes = {name: probe for name, probe in CONTAINER.items() if name.endswith("Probe")}
    paths = {name.removesuffix("Probe"): probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/health", "readiness": "/ready", "liveness": "/health"}
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {CONTAINER["ports"][0]["name"]}
    with client("bert", rules=AccessRules(key="k")) as asking:
        assert all(asking.get(path).status_code == 200 for path in paths.values())
        assert asking.get("/v1/models").status_code == 401


def test_the_service_leads_to_the_pods(flags: Any) -> None:
    labels = DEPLOYMENT["template"]["metadata"]["labels"]
    assert labels == DEPLOYMENT["selector"]["matchLabels"] == BUDGET["selector"]["matchLabels"] == SERVICE["selector"]
    (port,), (container_port,) = SERVICE["ports"], CONTAINER["ports"]
    assert (port["targetPort"], container_port["containerPort"]) == (container_port["name"], flags.port)
    assert MANIFESTS["Service"]["metadata"]["name"] in flags.allow_host
    assert flags.host == "0.0.0.0"


def test_the_environment_of_a_pod(flags: Any) -> None:
    environment = {variable["name"]: variable for variable in CONTAINER["env"]}
    assert "secretKeyRef" in environment[KEY]["valueFrom"]
    assert not flags.no_key
    assert environment["OMP_NUM_THREADS"]["value"] == CONTAINER["resources"]["requests"]["cpu"]
    (mount,), (volume,) = CONTAINER["volumeMounts"], POD["volumes"]
    assert mount["name"] == volume["name"]
    assert all(Path(run).is_relative_to(mount["mountPath"]) for run in flags.runs)
    assert (CONTAINER["image"], CONTAINER["imagePullPolicy"]) == ("tercet:latest", "IfNotPresent")
