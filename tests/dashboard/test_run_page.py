"""The dashboard: served locally, drawn by a browser, during and after a training run."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import HOSTILE, make_run, write_metrics
from starlette.testclient import TestClient

from tercet.dashboard import background_dashboard
from tercet.dashboard.answers import RunAnswers
from tercet.dashboard.server import application, page_files

slow = pytest.mark.slow


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(
        application(RunAnswers([make_run(tmp_path / "run", steps=20)])), base_url="http://127.0.0.1:1"
    ) as test_client:
        yield test_client


def test_only_the_page_and_its_files_are_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert {client.get(f"/{name}").status_code for name in page_files()} == {200}
    assert client.get("/run.json").status_code == client.get("/..%2fserver.py").status_code == 404
    assert client.post("/api/runs", json={}).json()["runs"][0]["step"] == 20
    assert client.post("/api/runs", json={}, headers={"host": "elsewhere.example"}).status_code == 403
    assert client.post("/api/runs", json={}, headers={"origin": "http://elsewhere.example"}).status_code == 403
    assert client.post("/api/runs", content="{}", headers={"content-type": "text/plain"}).status_code == 415
    assert client.post("/api/nothing", json={}).status_code == 400


def test_the_source_writes_no_markup_and_makes_no_other_requests() -> None:
    for name, text in page_files().items():
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "localStorage",
            "https://",
        ):
            assert word not in text, name


@slow
def test_the_background_dashboard_a_training_ends_with_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=20)
    command = [sys.executable, "-m", "tercet.dashboard.background", str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        assert process.stderr.readline().startswith("tercet: dashboard: http://127.0.0.1:")
        process.stdin.close()  # as if the process that started it were killed
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("places", "pages"),
    [
        ({}, 1),
        ({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "0"}, 1),
        ({"RANK": "4", "LOCAL_RANK": "0"}, 0),
        ({"SLURM_PROCID": "1"}, 0),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0"}, 0),  # as Lightning launches the processes of --devices
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, 0),
    ],
    ids=str,
)
def test_only_one_of_several_processes_serves_the_page(
    places: dict[str, str], pages: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, place in places.items():
        monkeypatch.setenv(name, place)
    commands = list[list[str]]()

    def start(command: list[str], **options: Any) -> None:
        commands.append(command)
        raise OSError("not in a test")

    monkeypatch.setattr(subprocess, "Popen", start)
    with background_dashboard(tmp_path):
        pass
    assert len(commands) == pages


@slow
def test_two_runs_side_by_side_in_a_browser(browser: Any, tmp_path: Path) -> None:
    from browser import served_application, tab
    from test_page_for_everyone import NAMELESS, PALE

    runs = [
        make_run(tmp_path / "<b>one", steps=20_000, total=20_100),
        make_run(tmp_path / "two", steps=500, lr=0.002, finished=True),
    ]
    with served_application(application(RunAnswers(runs))) as address:
        for scheme, size in (("light", {"width": 1280, "height": 900}), ("dark", {"width": 360, "height": 740})):
            with tab(browser, size, color_scheme=scheme, reduced_motion="reduce") as open_tab:
                page = open_tab.page
                page.goto(address)
                page.locator(".sample pre").nth(1).wait_for()
                assert page.locator(".card h2").all_text_contents() == ["<b>one", "two"]
                assert page.locator(".state").all_text_contents() == ["running", "finished"]
                assert page.locator(".sample pre").first.text_content() == f"after 20000: {HOSTILE}"
                assert page.locator("tbody th").first.text_content() == "training.max_steps"
                assert min(open_tab.canvas_colors(".chart canvas")) > 3
                assert page.evaluate(PALE) == []
                assert page.evaluate(NAMELESS) == []
                open_tab.assert_accessible()
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                open_tab.assert_no_problems()
                if scheme == "dark":
                    continue
                field = open_tab.key("chart:Loss")
                field.focus()
                page.keyboard.press("Home")
                assert "one training: 2.157 (2.042 to 3)" in field.locator("output").text_content()
                assert "two training" in field.locator("output").text_content()
                page.keyboard.press("End")
                assert "two" not in field.locator("output").text_content()  # this run ended after 500 steps
                page.keyboard.press("Home")
                page.keyboard.press("+")
                page.locator("[data-key=all]:enabled").wait_for()
                page.keyboard.press("0")
                page.locator("[data-key=all]:disabled").wait_for()
                for key in ("x:tokens", "x:seconds", "log-x", "log-y"):
                    open_tab.key(key).click()
                open_tab.key("shown:1").click()
                open_tab.key("chart:Loss").focus()
                page.keyboard.press("Home")
                assert "two" not in field.locator("output").text_content()
                write_metrics(runs[0] / "metrics.csv", range(20_001, 20_051))
                page.get_by_text("20,050 of 20,100").wait_for()
                open_tab.assert_no_problems()


@slow
def test_two_runs_of_100_000_steps_are_fast(tmp_path: Path) -> None:
    """The test measures CPU time, which is independent of the load. See benchmarks/log/explorer.md."""
    answers = RunAnswers([make_run(tmp_path / name, steps=100_000) for name in ("one", "two")])
    start = time.process_time()
    answers.answer("runs", {})
    curves = answers.answer("curves", {"buckets": 900})["curves"]
    assert time.process_time() - start < 1.5  # 0.8 s on two cores of an EPYC
    assert max(max(curve["high"]) for curve in curves if curve["metric"] == "train/loss") == 50
    start = time.process_time()
    answers.answer("curves", {"buckets": 900, "start": 1000.0, "end": 30_000.0})
    assert time.process_time() - start < 0.2
