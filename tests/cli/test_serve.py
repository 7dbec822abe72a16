"""`tercet serve` as users run it: a separate process, requests of curl, signals, and one line per error."""

import gc
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch
from forked_program import start_forked

import tercet
from tercet.checkpoint import Card, save_model
from tercet.cli.main import main
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.serve import required_packages, server
from tercet.tokens import Characters, Tokenizer

ALPHABET = Characters(alphabet="abcdefghij .\n", bos=True, eos=True)
Write = Callable[[str], Path]


class Running(NamedTuple):
    process: "subprocess.Popen[str]"
    address: str


@pytest.fixture
def folder(tmp_path: Path) -> Write:
    def write(name: str) -> Path:
        tokenizer = Tokenizer.train(ALPHABET, [])
        stack = StackSpec(d_model=24, n_layers=2, n_heads=3, d_ff=41)
        model = DecoderOnly(DecoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=37, stack=stack))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(3))
            model.embedding.weight[tokenizer.eos_id] = 0  # so that texts rarely end early
        save_model(tmp_path / name, model, tokenizer, Card(name=name))
        return tmp_path / name

    return write


@contextmanager
def running(*arguments: object, key: str | None = None, stderr: Any = subprocess.PIPE) -> Iterator[Running]:
    environment = {} if key is None else {"TERCET_API_KEY": key}
    streams = {"stdout": subprocess.PIPE, "stderr": stderr}
    with start_forked("serve", *arguments, "--port", "0", environment=environment, **streams) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address), process.communicate()[1]
            yield Running(process, address)
        finally:
            process.kill()


