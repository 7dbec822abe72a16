"""`hf://user/name` in place of a folder: what is downloaded and uploaded, and one line for each error.

The hub is a stand-in on this machine (`hub_stand_in.py`).
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from hub_stand_in import Files, Hub, Repository, serve_hub
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

import tercet
from tercet.checkpoint import Card, load_model, read_card, save_model
from tercet.checkpoint.find_model import find_model
from tercet.checkpoint.hub import HubModel, download_model, parse_address
from tercet.cli.main import main
from tercet.config import UserError
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.tokens import Characters, Tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # raised within huggingface_hub
TOKEN = "hf_secretSecretSecret"
EXTRA: Files = {
    "pytorch_model.bin": b"pickle", "modeling_x.py": b"import os", "onnx/model.onnx": b"graph",
    "checkpoint-5/model.safetensors": b"more", "training_args.bin": b"pickle", ".gitattributes": b"",
}  # fmt: skip


def model_folder(folder: Path, *, seed: int = 0) -> Path:
    tokenizer = Tokenizer.train(Characters(), ["abc"])
    stack = StackSpec(d_model=8, n_layers=1, n_heads=2)
    torch.manual_seed(seed)
    model = DecoderOnly(DecoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=8, stack=stack))
    save_model(folder, model, tokenizer, Card(name="mine"))
    return folder


def files_of(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _continue(seconds: float) -> None:
    """Replace `time.sleep`."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("TERCET_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("time.sleep", _continue)  # between attempts
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        hub.repositories["user/name"] = Repository()
        hub.repositories["user/name"].commit(files_of(model_folder(tmp_path / "mine")) | EXTRA)
        download_model.cache_clear()
        yield hub
        download_model.cache_clear()


