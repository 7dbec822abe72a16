"""Activations, norms, networks and attention of another package: training, decoding, costs, export, and the checks."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from package_of_guides import ALLOW, forget, write_package

import tercet
from tercet.cli.main import main
from tercet.config import UserError, parse, to_plain
from tercet.custom_code import ALLOWED, allow_code
from tercet.inspect.attribution import attribute
from tercet.inspect.heads import head_scores
from tercet.inspect.model_table import model_table
from tercet.models import DecoderOnly, DecoderOnlySpec, EncoderOnly, EncoderOnlySpec, StackSpec, record
from tercet.models.fused import fused_layers
from tercet.nn import ACTIVATIONS, NORMS
from tercet.nn.specs import ZeroProjections
from tercet.plots.diagrams.description import describe_model

PARTS = {
    "activation": "my_package.squareplus:Squareplus",
    "norm": "my_package.dyt:DynamicTanh",
    "feedforward": "my_package.experts:Experts",
    "attention": "my_package.sinks:Sinks",
}
EACH = pytest.mark.parametrize("setting", PARTS)
TINY = (
    "data.validation=tail", "data.tokenizer={kind: characters}", "model.max_len=16", "model.stack.d_model=24",
    "model.stack.n_layers=1", "model.stack.n_heads=2", "task.batch_size=3", "training.max_steps=4",
    "training.validate_every=4", "training.save_every=4", "task.sample_tokens=5", "task.sample_prompt=is",
    "training.precision=fp32", "training.compile=never",
)  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of `my_package`, which is allowed."""
    site = tmp_path_factory.mktemp("site")
    write_package(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv(ALLOWED, "my_package")
        forget()
        yield site / "my_package"
    forget()


def build(**settings: Any) -> DecoderOnly:
    plain = {"d_model": 24, "n_layers": 2, "n_heads": 3, "d_head": 8, "position": "rotary", **settings}
    spec = DecoderOnlySpec(vocab_size=19, max_len=16, stack=parse(StackSpec, plain))
    return DecoderOnly(spec, seed=1).eval()


@EACH
def test_fused_decode_steps_are_not_used(setting: str) -> None:
    """The same model is fused without the part, and steps equal the full pass with it."""
    tokens = torch.randint(19, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for model, can_be_fused in ((build(), True), (build(**{setting: PARTS[setting]}), False)):
            _, cache = model.start(tokens[:, :8], torch.tensor([8, 8]), capacity=12)
            is_fused = fused_layers(model.stack, model.embedding(tokens[:, 8:]), cache) is not None
            assert is_fused <= can_be_fused  # without a kernel on this machine neither is
            torch.testing.assert_close(model.step(tokens[:, 8], cache), model(tokens)[:, -1])


@EACH
@pytest.mark.parametrize("wrong", [{"wrong": 1}, {"b": -1.0}, {"scale": 2}, {"count": 1}, {"active": 9}])
def test_settings_are_checked(setting: str, wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=rf"^{setting}[:.]"):
        build(**{setting: {"kind": PARTS[setting], **wrong}})


def test_unknown_names_have_the_nearest_or_all_choices() -> None:
    with pytest.raises(UserError, match="activation: unknown value 'gellu'; did you mean 'gelu'"):
        build(activation="gellu")
    with pytest.raises(
        UserError, match=r"norm: unknown value 3; known: an import path such as my_package\.parts:Part, la"
    ):
        build(norm=3)
    for name in ("feedforward", "attention"):
        with pytest.raises(UserError, match=rf"{name}: unknown value 'relu'; known: an import path such as my_package"):
            build(**{name: "relu"})
    with pytest.raises(UserError, match="must be a subclass of CustomNorm"):
        build(norm=PARTS["activation"])


@EACH
def test_parameters_and_products_are_counted(setting: str) -> None:
    model, plain = build(**{setting: PARTS[setting]}), build()
    table, expected = model_table(model), model_table(plain)
    assert table.parameters == sum(weight.numel() for weight in model.parameters())
    added_products = {"feedforward": 2 * (3 * 2 * 24 * 96 + 24 * 4)}.get(setting, 0)
    assert table.multiplied - expected.multiplied == added_products
    assert table.flops_training - expected.flops_training == 6 * added_products
    assert "L = 2 attentions" in str(table.view())
    assert describe_model(model.spec).sides[0].sublayers  # a diagram can be drawn


@EACH
def test_zero_projections_initialize_the_part(setting: str) -> None:
    """Linear layers of the part get random weights, since a layer after one of zeros would never learn."""
    model = build(**{setting: PARTS[setting]})
    model = DecoderOnly(replace(model.spec, init=ZeroProjections()), seed=1)
    zeros = [name for name, weight in model.stack.named_parameters() if name.endswith("weight") and not weight.any()]
    assert all(re.search(r"\.(out|down)\.weight$", name) for name in zeros), zeros


@EACH
def test_inspection_uses_the_part(setting: str) -> None:
    """Recording does not change logits, and logits are attributed to parts or the reason is given."""
    model, tokens = build(**{setting: PARTS[setting]}), torch.arange(9)[None]
    with torch.no_grad():
        logits = model(tokens)
        with record(model) as activations:
            torch.testing.assert_close(model(tokens), logits)
    if setting == "norm":
        with pytest.raises(ValueError, match="the norm Tanh cannot be split between parts; use the logit lens"):
            attribute(model, activations, position=8, ids=[3])
    else:
        attribution = attribute(model, activations, position=8, ids=[3])
        torch.testing.assert_close(attribution.logits.float(), logits[0, 8, [3]], atol=1e-4, rtol=1e-4)
        assert abs(attribution.values[-1].item()) < 1e-4  # no rest
    if setting == "attention":
        with pytest.raises(ValueError, match=r"Sinks\(\) does not record its attention weights"):
            head_scores(model)


def test_masked_model_uses_activation_and_norm_in_its_head() -> None:
    plain = {"d_model": 24, "n_layers": 1, "n_heads": 3} | {name: PARTS[name] for name in ("activation", "norm")}
    spec = parse(EncoderOnlySpec, {"vocab_size": 9, "stack": plain, "masked_head": {"transform": True}})
    model = EncoderOnly(spec, seed=1)
    names = {type(part).__name__ for part in model.transform.children()}
    assert names == {"Linear", "Tanh"}
    assert model.transform.activation not in ACTIVATIONS.values()
    assert type(model.transform.norm) not in NORMS.values()


def test_tensor_parallel_training_rejects_parts_that_it_cannot_split(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "demo", "--plan", "--set", "training.strategy=tp", "--set", "training.devices=2"]
    for setting, part in PARTS.items():
        code = main([*words, "--set", f"model.stack.{setting}={part}", "--set", "model.stack.n_heads=4"])
        assert code == 2 or setting == "norm", capsys.readouterr().err
        if setting != "norm":
            assert f"strategy=tp does not split {part}; set strategy to fsdp" in capsys.readouterr().err


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose model has all four parts."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("".join(f"{number} is followed by {number + 1}.\n" for number in range(99)))
    parts = [f"model.stack.{setting}={part}" for setting, part in PARTS.items()]
    sets = [word for change in (*TINY, *parts) for word in ("--set", change)]
    words = ["train", "demo", "--data", str(folder / "text.txt"), "--out", str(folder / "run"), "--quiet", *sets]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOWED, "")
        forget()
        assert main(words) == 2
        assert not (folder / "run").exists()
        assert main([*words, *ALLOW]) == 0
    return folder / "run"


def test_run_is_saved_opened_and_resumed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads((run / "run.json").read_text())["code"] == dict.fromkeys(PARTS.values())
    saved = json.loads((run / "best" / "config.json").read_text())["stack"]
    assert {name: saved[name]["kind"] for name in PARTS} == PARTS
    assert main(["train", str(run), "--quiet", "--set", "training.max_steps=6"]) == 0
    opened = tercet.load(run)
    assert opened.generate("1 is", max_new_tokens=3)
    assert to_plain(opened.model.spec)["stack"] == saved
    monkeypatch.setenv(ALLOWED, "")
    forget()
    with pytest.raises(UserError, match=r"my_package\.\w+:\w+ is code of the package my_package, which is not allowed"):
        tercet.load(run)


def test_export_names_all_parts(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("hf", "gguf", "ctranslate2"):
        assert main(["convert", str(run), str(tmp_path / form), "--to", form]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        for setting, part in PARTS.items():
            assert f"stack.{setting} is {part}" in error
    assert main(["convert", str(run), str(tmp_path / "onnx"), "--to", "onnx"]) == 2
    error = "stack.attention is my_package.sinks:Sinks, which ONNX export does not support"
    assert error in capsys.readouterr().err
    assert tercet.export_problems(build(norm=PARTS["norm"]).spec).keys() == {"hf", "gguf", "ctranslate2", "peft"} | {
        "sentence-transformers"
    }


def test_explorer_and_attention_maps_give_the_reason(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explore", str(run), "--export", str(tmp_path / "page.html")]) == 2
    assert (
        f"the explorer only knows Tercet's blocks, and this model has {PARTS['feedforward']}" in capsys.readouterr().err
    )
    assert main(["plot", str(run), "attention", "--prompt", "1 is", "--out", str(tmp_path / "maps.png")]) == 2
    assert "which does not record its weights" in capsys.readouterr().err


@EACH
def test_check_part_passes_the_parts_of_the_guide(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--check-part", PARTS[setting], *ALLOW])
    lines = capsys.readouterr().out.splitlines()
    assert (code, [line for line in lines if line.startswith("FAIL")]) == (0, [])
    assert len(lines) == {"attention": 16, "activation": 13, "norm": 13}.get(setting, 12)


def test_check_part_passes_the_optimizer_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--check-part", "my_package.lion:Lion", *ALLOW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("parameters in a small model")
    assert [line for line in lines if line.startswith("FAIL")] == []
    assert len(lines) == 11


def test_check_part_rejects_other_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--check-part", "my_package.decay:SquareRoot", *ALLOW]) == 2
    assert (
        "cannot be checked, only position, activation, norm, feedforward, attention, objective, optimizer and dataset"
        in (capsys.readouterr().err)
    )


def test_permission_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "")
    forget()
    for setting, part in PARTS.items():
        with pytest.raises(UserError, match=rf"^{setting}: {part} is code of the package my_package"):
            build(**{setting: part})
    allow_code("my_package.sinks")
    assert build(attention=PARTS["attention"]).spec.stack.attention is not None
