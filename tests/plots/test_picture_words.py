"""Text in figures: complete words, tokens of any script, and reproducible files."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.image
import pytest
from matplotlib.figure import Figure
from plotted import LETTERS, ROOM, TEXT, gpt, trained_model, words, write

from pairwise import parametrize_pairs
from tercet.checkpoint import Card
from tercet.models import DecoderOnly, DecoderOnlySpec, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn.specs import Learned
from tercet.plots import (
    plot_attention,
    plot_loss,
    plot_neighbors,
    plot_positions,
    plot_schedule,
    plot_score,
    save,
)
from tercet.tokens import Characters, Tokenizer

pytestmark = pytest.mark.slow  # matplotlib is slow


def cut_off(figure: Figure) -> list[str]:
    """Return texts that are at least partly outside of the figure."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    room, slack = figure.bbox, 1  # pixels
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    return [
        words
        for words, box in boxes
        if box.x0 < room.x0 - slack or box.x1 > room.x1 + slack or box.y0 < -slack or box.y1 > room.y1 + slack
    ]


@parametrize_pairs(text=["a", "ab c", "abcdefghij" * 13, "ab cd " * 20], n_heads=[1, 8], layer=[None, 0])
def test_no_word_of_an_attention_picture_is_cut_off(text: str, n_heads: int, layer: int | None) -> None:
    stack = StackSpec(d_model=24, n_layers=1, n_heads=n_heads, position=Learned())
    model = DecoderOnly(DecoderOnlySpec(vocab_size=LETTERS.vocab_size, stack=stack, max_len=150))
    figure = plot_attention(trained_model(model), text, layer=layer)
    assert not cut_off(figure)
    drawn_text = words(figure).replace("\n", " ")
    assert "rows: query tokens, sum 1; columns: key tokens; the first tokens are at the top and left" in drawn_text


@pytest.mark.parametrize("layer", [None, 0])
@pytest.mark.parametrize("n_heads", [1, 3])
def test_no_word_of_a_translator_picture_is_cut_off(n_heads: int, layer: int | None) -> None:
    stack = StackSpec(d_model=24, n_layers=1, n_heads=n_heads, position=Learned())
    spec = EncoderDecoderSpec(encoder=stack, decoder=stack, vocab_size=LETTERS.vocab_size, max_len=ROOM)
    figure = plot_attention(trained_model(EncoderDecoder(spec)), "ab", target="de", layer=layer)
    assert not cut_off(figure)
    tops = [(text.get_text(), text.get_window_extent()) for text in figure.findobj(type(figure.texts[0]))]
    titles = sorted((box.x0, box.x1, box.y0) for words, box in tops if "-attention" in words)
    assert len(titles) == 3
    side_by_side = layer is None
    assert all(left[1] < right[0] for left, right in pairwise(titles)) == side_by_side, "titles must not overlap"


def test_a_long_name_is_broken_into_lines(tmp_path: Path) -> None:
    name = "a-long-name-without-a-single-space" * 6
    metrics = write(tmp_path / "metrics.csv", [{"step": n, "lr": 1} for n in (1, 2)])
    long = replace(gpt(n_layers=1), card=Card(name=name))
    for figure in (
        plot_attention(long, "ab"),
        plot_positions(long),
        plot_neighbors(long),
        plot_schedule(metrics, title=name),
    ):
        assert not [title for title in cut_off(figure) if "long" in title]  # ticks beyond an axis are not drawn
        assert name in words(figure).replace("\n", "")


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.csv", [{"step": 1, "train/loss": 2, "lr": 1}])
    model = gpt()
    for number, plot in enumerate(
        (
            lambda: plot_loss(path, title="$a_"),
            lambda: plot_schedule(path, title="run"),
            lambda: plot_positions(model),
            lambda: plot_attention(model, TEXT, layer=0),
            lambda: plot_neighbors(model),
        )
    ):
        first, second = (tmp_path / f"{number}-{time}{'.svg' if number else '.png'}" for time in "ab")
        save(plot(), first, dpi=40)
        save(plot(), second, dpi=40)
        assert first.read_bytes() == second.read_bytes()


def test_tokens_of_any_script_and_none_are_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(Characters(alphabet="$\\^_{}<&漢\U0001f989\t\n \x07-", eos=True), [])
    model = gpt(tokenizer=tokenizer, max_len=30)
    save(plot_attention(model, "$\\^_{$}<&漢\U0001f989\t\n \x07--", layer=0), tmp_path / "a.svg")
    save(plot_neighbors(model), tmp_path / "b.svg")
    metrics = write(tmp_path / "metrics.csv", [{"step": 1, "train/loss": 2, "val/bleu": 1, "lr": 1, "seconds": 1}])
    for number, plot in enumerate((plot_loss, plot_score, plot_schedule)):  # runs may have any name
        save(plot(metrics, title="$\\frac$_$"), tmp_path / f"{number}.svg")
    for name in "ab012":
        ElementTree.parse(tmp_path / f"{name}.svg")


def test_a_notebook_shows_it(tmp_path: Path) -> None:
    picture: Any = plot_positions(gpt())
    (tmp_path / "a.png").write_bytes(picture._repr_png_())
    assert matplotlib.image.imread(tmp_path / "a.png").std() > 0.1
