"""`tercet plot` of schedules, masks and other concepts: paths of plots on stdout, numbers as JSON, errors."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.checkpoint import Card, save_model
from tercet.cli.main import main
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.plots import picture_file
from tercet.tokens import Characters, Tokenizer

pytestmark = pytest.mark.slow  # matplotlib is slow

PLOTS = ["positions", "schedules", "masks It rains today", "smoothing", "model gpt2", "attention transformer-base"]
QUICK_PLOTS = ("schedules", "model gpt2")  # a PNG and an SVG; the code that saves them is the same for all


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a temporary folder, the default place of plots."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def draw(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = main(["plot", *arguments])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert err == ""
    return out


def draw_as_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(draw([*arguments, "--json"], capsys))


@pytest.fixture
def no_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write empty pictures in tests of the numbers that are plotted: rendering takes most of the time."""
    monkeypatch.setattr(picture_file, "save", lambda figure, path, **options: path.write_bytes(b""))


@pytest.mark.parametrize(
    "command",
    [pytest.param(plot, marks=[] if plot in QUICK_PLOTS else pytest.mark.exhaustive) for plot in PLOTS],
)
def test_plots_are_saved_in_current_folder_and_deterministic(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = command.split()[0]
    suffix = "svg" if name in ("model", "attention") else "png"
    assert draw(command.split(), capsys) == f"{name}.{suffix}\n"
    first = (folder / f"{name}.{suffix}").read_bytes()
    if suffix == "png":
        assert matplotlib.image.imread(folder / f"{name}.png").std() > 0.02
    else:
        ElementTree.fromstring(first)
    draw(command.split(), capsys)
    assert (folder / f"{name}.{suffix}").read_bytes() == first


@pytest.mark.parametrize(
    ("command", "suffix"), [*zip(PLOTS[1:], [".svg", ".pdf", ".png", ".svg", ".pdf"], strict=True)]
)
def test_every_kind_of_file(command: str, suffix: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / f"a{suffix}"
    assert draw([*command.split(), "--out", str(path)], capsys) == f"{path}\n"
    assert path.read_bytes().startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])


