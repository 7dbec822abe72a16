"""`tercet plot` on tiny runs of each family: paths on stdout, one line per error."""

import csv
import json
import re
import shutil
from pathlib import Path

import matplotlib.image
import pytest
import torch

from tercet.checkpoint import Card, save_model
from tercet.checkpoint.metrics import COLUMNS
from tercet.cli.main import main
from tercet.models import (
    AnyModel,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    StackSpec,
)
from tercet.nn.specs import ALiBi, NoPosition, Rotary
from tercet.tokens import Characters, Tokenizer, WordPiece

pytestmark = pytest.mark.slow  # matplotlib is slow

PLOTS = ["loss", "schedule", "score", "positions", "attention", "neighbors"]
FAMILIES = ["gpt", "bert", "translator"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a run of each family, as training leaves it, and models that were trained elsewhere."""
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = Tokenizer.train(WordPiece(vocab_size=60), ["the cat sat on the mat", "a dog ran"])
    digits = Tokenizer.train(Characters(alphabet="0123456789"), [])
    sizes = {"vocab_size": tokenizer.vocab_size, "max_len": 19}

    def stack(position: Rotary | ALiBi | NoPosition | None = None) -> StackSpec:
        return StackSpec(d_model=24, n_layers=2, n_heads=3, d_ff=41, position=position or Rotary())

    models: dict[str, tuple[AnyModel, Tokenizer]] = {
        "gpt": (DecoderOnly(DecoderOnlySpec(**sizes, stack=stack())), tokenizer),
        "bert": (EncoderOnly(EncoderOnlySpec(**sizes, stack=stack(ALiBi()), masked_head=None)), tokenizer),
        "translator": (EncoderDecoder(EncoderDecoderSpec(**sizes, encoder=stack(), decoder=stack())), tokenizer),
        "bare": (
            DecoderOnly(DecoderOnlySpec(vocab_size=digits.vocab_size, max_len=7, stack=stack(NoPosition()))),
            digits,
        ),
    }
    for name, (model, model_tokenizer) in models.items():
        torch.manual_seed(3)
        run = folder / name
        save_model(run if name == "bare" else run / "best", model, model_tokenizer, Card(name=name))
        if name != "bare":
            score = {"val/bleu": 3.5} if name == "translator" else {"val/accuracy": 0.5} if name == "bert" else {}
            with (run / "metrics.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerow({"step": 1, "epoch": 0, "train/loss": 4.5, "lr": 0.1, "seconds": 1})
                writer.writerow({"step": 2, "epoch": 0, "val/loss": 4, "lr": 0.2, "seconds": 3, **score})
    return {name: folder / name for name in models}


def run_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    assert code == 0, err
    return out.splitlines(), err


def is_curve(path: str) -> bool:
    return Path(path).stem in ("loss", "schedule", "score")


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    "family", ["gpt", *(pytest.param(family, marks=pytest.mark.exhaustive) for family in ("bert", "translator"))]
)
def test_all_plots_of_a_run(
    family: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / family
    shutil.copytree(runs[family], run)
    out, err = run_command(["plot", str(run)], capsys)
    expected = [plot for plot in PLOTS if (family, plot) != ("gpt", "score")]
    assert out == [str(run / "plots" / f"{plot}.png") for plot in expected]
    assert ("score left out" in err) == (family == "gpt")
    for path in out:
        assert matplotlib.image.imread(path).std() > 0.05
    before = {path: Path(path).read_bytes() for path in out}
    (run / "best").rename(run / "not yet")  # only the curves are plotted again
    result, _ = run_command(["plot", str(run), "--json"], capsys)
    assert list(json.loads("\n".join(result))["pictures"].values()) == [path for path in out if is_curve(path)]
    assert {path: Path(path).read_bytes() for path in out} == before


@pytest.mark.parametrize(
    ("family", "plot"),
    [
        pytest.param(family, plot, marks=[] if number % 3 == place else pytest.mark.exhaustive)
        for place, family in enumerate(FAMILIES)
        for number, plot in enumerate(["schedule", "loss", "attention", "score", "neighbors", "positions"])
    ],
)
def test_each_plot_separately(
    family: str, plot: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plot", str(runs[family]), plot, "--out", str(tmp_path / "a.svg")]
    if plot == "attention":
        arguments += ["--prompt", "the cat sat", "--layer", "1"]
    if plot == "neighbors":
        arguments += ["--token", "the", "[MASK]"]
    if (family, plot) == ("gpt", "score"):
        assert "or correlation; plot loss instead" in error_of(arguments, capsys)
        return
    out, err = run_command(arguments, capsys)
    assert out == [str(tmp_path / "a.svg")]
    assert err == ""
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.exhaustive
def test_a_translator_s_sides(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["translator"])
    pictures = set[bytes]()
    for stack in ("encoder", "decoder"):
        arguments = ["--prompt", "a dog ran", "--target", "the cat", "--stack", stack]
        run_command(["plot", run, "attention", *arguments, "--out", str(tmp_path / "a.png")], capsys)
        pictures.add((tmp_path / "a.png").read_bytes())
        run_command(["plot", run, "positions", "--stack", stack, "--out", str(tmp_path / "b.pdf")], capsys)
    assert len(pictures) == 2


def test_into_a_folder(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["bert"] / "best")  # the run's curves are also found from its model
    out, _ = run_command(["plot", run, "loss", "--out", str(tmp_path)], capsys)
    assert out == [str(tmp_path / "loss.png")]
    curves = tmp_path / "curves"  # a run without a model, so that only the curves are plotted
    curves.mkdir()
    shutil.copy(runs["gpt"] / "metrics.csv", curves)
    out, _ = run_command(["plot", str(curves), "--out", str(tmp_path / "new")], capsys)
    assert [Path(path).parent for path in out] == [tmp_path / "new"] * 2


@pytest.mark.exhaustive
def test_plot_of_a_converted_model(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["bare"])
    out, err = run_command(["plot", run, "--out", str(tmp_path / "a"), "--json"], capsys)
    result = json.loads("\n".join(out))
    assert list(result["pictures"]) == ["neighbors"]
    assert list(result["left_out"]) == PLOTS[:-1]
    assert err.count("left out") == 5
    assert "no metrics.csv, since it was not trained here" in result["left_out"]["loss"]
    assert "position: none" in result["left_out"]["positions"]
    assert re.fullmatch(
        r"the vocabulary has no .* and \d+ more, for 'The .*'; pass another text with --prompt",
        result["left_out"]["attention"],
    )
    assert "metrics.csv" in error_of(["plot", run, "loss"], capsys)
    out, _ = run_command(["plot", run, "--prompt", "123", "--out", str(tmp_path / "a")], capsys)
    assert [Path(path).stem for path in out] == ["attention", "neighbors"]


def test_a_run_without_a_model_yet(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(runs["gpt"] / "metrics.csv", tmp_path)
    out, err = run_command(["plot", str(tmp_path)], capsys)
    assert [Path(path).stem for path in out] == ["loss", "schedule"]
    assert "contains no model yet; wait until the run has saved one" in err
    (tmp_path / "best").mkdir()
    assert "no model in" in error_of(["plot", str(tmp_path), "attention", "--prompt", "a"], capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("los", "unknown picture 'los'; did you mean 'loss'?"),
        ("loss --prompt a", "--prompt applies to attention, not to loss; leave it out"),
        ("neighbors --layer 0", "--layer applies to attention, not to neighbors"),
        ("schedule --stack encoder", "--stack applies to positions and attention and neighbors, not to schedule"),
        ("attention", "attention requires a text; pass one: --prompt"),
        ("attention --prompt the --layer 2", "--layer 2: "),
        ("attention --prompt the --layer -1", "argument --layer: -1 must be at least 0"),
        ("attention --prompt the --layer one", "argument --layer: invalid int value: 'one'"),
        ("attention --prompt the --stack encoder", "--stack encoder: "),
        ("attention --prompt the --target a", "a target is for translators"),
        ("--layer 7", "--layer 7: "),
        ("attention --prompt the --layer 0 --head 3", "--head 3: "),
        ("attention --prompt the --head 0", "--head requires --layer"),
        ("attention --prompt the --scale 2", "--scale requires --layer"),
        ("attention --prompt the --layer 0 --scale 9", "argument --scale: 9.0 must be at least 0.5 and at most 4"),
        ("loss --head 0", "--head applies to attention, not to loss"),
        ("positions --stack encoder", "has no such stack; known: stack"),
        ("neighbors --token zebra", "--token 'zebra' is not a token of the vocabulary"),
        ("loss --out a.gif", "--out a.gif: a picture's name ends in .png, .svg, .pdf"),
        ("loss --out none/a.png", "--out none/a.png: no such folder: none; create it first"),
        ("--out a.png", "--out a.png: there are several pictures; pass a folder, or choose one picture"),
        ("--out none/a", "--out none/a: no such folder: none; create it first"),
        ("loss --tokens a", "unknown argument '--tokens'; did you mean '--token'?"),
    ],
)
def test_mistakes(
    arguments: str, words: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "gpt"
    shutil.copytree(runs["gpt"], run)
    (run / "metrics.csv").unlink()  # so that no plot is drawn before the error
    assert main(["plot", str(run), *arguments.split()]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("tercet: error: ")
    assert words in err


def test_no_such_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such folder" in error_of(["plot", str(tmp_path / "none")], capsys)
    assert "no model in" in error_of(["plot", str(tmp_path), "loss"], capsys)


def test_unwritable_plot_is_one_error_line(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "gpt"
    shutil.copytree(runs["gpt"], run)
    (run / "plots").write_text("in the way")
    assert "cannot create the folder" in error_of(["plot", str(run), "loss"], capsys)
