"""The history of a run as columns and as a plot, and generation from one or several prompts."""

import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import tercet
from tercet.checkpoint.metrics import read_metrics, to_history


def test_a_history_is_columns_of_one_length(tiny_run: tercet.Run) -> None:
    history = tiny_run.history
    assert history["step"] == [1, 2, 3, 4, 6]  # the first, every second, and each validation
    assert next(iter(history)) == "step"
    assert {len(column) for column in history.values()} == {5}
    assert [math.isnan(loss) for loss in history["val/loss"]] == [True, True, False, True, False]
    columns = read_metrics(tiny_run.folder.parent / "metrics.csv")
    for name, column in history.items():
        if name != "step":
            points = [(step, x) for step, x in zip(history["step"], column, strict=True) if not math.isnan(x)]
            assert points == columns[name]
    assert "val/bleu" not in history  # never measured


def test_a_history_is_a_data_frame(tiny_run: tercet.Run) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(tiny_run.history)
    assert len(frame) == 5
    assert frame["train/loss"].dtype == "float64"
    assert frame.set_index("step")["val/loss"].dropna().index.tolist() == [3, 6]


def test_an_empty_history_has_no_rows() -> None:
    assert to_history({"val/loss": []}) == {"step": []}


@pytest.mark.slow
def test_a_plot_shows_itself_and_can_be_saved(tiny_run: tercet.Run, tmp_path: Path) -> None:
    figure = tiny_run.plot()
    assert isinstance(figure, Figure)
    assert figure._repr_png_()[:4] == b"\x89PNG"
    figure.savefig(tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 1000


def test_one_prompt_gives_a_text_and_several_a_list(tiny_run: tercet.Run) -> None:
    prompts = [f"{n} times" for n in range(3, 9)]
    texts = [tiny_run.generate(prompt, max_new_tokens=5, seed=3) for prompt in prompts]
    assert all(isinstance(text, str) for text in texts)
    assert tiny_run.generate(prompts, max_new_tokens=5, seed=3) == texts
    assert "".join(tiny_run.stream(prompts[0], max_new_tokens=5, seed=3)) == texts[0]
    assert tiny_run.generate([], max_new_tokens=5) == []


def test_completions_are_the_samples_of_each_prompt(tiny_run: tercet.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = ["3", "4", "5"]
    whole = tiny_run.completions(prompts, samples=2, max_new_tokens=4)
    assert [[completion.prompt for completion in samples] for samples in whole] == [[prompt] * 2 for prompt in prompts]
    assert [[completion.seed for completion in samples] for samples in whole] == [[0, 1]] * 3
    monkeypatch.setattr("tercet.run.ROWS", 3)  # one prompt per batch
    batched = tiny_run.completions(prompts, samples=2, max_new_tokens=4)
    assert [[completion.text for completion in samples] for samples in batched] == [
        [completion.text for completion in samples] for samples in whole
    ]
    with pytest.raises(ValueError, match="samples=0 must be 1 or more"):
        tiny_run.completions("3", samples=0)
