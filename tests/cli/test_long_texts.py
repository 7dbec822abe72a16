"""Long texts, documents and folders in `embed`, `classify` and `evaluate --per-line`: chunks, places and counts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from piped_command import run_command
from random_models import save_random_models

import tercet
from tercet.data.extraction.readers import PACKAGES
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.tokens import Tokenizer, WordPiece

TEXTS = ["the cat sat on the mat", "a dog ran", "mats and cats and dogs"]
LONG = "the cat sat on the mat and a dog ran until the mats were worn " * 5
MAX_LEN = 24


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an encoder `bert`, a classifier `texts`, and the folder `papers` of documents."""
    folder, tokenizer = tmp_path_factory.mktemp("runs"), Tokenizer.train(WordPiece(vocab_size=80), [*TEXTS, LONG])
    sizes: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size, "max_len": MAX_LEN, "stack": StackSpec(d_model=24, n_layers=1, n_heads=2),
    }  # fmt: skip
    models = {
        "bert": EncoderOnly(EncoderOnlySpec(**sizes)),
        "texts": EncoderOnly(EncoderOnlySpec(**sizes, masked_head=None, classifier=Classifier(labels=("a", "b")))),
    }
    save_random_models(folder, models, tokenizer)
    papers = folder / "papers"
    (papers / "deep").mkdir(parents=True)
    (papers / "long.txt").write_text(LONG.replace(" and", "\nand"))
    (papers / "deep" / "short.md").write_text(TEXTS[0])
    (papers / "empty.txt").write_text("")
    (papers / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[1:]))
    (papers / "picture.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture(autouse=True)
def enter_runs_folder(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)


STDIN = f"{TEXTS[0]}\n\n{LONG}\n"
STDIN_TEXTS = [TEXTS[0], "", LONG]


def test_vectors_of_long_texts_are_written_as_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    run = tercet.load("bert")
    chunks = run.embed_chunks(STDIN_TEXTS)
    n_chunks = len(chunks.chunks)
    lines, err = run_command(["embed", "bert", "--output", "whole.npz", "--json"], capsys, STDIN)
    assert f"1 text is longer than {MAX_LEN} tokens, and was read in {n_chunks - 2} chunks" in err
    assert json.loads(lines[0]) == {
        "output": "whole.npz", "vectors": 3, "width": 24, "truncated": 0, "texts": 3, "chunks": n_chunks,
    }  # fmt: skip
    np.testing.assert_allclose(np.load("whole.npz")["vectors"], run.embed(STDIN_TEXTS), atol=1e-5)
    _, err = run_command(["embed", "bert", "--output", "cut.npz", "--truncate"], capsys, STDIN)
    assert f"1 text is longer than the context, and was cut to {MAX_LEN} tokens" in err
    whole, cut = np.load("whole.npz")["vectors"], np.load("cut.npz")["vectors"]
    np.testing.assert_allclose(whole[:2], cut[:2], atol=1e-6)
    np.testing.assert_allclose(cut, run.embed(STDIN_TEXTS, truncate=True), atol=1e-5)
    assert np.abs(whole[2] - cut[2]).max() > 1e-3


@pytest.mark.parametrize("suffix", [".npz", ".jsonl", ".parquet"])
def test_vectors_of_chunks_are_written_with_their_places(
    suffix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tercet.cli.embed.POOL", 2)  # several pools
    expected = tercet.load("bert").embed_chunks(STDIN_TEXTS, chunk=12, overlap=3)
    output = f"chunks{suffix}"
    arguments = ["embed", "bert", "--per-chunk", "--chunk", "12", "--overlap", "3", "--output", output]
    if suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
    run_command(arguments, capsys, STDIN)
    if suffix == ".npz":
        arrays = np.load(output)
        names = ("texts", "documents", "starts", "ends", "vectors")
        rows = [dict(zip(("text", "document", "start", "end", "vector"), row, strict=True))
                for row in zip(*(arrays[name].tolist() for name in names), strict=True)]  # fmt: skip
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in Path(output).read_text().splitlines()]
    else:
        rows = parquet.read_table(output).to_pylist()
    assert [(row["document"], row["start"], row["end"]) for row in rows] == [
        (chunk.document, chunk.start, chunk.end) for chunk in expected.chunks
    ]
    assert [row["text"] for row in rows] == [STDIN_TEXTS[row["document"]][row["start"] : row["end"]] for row in rows]
    np.testing.assert_allclose(np.array([row["vector"] for row in rows]), expected.vectors, atol=1e-5)


def test_search_shows_the_places_of_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    found = tercet.load("bert").search("a dog ran", STDIN_TEXTS, top=4)
    query = ["embed", "bert", "--query", "a dog ran", "--top", "4", "--json"]
    run_command(["embed", "bert", "--per-chunk", "--output", "places.npz"], capsys, STDIN)
    for flags in (["--input", "-"], ["--vectors", "places.npz"]):
        lines, _ = run_command([*query, *flags], capsys, STDIN if flags[0] == "--input" else "")
        neighbors = json.loads(lines[0])["neighbors"]
        assert [row["index"] for row in neighbors] == found.numbers.tolist()
        assert [row["score"] for row in neighbors] == pytest.approx(found.scores.tolist(), abs=1e-5)
        assert found.starts is not None
        assert found.ends is not None
        places = zip(found.numbers.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
        for row, (number, start, end) in zip(neighbors, places, strict=True):
            assert row["text"] == STDIN_TEXTS[number][start:end]
            if number == 2:
                assert (row["start"], row["end"]) == (start, end)
            elif flags[0] == "--input":
                assert "start" not in row, "a text that was not split"
    lines, _ = run_command([*query[:-1], "--input", "-"], capsys, STDIN)
    assert any(
        line.split("\t")[1] == f"2:{row['start']}-{row['end']}"
        for line in lines
        for row in neighbors
        if row["index"] == 2
    )


def test_folder_is_read_as_documents(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run_command(["embed", "bert", "--input", "papers", "--output", "papers.jsonl"], capsys)
    rows = [json.loads(line) for line in Path("papers.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["deep/short.md", "empty.txt", "long.txt", "rows.jsonl#0", "rows.jsonl#1"]
    assert [row["text"] for row in rows] == [TEXTS[0], "", LONG.replace(" and", "\nand"), *TEXTS[1:]]
    assert "tercet: 1 file of another format is not read: 1 .png" in err
    assert "tercet: 1 document has no text" in err
    expected = tercet.load("bert").embed([row["text"] for row in rows])
    np.testing.assert_allclose(np.array([row["vector"] for row in rows]), expected, atol=1e-5)
    lines, _ = run_command(["embed", "bert", "--input", "papers", "--query", "a dog", "--top", "9", "--json"], capsys)
    for row in json.loads(lines[0])["neighbors"]:
        text = rows[row["index"]]["text"]
        assert row["id"] == rows[row["index"]]["id"]
        assert row["text"] == text[row.get("start", 0) : row.get("end", len(text))]


def test_extracted_documents_are_classified(capsys: pytest.CaptureFixture[str]) -> None:
    for module in PACKAGES:
        pytest.importorskip(module, reason=f"{module} is not installed; pip install 'tercet[documents]'")
    Path("page.html").write_text(f"<title>t</title><p>{LONG}<script>x</script>")
    lines, err = run_command(["classify", "texts", "--input", "page.html", "--json", "--scores"], capsys)
    [answer] = map(json.loads, lines)
    expected = tercet.load("texts").classify(answer["text"])
    assert answer["text"] == LONG.strip()
    assert answer["chunks"] == expected.chunks > 1
    assert answer["scores"] == pytest.approx(expected.scores, rel=1e-5)
    assert f"was read in {expected.chunks} chunks" in err
    Path("bad.pdf").write_bytes(b"%PDF-1.4 damaged")
    _, err = run_command(["classify", "texts", "--input", "bad.pdf"], capsys, code=2)
    assert "bad.pdf is not a readable PDF file" in err
    assert err.count("\n") == 1


def test_classify_reports_chunks_only_for_split_texts(capsys: pytest.CaptureFixture[str]) -> None:
    lines, err = run_command(["classify", "texts", "--json"], capsys, STDIN)
    answers = [json.loads(line) for line in lines]
    expected = tercet.load("texts").classify(STDIN_TEXTS)
    assert [answer.get("chunks", 1) for answer in answers] == [result.chunks for result in expected]
    assert [answer["probability"] for answer in answers] == pytest.approx([result.probability for result in expected])
    assert "chunks" not in answers[0]
    assert f"1 text is longer than {MAX_LEN} tokens, and was read in {answers[2]['chunks']} chunks" in err
    lines, err = run_command(["classify", "texts", "--json", "--truncate"], capsys, STDIN)
    assert json.loads(lines[2])["truncated"]
    assert f"was cut to {MAX_LEN} tokens" in err


def test_lines_are_scored_in_windows(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = len(tercet.load("bert").tokenizer.encode(LONG))
    lines, err = run_command(["evaluate", "bert", "--per-line", "--json"], capsys, STDIN)
    rows = [json.loads(line) for line in lines]
    assert rows[2]["tokens"] == tokens
    assert not rows[2]["truncated"]
    assert f"1 text is longer than {MAX_LEN} tokens, and was read in {rows[2]['windows']} windows" in err
    assert "windows" not in rows[0]
    lines, _ = run_command(["evaluate", "bert", "--per-line", "--stride", "22", "--json"], capsys, STDIN)
    assert json.loads(lines[2])["windows"] == -(-tokens // 22)
    assert json.loads(lines[0]) == rows[0]
    Path("one.txt").write_text(f"{TEXTS[0]}\n{TEXTS[1]}\n")
    lines, _ = run_command(
        ["evaluate", "bert", "--per-line", "--data", "one.txt", "--documents", "file", "--json"], capsys
    )
    assert [json.loads(line)["text"] for line in lines] == [f"{TEXTS[0]}\n{TEXTS[1]}\n"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("embed bert a --output x.npz --chunk 25", "chunks of 25 tokens: a chunk has 3 to 24 tokens"),
        ("embed bert a --output x.npz --chunk 9 --overlap 7", "can share 0 to 6, because two are bos and eos"),
        ("embed bert a --output x.npz --truncate --overlap 7", "--truncate and --overlap exclude each other"),
        ("embed bert --query a --input papers --per-chunk", "--per-chunk applies to writing vectors"),
        ("embed bert --query a --vectors x.npz --chunk 9", "--chunk applies to --input"),
        ("embed bert --input nosuch --documents file --output x.npz", "no such file or folder: nosuch"),
        ("embed bert --documents file --output x.npz", "--documents applies to folders and documents"),
        ("embed bert --input papers --encoding nosuch --output x.npz", "unknown encoding 'nosuch'"),
        ("embed bert --input papers --encoding utf-16-le --output x.npz", "is not utf-16-le text"),
        ("classify texts --input papers --pair-field b", "--pair-field requires a .jsonl file or a table"),
        ("classify texts a --chunk 25", "chunks of 25 tokens"),
        ("evaluate bert --per-line --stride 23", "windows of 24 tokens are 1 to 22 tokens apart"),
    ],
)
def test_error_is_one_line(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run_command(arguments.split(), capsys, "a\n", code=2)
    assert words in err
    assert [line for line in err.splitlines() if "not read" not in line] == err.splitlines()[-1:]