@pytest.mark.usefixtures("no_rendering")
def test_custom_positions(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--d-model", "16", "--n-heads", "2", "--length", "5"]
    out = draw_as_json(
        ["positions", "sinusoidal", "{kind: rotary, base: 50}", "alibi", *arguments, "--base", "100"], capsys
    )
    assert out["picture"] == "positions.png"
    sinusoidal, rotary, alibi = out["schemes"]
    expected = [[f(p / 100 ** (2 * i / 16)) for i in range(8) for f in (np.sin, np.cos)] for p in range(5)]
    assert np.allclose(sinusoidal["vectors"], expected, atol=1e-6)
    assert (sinusoidal["base"], rotary["base"]) == (100, 50)  # a base that is given within a scheme takes precedence
    assert np.allclose(
        rotary["cosines"], [[np.cos(p * 50 ** (-2 * i / 8)) for i in range(4)] for p in range(5)], atol=1e-6
    )
    assert alibi["bias"][0][4][0] == pytest.approx(-4 * 2**-4)
    vectors = draw_as_json(["positions", "learned", *arguments, "--seed", "1"], capsys)["schemes"][0]["vectors"]
    assert np.shape(vectors) == (5, 16)
    assert draw_as_json(["positions", "learned", *arguments, "--seed", "2"], capsys)["schemes"][0]["vectors"] != vectors


@pytest.mark.usefixtures("no_rendering")
def test_the_paper_s_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    rates = draw_as_json(["schedules", "--steps", "9000"], capsys)["rates"]
    for (width, warmup), curve in zip([(512, 4000), (512, 8000), (256, 4000)], rates.values(), strict=True):
        expected = [width**-0.5 * min(step**-0.5, step * warmup**-1.5) for step in range(1, 9001)]
        assert np.allclose(curve, expected, rtol=1e-9)
    assert next(iter(rates)) == "d_model 512, warm-up 4,000"
    custom = draw_as_json(["schedules", "64:10", "--steps", "30", "--lr", "2"], capsys)["rates"]
    assert np.allclose(
        custom["d_model 64, warm-up 10"], [2 * 64**-0.5 * min(s**-0.5, s * 10**-1.5) for s in range(1, 31)]
    )


@pytest.mark.usefixtures("no_rendering")
def test_schedules_of_any_kind(capsys: pytest.CaptureFixture[str]) -> None:
    schedules = ["--schedule", "{kind: cosine, final: 0.1}", "--schedule", "linear", "--schedule", "constant"]
    rates = draw_as_json(["schedules", *schedules, "--lr", "0.5", "--warmup", "4", "--steps", "11"], capsys)["rates"]
    cosine, linear, constant = rates.values()
    rise = [0.5 * step / 4 for step in range(1, 5)]
    fall = [n / 6 for n in range(7)]
    assert constant == pytest.approx([*rise, *[0.5] * 7])
    assert linear == pytest.approx([*rise, *(0.5 * (1 - share) for share in fall)])
    assert cosine == pytest.approx([*rise, *(0.5 * (0.1 + 0.9 * (1 + np.cos(np.pi * share)) / 2) for share in fall)])
    assert next(iter(rates)) == "cosine, final 0.1, warm-up 4"
    combined = draw_as_json(["schedules", "64:4", "--schedule", "wsd", "--steps", "9"], capsys)["rates"]
    assert list(combined) == ["d_model 64, warm-up 4", "wsd, cooldown 0.6, final 0"]


@pytest.mark.usefixtures("no_rendering")
def test_masks_of_custom_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    (mask,) = draw_as_json(["masks", "The weather is great today"], capsys)["masks"]
    assert mask["queries"] == mask["keys"] == ["The", "weather", "is", "great", "today"]
    assert mask["kind"] == "decoder"
    assert mask["allowed"] == np.tri(5, dtype=bool).tolist()
    masks = draw_as_json(["masks", "It rains", "I go home"], capsys)["masks"]
    assert [mask["kind"] for mask in masks] == ["encoder", "encoder", "decoder", "decoder"]
    assert masks[0]["keys"] == ["It", "rains", "<pad>"]
    assert masks[0]["allowed"] == [[True, True, False]] * 3
    pair = draw_as_json(["masks", "--source", "Es regnet heute", "--target", "It rains"], capsys)["masks"]
    assert [np.shape(mask["allowed"]) for mask in pair] == [(3, 3), (2, 2), (2, 3)]
    two = draw_as_json(["masks", "--source", "Es regnet", "ja", "--target", "It rains", "yes"], capsys)["masks"]
    assert two[5]["allowed"] == [[True, False], [True, False]]


@pytest.mark.usefixtures("no_rendering")
def test_custom_smoothing(capsys: pytest.CaptureFixture[str]) -> None:
    out = draw_as_json(["smoothing", "--vocabulary", "5", "--target", "0", "--epsilon", "0.2"], capsys)
    assert out["used"] == pytest.approx([0.84, 0.04, 0.04, 0.04, 0.04], abs=1e-6)
    assert out["described"] == pytest.approx([0.8, 0.05, 0.05, 0.05, 0.05])


def test_a_model_s_diagram(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = draw_as_json(["model", "grokking", "--batch", "32", "--length", "100", "--source-length", "90"], capsys)
    assert [side["shape"] for side in out["sides"]] == [[32, 90, 512], [32, 100, 512]]
    assert out["letters"] == {}
    assert out["vocab_size_at_most"] == {"source_vocab_size": 10_000, "vocab_size": 10_000}
    assert "(32, 100, 512)" in (folder / "model.svg").read_text(encoding="utf-8")
    assert "maximum: the vocabulary is learned from the data" in (folder / "model.svg").read_text(encoding="utf-8")
    letters = draw_as_json(
        ["model", "shakespeare-quick"], capsys
    )  # the characters are counted by training, not for a plot
    assert letters["letters"] == {"B": "batch size", "T": "tokens of a text", "V": "tokens of the vocabulary"}
    cross = draw_as_json(
        ["attention", "transformer-tiny", "--which", "cross", "--length", "7", "--source-length", "9"], capsys
    )
    assert cross["scores"]["shape"] == ["B", 4, 7, 9]


def test_custom_run_and_recipe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer.train(Characters(alphabet="abc"), [])
    stack = StackSpec(d_model=24, n_layers=2, n_heads=3, d_ff=41)
    model = DecoderOnly(DecoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=19, stack=stack))
    save_model(folder / "run", model, tokenizer, Card(name="mine"))
    out = draw_as_json(["model", "run"], capsys)
    assert out["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    (folder / "mine.yaml").write_text(
        "# mine\ntask: language\ndata: {source: none.txt, tokenizer: {kind: bpe, vocab_size: 700}}\n"
        "model: {preset: gpt2, stack: {d_model: 48, n_layers: 5, n_heads: 3}}\ntraining: {max_steps: 5}\n"
    )
    out = draw_as_json(["model", "mine.yaml"], capsys)
    assert out["sides"][0]["n_layers"] == 5
    assert out["heads"][0][0]["details"][0] == "48 → 700, no bias"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: RUN; see `tercet plot --help`"),
        (["mask"], "no such folder: mask; did you mean `tercet plot masks`?"),
        (["gpt2", "--batch", "2"], "unknown argument '--batch'; it is a flag of `tercet plot model` and"),
        (["positions", "--bas", "5"], "unknown argument '--bas'; did you mean '--base'?"),
        (["positions", "rotery"], "SCHEME: position: unknown kind 'rotery'; did you mean 'rotary'?"),
        (["positions", "{kind: rotary, bas: 5}"], "unknown key 'bas'; did you mean 'base'?"),
        (["positions", "{kind: rotary"], "SCHEME '{kind: rotary': the value is not valid YAML (expected ',' or '}'"),
        (["positions", "none"], "nothing to draw for position: none"),
        (["positions", "--d-model", "15", "sinusoidal", "--n-heads", "3"], "d_model=15 must be even"),
        (["positions", "--d-model", "20"], "d_model=20 must be divisible by n_heads=8"),
        (["positions", "--length", "0"], "argument --length: 0 must be at least 1"),
        (["positions", "--length", "many"], "argument --length: invalid int value: 'many'"),
        (["positions", "--base", "0"], "argument --base: 0.0 must be above 0"),
        (["positions", "alibi", "learned", "--base", "5"], "--base applies to sinusoidal and rotary positions"),
        (["schedules", "512"], "'512' is not D_MODEL:WARMUP; write two integers, such as 512:4000"),
        (["schedules", "512:0"], "'512:0' is not D_MODEL:WARMUP"),
        (["schedules", "--schedule", "cosin"], "--schedule: schedule: unknown kind 'cosin'; did you mean 'cosine'?"),
        (["schedules", "--schedule", "noam"], "the noam schedule requires --warmup, such as --warmup 4000"),
        (["schedules", "--schedule", "{kind: wsd, cooldown: 2}"], "cooldown=2.0 must be above 0 and at most 1"),
        (["schedules", "--steps", "0"], "argument --steps: 0 must be at least 1"),
        (["schedules", "--warmup", "-1"], "argument --warmup: -1 must be at least 0"),
        (["schedules", "--lr", "nan"], "argument --lr: nan must be at least 0"),
        (["masks"], 'there is no sentence to plot masks of; pass one: tercet plot masks "The weather is great today"'),
        (["masks", " "], "a sentence has no words; write at least one"),
        (["masks", "a " * 61], "a plot shows at most 8 sentences of 60 words; pass fewer"),
        (["masks", "--source", "a"], "--source and --target require each other"),
        (["masks", "a", "--source", "a", "--target", "b"], "sentences cannot be combined with --source and --target"),
        (["masks", "--source", "a", "b", "--target", "c"], "2 sources and 1 targets; pass one target per source"),
        (["smoothing", "--target", "10"], "target=10 must be a token of the vocabulary, 0 to 9"),
        (["smoothing", "--epsilon", "1"], "argument --epsilon: 1.0 must be at least 0 and below 1"),
        (["model"], "the following arguments are required: RUN|PRESET|RECIPE; see `tercet plot model --help`"),
        (["model", "gpt22"], "no folder, preset or recipe is called 'gpt22'; did you mean 'gpt2'?"),
        (["model", "gpt2", "--length", "2000"], "length=2000 does not fit into the context of max_len=1024"),
        (["model", "gpt2", "--source-length", "5"], "source_length=5 is for translators"),
        (["attention", "gpt2", "--which", "cross"], "which='cross': the decoder-only family has self"),
        (["model", "gpt2", "--out", "a.gif"], "--out a.gif: a picture's name ends in .png, .svg, .pdf"),
        (["model", "gpt2", "--out", "none/a.svg"], "--out none/a.svg: no such folder: none; create it first"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_mistakes(arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tercet: error: ")
    assert err.count("\n") == 1
    assert words in err
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("no_rendering")
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=12))
def test_any_words_are_a_pair_a_schedule_or_a_mistake(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No input ends in a traceback."""
    for flags in ([text], [f"--schedule={text}"]):
        assert main(["plot", "schedules", "--steps", "2", *flags]) in (0, 2)
        capsys.readouterr()
