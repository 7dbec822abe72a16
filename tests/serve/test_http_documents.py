"""The commands and programs of docs/how-to/serving.md work, and its tables match the code."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_served import index_texts, on_a_socket, registry, trained_model

from tercet.checkpoint import Card, save_model
from tercet.cli import serve as verb
from tercet.cli.parser import Parser
from tercet.limits import MAX_CHUNKS
from tercet.serve.engine import Limits
from tercet.serve.http.guard import AccessRules
from tercet.serve.http.page_files import page_paths
from tercet.serve.http.requests import MAX_GENERATED_TEXTS, MAX_INPUT_TEXTS, MAX_LOGPROBS, MAX_QUERIES, MAX_RESULTS

TEXT = (Path(__file__).parent.parent.parent / "docs" / "how-to" / "serving.md").read_text()
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    models = {"mine": trained_model("gpt"), "bert": trained_model("bert")}
    with (
        registry(
            "pairs", "translator", models=models, limits=Limits(slots=2), indexes={"bert": index_texts("bert")}
        ) as models,
        on_a_socket(models) as address,
    ):
        yield address


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize("block", blocks("sh"))
def test_curl_is_answered(block: str, address: str) -> None:
    command = block.replace(ADDRESS, address).replace("curl -s", "curl -s --fail-with-body")
    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert re.search('"(choices|answers|results)":', process.stdout)


@pytest.mark.slow
def test_the_documented_client_runs(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in [block for block in blocks("python") if "tercet" not in block]:
        exec(compile(block.replace(ADDRESS, address), "serving.md", "exec"), names)
    out = capsys.readouterr().out
    assert out.startswith("['pairs', 'translator', 'mine', 'bert']")
    assert out.endswith("24\n")
    names["client"].close()


def test_the_documented_engine_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained_model("gpt")
    save_model(tmp_path / "runs" / "mine", model.model, model.tokenizer, Card(name="mine"))
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks("python") if "tercet" in block]
    exec(compile(block, "serving.md", "exec"), {})


@pytest.mark.slow
def test_the_documented_tables_match_the_code(address: str) -> None:
    for name in re.findall(r"`(tercet_\w+)\{", TEXT):
        assert f"{name.removesuffix('_total')}" in httpx.get(f"{address}/metrics").text
    limits = Limits()
    defaults = dict(re.findall(r"\| `(--[a-z-]+)` \| [^|]* \| (\d+) \|", TEXT))
    assert defaults == {
        "--slots": str(limits.slots), "--queue": str(limits.waiting), "--max-tokens": str(limits.max_new_tokens),
        "--timeout": f"{limits.seconds:g}", "--max-body": str(AccessRules().max_body), "--grace": "30",
        "--shutdown-delay": "0",
    }  # fmt: skip
    verbs = Parser(prog="tercet").add_subparsers(parser_class=Parser)
    verb.register(verbs, "")
    flags, known_flags = set(re.findall(r"--[a-z][a-z-]+", TEXT)), set(verbs.choices["serve"].flags())
    assert flags <= known_flags | {"--to"}
    for number in (MAX_LOGPROBS, MAX_GENERATED_TEXTS, MAX_INPUT_TEXTS, MAX_CHUNKS, MAX_QUERIES, MAX_RESULTS):
        assert f"{number:,}" in TEXT
    paths = httpx.get(f"{address}/openapi.json").json()["paths"]
    assert all(f"`{path}`" in TEXT for path in (*paths, *page_paths()) if "{" not in path and "/page/" not in path)
