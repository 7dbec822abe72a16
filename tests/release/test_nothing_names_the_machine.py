"""Published models and files contain no folder, user or host name: every written byte is searched.

The recipe.yaml of a run contains the location of the data. It is needed to resume the run and stays in its folder.
"""

import base64
import json
import re
import shutil
import socket
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

from tercet.checkpoint import load_model
from tercet.cli.main import main
from tercet.settings_yaml import read_yaml, write_yaml

SECRET = "telltale"  # part of every folder name, the user name and the host name
SPELLINGS = re.compile(b"|".join(re.escape(SECRET.encode(code)) for code in ("utf-8", "utf-16-le", "utf-32-le")))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp(f"{SECRET}-folder") / f"{SECRET}-home"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(socket, "gethostname", lambda: f"{SECRET}-host")
        for name in ("USER", "LOGNAME", "USERNAME"):
            patch.setenv(name, f"{SECRET}-user")
        patch.setenv("HOME", str(folder))
        patch.setenv("TERCET_CACHE", str(folder / "cache"))
        patch.setenv("TERCET_KERNEL", "off")  # otherwise they would be compiled again for this cache
        yield folder


def train(place: Path, name: str, **recipe: Any) -> Path:
    file, out = place / f"{name}.yaml", place / name
    training = {
        "max_steps": 2,
        "validate_every": 2,
        "accelerator": "cpu",
        "seed": 1,
        "compile": "never",
        "precision": "fp32",
    }
    file.write_text(write_yaml({"training": training, **recipe}))
    assert main(["train", str(file), "--out", str(out), "--quiet"]) == 0
    return out


@pytest.fixture(scope="module")
def language(place: Path) -> Path:
    text, held_out = place / "novels.txt", place / "other.txt"
    text.write_text("".join(f"{n} times {m} is {n * m}.\n" for n in range(3, 30) for m in range(2, 30)))
    held_out.write_text("Eight times nine is seventy-two. " * 40)
    stack = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    return train(
        place,
        "language",
        task={"kind": "language", "batch_size": 4},
        data={
            "source": str(text),
            "validation": {"kind": "held_out", "source": str(held_out)},
            "tokenizer": {"kind": "bpe", "vocab_size": 300},
        },
        model={"preset": "llama", "max_len": 16, "stack": stack},
    )


@pytest.fixture(scope="module")
def continued(place: Path, language: Path) -> Path:
    return train(
        place,
        "continued",
        pretrained=str(language),
        task={"kind": "language", "batch_size": 4},
        data={"source": str(place / "other.txt")},
    )


@pytest.fixture(scope="module")
def translator(place: Path) -> Path:
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    for side, ending in (("de", "en"), ("en", "")):
        (place / f"pairs.{side}").write_text("".join(f"{a}{ending} {b}{ending}\n" for a in words for b in words))
    stack = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    return train(
        place,
        "translator",
        task={"kind": "translation", "batch_tokens": 64},
        data={
            "source": str(place / "pairs.de"),
            "target": str(place / "pairs.en"),
            "validation": {"kind": "held_out", "source": str(place / "pairs.de"), "target": str(place / "pairs.en")},
            "tokenizer": {"kind": "characters", "byte_fallback": True},
        },
        model={"preset": "modern-translator", "max_len": 32, "encoder": stack, "decoder": stack},
    )


@pytest.fixture(scope="module")
def classifier(place: Path) -> Path:
    rows = [{"text": f"{n} is {'even' if n % 2 == 0 else 'odd'}", "label": str(n % 2)} for n in range(200)]
    stack = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    (place / "labeled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return train(
        place,
        "classifier",
        task={"kind": "labels", "batch_size": 4},
        data={"source": str(place / "labeled.jsonl"), "tokenizer": {"kind": "wordpiece", "vocab_size": 200}},
        model={
            "preset": "bert-tiny",
            "max_len": 32,
            "pooler": True,
            "classifier": {"pooling": "pooler"},
            "stack": stack,
        },
    )


