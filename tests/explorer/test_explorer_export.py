"""The page as a single file: it is complete, requests nothing, and is safe against injected markup."""

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from explored import ALL_MODELS, SCRIPT, TEXT, TRANSLATORS, default_query, trained_model

from tercet.api import Run
from tercet.checkpoint import Card, load_model, save_model
from tercet.cli.main import main
from tercet.config import UserError
from tercet.explorer import Answers, Query, export_page
from tercet.explorer import export as exporting
from tercet.explorer.blocks import block_names
from tercet.explorer.export import assemble_page, canonical
from tercet.explorer.page_files import page_files

GPT = "pre, learned"


def read_answers(page: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" id="answers">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])["answers"]


@pytest.fixture(scope="module")
def page() -> str:
    """Return the page of a small model, which tests only read."""
    return saved_page(GPT)


def saved_page(name: str, **query: Any) -> str:
    query = {
        key: tuple(value) if isinstance(value, list) else value for key, value in (query or default_query(name)).items()
    }
    return export_page(Answers(trained_model(name)), Query(**query))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_MODELS)
def test_a_saved_page_contains_its_answers(name: str) -> None:
    answers = read_answers(saved_page(name))
    model = answers["api/model {}"]
    assert model["live"] is False
    first = answers["api/look " + canonical({"ask": model["start"], "at": None})]
    look = answers["api/look " + canonical({"ask": first["ask"], "at": None})]
    assert look == {**first, "truncated": False}
    query = first["ask"]
    for block in block_names(trained_model(name).model):
        answer = answers["api/block " + canonical({"ask": query, "name": block})]
        assert answer["parameters"] or block in ("stack", "encoder", "decoder")
    for row in range(len(look["sides"][-1]["tokens"])):
        assert answers["api/logits " + canonical({"ask": query, "at": row})]["at"] == row
    assert answers["api/heads " + canonical({"ask": query})]["rows"]
    assert ("api/beams " + canonical({"ask": query, "size": 5}) in answers) == (name in TRANSLATORS)
    top = look["top"]["ids"][look["at"]][0]
    attribution_key = "api/attribution " + canonical({"ask": query, "at": look["at"], "id": top})
    assert (attribution_key in answers) == (name != "as the paper")


def test_canonical_json_equals_that_of_the_page() -> None:
    body = {"b": [1, None, True], "a": {"ü": "漢\u2028<", "c": '"\\\n\x7f'}}
    assert canonical(body) == '{"a":{"c":"\\"\\\\\\n\x7f","ü":"漢\u2028<"},"b":[1,null,true]}'


def test_a_token_cannot_end_the_script() -> None:
    loaded_model = trained_model(GPT, max_len=40)
    page = export_page(Answers(loaded_model), Query(text=SCRIPT))
    assert SCRIPT not in page
    look = next(answer for key, answer in read_answers(page).items() if key.startswith("api/look "))
    assert "".join(token["text"] for token in look["sides"][0]["tokens"]) == SCRIPT
    assert page.count("</script>") == 3  # import map, answers and page


def test_line_ends_of_javascript_are_escaped() -> None:
    page = assemble_page({"x": {"text": "\u2028\u2029<!--"}})
    assert not {"\u2028", "\u2029", "<!--"} & set(re.findall("\u2028|\u2029|<!--", page))
    assert read_answers(page) == {"x": {"text": "\u2028\u2029<!--"}}


