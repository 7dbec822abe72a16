"""`tercet embed --query`: equal results from texts, from vectors and from Python, and one line per error."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from piped_command import run_command
from random_models import save_random_models

import tercet
from tercet import checkpoint
from tercet.checkpoint import Card, save_model
from tercet.checkpoint.sentence_settings import SentenceSettings
from tercet.cli.main import main
from tercet.config import UserError
from tercet.models import DecoderOnly, DecoderOnlySpec, EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.tokens import Tokenizer, WordPiece

TEXTS = ["the cat sat on the mat", "a dog ran", "the cats and the dogs", "a dog ran", "mats", "the dog sat\non a mat"]
QUERIES = ["a dog ran", "the cat"]
MAX_LEN = 24
NUMERALS = st.sampled_from(["007", "+5", "1_000", "\uff11\uff12"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with encoders `bert`, `other` and the wider `wide`, a decoder `gpt`, a table and its vectors."""
    folder, tokenizer = tmp_path_factory.mktemp("runs"), Tokenizer.train(WordPiece(vocab_size=80), TEXTS)
    stack, wide = (StackSpec(d_model=width, n_layers=1, n_heads=2) for width in (24, 32))
    sizes: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "max_len": MAX_LEN}
    models = {
        "bert": EncoderOnly(EncoderOnlySpec(**sizes, stack=stack)),
        "other": EncoderOnly(EncoderOnlySpec(**sizes, stack=stack)),
        "wide": EncoderOnly(EncoderOnlySpec(**sizes, stack=wide)),
        "gpt": DecoderOnly(DecoderOnlySpec(**sizes, stack=stack)),
    }
    save_random_models(folder, models, tokenizer)
    rows = (f'{10 * number},"{text}"\n' for number, text in enumerate(TEXTS))
    (folder / "posts.csv").write_text("id,body\n" + "".join(rows))
    for name, flags in (("v", []), ("long", ["--no-normalize"])):
        words = ["--input", str(folder / "posts.csv"), "--text-field", "body", "--output", str(folder / f"{name}.npz")]
        assert main(["embed", str(folder / "bert"), *words, *flags]) == 0
    return folder


@pytest.fixture(autouse=True)
def enter_runs_folder(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)


def first_numbers(numbers: Any) -> list[int]:
    """Replace each row number by the first row with an equal text.

    In a batch the vectors of equal texts may differ in their last bits, depending on the processor, and then either of
    them may be the nearest.
    """
    return [TEXTS.index(TEXTS[number]) for number in numbers]


def query_flags(*queries: str) -> list[str]:
    return [word for query in queries for word in ("--query", query)]


TABLE = ["--input", "posts.csv", "--text-field", "body"]


@pytest.mark.slow
def test_nearest_texts_are_equal_from_texts_vectors_and_python(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tercet.cli.nearest.POOL", 2)  # several pools
    run = tercet.load("bert")
    expected = run.embed(QUERIES).astype(np.float64) @ run.embed(TEXTS).astype(np.float64).T
    order = np.argsort(-np.round(expected, 6), axis=1, kind="stable")[:, :4]
    for flags in (TABLE, ["--vectors", "v.npz"], ["--vectors", "long.npz"]):
        lines, err = run_command(["embed", "bert", *flags, *query_flags(*QUERIES), "--json", "--top", "4"], capsys)
        assert err == ""
        for query, line, numbers, scores in zip(QUERIES, lines, order, expected, strict=True):
            answer = json.loads(line)
            assert answer["query"] == query
            indices = [row["index"] for row in answer["neighbors"]]
            assert first_numbers(indices) == first_numbers(numbers)
            assert [row["score"] for row in answer["neighbors"]] == pytest.approx(scores[numbers].tolist(), abs=1e-6)
            assert [str(row["id"]) for row in answer["neighbors"]] == [str(10 * n) for n in indices]
            assert [row["text"] for row in answer["neighbors"]] == [TEXTS[n] for n in indices]
            assert len({*indices}) == 4
    for texts in (TEXTS, run.embed(TEXTS)):
        assert [*map(first_numbers, run.search(QUERIES, texts, top=4).numbers)] == [*map(first_numbers, order)]
        assert first_numbers(run.search(QUERIES[1], texts, top=4).numbers) == first_numbers(order[1])
    assert run.search(QUERIES, []).numbers.shape == (2, 0)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.one_of(st.integers(), st.text(max_size=9), NUMERALS, st.booleans()), min_size=1, max_size=3))
