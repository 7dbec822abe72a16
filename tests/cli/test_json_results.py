"""Every result that a verb prints with `--json` matches the verb's JSON Schema in docs/reference/schemas."""

import importlib.util
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from tercet import plots
from tercet.checkpoint import Card, save_model
from tercet.cli.main import VERBS, main, make_parser
from tercet.data.extraction.readers import PACKAGES
from tercet.models import (
    Classifier,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    StackSpec,
)
from tercet.plots import picture_file
from tercet.tokens import BPE, Tokenizer, WordPiece
from tercet.tokens.chat_template import plain_template

DOCS = Path(__file__).parents[2] / "docs"
SCHEMAS = {path.name.split(".")[0]: json.loads(path.read_text()) for path in DOCS.glob("reference/schemas/*.json")}
SERVERS = {"watch", "explore", "serve"}  # verbs without a result
TEXTS = ["the cat sat on the mat", "a dog ran", "the cats and the dogs", "mats", "the dog sat on a mat"]
STACK = StackSpec(d_model=24, n_layers=1, n_heads=2)
LABELS = ("bad", "fair", "good")
HEADS = {
    "texts": Classifier(labels=LABELS),
    "sets": Classifier(labels=LABELS, problem_type="multi_label_classification"),
    "numbers": Classifier(labels=("stars",), problem_type="regression", target_mean=10.0, target_std=2.0),
    "words": Classifier(labels=LABELS, over="tokens"),
}
TINY = [
    "data.tokenizer=characters", "model.preset=gpt2", "model.max_len=8", "model.stack.d_model=16",
    "model.stack.n_layers=1", "model.stack.n_heads=2", "training.max_steps=1", "training.warmup_steps=0",
    "training.compile=never", "training.precision=fp32", "task.sample_tokens=2",
]  # fmt: skip
HAS_DOCUMENTS = all(map(importlib.util.find_spec, PACKAGES))  # the extra `documents`
SETTINGS = [word for setting in TINY for word in ("--set", setting)]
PAIRS = ["--source", "source.txt", "--target", "target.txt"]
COMMANDS = [
    ["train", "text.txt", "--out", "trained", "--quiet", "--json", *SETTINGS],
    ["train", "text.txt", "--plan", "--json", *SETTINGS],
    ["generate", "gpt", "the cat", "--max-new-tokens", "3", "--num-samples", "2", "--json"],
    ["chat", "chat", "--max-new-tokens", "3", "--json"],
    ["translate", "translator", "--input", "text.txt", "--beam", "2", "--json"],
    ["translate", "translator", "--input", "text.txt", "--beam", "2", "--n-best", "2", "--alignment", "--json"],
    ["fill", "bert", "the [MASK] sat", "--json"],
    ["embed", "bert", "--input", "text.txt", "--output", "vectors.npz", "--json"],
    ["embed", "bert", "--vectors", "vectors.npz", "--query", "the cat", "--json"],
    ["embed", "bert", "--input", "text.txt", "--query", "the cat", "--json"],
    *(["classify", name, "the cat", "--json"] for name in HEADS),
    *(["classify", name, "the cat", "--json", "--scores"] for name in HEADS if name != "numbers"),
    ["classify", "numbers", "--query", "the cat", "--input", "text.txt", "--top", "2", "--json"],
    ["evaluate", "gpt", "--data", "text.txt", "--json"],
    ["evaluate", "bert", "--data", "text.txt", "--pseudo-perplexity", "2", "--json"],
    ["evaluate", "texts", "--data", "labels.csv", "--json"],
    *(["evaluate", name, "--data", "text.txt", "--compare", name, "--json"] for name in ("gpt", "bert")),
    ["evaluate", "texts", "--data", "labels.csv", "--compare", "texts", "--json"],
    ["evaluate", "translator", *PAIRS, "--beam", "1", "--compare", "translator", "--json"],
    ["evaluate", "translator", *PAIRS, "--beam", "1", "--output", "out.txt", "--json"],
    ["evaluate", "translator", *PAIRS, "--per-line", "--json"],
    ["evaluate", "bert", "--data", "text.txt", "--per-line", "--json"],
    ["errors", "gpt", "--data", "text.txt", "--json"],
    ["errors", "bert", "--data", "text.txt", "--top", "2", "--json"],
    ["errors", "texts", "--data", "labels.csv", "--json"],
    ["errors", "numbers", "--data", "stars.csv", "--html", "errors.html", "--json"],
    ["errors", "translator", *PAIRS, "--rank-by", "chrf", "--json"],
    ["compare", "trained", "copied", "--out", "compared", "--quiet", "--json"],
    ["sweep", "trained/recipe.yaml", "--vary", "training.optimizer.lr=0.1,0.2", "--sampler", "grid", "--seeds", "2",
     "--out", "swept", "--quiet", "--json"],
    ["inspect", "gpt", "--json"],
    ["inspect", "gpt", "--prompt", "the cat sat", "--heads", "--attribution", "--json"],
    ["plot", "masks", "the cat sat", "--out", "masks.svg", "--json"],
    ["plot", "trained", "--json"],
    ["convert", "gpt", "converted", "--json"],
    ["doctor", "--json"],
    ["doctor", "--verify", "trained", "--json"],
    ["recipes", "--json"],
    ["learn", "--json"],
    ["learn", "start", "3", "--json"],
    ["learn", "check", "1", "ex01_byte_pairs.py", "--json"],
    ["data", "--json"],
    ["data", "look", "text.txt", "--json"],
    ["data", "look", "labels.csv", "--json"],
    ["check", "text.txt", "--json"],
    ["check", "labels.csv", "--fix", "repaired.csv", "--json"],
    *([["data", "extract", "text.txt", "--out", "texts.jsonl", "--json"]] if HAS_DOCUMENTS else []),
    ["data", "prepare", "text.txt", "--tokenizer", "gpt", "--out", "tokens", "--json"],
    ["data", "seal", "text.txt", "--documents", "line", "--out", "sealed", "--json"],
    ["evaluate", "gpt", "gpt", "--sealed", "sealed", "--json"],
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data, and with tiny models of random weights."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "text.txt").write_text("".join(f"{text}\n" for text in TEXTS * 8))
    for name in ("source", "target"):
        (folder / f"{name}.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    rows = (f"{text},{LABELS[number % 2]}\n" for number, text in enumerate(TEXTS))
    (folder / "labels.csv").write_text("text,label\n" + "".join(rows))
    stars = (f"{text},{number % 5}\n" for number, text in enumerate(TEXTS))
    (folder / "stars.csv").write_text("text,label\n" + "".join(stars))
    shutil.copy(DOCS.parent / "tests/learn/solutions/ex01_byte_pairs.py", folder)
    writer = Tokenizer.train(BPE(vocab_size=300, pad=True), TEXTS)
    reader = Tokenizer.train(WordPiece(vocab_size=80), TEXTS)
    sizes: dict[str, Any] = {"vocab_size": reader.vocab_size, "max_len": 24}
    torch.manual_seed(4)
    gpt = DecoderOnly(DecoderOnlySpec(vocab_size=writer.vocab_size, max_len=64, stack=STACK))
    save_model(folder / "gpt", gpt, writer, Card(name="gpt"))
    save_model(folder / "chat", gpt, writer, Card(name="chat"), chat_template=plain_template(writer))
    save_model(folder / "bert", EncoderOnly(EncoderOnlySpec(**sizes, stack=STACK)), reader, Card(name="bert"))
    translator = EncoderDecoder(EncoderDecoderSpec(**sizes, encoder=STACK, decoder=STACK))
    save_model(folder / "translator", translator, reader, Card(name="translator"))
    for name, head in HEADS.items():
        spec = EncoderOnlySpec(**sizes, stack=STACK, masked_head=None, classifier=head)
        save_model(folder / name, EncoderOnly(spec), reader, Card(name=name))
    return folder


def test_each_verb_with_a_result_has_a_schema() -> None:
    parsers = {verb: make_parser([verb])[1].choices[verb] for verb in VERBS}
    assert {verb for verb, parser in parsers.items() if "--json" in parser.flags()} == set(SCHEMAS)
    assert set(VERBS) - set(SCHEMAS) == SERVERS
    assert {command[0] for command in COMMANDS} == set(SCHEMAS)


@pytest.mark.slow
def test_the_schemas_are_those_of_the_program() -> None:
    spec = importlib.util.spec_from_file_location("json_results", DOCS / "json_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["json_results"] = module  # in which pydantic looks names up
    spec.loader.exec_module(module)
    files = {name: json.loads(content) for name, content in module.schema_files().items()}
    assert files == {f"{verb}.schema.json": document for verb, document in SCHEMAS.items()}, (
        "run `python docs/json_results.py`"
    )


@pytest.mark.slow
def test_real_output_matches_its_schema(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for module in (plots, picture_file):  # rendering pictures would take longer than all commands
        monkeypatch.setattr(module, "save", lambda figure, path, **options: path.write_bytes(b""))
    failures = list[str]()
    for command in COMMANDS:
        if command[0] == "compare":
            shutil.copytree("trained", "copied")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n"), encoding="utf-8"))
        code = main(command)
        captured = capsys.readouterr()
        if code != 0:
            failures.append(f"{command}: exit code {code}: {captured.err}")
            continue
        results = read_results(captured.out)
        assert results, command
        for result in results:
            try:
                jsonschema.validate(result, SCHEMAS[command[0]])
            except jsonschema.ValidationError as error:
                causes = [f"{cause.json_path} {cause.message}"[:300] for cause in error.context or [error]]
                failures.append(f"{command[:4]}: {causes}")
    assert not failures, "\n".join(failures)


def read_results(out: str) -> list[Any]:
    """Parse one JSON value over several lines, or one value per line."""
    try:
        return [json.loads(out)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in out.splitlines()]


def test_a_schema_rejects_another_result() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"output": 3}, SCHEMAS["convert"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"recipes": {}, "more": 1}, SCHEMAS["recipes"])
