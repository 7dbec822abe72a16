"""The server's pages as files: content, access and security policy, and no references to other hosts."""

import re
import sys
from pathlib import Path

import pytest
from http_served import client

from tercet.serve.http.guard import AccessRules
from tercet.serve.http.page_files import DOCUMENTS, page_files, page_paths
from tercet.web.access import AllowedNames
from tercet.web.page_files import policy

sys.path.insert(0, str(Path(__file__).parents[1] / "explorer"))

from page_source import faults_of_source

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def test_pages_need_no_key_and_do_not_name_models() -> None:
    with client("bert", rules=AccessRules(key="k")) as test_client:
        for path in page_paths():
            answer = test_client.get(path)
            assert answer.status_code == 200, path
            name = DOCUMENTS.get(path, path.removeprefix("/page/"))
            assert answer.text == page_files()[name]
            assert answer.headers["content-type"].startswith(KINDS[name.rpartition(".")[2]])
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert test_client.get(path, headers={"Host": "evil.example"}).status_code == 403
        for path in ("/page/nothing.js", "/page/..%2fapp.py", "/v1/models", "/openapi.json", "/docs/"):
            assert test_client.get(path).status_code == 401, path
        headers = {"Authorization": "Bearer k"}
        error = test_client.get("/page/nothing.js", headers=headers)
        assert (error.status_code, error.json()["error"]["message"][:23]) == (404, "not found: 'nothing.js'")


@pytest.mark.parametrize("path", DOCUMENTS)
def test_a_browser_runs_only_the_pages_own_files(path: str) -> None:
    with client("bert") as test_client:
        answer = test_client.get(path)
    text = answer.text
    assert answer.headers["content-security-policy"] == policy(text)
    assert "default-src 'self';" in policy(text)
    assert "unsafe" not in policy(text)
    assert re.findall(r"<script(?! type=\"(?:importmap|module)\")|<style|\son\w+=|\sstyle=", text) == []
    needed_files = set(re.findall(r'(?:href|src)="page/([^"]+)"', text))
    for _ in page_files():  # imports of imports
        sources = [page_files()[name] for name in needed_files]
        needed_files |= {name for source in sources for name in re.findall(r'from "tercet/([^"]+)"', source)}
    assert needed_files <= set(page_files())
    assert {name for name in page_files() if name.endswith(".js")} >= {
        name for name in needed_files if name.endswith(".js")
    }


def test_page_files_have_no_other_addresses_and_store_nothing() -> None:
    assert faults_of_source(page_files()) == []
    assert [name for name, text in page_files().items() if "Storage" in text or "cookie" in text] == []
    assert faults_of_source({"x.js": 'fetch("https://cdn.example/x.js")'}) == ["x.js: https://cdn.example/x.js"]


def test_model_folders_are_shown_to_local_clients_only() -> None:
    any_host = AccessRules(names=AllowedNames(local=False))
    for rules, folder in (
        (AccessRules(), "bert"),
        (any_host, None),
        (AccessRules(names=AllowedNames(hosts=("a",))), None),
    ):
        with client("bert", rules=rules) as test_client:
            assert test_client.get("/v1/models/bert").json()["folder"] == folder