@example(ids=[2**53 + 1, 2**63])
@example(ids=[2**64, -1])
@example(ids=["007", 7])
@example(ids=["a\0"])
@example(ids=["\ud800"])
@example(ids=["\x85"])
@example(ids=[True])
def test_ids_of_texts_are_those_of_the_search_in_their_vectors(
    ids: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("ids.jsonl").write_text("".join(json.dumps({"id": id, "text": "mats"}) + "\n" for id in ids))
    text_ids = [id for id in ids if isinstance(id, str)]
    if any(id.endswith("\0") or any("\ud800" <= x <= "\udfff" for x in id) for id in text_ids):
        _, err = run_command(["embed", "bert", "--input", "ids.jsonl", "--output", "ids.npz"], capsys, code=2)
        assert err.count("\n") == 1
        return
    run_command(["embed", "bert", "--input", "ids.jsonl", "--output", "ids.npz"], capsys)
    lines, _ = run_command(["embed", "bert", *query_flags("mats"), "--vectors", "ids.npz", "--json"], capsys)
    rows = sorted(json.loads(lines[0])["neighbors"], key=lambda row: row["index"])
    if any(isinstance(id, bool) for id in ids):  # a boolean is not an id
        assert not any("id" in row for row in rows)
    else:
        assert [str(row["id"]) for row in rows] == [str(id) for id in ids]


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = run_command(["embed", "bert", *query_flags("a dog ran"), "--top", "2", *TABLE], capsys)
    assert sorted(lines) == ["1.0000\t10\ta dog ran", "1.0000\t30\ta dog ran"]  # equal texts may come in any order
    texts = "".join(text.replace("\n", " ") + "\n" for text in TEXTS)
    lines, _ = run_command(["embed", "bert", "--input", "-", "--top", "1", *query_flags("mats")], capsys, texts)
    assert lines == ["1.0000\t4\tmats"]
    lines, _ = run_command(
        ["embed", "bert", "--vectors", "v.npz", "--top", "6", *query_flags("-")], capsys, "mats\nthe cat\n"
    )
    assert [lines[place] for place in (0, 7, 8)] == ["mats", "", "the cat"]
    assert len(lines) == 2 * 7 + 1
    assert [line for line in lines[1:7] if line.endswith("\tthe dog sat on a mat")]  # newlines of a text are replaced
    assert run_command(["embed", "bert", "--vectors", "v.npz", *query_flags("-")], capsys)[0] == []


def test_truncated_texts_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["embed", "bert", "--input", "-", *query_flags("cat " * 50)]
    _, err = run_command([*arguments, "--truncate"], capsys, "dog " * 50 + "\na\n")
    assert f"1 query text is longer than the context, and was cut to {MAX_LEN} tokens" in err
    assert f"1 text is longer than the context, and was cut to {MAX_LEN} tokens" in err


def test_long_texts_are_reported_with_the_length_of_the_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of sentence-transformers may cut texts to fewer tokens than the model's context."""
    trained_model = replace(checkpoint.load_model("bert"), sentence=SentenceSettings(max_len=6))
    monkeypatch.setattr(checkpoint, "load_model", lambda path: trained_model)
    arguments, texts = ["embed", "bert", "--input", "-", *query_flags("cat")], "dog " * 12 + "\na\n"
    _, err = run_command([*arguments, "--truncate"], capsys, texts)
    assert err == "tercet: 1 text is longer than the context, and was cut to 6 tokens\n"
    _, err = run_command([*arguments, "--overlap", "0"], capsys, texts)
    assert err == "tercet: 1 text is longer than 6 tokens, and was read in 3 chunks\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "embed bert --query cat",
            "--query searches one file; pass either its texts as --input FILE or its vectors as --vectors FILE.npz",
        ),
        ("embed bert --query cat --input posts.csv --vectors v.npz", "--query searches one file; pass either"),
        (
            "embed bert --query cat --vectors v.npz --text-field body",
            "--vectors contains its texts; leave --text-field out",
        ),
        ("embed bert --query - --input -", "stdin contains the texts (--input -); pass each query as --query TEXT"),
        ("embed bert --query cat --input posts.csv", "has no column 'text'"),
        ("embed bert --query cat --input none.csv", "--input none.csv: cannot read it: No such file"),
        ("embed bert --query cat --input - ", "- has no text to search; choose another file"),
        ("embed bert --query cat --vectors none.npz", "cannot read none.npz: No such file"),
        ("embed bert --query cat --vectors posts.csv", "posts.csv is not an .npz file"),
        ("embed bert --query cat --vectors v.npz --top 0", "argument --top: 0 must be at least 1"),
        (
            "embed bert --query cat --vectors v.npz --pooling first",
            "v.npz has vectors of another model, or of an earlier state",
        ),
        ("embed other --query cat --vectors v.npz", "v.npz has vectors of another model, or of an earlier state"),
        (
            "embed wide --query cat --vectors v.npz",
            "v.npz has vectors of 24 numbers but the model's have 32; use the model",
        ),
        ("embed gpt --query cat --vectors v.npz", "is a language model, not an encoder; use `tercet generate"),
        ("embed bert --query cat --vektors v.npz", "unknown argument '--vektors'; did you mean '--vectors'?"),
        (
            "embed bert a --query cat --vectors v.npz",
            "--query searches the texts of --input or --vectors; leave 'a' out",
        ),
        (
            "embed bert --query cat --vectors v.npz --no-normalize",
            "--no-normalize applies to writing vectors, and --query",
        ),
    ],
)
def test_error_is_one_line(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines, err = run_command(arguments.split(), capsys, code=2)
    assert lines == []
    assert words in err
    assert err.count("\n") == 1


def test_vectors_of_another_width_are_rejected_in_python() -> None:
    run = tercet.load("bert")
    with pytest.raises(UserError, match="the vectors are 2x32 numbers but the model's have 24"):
        run.search("cat", np.ones((2, 32)))
    with pytest.raises(UserError, match="is a language model, not an encoder"):
        tercet.load("gpt").search("cat", TEXTS)


@pytest.fixture(scope="module")
def sized(runs: Path) -> str:
    """Return the folder of `bert` as an encoder that was also trained for vectors of 8 and 16 numbers."""
    model = checkpoint.load_model(runs / "bert").require("embed")
    settings = SentenceSettings(sizes=(8, 16))
    (runs / "v.txt").write_text("a dog\n")
    save_model(runs / "sized", model.model, model.tokenizer, Card(name="sized"), sentence=settings)
    return str(runs / "sized")


@pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
def test_small_vectors_are_written_and_searched(sized: str, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--input", "posts.csv", "--text-field", "body"]
    assert main(["embed", sized, *words, "--size", "8", "--output", f"small{suffix}"]) == 0
    assert "6 vectors of 8 numbers" in capsys.readouterr().err
    run = tercet.load(sized)
    expected = run.embed(TEXTS, size=8)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1)
    query = ["embed", sized, "--query", QUERIES[0], "--json"]
    assert main([*query, *words, "--size", "8"]) == 0
    from_texts = json.loads(capsys.readouterr().out)["neighbors"]
    if suffix == ".npz":
        vectors = np.load("small.npz")["vectors"]
        assert main([*query, "--vectors", "small.npz"]) == 0
        from_vectors = json.loads(capsys.readouterr().out)["neighbors"]
        assert [row["score"] for row in from_vectors] == pytest.approx([row["score"] for row in from_texts], abs=1e-6)
    else:
        vectors = np.array([json.loads(line)["vector"] for line in Path("small.jsonl").read_text().splitlines()])
    assert np.allclose(vectors, expected, atol=1e-6)
    found = run.search(QUERIES[0], expected)
    assert [row["index"] for row in from_texts] == found.numbers.tolist()
    assert [row["score"] for row in from_texts] == pytest.approx(found.scores.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("sized", ["--size", "9", "--output", "x.npz", "--input", "v.txt"], "have 8 or 16 or 24 numbers, not 9"),
        ("bert", ["--size", "8", "--query", "a", "--input", "v.txt"], "smaller ones require task.sizes"),
        ("bert", ["--size", "0", "--query", "a", "--input", "v.txt"], "--size"),
        ("sized", ["--size", "8", "--query", "a", "--vectors", "v.npz"], "--size applies to --input"),
    ],
)
def test_other_sizes_are_rejected(
    sized: str, name: str, flags: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", str(Path(sized).parent / name), *flags]) == 2
    assert expected in capsys.readouterr().err
    if flags[1] == "9":
        with pytest.raises(UserError, match="not 9"):
            tercet.load(sized).embed("a", size=9)
