"""Fine-tuning from an existing model, whose folder is not needed afterwards."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import (
    CHECKPOINT,
    TINY,
    assert_same_run,
    child,
    dies_at_rename,
    exit_code,
    tiny_labels_recipe,
    tiny_masked_recipe,
    tiny_recipe,
)

import tercet
from tercet.checkpoint import convert, folder, load_model
from tercet.config import UserError, merge, to_plain
from tercet.models import AnyModel
from tercet.settings_yaml import read_yaml, write_yaml
from tercet.training import Recipe, parse_recipe, train
from tercet.training.recipe.recipe import use_pretrained_copy

FinishedRun = Callable[[str], Path]


def going_on(run: Path, recipe: Recipe, changes: dict[str, Any] | None = None) -> Recipe:
    """Return the recipe, fine-tuned from the model in `run`, without any sizes of the model."""
    data = to_plain(recipe)
    data["model"] = {}
    return parse_recipe(merge(data, {"pretrained": str(run), **(changes or {})}), name="going on")


@pytest.mark.slow
@pytest.mark.parametrize("family", TINY)
def test_every_family_can_be_fine_tuned(finished_run: FinishedRun, tmp_path: Path, family: str) -> None:
    old = finished_run(family)
    zero_rate = {"training": {"optimizer": {"kind": "adam", "lr": 0.0}, "max_steps": 1, "ema": None}}
    recipe = going_on(old, TINY[family](old.parent), zero_rate)
    out = train(recipe, tmp_path / "run", quiet=True)
    before, after = load_model(old), load_model(out / "last")
    assert after.model.spec == before.model.spec
    assert after.tokenizer.hash == before.tokenizer.hash
    state = before.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in after.model.state_dict().items())


@pytest.mark.slow
def test_python_fine_tunes_like_the_command(finished_run: FinishedRun, tmp_path: Path) -> None:
    old = shutil.copytree(finished_run("labels"), tmp_path / "old")
    recipe = to_plain(going_on(old, tiny_labels_recipe(tmp_path)))
    del recipe["pretrained"]
    recipe["model"] = {}
    (tmp_path / "on.yaml").write_text(write_yaml(recipe))
    settings = {"training.max_steps": 1}
    run = tercet.train(str(tmp_path / "on.yaml"), pretrained=old, out=tmp_path / "run", changes=settings, quiet=True)
    assert run.model.spec == load_model(old).model.spec
    shutil.rmtree(old)
    tercet.train(str(tmp_path / "on.yaml"), pretrained=old, out=tmp_path / "run", changes=settings, quiet=True)


@pytest.mark.slow
def test_a_classifier_takes_the_encoder_and_gets_a_new_head(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = finished_run("masked")
    zero_rate = {"training": {"optimizer": {"kind": "adam", "lr": 0.0}, "max_steps": 1}}
    out = train(going_on(old, tiny_labels_recipe(tmp_path), zero_rate), tmp_path / "run")
    output = capsys.readouterr().err
    assert f"weights of {old}; new: classifier.weight, classifier.bias" in output
    assert "not used" not in output  # the unembedding is the embedding
    before, after = load_model(old), load_model(out)
    assert after.tokenizer.hash == before.tokenizer.hash
    state = before.model.state_dict()
    encoder_names = [name for name in after.model.state_dict() if not name.startswith("classifier.")]
    assert encoder_names
    assert all(torch.equal(after.model.state_dict()[name], state[name]) for name in encoder_names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pretrained", CHECKPOINT])
def test_fine_tuning_run_resumes_without_the_old_folder(finished_run: FinishedRun, tmp_path: Path, name: str) -> None:
    """It is killed before its first save, and after it."""
    old = tmp_path / "old"
    shutil.copytree(finished_run("masked"), old)
    recipe = going_on(old, tiny_labels_recipe(tmp_path))
    reference = train(recipe, tmp_path / "whole", quiet=True)
    out = tmp_path / "run"

    def work() -> None:
        dies_at_rename(1, after=True, name=name)()
        train(recipe, out, quiet=True)

    assert exit_code(child(work)) == -signal.SIGKILL
    (old / "best" / "model.safetensors").rename(tmp_path / "gone")
    shutil.rmtree(old)
    train(recipe, out, quiet=True)
    assert_same_run(reference, out)
    assert load_model(out).card.recipe["pretrained"] == "./old"  # a card contains no paths
    assert read_yaml(out / "recipe.yaml")["pretrained"] == str(old)


@pytest.mark.slow
def test_the_command_line_finds_the_copy(finished_run: FinishedRun, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(finished_run("masked"), old)
    out = train(
        going_on(old, tiny_masked_recipe(tmp_path), {"training": {"max_steps": 2}}), tmp_path / "run", quiet=True
    )
    settings = {"pretrained": str(old)}
    assert use_pretrained_copy(settings, out) == settings
    shutil.rmtree(old)
    assert use_pretrained_copy(settings, out) == {"pretrained": str(out / "pretrained")}
    assert use_pretrained_copy({}, out) == {}
    assert use_pretrained_copy(settings, tmp_path) == settings


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            {"stack": {"d_model": 32}},
            r"embedding\.weight is \d+x16 in .*, but \d+x32 in this recipe; leave out the model keys",
        ),
        ({"stack": {"n_layers": 2}}, r"only this recipe has stack\.blocks\.1\..* and \d+ more"),
        ({"n_segments": 2}, r"only this recipe has segment_embedding\.weight"),
        ({"family": "decoder-only"}, r"model\.family='decoder-only', but .* is encoder-only"),
        ({"stak": {}}, "unknown key 'stak'; did you mean 'model.stack'"),
    ],
)
def test_incompatible_settings_are_reported(
    finished_run: FinishedRun, tmp_path: Path, model: dict[str, Any], words: str
) -> None:
    old = finished_run("masked")
    with pytest.raises(UserError, match=words):
        train(going_on(old, tiny_masked_recipe(old.parent), {"model": model}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        going_on(tmp_path / "nowhere", tiny_masked_recipe(tmp_path))


@pytest.mark.slow
def test_other_labels_get_a_new_classifier(finished_run: FinishedRun, tmp_path: Path) -> None:
    old = finished_run("labels")
    zero_rate = {"training": {"optimizer": {"kind": "adam", "lr": 0.0}, "max_steps": 1}}
    same_labels_run = train(going_on(old, tiny_labels_recipe(old.parent), zero_rate), tmp_path / "same", quiet=True)
    text = (old.parent / "labels.jsonl").read_text().replace('"label": "bee"', '"label": "wasp"')
    (tmp_path / "labels.jsonl").write_text(text)
    other_labels_run = train(going_on(old, tiny_labels_recipe(tmp_path), zero_rate), tmp_path / "other", quiet=True)
    before, kept_head, new_head = (
        load_model(run).model.state_dict()["classifier.weight"] for run in (old, same_labels_run, other_labels_run)
    )
    assert torch.equal(before, kept_head)
    assert before.shape == new_head.shape
    assert not torch.equal(before, new_head)


@pytest.mark.slow
def test_chat_template_is_copied(finished_run: FinishedRun, tmp_path: Path) -> None:
    old = shutil.copytree(finished_run("text"), tmp_path / "old")
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    for name in ("best", "last"):
        (old / name / "chat_template.jinja").write_text(template)
    recipe = going_on(old, TINY["text"](finished_run("text").parent), {"training": {"max_steps": 1}})
    out = train(recipe, tmp_path / "run", quiet=True)
    assert load_model(out).chat_template == load_model(out / "pretrained").chat_template == template


@pytest.mark.slow
def test_third_party_folder_is_loaded_once(
    finished_run: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, loads = convert(finished_run("text"), tmp_path / "theirs", "hf"), list[str]()
    reader = folder.READERS["gpt2"]

    def build(*args: Any, **options: Any) -> AnyModel:
        loads.append("gpt2")
        return reader.model(*args, **options)

    monkeypatch.setitem(folder.READERS, "gpt2", reader._replace(model=build))
    recipe = to_plain(tiny_recipe(tmp_path))
    (tmp_path / "on.yaml").write_text(write_yaml(recipe | {"model": {}}))
    settings = {"training.max_steps": 1}
    tercet.train(str(tmp_path / "on.yaml"), pretrained=theirs, out=tmp_path / "run", changes=settings, quiet=True)
    assert loads == ["gpt2"]