def contents(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file and of compressed data in it."""
    data = path.read_bytes()
    yield data
    if zipfile.is_zipfile(path):  # .npz, .ckpt
        with zipfile.ZipFile(path) as file:
            yield from (file.read(name) for name in file.namelist())
    for match in re.finditer(rb"stream\r?\n(.*?)endstream|(?:zTXt|iTXt|iCCP)(.*?)IEND", data, re.DOTALL):  # PDF, PNG
        for start in (b"\x78\x9c", b"\x78\xda", b"\x78\x01"):
            packed = (match[1] or match[2]).partition(start)
            if packed[1]:
                yield zlib.decompressobj().decompress(start + packed[2])
    if path.suffix == ".html":  # its modules and numbers
        yield from (base64.b64decode(run + b"==") for run in re.findall(rb"[A-Za-z0-9+/]{24,}", data))


def telling(*folders: Path, besides: tuple[str, ...] = ()) -> list[str]:
    """Return the files that name the machine in their content or name."""
    files = [path for folder in folders for path in ([folder] if folder.is_file() else folder.rglob("*"))]
    files = [path for path in files if path.is_file() and path.name not in besides]
    assert files
    return [
        str(path) for path in files if SECRET in path.name or any(SPELLINGS.search(data) for data in contents(path))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["language", "continued", "translator", "classifier"])
def test_a_run(name: str, request: pytest.FixtureRequest) -> None:
    run: Path = request.getfixturevalue(name)
    assert telling(run, besides=("recipe.yaml",)) == []
    assert telling(run / "recipe.yaml") == [str(run / "recipe.yaml")]  # the search finds an existing name


@pytest.mark.parametrize(
    ("name", "to"),
    [
        *(("language", to) for to in (None, "hf", "gguf", "ctranslate2")),
        pytest.param("language", "onnx", marks=pytest.mark.exhaustive),
        ("classifier", "hf"),
        ("continued", None),
    ],
)
def test_a_converted_model(
    name: str, to: str | None, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # ONNX's exporter cannot trace these checks
    run: Path = request.getfixturevalue(name)
    target = tmp_path / "exported"
    assert main(["convert", str(run), str(target), *([] if to is None else ["--to", to])]) == 0
    assert telling(target) == []


@pytest.mark.slow
@pytest.mark.parametrize("to", [None, "hf"])
def test_a_converted_model_of_an_earlier_version(to: str | None, language: Path, tmp_path: Path) -> None:
    """The card of such a model still contains the folders."""
    old = tmp_path / "old"
    shutil.copytree(language / "best", old, ignore=shutil.ignore_patterns("manifest.json"))
    (old / "card.json").write_text((old / "card.json").read_text().replace('"./', f'"/home/{SECRET}/'))
    (old / "README.md").write_text((old / "README.md").read_text().replace(": ./", f": /home/{SECRET}/"))
    assert len(telling(old)) == 2
    assert main(["convert", str(old), str(tmp_path / "new"), *([] if to is None else ["--to", to])]) == 0
    assert telling(tmp_path / "new") == []
    assert main(["explore", str(old), "--prompt", "8 times", "--export", str(tmp_path / "page.html")]) == 0
    assert telling(tmp_path / "page.html") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["language", "translator", "classifier"])
def test_a_saved_page(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run: Path = request.getfixturevalue(name)
    assert main(["explore", str(run), "--prompt", "1 is", "--export", str(tmp_path / "page.html")]) == 0
    assert telling(tmp_path / "page.html") == []


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures(suffix: str, language: Path, tmp_path: Path) -> None:
    assert main(["plot", str(language), "loss", "--out", str(tmp_path / f"loss.{suffix}")]) == 0
    assert main(["plot", "model", str(language), "--out", str(tmp_path / f"model.{suffix}")]) == 0
    assert telling(tmp_path) == []


@pytest.mark.parametrize("suffix", ["npz", "parquet", "jsonl"])
def test_vectors(suffix: str, place: Path, classifier: Path, tmp_path: Path) -> None:
    output = tmp_path / f"vectors.{suffix}"
    assert main(["embed", str(classifier), "--input", str(place / "other.txt"), "--output", str(output)]) == 0
    assert telling(output) == []


@pytest.mark.slow
def test_a_comparison(language: Path, place: Path) -> None:
    """A comparison contains the folders of its runs as they were passed, here relative to the working folder."""
    assert (place / "language.yaml").exists()  # created by the fixture
    assert main(["compare", "language.yaml", "--seeds", "1,2", "--out", "compared", "--quiet"]) == 0
    # These files are needed to resume it.
    assert telling(place / "compared", besides=("recipe.yaml", "settings.json")) == []


def test_the_search_covers_compressed_data(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt
    import numpy as np

    from tercet.plots import save

    figure = plt.figure()
    figure.text(0.5, 0.5, "x")
    for suffix in ("png", "svg", "pdf"):
        save(figure, tmp_path / f"without.{suffix}")
        figure.savefig(tmp_path / f"with.{suffix}", metadata={"Title": f"/home/{SECRET}"})
    plt.close(figure)
    np.savez_compressed(tmp_path / "with.npz", path=np.array(f"/home/{SECRET}"))
    (tmp_path / "with.html").write_bytes(base64.b64encode(f"of /home/{SECRET}/texts".encode()))
    assert {Path(path).name for path in telling(tmp_path)} == {
        "with.png", "with.svg", "with.pdf", "with.npz", "with.html"
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["language", "translator", "classifier"])
def test_a_run_is_still_scored_on_its_data(
    name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    run: Path = request.getfixturevalue(name)
    capsys.readouterr()  # drop the output of the fixture
    assert SECRET not in json.dumps(load_model(run).card.recipe)
    monkeypatch.chdir(tmp_path)
    part = ["--part", "validation"] if name == "translator" else []
    assert main(["evaluate", str(run), "--json", *part]) == 0
    scores = json.loads(capsys.readouterr().out)
    exported = tmp_path / "exported"
    shutil.copytree(run / "best", exported)
    assert main(["evaluate", str(exported), *part]) == 2
    source = Path(read_yaml(run / "recipe.yaml")["data"]["source"]).name
    flags = "--source FILE --target FILE" if name == "translator" else "--data PATH"
    captured = capsys.readouterr()
    reason = f"was trained on ./{source}, which is not on this machine"
    assert (
        captured.err == f"tercet: error: {exported} {reason}; to use other data: tercet evaluate {exported} {flags}\n"
    )
    for file in run.parent.iterdir():  # files in the working folder are found by name and verified by hash
        if file.is_file():
            shutil.copy(file, tmp_path)
    assert main(["evaluate", str(exported), "--json", *part]) == 0
    assert json.loads(capsys.readouterr().out) == scores
    for file in tmp_path.glob("*.*"):
        if file.suffix != ".yaml":
            file.write_bytes(file.read_bytes() * 2)
    assert main(["evaluate", str(exported), *part]) == 2
    assert "has changed since the training" in capsys.readouterr().err


def test_a_recipe_of_another_run_is_ignored(language: Path, place: Path, tmp_path: Path) -> None:
    from tercet.data import TextSpec

    model = tmp_path / "model"
    shutil.copytree(language / "best", model)
    for text in ("data: {source: other.txt}", "[", "data: 5", "training: {}"):
        (tmp_path / "recipe.yaml").write_text(text)
        settings = load_model(model).trained_on(TextSpec)
        assert settings is not None
        assert settings.source == "./novels.txt"
    shutil.copy(language / "recipe.yaml", tmp_path)
    settings = load_model(model).trained_on(TextSpec)
    assert settings is not None
    assert settings.source == str(place / "novels.txt")