@pytest.mark.slow
def test_server_responds_like_generate_and_stops_on_signal(folder: Write, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = folder("one"), folder("other")
    with (
        running(first, second, key="k") as (process, address),
        httpx.Client(base_url=address, headers={"Authorization": "Bearer k"}) as ours,
    ):
        assert httpx.get(f"{address}v1/models").status_code == 401
        assert [model["id"] for model in ours.get("/v1/models").json()["data"]] == ["one", "other"]
        flags = ["--max-new-tokens", "20", "--seed", "7", "--temperature", "0.9", "--top-p", "0.9"]
        assert main(["generate", str(first), "--prompt", "a bad", *flags]) == 0
        body = {
            "model": "one",
            "prompt": "a bad",
            "max_tokens": 20,
            "seed": 7,
            "temperature": 0.9,
            "top_p": 0.9,
            "echo": True,
        }
        completion = ours.post("/v1/completions", json=body).json()
        assert completion["choices"][0]["text"] + "\n" == capsys.readouterr().out
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "one: a language model; endpoints /v1/completions" in err
    assert re.search(r"POST /v1/completions 200 in \d+\.\d+ s, one: 5 tokens read, \d+ written\n", err)
    assert "a bad" not in err  # prompts are not logged
    assert "Bearer" not in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_background_job_of_a_script_has_the_exit_code_of_ctrl_c(folder: Write) -> None:
    """A shell without job control starts it with SIGINT ignored."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with running(folder("run")) as (process, address):
            assert httpx.get(f"{address}ready").status_code == 200  # it handles signals now
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_running_request_is_completed_if_the_log_is_full(folder: Write) -> None:
    body = {"prompt": "a", "max_tokens": 150, "temperature": 0, "stream": True}
    with Path("/dev/full").open("w") as full, running(folder("run"), stderr=full) as (process, address):
        with httpx.stream("POST", f"{address}v1/completions", json=body, timeout=60) as answer:
            lines = (line for line in answer.iter_lines() if line)
            events = [next(lines)]
            process.send_signal(signal.SIGTERM)
            events += lines
        assert process.wait(timeout=60) == 143
    assert events[-1] == "data: [DONE]"
    assert len(events) > 20


@pytest.mark.slow
def test_running_requests_are_completed_after_a_signal(folder: Write) -> None:
    """Under load: running requests are completed, later requests are rejected."""
    body = {"prompt": "a", "max_tokens": 200, "temperature": 0, "stream": True}
    with running(folder("run"), "--grace", "60", "--json-log") as (process, address), ThreadPoolExecutor(4) as pool:
        barrier = threading.Barrier(5)

        def read() -> list[str]:
            with httpx.stream("POST", f"{address}v1/completions", json=body, timeout=60) as answer:
                lines = (line for line in answer.iter_lines() if line)
                events = [next(lines)]
                barrier.wait()
                return [*events, *lines]

        reading = [pool.submit(read) for _ in range(4)]
        barrier.wait()
        process.send_signal(signal.SIGTERM)
        answers = [first.result() for first in reading]
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert all(lines[-1] == "data: [DONE]" for lines in answers)
    assert not any("error" in line for lines in answers for line in lines)
    texts = ["".join(re.findall(r'"text":"(.*?)"', line)[0] for line in lines[:-1]) for lines in answers]
    assert len(set(texts)) == 1
    assert "Traceback" not in err


@pytest.mark.slow
def test_requests_longer_than_the_grace_period_get_an_error(folder: Write) -> None:
    body = {"prompt": "a", "max_tokens": 100_000, "temperature": 0, "stream": True}
    with running(folder("run"), "--grace", "0.3", "--max-tokens", "100000") as (process, address):
        with httpx.stream("POST", f"{address}v1/completions", json=body, timeout=60) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            process.send_signal(signal.SIGTERM)
            *_, last, end = lines
        process.communicate(timeout=20)
    assert '"code":"closing"' in last
    assert end == "data: [DONE]"
    assert process.returncode == 143


@pytest.mark.slow
def test_shutdown_delay_keeps_serving_for_load_balancers(folder: Write) -> None:
    """A request that arrives in the meantime is completed too, although most of its texts wait for a slot."""
    body = {"prompt": "a", "max_tokens": 50, "n": 8, "temperature": 0}
    flags = ["--shutdown-delay", "1.5", "--grace", "60", "--slots", "2"]
    with running(folder("run"), *flags) as (process, address), ThreadPoolExecutor(1) as pool:
        assert httpx.get(f"{address}ready").status_code == 200
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        while httpx.get(f"{address}ready").status_code == 200:
            assert time.monotonic() < began + 1
            time.sleep(0.02)
        pending = pool.submit(httpx.post, f"{address}v1/completions", json=body, timeout=60)
        with suppress(httpx.TransportError):  # rejected, or cut off when the server stops listening
            while httpx.get(f"{address}health").status_code == 200:
                time.sleep(0.05)
        assert time.monotonic() - began > 1.4
        answer = pending.result()
        _, err = process.communicate(timeout=60)
    assert answer.status_code == 200
    assert len({choice["text"] for choice in answer.json()["choices"]}) == 1
    assert answer.json()["usage"]["completion_tokens"] == 400
    assert process.returncode == 143
    assert "shutting down; accepting requests for 1.5 more seconds, then waiting up to 60 seconds for run" in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop_signal", "code", "delay"),
    [
        (signal.SIGTERM, 143, 60),
        (signal.SIGINT, 130, 0),
        pytest.param(signal.SIGTERM, 143, 0, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGINT, 130, 60, marks=pytest.mark.exhaustive),
    ],
)
def test_a_second_signal_ends_it_at_once(folder: Write, stop_signal: signal.Signals, code: int, delay: int) -> None:
    body = {"prompt": "a", "max_tokens": 100_000, "temperature": 0, "stream": True}
    flags = ["--shutdown-delay", delay, "--grace", "60", "--max-tokens", "100000"]
    with running(folder("run"), *flags) as (process, address):
        with httpx.stream("POST", f"{address}v1/completions", json=body, timeout=60) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            process.send_signal(stop_signal)
            time.sleep(0.5)
            assert "error" not in next(lines)
            process.send_signal(stop_signal)
            began = time.monotonic()
            *_, last, end = lines
        _, err = process.communicate(timeout=5)
    assert time.monotonic() - began < 5
    assert '"code":"closing"' in last
    assert end == "data: [DONE]"
    assert process.returncode == code
    assert "Traceback" not in err


def error_of(arguments: Sequence[object], capsys: pytest.CaptureFixture[str]) -> str:
    assert main([str(first) for first in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--slots", "0"], "slots=0 must be at least 1"),
        (["--timeout", "0"], "seconds=0.0 must be above 0"),
        (["--max-tokens", "0"], "max_new_tokens=0 must be at least 1"),
        (["--queue", "-1"], "waiting=-1 must be at least 0"),
        (["--max-body", "0"], "argument --max-body: 0 must be at least 1"),
        (["--grace", "-1"], "argument --grace: -1.0 must be at least 0"),
        (["--shutdown-delay", "86401"], "argument --shutdown-delay: 86401.0 must be at least 0 and at most 86,400"),
        (
            ["--host", "0.0.0.0"],
            "0.0.0.0 is reachable from other machines, which could use the models without a key; set TERCET",
        ),
        (["--host", "198.51.100.1", "--no-key"], "cannot open 198.51.100.1 at port 8000: "),
        (["--port", "70000"], "--port 70000 must be 0 to 65535"),
        (["--allow-host", "http://a.example"], "--allow-host http://a.example is not a host name; pass a name such as"),
        (
            ["--cors-origin", "example.org"],
            "--cors-origin example.org is not an origin; pass one such as https://example.org",
        ),
        (["--device", "gpu"], "unknown device: gpu"),
    ],
)
def test_a_mistake_is_one_line(
    flags: list[str], message: str, folder: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TERCET_API_KEY", raising=False)
    assert message in error_of(["serve", folder("run"), *flags], capsys)


def test_models_that_cannot_be_served(
    folder: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder("a/run")
    assert "no such folder" in error_of(["serve", tmp_path / "none"], capsys)
    assert "have the same name run; rename one of them" in error_of(["serve", first, folder("b/run")], capsys)
    monkeypatch.setenv("TERCET_API_KEY", "")
    assert "invalid TERCET_API_KEY: the key must" in error_of(["serve", first], capsys)


def test_missing_package_is_reported_with_its_remedy(
    folder: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(required_packages, "find_spec", lambda name: None if name in ("fastapi", "jinja2") else name)
    message = "tercet serve requires fastapi and jinja2: pip install 'tercet[serve]'"
    assert message in error_of(["serve", folder("run")], capsys)


def test_python_serves_as_the_verb_does(folder: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[Any]()
    monkeypatch.setattr(server, "serve", lambda models, **settings: calls.append((list(models), settings)))
    first, second = tercet.load(folder("one")), tercet.load(folder("runs/other"))
    first.serve(second, port=0, quiet=True)
    assert calls == [(["one", "other"], {"port": 0, "quiet": True})]


@pytest.mark.slow
def test_folders_without_a_model_are_skipped_and_links_keep_their_names(
    folder: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes").mkdir()
    Path("link").symlink_to(folder("one"))
    served = dict[str, Any]()

    def record(models: dict[str, Any], **settings: Any) -> None:
        served.update(models)

    monkeypatch.setattr(server, "serve", record)
    assert main(["serve", "link/", "notes/", "one/"]) == 0
    assert list(served) == ["link", "one"]
    notes = [line for line in capsys.readouterr().err.splitlines() if "skipping" in line]
    assert len(notes) == 1
    assert notes[0].startswith("tercet: skipping notes")
    assert main(["serve", "notes/"]) == 2
    assert main(["serve", "one", "nosuch"]) == 2


@pytest.mark.parametrize(
    ("host", "expected"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("fe80::1", "[fe80::1]"), ("box", "box")],
)
def test_the_printed_address_can_be_opened(host: str, expected: str) -> None:
    assert server.url_host(host) == expected


def test_the_interpreter_is_tuned_while_it_serves() -> None:
    usual, frozen_count = sys.getswitchinterval(), gc.get_freeze_count()
    with server.tuned_interpreter():
        assert sys.getswitchinterval() == pytest.approx(server.SWITCH_SECONDS)
        assert gc.get_freeze_count() > frozen_count + 1000
    unfrozen_count = gc.get_freeze_count()
    gc.freeze()  # otherwise later collections in this process would search all collected tests
    assert (sys.getswitchinterval(), unfrozen_count) == (usual, 0)


def test_the_help_is_quick() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "tercet", "serve", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not any(word in result.stderr for word in ("torch", "fastapi", "pydantic"))
    assert "TERCET_API_KEY" in result.stdout
