"""A run with an adapter: trainable and frozen weights, written files, and resumption after a kill."""

import json
import random
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
    kill_at_random,
    newest_checkpoint,
    resume_state,
)

import tercet
from tercet.checkpoint import convert, load_model, verify
from tercet.checkpoint.adapter import read_adapter
from tercet.config import UserError, merge, to_plain
from tercet.training import Recipe, parse_recipe, train
from tercet.training.run_folder.choices import FromWeights

FinishedRun = Callable[[str], Path]
LORA: dict[str, Any] = {"kind": "lora", "rank": 3, "alpha": 5, "targets": ["all"], "dropout": 0.1}


def adapter_recipe(old: Path, family: str, changes: dict[str, Any] | None = None) -> Recipe:
    """Return the family's tiny recipe, fine-tuned from the run `old` with an adapter."""
    settings = to_plain(TINY[family](old.parent))
    settings["model"] = {}
    return parse_recipe(
        merge(settings, {"pretrained": str(old), "adapter": LORA, **(changes or {})}), name="with an adapter"
    )


@pytest.fixture(scope="module")
def adapter_run(finished_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Return a function that gives the uninterrupted run with an adapter."""
    folder = tmp_path_factory.mktemp("whole")

    def run(family: str) -> Path:
        out = folder / family
        return out if out.exists() else train(adapter_recipe(finished_run(family), family), out, quiet=True)

    return run


EACH_FAMILY = pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=pytest.mark.exhaustive) if name not in ("text", "pairs") else name for name in TINY],
)


@pytest.mark.slow
@EACH_FAMILY
def test_pretrained_weights_are_frozen(finished_run: FinishedRun, adapter_run: FinishedRun, family: str) -> None:
    out, old = adapter_run(family), load_model(finished_run(family))
    base, tuned_model = load_model(out / "pretrained").model.state_dict(), load_model(out / "last")
    assert all(torch.equal(base[name], tensor) for name, tensor in old.model.state_dict().items())
    assert tuned_model.adapter is not None
    changed_names = {
        name for name, tensor in tuned_model.model.state_dict().items() if not torch.equal(tensor, base[name])
    }
    assert changed_names == {f"{name}.weight" for name in tuned_model.adapter.layers} | set(
        tuned_model.adapter.full_weights
    )
    assert bool(tuned_model.adapter.full_weights) == (family == "labels")
    names = {path.name for path in (out / "last").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "config.json", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    resumed_state = resume_state(out)["state_dict"]
    assert all(
        name.endswith(("lora_A", "lora_B")) or "classifier" in name or "n_averaged" in name for name in resumed_state
    )
    assert not verify(out).damaged


@EACH_FAMILY
def test_merged_adapter_is_an_ordinary_model(adapter_run: FinishedRun, tmp_path: Path, family: str) -> None:
    out = adapter_run(family)
    with pytest.raises(UserError, match="is an adapter; pass --merge"):
        convert(out, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    merged_model = load_model(convert(out, tmp_path / "merged", merge=True))
    assert merged_model.adapter is None
    assert (tmp_path / "merged" / "model.safetensors").is_file()
    expected = load_model(out).model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in merged_model.model.state_dict().items())
    with pytest.raises(UserError, match="has no adapter to merge; omit --merge"):
        convert(tmp_path / "merged", tmp_path / "again", merge=True)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["text", pytest.param("pairs", marks=pytest.mark.exhaustive)])
def test_killed_in_the_middle_of_saving(
    finished_run: FinishedRun, adapter_run: FinishedRun, tmp_path: Path, family: str
) -> None:
    recipe, out = adapter_recipe(finished_run(family), family), tmp_path / "run"
    rng, n_kills = random.Random(7), 0
    for _ in range(3):

        def work() -> None:
            dies_at_rename(rng.randint(4, 24), after=rng.random() < 0.5)()
            train(recipe, out, quiet=True)

        rng.random()
        n_kills += exit_code(child(work)) != 0
    assert n_kills >= 2
    train(recipe, out, quiet=True)
    assert_same_run(adapter_run(family), out)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", TINY)
def test_killed_at_any_time(finished_run: FinishedRun, adapter_run: FinishedRun, tmp_path: Path, family: str) -> None:
    recipe, out = adapter_recipe(finished_run(family), family), tmp_path / "run"
    assert kill_at_random(recipe, out, timed_run=tmp_path / "timed") >= 3
    train(recipe, out, quiet=True)
    assert_same_run(adapter_run(family), out)


@pytest.mark.slow
def test_without_checkpoints_run_continues_from_the_weights(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = adapter_recipe(finished_run("labels"), "labels"), tmp_path / "run"

    def work() -> None:
        dies_at_rename(1, after=True, name=CHECKPOINT)()
        train(recipe, out, quiet=True)

    assert exit_code(child(work)) == -signal.SIGKILL
    before = read_adapter(out / "last")
    shutil.rmtree(out / "checkpoints")
    train(recipe, out, FromWeights(), quiet=True)
    assert "only the weights" in capsys.readouterr().err
    after = read_adapter(out / "last")
    assert before.layers.keys() == after.layers.keys()
    assert load_model(out / "last").card.step == 12


@pytest.mark.slow
def test_a_moving_average_of_an_adapter(finished_run: FinishedRun, tmp_path: Path) -> None:
    """The average is validated and written, for the two matrices and for all other trainable weights."""
    changes = {"training": {"ema": 0.5, "max_steps": 4}}
    out = train(adapter_recipe(finished_run("labels"), "labels", changes), tmp_path / "run", quiet=True)
    state, last = resume_state(out)["state_dict"], read_adapter(out / "last")
    name = next(iter(last.layers))
    assert torch.equal(state[f"average.module.{name}.lora_B"], last.layers[name].B)
    assert not torch.equal(state[f"model.{name}.lora_B"], last.layers[name].B)
    assert torch.equal(state["average.module.classifier.weight"], last.full_weights["classifier.weight"])


def test_checkpoints_contain_only_trainable_weights(finished_run: FinishedRun, adapter_run: FinishedRun) -> None:
    adapter_checkpoint, full_checkpoint = (
        newest_checkpoint(run("text")) / "state.ckpt" for run in (adapter_run, finished_run)
    )
    weights = load_model(finished_run("text")).n_parameters
    assert (
        sum(t.numel() for t in torch.load(adapter_checkpoint, weights_only=True)["state_dict"].values()) < weights / 2
    )
    assert sum(t.numel() for t in torch.load(full_checkpoint, weights_only=True)["state_dict"].values()) >= weights


@pytest.mark.slow
@pytest.mark.parametrize("family", ["text", "masked"])
def test_frozen_parts_do_not_change(finished_run: FinishedRun, tmp_path: Path, family: str) -> None:
    changes = {"adapter": None, "freeze": ["embedding", "stack.blocks.0.self_attention", "*.up.*"]}
    out = train(adapter_recipe(finished_run(family), family, changes), tmp_path / "run", quiet=True)
    base, tuned_model = load_model(out / "pretrained").model.state_dict(), load_model(out / "last").model.state_dict()
    unchanged = {name for name, tensor in tuned_model.items() if torch.equal(tensor, base[name])}
    frozen = {n for n in tuned_model if n.startswith(("embedding.", "stack.blocks.0.self_attention.")) or ".up." in n}
    assert frozen <= unchanged
    assert "stack.blocks.0.feedforward.down.weight" not in unchanged


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"adapter": {"kind": "lora", "targets": ["querry"]}}, r"adapter\.targets: no linear layer matches 'querry'"),
        ({"adapter": {"kind": "lora", "rank": 0}}, r"adapter\.rank=0 must be at least 1"),
        ({"adapter": {"kind": "lora", "targets": []}}, "targets is empty"),
        ({"adapter": "lora", "pretrained": None, "model": {"preset": "gpt2"}}, "adapter requires a pretrained model"),
        ({"freeze": ["embedding"]}, "adapter already freezes all other weights; leave out freeze"),
        ({"adapter": None, "freeze": ["embeding"]}, "no module or parameter is called 'embeding'; did you mean 'embe"),
        ({"adapter": None, "freeze": ["*"]}, "no trainable weights remain"),
        ({"adapter": {"kind": "dora"}}, "unknown kind 'dora'"),
    ],
)
def test_incompatible_settings_are_rejected_before_any_file_is_written(
    finished_run: FinishedRun, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        train(adapter_recipe(finished_run("text"), "text", changes), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_adapter_without_its_model_is_rejected(adapter_run: FinishedRun, tmp_path: Path) -> None:
    adapter_only = shutil.copytree(adapter_run("text") / "best", tmp_path / "alone")
    with pytest.raises(
        UserError, match=r"base model of the adapter in .* not found: '\.\./pretrained'; copy the model to"
    ):
        load_model(adapter_only)
    shutil.copytree(adapter_run("text") / "pretrained", tmp_path / "pretrained")
    assert tercet.load(adapter_only).generate("3 ", max_new_tokens=2, seed=1)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("use_dora", True, "use_dora is True, which Tercet does not support"),
        ("bias", "all", "bias is 'all', which Tercet does not support; supported: 'none'"),
        ("peft_type", "IA3", "peft_type is 'IA3'"),
        ("lora_alpha", "much", "lora_alpha is 'much'"),
    ],
)
def test_adapter_with_another_formula_is_rejected(
    adapter_run: FinishedRun, tmp_path: Path, key: str, value: Any, words: str
) -> None:
    folder = shutil.copytree(adapter_run("text") / "best", tmp_path / "best")
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(UserError, match=words):
        read_adapter(folder)