def run_to_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only line of a command that fails with exit code 2, without notes about the download."""
    download_model.cache_clear()
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert TOKEN not in out + err
    lines = [line for line in err.splitlines() if not line.startswith("tercet: looking up")]
    assert len(lines) == 1, err
    return lines[0]


@pytest.mark.slow
def test_only_files_of_a_model_are_downloaded(hub: Hub, tmp_path: Path) -> None:
    model = load_model("hf://user/name")
    tokens = torch.randint(4, (1, 5))
    assert torch.equal(model.model(tokens), load_model(tmp_path / "mine").model(tokens))
    assert hub.downloaded() == {*files_of(tmp_path / "mine")}
    assert {path.name for path in model.folder.iterdir()} == {*files_of(tmp_path / "mine")}
    assert model.folder.is_relative_to(tmp_path / "cache" / "models--user--name")
    count = len(hub.requests)
    assert read_card("hf://user/name").name == "mine"
    assert find_model(Path("hf://user/name")) == model.folder
    assert len(hub.requests) == count


@pytest.mark.slow
def test_commands_take_an_address(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address, text = "hf://user/name@main", tmp_path / "text.txt"
    text.write_text("abcbcacab" * 60)
    small = ["--set", "training.max_steps=1", "--set", "task.batch_size=2", "--set", "model.max_len=4"]
    for arguments in (
        ["inspect", address],
        ["generate", address, "--prompt", "a", "--max-new-tokens", "2"],
        ["evaluate", address, "--data", str(text)],
        ["convert", address, str(tmp_path / "converted"), "--to", "hf"],
        ["train", "finetune-lm", "--pretrained", address, "--data", str(text), "--out", str(tmp_path / "run"), *small],
    ):
        assert main(arguments) == 0, (arguments, capsys.readouterr())
    card = read_card(tmp_path / "run")
    assert card.recipe["pretrained"] == address
    assert not Path("hf:").exists()


@pytest.mark.slow
def test_revision_is_a_branch_a_tag_or_a_commit(hub: Hub, tmp_path: Path) -> None:
    repository = hub.repositories["user/name"]
    first = repository.refs["main"]
    second = repository.commit(files_of(model_folder(tmp_path / "second", seed=1)), "refs-1/v2.0")
    for revision, sha in ((None, first), ("refs-1/v2.0", second), (second, second), (first, first)):
        assert find_model(Path(str(HubModel("user/name", revision)))).name == sha


@pytest.mark.slow
def test_interrupted_download_is_resumed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50)
    hub.cut = 100
    with suppress(UserError):  # the library may also try again by itself
        find_model(Path("hf://user/name"))
    assert hub.cut is None
    load_model("hf://user/name")
    assert "bytes=100-" in hub.ranges


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["TERCET_OFFLINE", "HF_HUB_OFFLINE"])
def test_cache_is_used_without_a_network(
    hub: Hub, variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = find_model(Path("hf://user/name"))
    count = len(hub.requests)
    monkeypatch.setenv(variable, "1")
    download_model.cache_clear()
    assert find_model(Path("hf://user/name")) == folder
    message = run_to_error(["generate", "hf://user/other", "--prompt", "a"], capsys)
    assert f"not in the cache, and {variable} is set; unset it, or fetch the model once" in message
    message = run_to_error(["convert", str(folder), "hf://user/new"], capsys)
    assert f"{variable} is set, so nothing is uploaded" in message
    assert len(hub.requests) == count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "failure", "message"),
    [
        ("user/none", None, "hf://user/none does not exist, or is private; correct the name"),
        ("user/name@v9", None, "there is no revision v9; pass an existing branch"),
        ("user/name", (401, "RepoNotFound", "/api"), "does not exist, or is private"),
        ("user/name", (403, "GatedRepo", "/api"), "is gated; accept its terms at http"),
        ("user/name", (403, "Other", "/api"), "the token does not permit this (status 403)"),
        ("user/name", (429, "Limit", "/api"), "too many requests; wait"),
        ("user/name", (500, "Broken", "/api"), "the hub answered with status 500"),
        ("user/name", (403, "GatedRepo", "/resolve/"), "is gated; accept its terms at http"),
    ],
)
def test_error_of_the_hub_is_one_line(
    hub: Hub, name: str, failure: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.failure = failure
    assert message in run_to_error(["generate", f"hf://{name}", "--prompt", "a"], capsys)
    assert f"Bearer {TOKEN}" in hub.tokens


@pytest.mark.slow
def test_missing_network_and_missing_weights_are_one_line(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repositories["user/pickled"] = Repository()
    hub.repositories["user/pickled"].commit({"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    message = run_to_error(["inspect", "hf://user/pickled"], capsys)
    assert "has no weights in safetensors" in message
    assert "pytorch_model.bin" not in hub.downloaded()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    message = run_to_error(["inspect", "hf://user/another"], capsys)
    assert "hf://user/another cannot be reached" in message


@pytest.mark.slow
def test_path_out_of_the_cache_is_not_written(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {**hub.repositories["user/name"].commits[hub.repositories["user/name"].refs["main"]]}
    hub.repositories["user/evil"] = Repository()
    hub.repositories["user/evil"].commit(files | {f"model-0/{'../' * 5}x-of-0.safetensors": b"{}"})  # of a needed form
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    run_to_error(["inspect", "hf://user/evil"], capsys)
    assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} == before
    assert not [path for path in tmp_path.rglob("*x-of-0*") if "blobs" not in path.parts]


@pytest.mark.parametrize(
    "address",
    ["user", "user/name/more", "../name", "user/..", "user/name@", "user/name@../../x", "user/name@a/../b", "-u/name",
     "user/name@/etc", "user/na me", "user/name.git", "user--x/name", "user/name@-x", "user/\u00fc", "",
     f"{TOKEN}@u/n"],
)  # fmt: skip
def test_address_is_checked(address: str) -> None:
    with pytest.raises(UserError, match="is not an address; write hf://user/name") as caught:
        parse_address(f"hf://{address}")
    assert TOKEN not in str(caught.value)


@given(st.text(st.sampled_from("ab./@-_:~\\ \0"), max_size=12))
def test_address_never_leaves_the_cache(text: str) -> None:
    try:
        model = parse_address(f"hf://{text}")
    except UserError:
        return
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", model.repo)
    for part in (*model.repo.split("/"), *(model.revision or "main").split("/")):
        assert part.strip(".")
        assert not part.startswith((".", "-"))
    assert parse_address(Path(str(model))) == model


@pytest.mark.slow
def test_upload_creates_a_repository_and_replaces_a_model_only_with_force(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(tmp_path / "mine")
    assert main(["convert", source, "hf://user/new", "--to", "hf"]) == 0
    assert capsys.readouterr().out == "hf://user/new\n"
    repository = hub.repositories["user/new"]
    first = dict(repository.commits[repository.refs["main"]])
    local = tercet.convert(source, tmp_path / "new", "hf")
    assert {name: data for name, data in first.items() if name != ".gitattributes"} == files_of(local)
    repository.commit(first | {"notes.txt": b"kept"})
    message = run_to_error(["convert", source, "hf://user/new"], capsys)
    assert "hf://user/new already contains a model (config.json); pass --force" in message
    assert main(["convert", source, "hf://user/new", "--force"]) == 0
    uploaded = repository.commits[repository.refs["main"]]
    assert {*uploaded} == {".gitattributes", "notes.txt", *files_of(tmp_path / "mine")}
    tokens = torch.randint(4, (1, 5))
    download_model.cache_clear()
    assert torch.equal(load_model("hf://user/new").model(tokens), load_model(source).model(tokens))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ((403, "Forbidden", "/repos/create"), "the token does not permit this (status 403)"),
        ((403, "Forbidden", "/commit/"), "the token does not permit this (status 403)"),
        ((412, "Conflict", "/commit/"), "has changed during the upload"),
    ],
)
def test_rejected_upload_is_one_line(
    hub: Hub, failure: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.failure = failure
    assert message in run_to_error(["convert", str(tmp_path / "mine"), "hf://user/new"], capsys)


@pytest.mark.slow
def test_upload_needs_a_token_and_no_revision(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = run_to_error(["convert", str(tmp_path / "mine"), "hf://user/new@v1"], capsys)
    assert "leave out @v1" in message
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    message = run_to_error(["convert", str(tmp_path / "mine"), "hf://user/new"], capsys)
    assert "an upload needs a token; run `hf auth login`" in message
    assert "user/new" not in hub.repositories
