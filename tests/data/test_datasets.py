"""Dataset names and paths are resolved; downloads are verified, and rejected if they are invalid."""

import hashlib
import io
import re
import socket
import threading
import tracemalloc
import urllib.request
from pathlib import Path

import pytest

from tercet.config import UserError
from tercet.data import DATASETS
from tercet.data.datasets import text_datasets


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    for name in ("TERCET_DATA", "TERCET_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def test_every_dataset_has_a_description() -> None:
    assert sorted(DATASETS) == ["animals", "induction", "python-docs", "shakespeare"]
    assert all(dataset.description and dataset.origin for dataset in DATASETS.values())


def test_animals_are_plain_short_facts() -> None:
    texts = [piece.text for piece in text_datasets.find_documents("animals").pieces()]
    assert len(texts) == 1  # in one text, since the windows slide over all of them
    facts = texts[0].split(". ")
    assert len(facts) == 13
    assert set(texts[0]) <= set("abcdefghijklmnopqrstuvwxyz0123456789 .")
    assert sum("elephants" in fact for fact in facts) == 1


def test_python_docs_are_prose_in_topics() -> None:
    source = text_datasets.find_documents("python-docs")
    texts = [piece.text for piece in source.pieces()]
    assert len(texts) > 50
    assert source.size() == sum(len(text.encode()) for text in texts) > 300_000
    assert source.hash() == text_datasets.find_documents("python-docs").hash()
    paragraphs = [" ".join(paragraph.split()) for text in texts for paragraph in re.split(r"\n\s*\n", text)]
    assert len(set(paragraphs)) == len(paragraphs) > 1000
    assert all(paragraphs)


def test_path_takes_precedence_if_written_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("animals").write_text("my own")
    assert [piece.text for piece in text_datasets.find_documents("./animals").pieces()] == ["my own"]
    assert [piece.text for piece in text_datasets.find_documents("animals").pieces()] != ["my own"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("shakespear", "did you mean 'shakespeare'"),
        ("qqqq", "datasets: animals, induction, python-docs, shakespeare"),
        ("qqqq.txt", "no such file or folder: qqqq.txt"),
        ("none/qqqq", "its folder does not exist either"),
        ("debian-descriptions", "is now a file that examples/debian/packages.py writes"),
    ],
)
def test_missing_source_is_named(source: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        text_datasets.find_documents(source)


def answer(monkeypatch: pytest.MonkeyPatch, data: bytes | OSError) -> None:
    def urlopen(url: str, timeout: float) -> io.BytesIO:
        assert url.startswith("https://")
        assert timeout
        if isinstance(data, OSError):
            raise data
        return io.BytesIO(data)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)


def test_shakespeare_is_downloaded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"
    monkeypatch.setattr(text_datasets, "SHAKESPEARE_SHA256", hashlib.sha256(play).hexdigest())
    answer(monkeypatch, play)
    assert "".join(piece.text for piece in text_datasets.find_documents("shakespeare").pieces()) == play.decode()
    answer(monkeypatch, OSError("no second download"))
    assert text_datasets.find_documents("shakespeare").name == "shakespeare"
    assert [path.name for path in (tmp_path / "cache" / "shakespeare").iterdir()] == ["input.txt"]
    (tmp_path / "cache" / "shakespeare" / "input.txt").write_bytes(b"changed")
    with pytest.raises(UserError, match=r"is not TinyShakespeare .*remove it to download it again"):
        text_datasets.find_documents("shakespeare")


def test_invalid_download_is_not_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer(monkeypatch, b"<html>")
    with pytest.raises(UserError, match=r"wrong sha256.*set TERCET_DATA"):
        text_datasets.find_documents("shakespeare")
    assert list((tmp_path / "cache" / "shakespeare").iterdir()) == []


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"\0\1\2 no HTTP\r\n\r\n", r"cannot download shakespeare \(.*no HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n99\r\nFirst", r"cannot download shakespeare \(Incompl"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nFirst", "wrong sha256"),
    ],
    ids=["no HTTP", "a chunk cut short", "cut short"],
)
def test_invalid_download_is_rejected(
    head: bytes, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as client:
                client.recv(4096)
                client.sendall(head)

        monkeypatch.setattr(text_datasets, "SHAKESPEARE_URL", f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UserError, match=message):
            text_datasets.find_documents("shakespeare")
        thread.join()
    assert list((tmp_path / "cache" / "shakespeare").iterdir()) == []


def test_download_is_streamed_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    tracemalloc.start()
    try:
        answer(monkeypatch, bytes(24 << 20))
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        with pytest.raises(UserError, match="wrong sha256"):
            text_datasets.find_documents("shakespeare")
        assert tracemalloc.get_traced_memory()[1] - before < 8 << 20
    finally:
        tracemalloc.stop()


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, OSError("unreachable"))
    with pytest.raises(UserError, match=r"cannot download shakespeare \(unreachable\).*set TERCET_DATA"):
        text_datasets.find_documents("shakespeare")


@pytest.mark.parametrize("switch", ["TERCET_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_refuses_to_download(monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    monkeypatch.setenv(switch, "1")
    answer(monkeypatch, OSError("should not be asked"))
    with pytest.raises(UserError, match="downloads are disabled"):
        text_datasets.find_documents("shakespeare")


@pytest.mark.parametrize("place", ["shakespeare/input.txt", "input.txt"])
def test_shakespeare_from_a_folder_of_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str) -> None:
    path = tmp_path / "data" / place
    path.parent.mkdir(parents=True)
    path.write_bytes(b"play")
    monkeypatch.setenv("TERCET_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(text_datasets, "SHAKESPEARE_SHA256", hashlib.sha256(b"play").hexdigest())
    assert [piece.text for piece in text_datasets.find_documents("shakespeare").pieces()] == ["play"]
