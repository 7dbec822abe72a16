"""The repr of results is short, and their HTML in notebooks is escaped and complete."""

import io
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import tercet
from tercet.checkpoint import Card
from tercet.checkpoint.metrics import COLUMNS
from tercet.encoding import Classification, MaskPredictions, MultiLabelClassification, Neighbors, Regression, Tagging
from tercet.encoding.fill import Candidate
from tercet.evaluate import LanguageScores, label_scores, regression_scores
from tercet.evaluate.translation import score_translations
from tercet.generation import Beam, Completion, Sampling, Translation
from tercet.models import PRESETS, DecoderOnlySpec, StackSpec
from tercet.nn.specs import Rotary
from tercet.notebook import Table, View
from tercet.plots.loss_curve import loss_curve
from tercet.plots.svg_chart import MAX_POINTS
from tercet.spec import spec

EVIL = "<script>alert('1')</script>&"
CLASSIFICATION = Classification(label=EVIL, probability=0.9, scores={EVIL: 0.9, "b": 0.1}, truncated=True)
RESULTS: dict[str, Any] = {
    "completion": Completion(
        prompt=EVIL, text=EVIL, ids=(1,) * 900, logprobs=(-1.0,) * 900, finish="eos", seed=3, truncated=True, passes=9
    ),
    "translation": Translation(
        source=EVIL, text=EVIL, ids=(1,) * 900, logprobs=(-1.0,) * 900, logprob=-3.5, score=-0.25, finish="eos",
        truncated=False,
    ),
    "classified": CLASSIFICATION,
    "several labels": MultiLabelClassification(labels=(EVIL,), scores={EVIL: 0.9, "b": 0.1}, truncated=False),
    "tagged": Tagging(words=(EVIL,) * 40, tags=(CLASSIFICATION, None) * 20, truncated=False),
    "filled": MaskPredictions(
        text=EVIL, masks=((Candidate(word=EVIL, ids=(1,), probability=0.5, text=EVIL),) * 5,), truncated=False
    ),
    "candidate": Candidate(word=EVIL, ids=(1,) * 9, probability=0.5, text=EVIL * 40),
    "labels' scores": label_scores([0, 1, 1], [0, 1, 0], [EVIL, "b"]),
    "card": Card(name=EVIL, step=7, kept_as="last", recipe={"data": {"source": "x" * 900}}),
    "sampling": Sampling(stop=(EVIL,)),
}  # fmt: skip
PLAIN: dict[str, Any] = {
    "language scores": LanguageScores.from_sums(nats=30, text_nats=30, tokens=20, n_bytes=40, context=8, stride=4),
    "translations' scores": score_translations(["a b c d e"], ["a b c d e"]),
    "numbers' scores": regression_scores([1.0, 2.0, 3.0], [1.0, 2.5, 3.0]),
    "number": Regression(value=3.25, truncated=False),
    "neighbors": Neighbors(numbers=np.arange(500).reshape(5, 100), scores=np.ones((5, 100))),
}  # fmt: skip


