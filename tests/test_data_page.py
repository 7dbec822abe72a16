"""Every command of docs/how-to/data.md runs on files of the described kind, with a model of a few steps."""

import json
import random
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from tercet.cli.main import main
from tercet.tokens import BPE, Tokenizer

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "data.md"
COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)
QUICK = {
    "training.max_steps": 3,
    "training.validate_every": 3,
    "training.precision": "fp32",
    "training.compile": "never",
}
TINY = {**QUICK, "model.stack.d_model": 32, "model.stack.n_layers": 1, "data.validation": "{kind: tail, fraction: 0.1}"}
LABELS = {**TINY, "data.validation": "{kind: drawn}"}
PAIRS = {**QUICK, "task.batch_tokens": 512, "data.tokenizer.vocab_size": 330, "data.validation": "{kind: drawn}"}


def write_files() -> None:
    """Write the files that the page's commands name."""
    draw = random.Random(1)
    texts = [f"Number {n} was {'much ' * (n % 7)}better than the one before, I say." for n in range(300)]
    Path("reviews.txt").write_text("".join(text + "\n" for text in texts))
    rows = "".join(f'{n},"{text}"\n' for n, text in enumerate(texts))
    stars = "".join(f'{n},"{text}",{n % 5 + 1}\n' for n, text in enumerate(texts))
    Path("reviews.csv").write_text("id,text,stars\n" + stars)
    Path("posts.csv").write_text("author,body\n" + "".join(f'a{n % 30},"{text}"\n' for n, text in enumerate(texts)))
    for name, column in (("newer", "body"), ("prompts", "start"), ("sentences", "english")):
        Path(f"{name}.csv").write_text(f"id,{column}\n" + (rows if name != "prompts" else '1,"Number 1"\n2,"I say"\n'))
    words = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}
    sentences = [draw.choices(list(words), k=draw.randint(1, 6)) for _ in range(200)]
    pairs = [f"{' '.join(items)},{' '.join(words[word] for word in items)}" for items in sentences]
    Path("pairs.csv").write_text("source,target,speaker\n" + "".join(f"{p},{n % 20}\n" for n, p in enumerate(pairs)))
    Path("captions.csv").write_text("german,english\n" + "".join(f"{pair}\n" for pair in pairs))
    for column, language in enumerate(("en", "de")):
        Path(f"{language}.txt").write_text("".join(f"{pair.split(',')[column]}\n" for pair in pairs))
    Path("chat.csv").write_text("question,answer\n" + "".join(f'"{text}",yes\n' for text in texts))
    Path("sentences.csv").write_text("id,english\n1,one two\n2,four\n")
    lists = [[(start + 3 * step) % 100 for step in range(draw.randint(5, 20))] for start in range(400)]
    np.array([number for items in lists for number in [*items, 100]], np.uint16).tofile("train.bin")
    Path("lists.jsonl").write_text("".join(json.dumps({"ids": items}) + "\n" for items in lists))
    tokenizer = Tokenizer.train(BPE(vocab_size=300), texts)
    tokenizer.save("tokenizer.json")
    np.array(tokenizer.encode("\n".join(texts)), np.uint16).tofile("gpt2.bin")
    Path("genome.fa").write_text(">chr1\n" + "".join("".join(draw.choices("ACGT", k=60)) + "\n" for _ in range(500)))
    families = (f">s{n} family={'kinase' if n % 2 else 'ligase'} species=sp{n % 15}" for n in range(120))
    Path("families.fa").write_text("".join(f"{header}\n{''.join(draw.choices('ACGT', k=40))}\n" for header in families))
    moves = ["e4", "e5", "Nf3", "Nc6", "O-O", "1/2-1/2"]
    Path("games.txt").write_text("".join(" ".join(draw.choices(moves, k=12)) + "\n" for _ in range(400)))


@pytest.mark.exhaustive  # test_commands_of_docs.py parses every command
def test_every_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    write_files()
    commands = [line for block in COMMANDS.findall(PAGE.read_text()) for line in block.splitlines()]
    assert len(commands) >= 15
    looks = [
        line for line in commands if line.startswith("tercet data look") and " runs/" in line
    ]  # which exist once the other commands have run
    for line in [*(line for line in commands if line not in looks), *looks]:
        name, *arguments = shlex.split(line)
        assert name == "tercet"
        if arguments[0] == "train":
            fewer = {
                "numbers": PAIRS, "pairs.csv": PAIRS, "classify-docstrings": LABELS, "families.fa": LABELS,
                "reviews.csv": LABELS,
            }.get(arguments[1], TINY)  # fmt: skip
            chooses_split = any(word.startswith(("data.validation", "data.group_field")) for word in arguments)
            arguments += [
                word
                for key, value in fewer.items()
                if not (chooses_split and key == "data.validation")
                for word in ("--set", f"{key}={value}")
            ]
        code = main(arguments)
        out, err = capsys.readouterr()
        assert code == 0, f"{line}\n{err}"
        assert out, line
