"""`tercet data look` reports the division of the data: groups, clusters of similar texts, and leaks."""

import json
from pathlib import Path

import pytest

from tercet.cli.main import main
from tercet.data.summary import split_summary

NAMES = [
    "alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet", "kilo", "lima",
    "mike", "november", "oscar", "papa", "quebec", "romeo", "sierra", "tango", "uniform", "victor", "whiskey", "xray",
]  # fmt: skip
TEXTS = [f"{name * 5} flies over {other * 4}" for name, other in zip(NAMES, NAMES[::-1], strict=True)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    texts = [*TEXTS, *(text.upper() for text in TEXTS[:6])]  # the last six of 30 are near duplicates of the first
    rows = [{"text": text, "author": f"a{n % 10}"} for n, text in enumerate(texts)]
    Path("posts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = "".join(f"{text},so,{n % 10}\n" for n, text in enumerate(texts))
    Path("pairs.csv").write_text("english,german,speaker\n" + pairs)
    Path("texts").mkdir()
    for number, text in enumerate(texts):
        Path(f"texts/{number:02}.txt").write_text(text)


def run_command(words: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 0) -> tuple[dict[str, str], str]:
    """Return the printed facts by their names, and the notes."""
    exit_code = main(words)
    out, err = capsys.readouterr()
    assert exit_code == code, err
    return {name.strip(): fact for name, _, fact in (line.partition("  ") for line in out.splitlines())}, err


def test_leaks_of_the_end_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    facts, err = run_command(["data", "look", "posts.jsonl", "--set", "data.validation.fraction=0.2"], capsys)
    assert err == ""
    values = {name: fact.strip() for name, fact in facts.items()}
    assert values["validation"] == "about 5 of 30 documents: the end of the data"
    assert values["clusters"] == "24 with a similarity of at least 0.8, the largest of 2 documents"
    leaks = "5 validation documents (100.0%) are similar to a training text (data.validation.kind: similarity)"
    assert values["leaks"] == leaks
    facts, _ = run_command(
        ["data", "look", "posts.jsonl", "--set", "data.validation={kind: similarity, fraction: 0.2}"], capsys
    )
    assert facts["leaks"].strip() == "0 validation documents (0.0%) are similar to a training text"
    assert "drawn over clusters of similar texts" in facts["validation"]


def test_groups_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "look", "posts.jsonl", "--set", "data.validation=documents", "--set", "data.group_field=author"]
    facts, _ = run_command(words, capsys)
    assert facts["groups"].strip() == "10, the largest of 3 documents; 9 in training and 1 in validation"
    main([*words, "--similarity", "0.9", "--json"])
    split = json.loads(capsys.readouterr().out)["split"]
    assert (split["kind"], split["threshold"], split["train"], split["validation"]) == ("documents", 0.9, 27, 3)
    assert split["groups"] == {"count": 10, "largest": 3, "train": 9, "validation": 1}


def test_fields_of_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "look", "pairs.csv", "--source-field", "english", "--target-field", "german"]
    facts, err = run_command([*words, "--set", "data.group_field=speaker"], capsys)
    assert facts["pairs"].strip().startswith("30")
    assert facts["groups"].strip().startswith("10, the largest of 3 pairs")
    assert err == ""
    facts, _ = run_command(
        ["data", "look", "pairs.csv", "--set", "data.source_language=english", "--set", "data.target_language=german",
         "--recipe", "numbers", "--set", "data.tokenizer={kind: characters}"],
        capsys,
    )  # fmt: skip
    assert facts["pairs"].strip().startswith("30")
    assert "tokens" in facts


def test_a_folder_is_divided_as_training_divides_it(capsys: pytest.CaptureFixture[str]) -> None:
    facts, _ = run_command(["data", "look", "texts"], capsys)
    assert facts["validation"].strip() == "3 of 30 documents: drawn over documents"
    facts, _ = run_command(["data", "look", "texts", "--recipe", "demo"], capsys)
    assert facts["validation"].strip() == "about 2 of 30 documents: the end of the data"


def test_large_texts_are_compared_only_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_summary, "MAX_BYTES", 100)
    facts, _ = run_command(["data", "look", "posts.jsonl"], capsys)
    assert facts["similar texts"].strip() == "not counted for more than 20 MB of text; pass --similarity 0.8"
    facts, _ = run_command(["data", "look", "posts.jsonl", "--similarity", "1"], capsys)
    assert "with a similarity of at least 1," in facts["clusters"]


def test_data_that_cannot_be_divided_is_still_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.txt").write_text("one document")
    facts, err = run_command(["data", "look", "one.txt"], capsys)
    assert (err, "validation" in facts) == ("", False)
    Path("equal.csv").write_text("text,label\n" + "same,a\nsame,b\n")
    facts, err = run_command(["data", "look", "equal.csv"], capsys)
    assert "labeled texts" in facts
    assert err.startswith(
        "tercet: the division is not reported: equal.csv has only one text, which cannot be divided; "
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--set training.max_steps=3", "--set training: only keys of data apply, such as data.validation.kind"),
        ("--set data=x", "--set data: not a setting; set one of its keys"),
        ("--set data.text_feld=x", "text_feld"),
        ("--set data.validation.kind=similarity --set data.validation.threshold=0.1", "threshold"),
        ("--similarity 0.1", "--similarity"),
        ("--set data.group_field=author", "groups are divided by whole documents, but validation is tail"),
    ],
)
def test_mistakes(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run_command(["data", "look", "posts.jsonl", *words.split()], capsys, code=2)
    assert message in err
    assert err.count("\n") == 1