class Tags(HTMLParser):
    """Parser that checks that every tag is closed, and collects text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.tags_found, self.words = list[str](), set[str](), list[str]()
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags_found.add(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags_found.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("name", [*RESULTS, *PLAIN])
def test_results_are_short_in_python_and_escaped_in_a_notebook(name: str) -> None:
    result = {**RESULTS, **PLAIN}[name]
    assert len(repr(result)) < 260
    assert "\n" not in repr(result)
    if name == "card":
        return
    tags = Tags(result._repr_html_())
    assert "script" not in tags.tags_found
    assert ("<script>" in "".join(tags.words)) == (name in RESULTS)
    assert "color:" not in result._repr_html_().replace("color:inherit", "")  # independent of the theme


def test_repr_and_html_of_results() -> None:
    text = repr(Completion(
        prompt="Once", text=" upon", ids=(1,) * 5, logprobs=(-1.0,) * 5, finish="stop", seed=3, truncated=False,
        passes=2,
    ))  # fmt: skip
    assert text == "Completion(prompt='Once', text=' upon', finish='stop', seed=3, truncated=False, passes=2)"
    assert repr(RESULTS["filled"]).startswith('MaskPredictions("<script>')
    assert repr(PLAIN["neighbors"]) == "Neighbors(5x100 rows, the nearest at 1)"
    html = RESULTS["completion"]._repr_html_()
    assert html.index("opacity") < html.index("&lt;script&gt;") < html.index("</span>")  # the prompt is paler
    assert "900 tokens, ended by eos, seed 3" in html
    words = Tags(RESULTS["translation"]._repr_html_()).words
    assert {"source", "translation", "score", "-0.2500", EVIL} <= set(words)


def test_the_repr_of_a_spec_omits_defaults() -> None:
    stack = StackSpec(d_model=24, n_layers=2, n_heads=3, position=Rotary(base=125.0))
    model = DecoderOnlySpec(vocab_size=13, max_len=5, stack=stack)
    assert repr(Beam()) == "Beam()"
    assert repr(Beam(size=2)) == "Beam(size=2)"
    assert eval(repr(model)) == model
    words = Tags(model._repr_html_()).words
    assert {"DecoderOnlySpec", "stack.position.base", "125"} <= set(words)
    assert any("with default values" in word for word in words)
    assert max(len(repr(preset)) for preset in PRESETS.values()) < 400


def test_the_repr_of_a_spec_contains_values_of_another_type() -> None:
    @spec
    class Setting:
        number: int | bool = 1

    assert repr(Setting(number=True)) == "Setting(number=True)"
    assert repr(Setting()) == "Setting()"


def test_a_view_has_the_same_text_in_notebook_and_terminal() -> None:
    table = Table(header=("[bold]", "n"), rows=[("[red]<b>", "1")], caption="[i] <i>", bold=[(0, 1)], folded={0: 4})
    view = View((table, "", "[below]"))
    html = view.to_html()
    assert Tags(html).words == ["[bold]", "n", "[red]<b>", "1", "[i] <i>", "[below]"]
    assert html.count("text-align:right") == 2
    assert table.right == (False, True)
    terminal = io.StringIO()
    Console(file=terminal, width=40).print(view)
    lines = [line.split() for line in terminal.getvalue().splitlines()]
    assert lines == [["[bold]", "n"], ["[red]<b>", "1"], ["[i]", "<i>"], [], ["[below]"]]


def test_a_run_is_displayed_with_its_model_and_losses(tiny_run: tercet.Run) -> None:
    assert repr(tiny_run).startswith(f"Run({tiny_run.folder}, a language model, ")
    assert "parameters, best validation loss" in repr(tiny_run)
    tags = Tags(tiny_run._repr_html_())
    assert {"table", "svg", "polyline"} <= tags.tags_found
    assert "script" not in tags.tags_found
    assert {"Parameters", f"{tiny_run.trained_model.n_parameters:,}", "Vocabulary"} <= set(tags.words)
    assert repr(tiny_run.trained_model).startswith("LanguageModel(")
    assert "trained on" in repr(tiny_run.card)
    assert repr(tiny_run.read("3")).startswith("Recording(1 tokens, ")


def test_a_model_without_its_run_is_shown_without_losses(tiny_run: tercet.Run, tmp_path: Path) -> None:
    for file in tiny_run.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    trained_model = tercet.load(tmp_path)
    assert "svg" not in Tags(trained_model._repr_html_()).tags_found
    with pytest.raises(tercet.config.UserError, match="was not trained here; load a run folder"):
        _ = trained_model.history


def test_a_loss_curve_is_bounded_and_skips_invalid_values() -> None:
    columns = {name: list[tuple[int, float]]() for name in COLUMNS[1:]}
    assert loss_curve(columns) == ""
    columns["train/loss"] = [(step, 1 + 1 / step) for step in range(1, 100_000)]
    columns["val/loss"] = [(1, math.inf), (2, math.nan), (3, 0.0), (7, 1.5)]
    svg = loss_curve(columns)
    assert svg.count(",") < 3 * MAX_POINTS
    assert "99,999" in svg
    assert "validation, lowest 1.5 at 7" in svg
    assert "nan" not in svg
    assert "inf" not in svg
