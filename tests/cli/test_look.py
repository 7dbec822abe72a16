"""`tercet data look` on the command line: a table, or one JSON object, and one line per error."""

import json
from pathlib import Path

import pytest

from tercet.checkpoint import Card, save_model
from tercet.cli.main import main
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.tokens import BPE, Characters, Tokenizer

LINES = [f"the {n} cats sat on the {'very ' * (n % 5)}old mat and looked." for n in range(40)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    Path("a.txt").write_text("".join(line + "\n" for line in LINES))
    Path("a.csv").write_text("id,text,label\n" + "".join(f'{n},"{line}",{n % 3}\n' for n, line in enumerate(LINES)))
    Path("b.csv").write_text("id,body\n1,a\n")
    Path("c.csv").write_text("id,remark\n1,a\n")
    Tokenizer.train(Characters(pad=True, bos=True), LINES).save("tokenizer.json")
    return tmp_path


def run_command(arguments: str, capsys: pytest.CaptureFixture[str], *, code: int = 0) -> tuple[str, str]:
    exit_code = main(arguments.split())
    out, err = capsys.readouterr()
    assert exit_code == code, err
    return out, err


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_command("data look a.csv", capsys)
    assert err == ""
    names = [line.split("  ")[0].strip() for line in out.splitlines() if not line.startswith("  ")]
    assert names == [
        "format", "labeled texts", "bytes", "characters", "words", "scripts", "labels", "validation", "clusters",
        "leaks",
    ]  # fmt: skip
    assert "CSV, columns 'text' and 'label'" in out
    out, err = run_command("data look a.txt", capsys)
    assert "documents         1" in out
    assert err.count("\n") == 1
    assert "--documents line" in err
    out, err = run_command("data look a.txt --documents line", capsys)
    assert "documents         40" in out
    assert err == ""


@pytest.mark.parametrize(
    ("name", "text", "first_words"),
    [
        ("pairs.jsonl", '{"source": "a b", "target": "c"}\n', "pairs  1;"),
        ("labels.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n', "texts  2;"),
        ("chat.jsonl", '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
         "format  JSON lines"),
        ("texts.jsonl", '{"text": "a"}\n', "documents  1"),
        ("texts.csv", "text\na\nb\n", "documents  2"),
        ("labels.csv", "text,label\na,x\nb,y\n", "texts  2;"),
        ("pairs.tsv", "a\tb\n", "pairs  1;"),
    ],
)  # fmt: skip
def test_summary_reads_the_kind_that_training_recognizes(
    name: str, text: str, first_words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text(text)
    out, err = run_command(f"data {name}", capsys)
    assert err == ""
    assert " ".join(out.splitlines()[0].split()).startswith(" ".join(first_words.split()))


def test_pairs_in_other_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pairs.csv").write_text("tolan,english\n" + "".join(f"{line},a b\n" for line in LINES))
    flags = "--source-field tolan --target-field english"
    out, err = run_command(f"data look pairs.csv {flags}", capsys)
    assert "pairs              40" in out
    assert err == ""
    out, _ = run_command(f"data look pairs.csv {flags} --recipe numbers --json", capsys)
    assert json.loads(out)["fit"]["max_len"] == 64
    run_command("data look pairs.csv --source-field german", capsys, code=2)


def test_tokens_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_command("data look a.txt --documents line --tokenizer . --max-len 40 --json", capsys)
    report = json.loads(out)
    assert report["count"] == 40
    assert report["fit"]["tokens"]["max"] == max(map(len, LINES)) + 1
    assert report["fit"]["longer"] == sum(len(line) >= 40 for line in LINES)
    out, _ = run_command("data look a.csv --tokenizer tokenizer.json --max-len 40", capsys)
    assert "longer, cut to this length" in out
    out, _ = run_command("data look a.txt --documents line --recipe demo", capsys)
    assert "max_len 64" in out
    assert "bpe" in out


@pytest.mark.slow
def test_conversations_and_their_template(capsys: pytest.CaptureFixture[str]) -> None:
    Path("chat.csv").write_text("question,answer\n" + "".join(f"{line},so\n" for line in LINES) + "so,\n")
    Tokenizer.train(BPE(vocab_size=260), [""]).save("tokenizer.json")
    command = "data look chat.csv --prompt-field question --response-field answer"
    out, err = run_command(f"{command} --tokenizer . --max-len 70", capsys)
    assert err == ""
    assert "conversations         40; 1 more without an answer" in out
    assert "40 of user, 40 of assistant" in out
    assert "longer, cut to this length" in out
    Path("chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    template, _ = run_command(f"{command} --tokenizer . --max-len 70 --json", capsys)
    assert json.loads(template)["fit"]["longer"] < int(
        out.partition("max_len 70")[2].split()[0]
    )  # without the names of roles


def test_conversations_by_a_models_own_template(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer.train(BPE(vocab_size=260), [""])
    spec = DecoderOnlySpec(
        vocab_size=tokenizer.vocab_size, max_len=9, stack=StackSpec(d_model=8, n_layers=1, n_heads=1)
    )
    template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    save_model("model", DecoderOnly(spec), tokenizer, Card(name="model"), chat_template=template)
    Path("chat.jsonl").write_text("".join(f'{{"prompt": "{"a" * n}", "response": "b"}}\n' for n in (1, 5, 9)))
    out, _ = run_command("data look chat.jsonl --tokenizer model --max-len 9 --json", capsys)
    fit = json.loads(out)["fit"]
    assert (fit["tokens"]["min"], fit["tokens"]["max"]) == (1 + 1 + 1 + 1, 9 + 1 + 1 + 1)
    assert (fit["longer"], fit["unanswered"]) == (1, 1)


def test_invalid_utf8_has_no_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.tsv").write_bytes(b"a\tb\nc\xff\td\n")
    out, err = run_command("data look a.tsv --tokenizer .", capsys)
    assert "invalid UTF-8      1 byte: line 2 (byte 5)" in out
    assert "tokens are not counted" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("data look none.txt", "no such file or folder"),
        ("data look c.csv", "no column 'text'; known: id, remark"),
        ("data a.txt --json", "--json requires the full report: tercet data look a.txt --json"),
        ("data look b.csv --prompt-field bdy", "no column 'bdy'; did you mean 'body'"),
        ("data look b.csv --prompt-field response", "prompt_field and response_field are both 'response'"),
        ("data a.txt --messages-field talk", "unknown argument '--messages-field'; it is a flag of `tercet data look`"),
        ("data look a.txt --max-len 5", "--max-len requires --tokenizer FOLDER or --recipe NAME"),
        ("data look a.txt --recipe demo --tokenizer .", "pass one of"),
        ("data look a.txt --recipe dmo", "dmo"),
        ("data look b.csv --recipe vectors-docstrings", "reads queries and documents, which data look does not"),
        ("data look a.txt b.txt c.txt", "unknown argument 'c.txt'; see `tercet data look --help`"),
        ("data look a.txt --tokenizer a.csv", "a.csv is not a tokenizer.json: "),
        ("data look a.txt --tokenizer a.csv", "; pass the tokenizer.json of a model"),
        ("data look a.txt --tokenizer a.gguf", "a.gguf is not a supported GGUF file: "),
        (
            "data look a.txt --tokenizer a.bin",
            "cannot read a.bin: not UTF-8 text; copy it again, or pass the path",
        ),
        (
            "data look a.txt --tokenizer empty",
            "empty has no tokenizer.json and no complete model; pass the",
        ),
        ("data look a.txt --tokenizer emtpy", "no such folder: emtpy; did you mean 'empty'?"),
        ("data look a.txt --tokenizer none/x.json", "no such folder: none/x.json"),
        ("data look a.txt --encoding nonsense", "--encoding: unknown encoding 'nonsense'"),
    ],
)
def test_mistakes(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("a.bin").write_bytes(b"\xff\xfe\x00")
    Path("a.gguf").write_bytes(b"nothing of this kind")
    out, err = run_command(arguments, capsys, code=2)
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


SEQUENCES = ">s1 family=a\nACGTNacg\n>s2 family=b\nGGCC\n>s3\nAC9\n"


def test_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.fa").write_text(SEQUENCES)
    out, err = run_command("data look a.fa", capsys)
    assert err == ""
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "format FASTA",
        "documents 2",
        "bytes 12 (UTF-8)",
        "characters 12 in total, 4 to 8; half have at most 4, 95% at most 8",
        "kind DNA (by its letters)",
        "composition C 33.3%, G 33.3%, A 16.7%, N 8.3%, T 8.3%",
        "GC content 72.7% of A, C, G, T and U",
        "ambiguous 8.3% of the letters (data.sequence_ambiguous)",
        "lower case 25.0% of the letters (data.sequence_case)",
        "malformed a.fa: 1 of 3 records cannot be read: record 's3', line 6: '9' in a sequence at column 3 "
        "(data.sequence_errors)",
    ]
    out, _ = run_command("data look a.fa --json", capsys)
    sequences = json.loads(out)["sequences"]
    assert sequences["gc"] == pytest.approx(8 / 11)
    assert (sequences["kind"], sequences["malformed"], sequences["lowercase"]) == ("DNA", 1, 0.25)
    _, err = run_command("data look a.fa --recipe demo", capsys)
    assert "tokens are not counted, since training rejects malformed records" in err


@pytest.mark.parametrize("flags", ["--label-field family", "--label-pattern family=(\\w+)"])
def test_labels_of_sequences(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.fa").write_text(SEQUENCES)
    out, _ = run_command(f"data look a.fa {flags} --json", capsys)
    report = json.loads(out)
    assert (report["unit"], report["labels"]) == ("labeled texts", {"a": 1, "b": 1})
    assert report["sequences"]["malformed"] == 1
    _, err = run_command("data look a.fa --label-pattern (", capsys, code=2)
    assert "label_pattern='(' is not a regular expression" in err


def test_protein_has_no_gc_content(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.fasta").write_text(">p\nMKVLLAWXB\n")
    out, _ = run_command("data look p.fasta", capsys)
    assert "protein" in out
    assert "GC content" not in out
    assert "ambiguous         22.2%" in out
