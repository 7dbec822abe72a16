"""Reports of folders other than finished runs: running, interrupted, damaged or hostile ones, and single models."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_runs import HOSTILE, make_run, write_metrics
from read_page import Page, faults, read_page

import tercet
from tercet.checkpoint.run_record import Change, read_record
from tercet.config import UserError
from tercet.reports.markup import element, paragraph, scrolling_table
from tercet.reports.run_sections import MAX_SAMPLES, SAMPLE_CHARACTERS
from tercet.reports.subject import open_subject
from tercet.reports.write import report_page


def test_a_running_run_is_reported_as_running(tmp_path: Path) -> None:
    page = read_page(tercet.report(make_run(tmp_path / "run", steps=200, total=1000)))
    assert "Still running: at step 200 of 1,000 when this report was written" in page.text
    assert "A run without a saved model" in page.words[""]
    assert "No model is saved yet" in page.words["model"]
    assert "No versions are recorded" in page.words["versions"]
    assert page.cell("Steps") == "200 of 1,000"
    assert page.cell("Machine") == "unknown: no complete checkpoint is left"


def test_an_interrupted_run_is_reported_as_interrupted(tmp_path: Path) -> None:
    page = read_page(tercet.report(make_run(tmp_path / "run", steps=200, total=1000, pid=None)))
    assert "Interrupted at step 200 of 1,000. tercet train resumes from there." in page.text
    record = read_record(tmp_path / "run")
    assert record is not None
    for saved_step, message in ((150, "step 200 of 1,000; saved as of step 150."), (203, "step 203 of 1,000.")):
        replace(record, saved=saved_step).write(tmp_path / "run")
        assert f"Interrupted at {message}" in read_page(tercet.report(tmp_path / "run")).text
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_run_without_steps_is_reported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    (run / "metrics.csv").unlink()
    page = read_page(tercet.report(run))
    assert "No step is logged yet." in page.words["curves"]
    assert "No time is logged yet." in page.words["cost"]
    assert "No validation is recorded." in page.words["scores"]


def test_resumptions_and_changes_are_listed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=100)
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    for step in (1, 41, 81):  # the first line of a session has no speed
        lines[step] = lines[step].replace("51234.5", "")
    (run / "metrics.csv").write_text("".join(lines))
    record = read_record(run)
    assert record is not None
    replace(record, changes=(Change(step=40, key="training.max_steps", old=50, new=100, steps=100),)).write(run)
    page = read_page(tercet.report(run))
    assert page.cell("Sessions") == "3: resumed 2 times, first logged again at step 41, 81"
    assert ["training.max_steps", "40", "50", "100"] in page.rows


def test_many_and_long_samples_are_bounded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=100)
    for step in range(1, 101):
        (run / "samples" / f"step-{step:06d}.txt").write_text(f"<{step}>" + "a" * 10 * SAMPLE_CHARACTERS)
    page = read_page(tercet.report(run))
    assert page.words["samples"].count("After step") == MAX_SAMPLES
    assert "After step 100" in page.words["samples"]
    assert "After step 1\n" in page.words["samples"] or "After step 1<" in page.words["samples"]
    assert f"{100 - MAX_SAMPLES} others" in page.words["samples"]
    assert len(page.html) < 2 * MAX_SAMPLES * SAMPLE_CHARACTERS


@pytest.mark.slow
def test_a_model_without_a_run_lists_missing_parts(runs: Mapping[str, Path], tmp_path: Path) -> None:
    model = shutil.copytree(runs["text"] / "best", tmp_path / "model")
    page = read_page(tercet.report(model))
    assert (model / "report.html").is_file()
    assert "A model without a run" in page.text
    for section in ("curves", "samples", "cost"):
        assert "The model is not part of a run" in page.words[section]
    assert page.cell("Steps") == "12"
    for name in ("README.md", "card.json"):
        (model / name).unlink()
    (model / "manifest.json").unlink()
    page = read_page(tercet.report(model))
    assert "The training data is not known" in page.words["data"]
    assert "No recipe is recorded" in page.words["recipe"]
    assert "No validation is recorded." in page.words["scores"]


@pytest.mark.slow
def test_the_named_checkpoint_is_reported(runs: Mapping[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs["pairs"], tmp_path / "run")
    page = read_page(tercet.report(run / "last"))
    assert (run / "report.html").is_file()
    assert page.cell("Checkpoint") == "last, at step 12"
    assert "BLEU" in read_page(tercet.report(run)).cell("Checkpoint")


@pytest.mark.slow
def test_damage_is_reported_next_to_the_rest(runs: Mapping[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs["text"], tmp_path / "run")
    weights = run / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with (run / "metrics.csv").open("a") as file:
        file.write("13,half a li")
    page = read_page(tercet.report(run))
    assert "model.safetensors" in page.words[""]
    assert "metrics.csv" in page.words[""]
    assert str(tmp_path) not in page.html
    assert "lowest" in page.words["curves"]
    (run / "run.json").write_text("{}")
    assert "The state of the run cannot be read." in read_page(tercet.report(run)).text


@pytest.mark.parametrize(
    ("folder", "message"), [("nosuch", "no such folder: nosuch"), (".", r"no model in \.: it has no config.json")]
)
def test_a_folder_without_a_run_is_rejected_in_one_line(
    folder: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        tercet.report(folder)
    assert "\n" not in str(error.value)


def test_an_invalid_output_path_is_rejected_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"out .* is a folder; pass a file name"):
        tercet.report("nosuch", tmp_path)
    with pytest.raises(UserError, match=r"no such folder: .*nosuch; create it first"):
        tercet.report("nosuch", tmp_path / "nosuch" / "page.html")


def test_hostile_values_of_a_run_stay_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "<script>alert(1)</script>&\"'".replace("/", "∕"), steps=20)
    recipe = f"task: {{kind: language}}\ndata: {{source: {json.dumps(HOSTILE)}}}\npretrained: '</style><script>'\n"
    (run / "recipe.yaml").write_text(recipe)
    page = read_page(tercet.report(run))
    assert HOSTILE in page.words["samples"]
    assert "<script>" in page.words[""]
    assert not any(tag in ("script", "b") for tag, _ in page.tags)


TEXTS = st.text(max_size=40) | st.sampled_from(
    [HOSTILE, "</pre><img src=x onerror=alert(1)>", "`</code>`", "\x00\ud800"]
)


@given(text=TEXTS, name=TEXTS)
@example(text="<!--", name="]]>")
@example(text="`", name='" onfocus="alert(1)')
@settings(max_examples=60)
def test_no_text_becomes_markup(text: str, name: str) -> None:
    html = element(
        "div", text, paragraph(text), scrolling_table([(name, text)], label=name, header=("", text)), title=name
    )
    page = Page(str(html))
    allowed_tags = {"div", "p", "code", "table", "thead", "tbody", "tr", "th", "td", "caption"}
    assert {tag for tag, _ in page.tags} <= allowed_tags
    attributes = {"title", "class", "role", "aria-label", "tabindex", "scope"}
    assert {attribute for _, tag_attributes in page.tags for attribute in tag_attributes} <= attributes
    html.encode()
    normalized = text.replace("\r\n", "\n")
    if normalized.isprintable():
        assert page.rows[-1] == [name, normalized] or not name.isprintable()


@pytest.mark.slow
@given(sample=TEXTS, label=TEXTS.filter(bool))
@settings(max_examples=8)
def test_no_sample_or_setting_breaks_the_page(
    sample: str, label: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path_factory.mktemp("runs") / "run"
    make_run(run, steps=4)
    (run / "samples" / "step-000004.txt").write_bytes(sample.encode(errors="surrogatepass"))
    (run / "recipe.yaml").write_text(json.dumps({"task": {"kind": label}, "data": {"source": label, label: label}}))
    assert faults(Page(report_page(open_subject(run)))) == []


def test_metrics_that_are_not_finite_are_skipped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=4)
    with (run / "metrics.csv").open("a") as file:
        file.write("5,0.005,nan" + "," * 14 + "\r\n6,0.006,inf" + "," * 14 + "\r\n")
    page = read_page(tercet.report(run))
    assert "nan" not in page.words["curves"]
    assert "inf" not in page.words["curves"]


def test_spikes_of_one_step_are_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=5)
    (run / "metrics.csv").unlink()
    write_metrics(run / "metrics.csv", range(1, 5001))
    svg = next(
        attributes
        for tag, attributes in read_page(tercet.report(run)).tags
        if tag == "svg" and "aria-label" in attributes
    )
    assert svg["aria-label"].startswith("Loss against steps")
    points = next(attributes["points"] for tag, attributes in read_page(run / "report.html").tags if tag == "polyline")
    heights = [float(point.partition(",")[2]) for point in points.split()]
    assert len(heights) <= 400
    assert min(heights) == pytest.approx(10.0)  # the top of the picture: step 777


def test_a_report_can_be_written_for_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A GGUF file has no folder, so the page is written next to it under its name."""
    from tercet.reports import write

    (file := tmp_path / "tiny.gguf").touch()
    monkeypatch.setattr(write, "report_page", lambda subject, evaluate: "page")
    monkeypatch.setattr(write, "open_subject", lambda *_: SimpleNamespace(folder=file, trained_model=None))
    assert write.report(file) == tmp_path / "tiny.html"
