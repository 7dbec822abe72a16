"""Documents of `tercet serve`: the index of --input and --vectors, its report, errors, and a server with it."""

import subprocess
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from forked_program import start_forked
from random_models import save_random_models

import tercet
from tercet.cli import document_index, serve
from tercet.cli.main import main
from tercet.encoding import SearchIndex
from tercet.models import Classifier, DecoderOnly, DecoderOnlySpec, EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.serve import server
from tercet.tokens import Tokenizer, WordPiece

TEXTS = ["the cat sat on the mat", "a dog ran", "mats and cats and dogs"]
LONG = "the cat sat on the mat and a dog ran until the mats were worn " * 5
PAPERS = {"deep/short.md": TEXTS[0], "empty.txt": "", "long.txt": LONG}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with encoders `bert` and `pairs`, a decoder `gpt`, documents and a vector file."""
    folder, tokenizer = tmp_path_factory.mktemp("runs"), Tokenizer.train(WordPiece(vocab_size=80), [*TEXTS, LONG])
    sizes: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size, "max_len": 24, "stack": StackSpec(d_model=24, n_layers=1, n_heads=2),
    }  # fmt: skip
    head = Classifier(labels=("relevant",), problem_type="multi_label_classification")
    models = {
        "bert": EncoderOnly(EncoderOnlySpec(**sizes)),
        "pairs": EncoderOnly(EncoderOnlySpec(**sizes, masked_head=None, classifier=head)),
        "gpt": DecoderOnly(DecoderOnlySpec(**sizes)),
    }
    save_random_models(folder, models, tokenizer)
    for name, text in PAPERS.items():
        (folder / "papers" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "papers" / name).write_text(text)
    (folder / "papers" / "picture.png").write_bytes(b"\x89PNG")
    flags = ["--input", str(folder / "papers"), "--per-chunk", "--output", str(folder / "v.npz")]
    assert main(["embed", str(folder / "bert"), *flags]) == 0
    return folder


@pytest.fixture(autouse=True)
def enter_runs_folder(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    monkeypatch.delenv("TERCET_API_KEY", raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[SearchIndex | None]:
    """Return the indexes that commands pass to the server, which does not start."""
    indexes = list[SearchIndex | None]()
    monkeypatch.setattr(server, "serve", lambda models, index, **_: indexes.append(index and index()))
    return indexes


def check_index(index: SearchIndex | None, **lengths: Any) -> None:
    expected = tercet.load("bert").embed_chunks([*PAPERS.values()], **lengths)
    assert index is not None
    np.testing.assert_allclose(index.vectors, expected.vectors, atol=1e-5)
    texts = [index.get_text(number) for number in range(len(index.vectors))]
    assert [(text.index, text.start, text.end) for text in texts] == [
        (chunk.document, chunk.start, chunk.end) for chunk in expected.chunks
    ]
    for text in texts:
        assert text.id == [*PAPERS][text.index]
        assert text.text == PAPERS[str(text.id)][text.start : text.end]


@pytest.mark.parametrize("lengths", [{}, {"chunk": 12, "overlap": 3}], ids=str)
def test_folder_is_indexed_by_the_first_model(
    lengths: dict[str, int], served: list[SearchIndex | None], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [word for name, value in lengths.items() for word in (f"--{name}", str(value))]
    assert main(["serve", "bert", "pairs", "gpt", "--input", "papers", *flags]) == 0
    [index] = served
    check_index(index, **lengths)
    assert index is not None
    err = capsys.readouterr().err
    assert f"tercet: /v1/search searches 3 documents in {len(index.vectors)} vectors of 24 numbers\n" in err
    assert "tercet: 1 file of another format is not read: 1 .png" in err


def test_vector_file_is_opened(served: list[SearchIndex | None], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "bert", "--vectors", "v.npz"]) == 0
    check_index(served[0])
    assert "searches 3 documents in" in capsys.readouterr().err
    assert main(["serve", "bert"]) == 0
    assert served[1] is None


def test_cut_documents_and_progress_are_reported(
    served: list[SearchIndex | None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_index, "PROGRESS_SECONDS", 0)
    assert main(["serve", "bert", "--input", "papers", "--truncate"]) == 0
    err = capsys.readouterr().err
    assert "tercet: 1 document is longer than the context, and was cut to 24 tokens" in err
    assert "tercet: 2 documents read\n" in err
    assert served[0] is not None
    assert served[0].get_text(2).text == LONG


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bert --input papers --vectors v.npz", "--input and --vectors exclude each other; pass one of them"),
        ("bert --chunk 9", "--chunk applies to --input, which names the documents to search; add it"),
        ("bert --vectors v.npz --documents file", "--documents applies to --input"),
        ("bert --pooling first", "--pooling applies to the documents of --input or --vectors"),
        ("bert --input nosuch/", "nosuch"),
        ("bert --vectors nosuch.npz", "cannot read nosuch.npz: No such file"),
        ("bert --input papers --truncate --overlap 2", "--truncate and --overlap exclude each other"),
        ("bert --input papers --chunk 25", "chunks of 25 tokens: a chunk has 3 to 24 tokens"),
        ("gpt bert --input papers", "is a language model, not an encoder"),
        ("pairs --vectors v.npz", "v.npz has vectors of another model"),
        ("bert --vectors v.npz --pooling first", "v.npz has vectors of another model"),
    ],
)
@pytest.mark.usefixtures("served")
def test_error_is_one_line(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if "is not read" not in line and "no text" not in line]
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.slow
def test_address_is_opened_before_documents_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, "make_index", lambda *_: pytest.fail("the documents were read"))
        assert main(["serve", "bert", "--input", "papers", "--host", "198.51.100.1", "--no-key"]) == 2
    assert "cannot open 198.51.100.1 at port 8000" in capsys.readouterr().err


@pytest.mark.slow
def test_server_answers_queries() -> None:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_forked("serve", "bert", "--input", "papers", "--port", "0", environment={}, **streams) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            answer = httpx.post(f"{address}v1/search", json={"query": "a dog ran", "top": 3}, timeout=60)
        finally:
            process.kill()
    assert answer.status_code == 200
    [result] = answer.json()["answers"]
    found = tercet.load("bert").search("a dog ran", [*PAPERS.values()], top=3)
    assert [row["index"] for row in result["neighbors"]] == found.numbers.tolist()
    assert [row["score"] for row in result["neighbors"]] == pytest.approx(found.scores.tolist(), abs=1e-5)