def test_a_saved_page_makes_no_requests(page: str) -> None:
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:)""", page)
    assert not re.findall(r"url\(\s*[\"']?(?!data:|#)", page)
    styles = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    assert "@import" not in styles
    assert "default-src 'none'" in page  # the browser would block requests


def test_a_saved_page_contains_the_pages_modules(page: str) -> None:
    found = re.search(r'<script type="importmap">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    imports = json.loads(found[1])["imports"]
    modules = {f"tercet/{name}": text for name, text in page_files().items() if name.endswith(".js")}
    assert {
        name: base64.b64decode(url.removeprefix("data:text/javascript;base64,")).decode()
        for name, url in imports.items()
    } == modules
    for name, text in modules.items():
        expected = re.findall(r"""^\s*(?:import|export)\b[^;'"]*\bfrom\s*["']([^"']+)["']""", text, re.MULTILINE)
        assert set(expected) <= set(modules), name
        assert "://" not in re.sub(r"//.*|/\*.*?\*/|http://www\.w3\.org/2000/svg", "", text, flags=re.DOTALL), name
    for name, text in page_files().items():
        if name.endswith(".css"):
            assert text in page


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('<script type="importmap">', '<script type="import-map">'),
        ('<script type="module" src="main.js"></script>', ""),
        ('<link rel="stylesheet" href="draw.css">', '<link rel="stylesheet" href="draw.css">' * 2),
    ],
)
def test_an_unexpected_page_source_is_not_saved(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = page_files()
    assert old in files["index.html"]
    changed_files = {**files, "index.html": files["index.html"].replace(old, new)}
    monkeypatch.setattr(exporting, "page_files", lambda: changed_files)
    with pytest.raises(ValueError, match=r"index.html has .* times; it must have it once"):
        assemble_page({})


def test_a_page_too_large_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "MAX_PAGE_CHARACTERS", 50_000)
    with pytest.raises(UserError, match=r"larger than 0\.05 MB: .* pass a shorter text"):
        saved_page(GPT)


@pytest.mark.slow
def test_a_saved_page_contains_weights_if_they_fit(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(trained_model(GPT), start=Query(text=TEXT))
    used = sum(
        len(exporting._json({**answer, "parameters": {}} if key.startswith("api/block ") else answer))
        for key, answer in read_answers(page).items()
        if not key.startswith("api/logits ")
    )
    monkeypatch.setattr(exporting, "MAX_LOGITS_CHARACTERS", 0)
    for room, kinds in ((10**7, {"float32"}), (40_000, {"uint16"}), (20_000, set[str]())):
        monkeypatch.setattr(exporting, "MAX_PAGE_CHARACTERS", used + room)
        found = read_answers(export_page(answers))
        blocks = [answer for key, answer in found.items() if key.startswith("api/block ")]
        assert {packed["type"] for answer in blocks for packed in answer["parameters"].values()} == kinds
        assert not any(key.startswith("api/logits ") for key in found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    loaded_model = trained_model(GPT)
    save_model(tmp_path / "run", loaded_model.model, loaded_model.tokenizer, Card(name="tiny"))
    return tmp_path / "run"


@pytest.mark.slow
def test_the_command_needs_no_web_framework(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tercet.explorer.server", "tercet.web.page_server", "tercet.web.server"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("starlette", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)
    page_path = tmp_path / "page.html"
    assert main(["explore", str(folder), "--prompt", "abc", "--export", str(page_path), "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{page_path}\n"
    assert re.fullmatch(rf"tercet: wrote {page_path}, \d+\.\d MB\n", err)
    assert read_answers(page_path.read_text(encoding="utf-8"))["api/model {}"]["start"]["text"] == "abc"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert main(["explore", str(folder), "--prompt", "abc"]) == 2
    assert "pip install 'tercet[explore]'; or write a page with --export PAGE.html" in capsys.readouterr().err


def test_truncating_a_long_prompt_is_reported(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Run(trained_model=load_model(folder)).explore("abcde " * 9, export=tmp_path / "page.html")
    assert "the text is longer than the context and was truncated to 23 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "no such folder: "),
        (["run", "--export", "none/page.html"], "no such folder: "),
        (["run", "--export", "run"], "is a folder; pass a file name, such as "),
        (["run", "--export", "page.html", "--port", "80"], "--port and --export exclude each other; pass one of them"),
        (["run", "--export", "page.html", "--prompt", "Ü"], "the vocabulary has no 'Ü'"),
        (["run", "--export", "page.html", "--prompt", ""], ""),
        (["run", "--export", "page.html", "--target", "a"], "a target is for translators"),
        (["run", "--prompt", "a", "--port", "70000"], "--port 70000 must be 0 to 65535"),
        (["run", "--exprt", "page.html"], "did you mean '--export'?"),
    ],
)
def test_errors_exit_with_2(
    arguments: list[str],
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder.parent)
    code = main(["explore", *arguments])
    if not message:
        assert code == 0  # an empty prompt starts with the end-of-text token
        return
    assert code == 2
    err = capsys.readouterr().err
    assert err.startswith("tercet: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not Path("page.html").exists()


def test_run_reads(folder: Path) -> None:
    from tercet import load

    recording = load(folder).read("abc")
    assert recording.logits is not None
    assert recording.activations["stack.blocks.0.self_attention.weights"].shape == (1, 4, 3, 3)
