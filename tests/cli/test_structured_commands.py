"""`tercet generate` and `tercet chat` with --json-schema and --regex, on a tiny model with random weights."""

import io
import json
import sys
from pathlib import Path

import jsonschema
import pytest

import tercet
from tercet.checkpoint import Card, save_model
from tercet.cli.main import main
from tercet.models import build
from tercet.models.presets import model_spec
from tercet.tokens import Characters, Tokenizer
from tercet.tokens.chat_template import plain_template

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 23]}}, "required": ["n"], "additionalProperties": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("structured") / "model"
    tokenizer = Tokenizer.train(Characters(eos=True), ["".join(map(chr, range(32, 127))) + "\n"])
    sizes = {"vocab_size": tokenizer.vocab_size, "stack": {"d_model": 24, "n_layers": 1, "n_heads": 3}}
    decoder = build(model_spec({"preset": "gpt2", "max_len": 96, **sizes}, name="model"))
    save_model(folder, decoder, tokenizer, Card(), chat_template=plain_template(tokenizer))
    return folder


@pytest.mark.slow
def test_schema_is_a_file_or_the_argument_itself(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    texts: list[str] = []
    for argument in (str(file), json.dumps(SCHEMA)):
        assert main(["generate", str(model), "a", "--json-schema", argument, "--json", "--num-samples", "2"]) == 0
        answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        for answer in answers:
            assert answer["finish"] == "stop"
            jsonschema.validate(json.loads(answer["text"]), SCHEMA)
        texts.append(answers[0]["text"])
    assert texts[0] == texts[1] == tercet.load(model).generate("a", json_schema=SCHEMA)


@pytest.mark.slow
def test_regex_applies_to_streamed_texts_and_answers(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(model), "Q: ", "--regex", "yes|no"]) == 0
    assert capsys.readouterr().out in ("Q: yes\n", "Q: no\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert main(["chat", str(model), "--regex", "[a-c]{4}"]) == 0
    assert all(len(line) == 4 and set(line) <= set("abc") for line in capsys.readouterr().out.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "flags", "message"),
    [
        ("generate", ["--regex", "("], "regex: unclosed group"),
        ("generate", ["--regex", "é"], "it has no 'é' (U+00E9) as a token"),
        ("generate", ["--json-schema", "none.json"], "--json-schema: "),
        ("generate", ["--json-schema", "{"], "json_schema: not valid JSON"),
        ("generate", ["--json-schema", '{"type": "strin"}'], "json_schema: Invalid type: strin"),
        ("generate", ["--regex", "a", "--json-schema", "{}"], "--json-schema and --regex exclude each other"),
        ("generate", ["--regex", "a", "--lookup"], "--regex cannot be combined with --draft or --lookup"),
        ("chat", ["--regex", "("], "regex: unclosed group"),
    ],
)
def test_unusable_flags_are_one_line_before_any_output(
    model: Path, verb: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, str(model), *(["a"] if verb == "generate" else []), *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
