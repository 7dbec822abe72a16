"""The page over HTTP: served files, queries and rejected requests."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from explored import TOKENIZER, numbers, trained_model
from starlette.testclient import TestClient

from tercet.checkpoint import Card, save_model
from tercet.config import UserError
from tercet.explorer import Answers, Query
from tercet.explorer.page_files import page_files
from tercet.explorer.server import application, serve
from tercet.web.page_server import MAX_BODY_BYTES


@pytest.fixture
def answers() -> Answers:
    return Answers(trained_model("pre, learned"), start=Query(text="abc"))


@pytest.fixture
def client(answers: Answers) -> Iterator[TestClient]:
    with TestClient(application(answers), base_url="http://127.0.0.1:8765") as client:
        yield client


def test_the_page_and_its_files(client: TestClient) -> None:
    for name, text in page_files().items():
        answer = client.get(f"/{name}")
        assert answer.status_code == 200
        assert answer.text == text
        kind = {"html": "text/html", "css": "text/css", "js": "text/javascript"}[name.rpartition(".")[2]]
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["x-content-type-options"] == "nosniff"
    index = client.get("/")
    assert index.text == page_files()["index.html"]
    policy = index.headers["content-security-policy"]
    assert "default-src 'self';" in policy
    assert "unsafe" not in policy
    assert re.search(r"script-src 'self' 'sha256-[A-Za-z0-9+/]{43}='", policy)


def test_queries_are_answered(client: TestClient, answers: Answers) -> None:
    assert client.post("/api/model", json={}).json() == answers.answer("model", {})
    look = client.post("/api/look", json={"ask": {"text": "abc"}})
    assert look.headers["x-content-type-options"] == "nosniff"
    assert look.json() == answers.answer("look", {"ask": {"text": "abc"}})
    response = client.post("/api/logits", json={"ask": look.json()["ask"], "at": 0}).json()
    assert numbers(response["logits"]).shape == (TOKENIZER.vocab_size,)
    page = client.post("/api/export", json={"ask": look.json()["ask"]})
    assert page.status_code == 200
    assert page.text.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the query is not valid JSON"),
        (b"\xff", "the query is not valid JSON"),
        (b"[" * 100_000, "the query is not valid JSON"),
        (b"[]", "expected a JSON object, got []"),
        (b'{"ask": {"txt": "a"}}', "ask: unknown key 'txt'; did you mean 'text'?"),
        (b'{"ask": {"ids": [99]}}', "the vocabulary has no id 99"),
    ],
)
def test_an_error_is_one_line(client: TestClient, body: bytes, message: str) -> None:
    answer = client.post("/api/look", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "192.168.1.5:8765", "127.0.0.1.evil.example", ""]
)
def test_another_host_name_is_rejected(client: TestClient, host: str) -> None:
    for answer in (
        client.get("/", headers={"Host": host}),
        client.post("/api/model", json={}, headers={"Host": host}),
    ):
        assert answer.status_code == 403
        assert "is not a name of this machine; open the address that was printed" in answer.json()["error"]


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "127.0.0.5:80", "[::1]:8765", "LOCALHOST"])
def test_the_host_names_of_this_machine_are_accepted(client: TestClient, host: str) -> None:
    assert client.post("/api/model", json={}, headers={"Host": host}).status_code == 200


def test_an_open_server_accepts_only_its_own_names(answers: Answers) -> None:
    with TestClient(application(answers, host="0.0.0.0"), base_url="http://192.168.1.5:8765") as client:
        for name in ("192.168.1.5", f"{socket.gethostname()}:8765", "localhost", "[::1]:8765"):
            assert client.post("/api/model", json={}, headers={"Host": name}).status_code == 200
        assert client.post("/api/model", json={}, headers={"Host": "evil.example"}).status_code == 403
    with TestClient(application(answers, host="box.example"), base_url="http://box.example:8765") as client:
        assert client.post("/api/model", json={}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8766", "https://127.0.0.1"])
def test_other_origins_are_rejected(client: TestClient, origin: str) -> None:
    for path in ("/", "/main.js", "/nothing"):
        assert client.get(path, headers={"Origin": origin}).status_code == 403
    answer = client.post("/api/model", json={}, headers={"Origin": origin})
    assert (answer.status_code, set(answer.json())) == (403, {"error"})
    assert client.options("/api/model", headers={"Origin": origin}).status_code == 403


def test_its_own_page_is_accepted(client: TestClient) -> None:
    assert client.post("/api/model", json={}, headers={"Origin": "http://127.0.0.1:8765"}).status_code == 200


def test_every_answer_has_security_headers(client: TestClient) -> None:
    for path in ("/", "/main.js", "/nothing", "/api/model"):
        for headers in ({}, {"Host": "evil.example"}):
            answer = client.get(path, headers=headers)
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_a_form_of_another_page_is_rejected(client: TestClient, kind: str | None) -> None:
    answer = client.post("/api/model", content=b"{}", headers={} if kind is None else {"Content-Type": kind})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]


def test_the_size_of_a_query_is_limited(client: TestClient) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 1000 + 1):
            yield b" " * 1000

    answer = client.post("/api/model", content=chunks(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "1,000,000 bytes" in answer.json()["error"]


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/..%2fserver.py", "/%2e%2e/server.py", "/__init__.py", "/page/main.js", "//etc/passwd", "/x.js"],
)
def test_nothing_but_the_page_is_served(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert set(answer.json()) == {"error"}


def test_other_methods_are_rejected(client: TestClient) -> None:
    assert client.get("/api/model").status_code == 405
    assert client.post("/main.js", json={}).status_code == 405
    assert client.options("/api/model").status_code == 405


def test_an_internal_error_hides_its_details(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "model", lambda _: 1 / 0)
    with TestClient(application(answers), base_url="http://localhost", raise_server_exceptions=False) as client:
        answer = client.post("/api/model", json={})
    assert (answer.status_code, set(answer.json())) == (500, {"error"})
    assert "ZeroDivision" not in answer.text


@pytest.mark.slow
def test_concurrent_queries_get_their_own_answers(client: TestClient) -> None:
    """Requests share one model, which only one at a time can record."""
    texts = [letter * n for letter in "abcdef" for n in (1, 3)]
    answers: dict[str, Any] = {}

    def send_query(text: str) -> None:
        answers[text] = client.post("/api/look", json={"ask": {"text": text}}).json()

    threads = [threading.Thread(target=send_query, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in texts:
        assert "".join(token["text"] for token in answers[text]["sides"][0]["tokens"]) == text


def test_the_next_free_port_is_used(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    import uvicorn

    with socket.socket() as used_socket, contextlib.ExitStack() as stack:
        used_socket.bind(("127.0.0.1", 0))
        used_socket.listen()
        port = used_socket.getsockname()[1]
        monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
        monkeypatch.setattr(
            uvicorn.Server, "run", lambda _, sockets: [opened_socket.close() for opened_socket in sockets]
        )
        serve(answers, port=port)
        out, err = capsys.readouterr()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\n", out)
        assert found is not None
        assert port < int(found[1]) <= port + 20
        assert err == ""
        serve(answers, host="0.0.0.0", port=0)
        assert "0.0.0.0 is reachable from other machines" in capsys.readouterr().err
    with pytest.raises(UserError, match="--port 70000 must be 0 to 65535; 0 takes any free port"):
        serve(answers, port=70_000)
    with pytest.raises(UserError, match="--port -1 must be 0 to 65535"):
        serve(answers, port=-1)
    with pytest.raises(UserError, match=r"cannot open 198\.51\.100\.1 at port .* pass another --host or --port"):
        serve(answers, host="198.51.100.1", port=port)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    loaded_model = trained_model("pre, learned")
    save_model(tmp_path / "run", loaded_model.model, loaded_model.tokenizer, Card(name="tiny"))
    return tmp_path / "run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.exhaustive), (signal.SIGTERM, 143)]
)
def test_the_program_serves_until_it_is_stopped(number: signal.Signals, code: int, folder: Path) -> None:
    command = [sys.executable, "-m", "tercet", "explore", str(folder), "--prompt", "abc", "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert httpx.post(f"{address}api/model", json={}).json()["start"]["text"] == "abc"
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert "POST" not in err  # requests are not logged


def test_help_does_not_import_torch() -> None:
    began = time.perf_counter()
    command = [sys.executable, "-X", "importtime", "-m", "tercet", "explore", "--help"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "torch" not in process.stderr
    assert "starlette" not in process.stderr
    assert time.perf_counter() - began < 10
    assert "--export" in process.stdout
