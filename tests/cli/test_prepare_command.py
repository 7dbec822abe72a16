"""`tercet data prepare` on the command line, and every command of its documentation page."""

import json
import random
import re
import shlex
from pathlib import Path

import pytest

from tercet.cli.main import main

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "large-corpora.md"
COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    folder, draw = tmp_path / "my_texts", random.Random(4)
    folder.mkdir()
    for number in range(8):
        lines = [" ".join(draw.choices(["one", "two", "three", "four", "red", "blue"], k=9)) for _ in range(60)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return folder


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    code = main(shlex.split(line))
    out, err = capsys.readouterr()
    return code, out, err


PREPARE = "data prepare my_texts --workers 1 --shard-tokens 2048 --set data.tokenizer.kind=characters"


def test_figures_as_json_and_in_words(capsys: pytest.CaptureFixture[str], texts: Path) -> None:
    code, out, _ = run(capsys, f"{PREPARE} --out tokens --json")
    assert code == 0
    figures = json.loads(out)
    n_bytes = sum(path.stat().st_size for path in texts.iterdir())
    assert figures["tokens"] + figures["validation_tokens"] == n_bytes + 8  # each letter, and eos
    assert figures["documents"] + figures["validation_documents"] == 8
    assert figures["bytes"] + figures["validation_bytes"] == n_bytes
    assert figures["shards"] == len(list(Path("tokens").glob("train-*.bin")))
    code, out, _ = run(capsys, f"{PREPARE} --out tokens")
    assert code == 0
    assert f"{figures['tokens']:,} tokens of {figures['documents']} documents" in out
    code, out, _ = run(capsys, "data tokens")
    assert code == 0
    assert f"tokens      {figures['tokens']:,} in {figures['shards']} shards" in out


def test_parts_say_which_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"{PREPARE} --out tokens --part 2/2")
    assert (code, out) == (0, "")
    assert err == "tercet: part 2/2 is done; part 1/2 is still missing\n"
    code, out, _ = run(capsys, f"{PREPARE} --out tokens --part 1/2")
    assert code == 0
    assert out.startswith("shards")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("data prepare my_texts", "the output folder is missing; pass --out FOLDER"),
        ("data my_texts --part 1/2", "unknown argument '--part'; it is a flag of `tercet data prepare`"),
        (f"{PREPARE} --out tokens --part 3/2", "'3/2' is not a part such as 2/8"),
        (f"{PREPARE} --out tokens --part two", "'two' is not a part such as 2/8"),
        (f"data prepare {'a' * 5000} --out tokens", "must have 1 to 4,096 characters"),
        ("data prepare nothing --out tokens", "no dataset, file or folder is called 'nothing'"),
        (
            "data prepare my_texts --out my_texts",
            "my_texts is not empty and was not written by `tercet data prepare`; pass another --out",
        ),
        ("data prepare my_texts --out t --set training.max_steps=5", "only keys of data apply"),
        ("data prepare my_texts --out t --set data.nothing=5", "data: unknown key 'nothing'"),
        ("data prepare my_texts --out t --recipe numbers", "the recipe numbers does not train on running text"),
        (
            "data prepare my_texts --out t --recipe finetune-lm",
            "uses the tokenizer of a model; pass --tokenizer FOLDER",
        ),
        ("data prepare my_texts --out t --workers 0", "0 must be at least 1 and at most 1,024"),
        ("train demo --data s3::memory://x --out r --quiet", "is a chain of file systems"),
        ("train demo --data memory://lost --out r --quiet", "cannot fetch memory://lost/manifest.json"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_every_command_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [line for block in COMMANDS.findall(PAGE.read_text()) for line in block.splitlines()]
    assert len(commands) == 4
    for line in commands:
        name, rest = line.split(maxsplit=1)
        assert name == "tercet"
        if rest.startswith("train"):
            rest += " --set training.max_steps=2 --set training.validate_every=2 --set model.stack.n_layers=1"
            rest += " --set training.compile=never --set training.precision=fp32"
        code, out, err = run(capsys, rest)
        assert code == 0, f"{line}\n{err}"
        assert out, line
