"""The packaged fine-tuning recipes: from a run of each family, from third-party models, and despite given sizes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import TINY, tiny_labels_recipe, tiny_masked_recipe

import tercet
from tercet.checkpoint import convert, load_model
from tercet.config import UserError, merge, to_plain
from tercet.models import EncoderOnly
from tercet.nn.specs import Learned
from tercet.training import recipe_names, train
from tercet.training.recipe.files import recipes_from_scratch
from tercet.training.request import RunRequest, resolve

FinishedRun = Callable[[str], Path]
FAMILY = {
    "lm": "text",
    "chat": "chat",
    "mlm": "masked",
    "classify": "masked",
    "vectors": "masked",
    "translate": "pairs",
}
DATA = FAMILY | {"classify": "labels", "vectors": "vectors"}
TWO_STEPS = {
    "training": {"max_steps": 2, "max_epochs": None, "accelerator": "cpu", "compile": "never", "precision": "fp32"},
}
ROWS: dict[str, Any] = {"batch_size": 4, "micro_batch_size": 2}
TASKS: dict[str, Any] = {"translate": {"batch_tokens": 64, "micro_batch_tokens": 32, "validation_sentences": 2}}


def finetune(kind: str, pretrained: Path, out: Path, changes: dict[str, Any] | None = None) -> Path:
    """Run two steps of the recipe on the data of the tiny run of its family."""
    data = to_plain(TINY[DATA[kind]](out.parent).data)
    del data["tokenizer"]
    data.pop("source_tokenizer", None)
    settings = {**TWO_STEPS, "data": data, "task": TASKS.get(kind, ROWS), **(changes or {})}
    recipe = resolve(
        RunRequest(recipe=f"finetune-{kind}", changes=settings, out=out, pretrained=str(pretrained))
    ).recipe
    return train(recipe, out, quiet=True)


def test_every_fine_tuning_recipe_is_tested() -> None:
    assert {f"finetune-{kind}" for kind in FAMILY} == recipe_names().keys() - set(recipes_from_scratch())


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILY)
def test_it_takes_a_step(finished_run: FinishedRun, tmp_path: Path, kind: str) -> None:
    old = finished_run(FAMILY[kind])
    out = finetune(kind, old, tmp_path / "run")
    tuned, before = load_model(out / "last"), load_model(old)
    assert tuned.tokenizer.hash == before.tokenizer.hash
    assert tuned.model.spec.max_len == before.model.spec.max_len  # the recipe's length is more than the model supports
    assert tuned.card.step == 2
    finetune(kind, old, out)  # the same command again: the run is finished


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILY)
def test_with_an_adapter(finished_run: FinishedRun, tmp_path: Path, kind: str) -> None:
    adapter = {"kind": "lora", "rank": 2, "targets": ["all"]}
    out = finetune(kind, finished_run(FAMILY[kind]), tmp_path / "run", {"adapter": adapter})
    assert load_model(out).adapter is not None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lm", "mlm", "classify"])
def test_fine_tuning_from_third_party_models(finished_run: FinishedRun, tmp_path: Path, kind: str) -> None:
    old = (
        finished_run("text")
        if kind == "lm"
        else train(tiny_masked_recipe(tmp_path, BERT), tmp_path / "old", quiet=True)
    )
    theirs = convert(old, tmp_path / "theirs", "hf")
    out = finetune(kind, theirs, tmp_path / "run")
    assert load_model(out / "pretrained").tokenizer.hash == load_model(theirs).tokenizer.hash


BERT: dict[str, Any] = {"model": {"preset": "bert-tiny"}, "training": {"max_steps": 1}}


@pytest.mark.parametrize(("name", "family"), [("demo", "text"), ("bert-shakespeare", "masked"), ("numbers", "pairs")])
def test_sizes_of_another_recipe_are_replaced(
    finished_run: FinishedRun, tmp_path: Path, name: str, family: str
) -> None:
    recipe = resolve(RunRequest(recipe=name, out=tmp_path / "run", pretrained=str(finished_run(family)))).recipe
    old = load_model(finished_run(family)).model.spec
    sizes = {key: value for key, value in to_plain(recipe.model).items() if key not in ("stack", "encoder", "decoder")}
    assert sizes.items() <= to_plain(old).items()


def test_dropout_and_the_length_of_rows_are_the_recipes(finished_run: FinishedRun, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "task: language\ndata: {source: text.txt}\ntraining: {max_steps: 1}\n"
        "model: {preset: gpt2, max_len: 5, stack: {d_model: 999, dropout: {residual: 0.4}}}\n"
    )
    old = load_model(finished_run("text")).model.spec
    recipe = resolve(
        RunRequest(recipe=str(tmp_path / "own.yaml"), out=tmp_path / "run", pretrained=str(finished_run("text")))
    ).recipe
    assert recipe.model.max_len == old.max_len == 8
    assert recipe.row_len == recipe.task.max_len == 5
    assert recipe.model.stack.position == Learned()
    assert recipe.model.stack.dropout.residual == 0.4
    assert recipe.model.stack.d_model == old.stack.d_model == 16


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILY)
def test_shorter_rows_keep_the_context(finished_run: FinishedRun, tmp_path: Path, kind: str) -> None:
    old = load_model(finished_run(FAMILY[kind])).model.spec
    rows = {"task": {**TASKS.get(kind, ROWS), "max_len": old.max_len - 2}}
    out = finetune(kind, finished_run(FAMILY[kind]), tmp_path / "run", rows)
    tuned = load_model(out)
    assert tuned.model.spec.max_len == old.max_len
    assert tuned.card.recipe["task"]["max_len"] == old.max_len - 2
    if kind != "translate":  # the tiny translator has no equal in transformers
        assert load_model(convert(out, tmp_path / "hf", "hf")).model.spec.max_len == old.max_len
    finetune(kind, finished_run(FAMILY[kind]), out, rows)  # the same command again: the run is finished


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize(
    ("changes", "context", "row"),
    [
        ({}, 0, 0),  # relative to the context of the pretrained model
        ({"task": {"max_len": 3}}, 0, 3),
        ({"model": {"max_len": 5}}, 5, 5),
        ({"model": {"max_len": 5}, "task": {"max_len": 4}}, 5, 4),
        ({"task": {"max_len": None}}, 0, 0),
    ],
)
def test_context_changes_only_on_request(
    finished_run: FinishedRun, tmp_path: Path, kind: str, changes: dict[str, Any], context: int, row: int
) -> None:
    old = load_model(finished_run(FAMILY[kind])).model.spec.max_len
    request = RunRequest(
        recipe=f"finetune-{kind}", changes=merge({"data": {"source": "x.txt"}}, changes), out=tmp_path / "run",
        pretrained=str(finished_run(FAMILY[kind])),
    )  # fmt: skip
    recipe = resolve(request).recipe
    assert (recipe.model.max_len, recipe.row_len) == (context or old, row or old)


def test_command_of_an_earlier_run_keeps_its_context(finished_run: FinishedRun, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "task: language\ndata: {source: text.txt}\ntraining: {max_steps: 1}\nmodel: {max_len: 5}\n"
    )
    out = tmp_path / "run"
    request = RunRequest(recipe=str(tmp_path / "own.yaml"), out=out, pretrained=str(finished_run("text")))
    out.mkdir()
    settings = to_plain(resolve(request).recipe)
    del settings["task"]["max_len"]
    (out / "recipe.yaml").write_text(json.dumps(settings))
    earlier = resolve(request).recipe
    assert (earlier.model.max_len, earlier.task.max_len) == (5, None)
    assert earlier.model.stack.position == Learned(size=8)  # the table keeps its length


@pytest.mark.slow
def test_shorter_context_keeps_the_table_of_positions(finished_run: FinishedRun, tmp_path: Path) -> None:
    out = finetune("lm", finished_run("text"), tmp_path / "run", {"model": {"max_len": 6}})
    tuned = load_model(out)
    assert tuned.model.spec.max_len == 6
    assert tuned.model.state_dict()["stack.position.table.weight"].shape == (8, 16)
    load_model(convert(out, tmp_path / "hf", "hf"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"stack": {"d_model": 32}}}, r"embedding\.weight is \d+x16 in .*, but \d+x32 in this recipe"),
        ({"data": {"tokenizer": "characters"}}, r"the tokenizer is that of .*: omit data\.tokenizer"),
        ({"model": {"max_len": 9}}, r"table\.weight is 8x16 in .*, but 9x16 in this recipe"),
    ],
)
def test_contradicting_request_is_rejected(
    finished_run: FinishedRun, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    out, data = (
        tmp_path / "run",
        {
            "data": {"source": str(finished_run("text").parent / "text.txt")},
            "task": {"sample_tokens": 0},
        },
    )
    request = RunRequest(recipe="demo", changes=merge(data, changes), out=out, pretrained=str(finished_run("text")))
    with pytest.raises(UserError, match=words):
        train(resolve(request).recipe, out, quiet=True)
    assert not (tmp_path / "run").exists()


def test_missing_model_is_reported_with_remedy(tmp_path: Path) -> None:
    words = "recipe finetune-lm requires a pretrained model; pass --pretrained FOLDER"
    with pytest.raises(UserError, match=words):
        resolve(RunRequest(recipe="finetune-lm", out=tmp_path / "run"))
    with pytest.raises(UserError, match=words):
        tercet.train("finetune-lm", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_model_pretrained_on_characters_becomes_a_classifier(tmp_path: Path) -> None:
    """The vocabulary has no padding, which is not needed with a mask."""
    letters = {"kind": "characters", "byte_fallback": True, "bos": True, "mask": True}
    changes = {"data": {"tokenizer": letters}, "training": {"max_steps": 2}}
    old = train(tiny_masked_recipe(tmp_path, changes), tmp_path / "old", quiet=True)
    assert load_model(old).tokenizer.pad_id is None
    tiny_labels_recipe(tmp_path)
    out = finetune("classify", old, tmp_path / "run")
    model = load_model(out).model
    assert isinstance(model, EncoderOnly)
    run = tercet.load(out)
    texts = ["the red cat", "the small duck sleeps", "a"]
    batch_predictions, single_predictions = run.classify(texts), [run.classify(text) for text in texts]
    for found, expected in zip(batch_predictions, single_predictions, strict=True):
        assert found.label == expected.label
        assert torch.isfinite(torch.tensor(found.probability))
