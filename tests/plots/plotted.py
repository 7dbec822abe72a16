"""Models and runs to plot, and functions that read numbers from a figure."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tercet.checkpoint import Card, TrainedModel
from tercet.checkpoint.metrics import COLUMNS
from tercet.models import AnyModel, DecoderOnly, DecoderOnlySpec, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn.specs import Learned, Position
from tercet.tokens import Characters, Tokenizer

LETTERS = Tokenizer.train(Characters(alphabet="abcdefghij $_^", pad=True, bos=True, eos=True), [])
WORDS = ["the cat sat on the mat", "the dog and the cats sat and ran"] * 3
TEXT = "ab$ ^_c"
ROOM = 13


def trained_model(model: AnyModel, tokenizer: Tokenizer = LETTERS) -> TrainedModel:
    return TrainedModel.wrap(model.eval(), tokenizer, card=Card(name="tiny"), folder=Path("tiny"))


def gpt(
    position: Position | None = None, *, tokenizer: Tokenizer = LETTERS, n_layers: int = 2, **fields: Any
) -> TrainedModel:
    stack = StackSpec(d_model=24, n_layers=n_layers, n_heads=3, position=position or Learned())
    return trained_model(
        DecoderOnly(DecoderOnlySpec(vocab_size=tokenizer.vocab_size, stack=stack, **{"max_len": ROOM, **fields})),
        tokenizer,
    )


def translator(encoder_layers: int = 3, decoder_layers: int = 2, position: Position | None = None) -> TrainedModel:
    stacks = [
        StackSpec(d_model=24, n_layers=n, n_heads=3, position=position or Learned())
        for n in (encoder_layers, decoder_layers)
    ]
    spec = EncoderDecoderSpec(encoder=stacks[0], decoder=stacks[1], vocab_size=LETTERS.vocab_size, max_len=ROOM)
    return trained_model(EncoderDecoder(spec))


def images(figure: Figure) -> list[np.ndarray]:
    """Return the arrays of all images except color bars, in drawing order."""
    return [axes.images[0].get_array() for axes in figure.axes if axes.images]


def words(figure: Figure) -> str:
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))


def write(path: Path, rows: list[dict[str, float | str]], columns: tuple[str, ...] = COLUMNS) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def lines(figure: Figure, panel: int = 0) -> dict[str, tuple[list[float], list[float]]]:
    """Return the lines of a panel by the start of their labels."""
    return {
        str(line.get_label()).split(",")[0]: (list(line.get_xdata()), list(line.get_ydata()))
        for line in figure.axes[panel].lines
    }
