"""Every family is exported to ONNX, and onnxruntime gives the same scores for any batch size and length."""

import importlib
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from converted import save_folder
from folders_of_others import seeds, shaken

from tercet.checkpoint import convert
from tercet.checkpoint.foreign import onnx_folder, onnx_graphs
from tercet.config import UserError
from tercet.models import (
    AnyModel,
    Biases,
    Classifier,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
)
from tercet.nn import ALiBi, Learned, NoPosition, RelativeBias, Rotary, Sinusoidal

STACK = StackSpec(d_model=12, n_layers=1, n_heads=3, d_ff=19)
POSITIONS = [
    Learned(), Sinusoidal(), Rotary(base=37.0), ALiBi(), NoPosition(), RelativeBias(n_buckets=8, max_distance=9),
]  # fmt: skip
MAX_LEN = 11
SHAPES = [(1, 1), (3, 2), (1, 7), (2, MAX_LEN)]  # not used for tracing
LABELS = ("good", "bad", "neither")
HEADS: list[dict[str, Any]] = [
    {"masked_head": MaskedHead(transform=True, bias=True), "pooler": True, "next_sentence": True, "n_segments": 2},
    {"masked_head": None, "classifier": Classifier(labels=LABELS)},
    {"masked_head": None, "classifier": Classifier(labels=LABELS, pooling="first"), "n_segments": 1},
    {
        "masked_head": None,
        "pooler": True,
        "classifier": Classifier(labels=LABELS, pooling="pooler"),
        "n_segments": 3,
        "pooler_activation": "relu",
    },
    {"masked_head": MaskedHead(), "classifier": Classifier(labels=LABELS, over="tokens")},
]


@pytest.fixture(autouse=True)
def disable_annotation_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations that are checked while a graph is traced would fix its sizes."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def stack(draw: random.Random, number: int, **overrides: Any) -> StackSpec:
    heads, rms = draw.choice([1, 2, 4]), draw.random() < 0.4
    return replace(
        STACK,
        **{
            "n_heads": heads, "n_kv_heads": draw.choice([None, 1]), "d_model": 12, "d_head": draw.choice([4, 6]),
            "n_layers": draw.choice([1, 2]), "bias": draw.random() < 0.6,
            "position": POSITIONS[number % len(POSITIONS)],
            "activation": draw.choice(["relu", "gelu", "gelu_tanh", "silu", "relu_squared"]),
            "gated": draw.random() < 0.5, "placement": draw.choice(["pre", "post", "sandwich", "branch"]),
            "norm": "rms" if rms else "layer", "norm_bias": not rms, "qk_norm": draw.random() < 0.3,
            **overrides,
        },
    )  # fmt: skip


def common(draw: random.Random) -> dict[str, Any]:
    return {
        "vocab_size": 17, "max_len": MAX_LEN, "pad_vocab_to": draw.choice([1, 64]),
        "scale_embedding": draw.random() < 0.5,
        "tie_embeddings": draw.random() < 0.6, "embedding_norm": draw.random() < 0.4,
        "logit_softcap": draw.choice([None, 5.0]),
    }  # fmt: skip


def random_model(family: str, seed: int) -> AnyModel:
    draw = random.Random(seed)
    if family == "writing":
        return shaken(DecoderOnly(DecoderOnlySpec(stack=stack(draw, seed), **common(draw))), seed)
    if family == "reading":
        spec = EncoderOnlySpec(
            stack=stack(draw, seed), **HEADS[seed % 5 if seed < 5 else draw.randrange(5)], **common(draw)
        )
        return shaken(EncoderOnly(spec), seed)
    separate = draw.random() < 0.4
    spec = EncoderDecoderSpec(
        encoder=stack(draw, seed), decoder=stack(draw, seed // 5), share_embeddings=not separate,
        source_vocab_size=13 if separate else None, logit_bias=draw.random() < 0.5, **common(draw),
    )  # fmt: skip
    return shaken(EncoderDecoder(spec), seed)


def export_model(tmp_path: Path, model: AnyModel) -> Path:
    source_size = getattr(model.spec, "source_vocab_size", None)
    return convert(save_folder(tmp_path / "ours", model, source_size), tmp_path / "theirs", "onnx")


def answers(path: Path, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    session = onnxruntime.InferenceSession(path)
    arrays = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    names = [output.name for output in session.get_outputs()]
    return {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}


def token_mask(batch: int, length: int) -> torch.Tensor:
    """Return a mask with real tokens anywhere, at least one in each row."""
    real = torch.rand(batch, length) < 0.7
    real[torch.arange(batch), torch.randint(length, (batch,))] = True
    return real


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return (found - expected).abs().max().item()


@torch.no_grad()
def furthest(model: AnyModel, folder: Path) -> float:
    """Return the largest difference over all shapes and outputs; hidden states at padding are undefined."""
    worst = 0.0
    for batch, length in SHAPES:
        tokens = torch.randint(model.vocab_size, (batch, length))
        if isinstance(model, DecoderOnly):
            worst = max(worst, distance(answers(folder / "model.onnx", input_ids=tokens)["logits"], model(tokens)))
        elif isinstance(model, EncoderOnly):
            worst = max(worst, *furthest_reading(model, folder, tokens))
        else:
            size = MAX_LEN + 1 - length
            source, real = torch.randint(model.spec.source_vocab_size or 17, (batch, size)), token_mask(batch, size)
            mask = real.long()
            memory = answers(folder / "encoder.onnx", input_ids=source, attention_mask=mask)["memory"]
            expected = model.encode(source, token_mask=real)
            inputs = {"decoder_input_ids": tokens, "memory": memory, "attention_mask": mask}
            logits = answers(folder / "decoder.onnx", **inputs)["logits"]
            worst = max(worst, distance(memory[real], expected[real]))
            worst = max(worst, distance(logits, model(source, tokens, source_token_mask=real)))
    return worst


def furthest_reading(model: EncoderOnly, folder: Path, tokens: torch.Tensor) -> list[float]:
    spec, real = model.spec, token_mask(*tokens.shape)
    segments = torch.randint(spec.n_segments, tokens.shape) if spec.n_segments > 1 else None
    segment_inputs = {} if segments is None else {"token_type_ids": segments}
    found = answers(folder / "model.onnx", input_ids=tokens, attention_mask=real.long(), **segment_inputs)
    hidden = model.hidden(tokens, token_mask=real, segments=segments)
    expected = {"hidden": hidden}
    if spec.masked_head is not None:
        expected["logits"] = model.logits(hidden)
    if spec.pooler:
        expected["pooled"] = model.pooled(hidden, real)
    if spec.next_sentence:
        expected["next_sentence"] = model.next_sentence_logits(hidden, real)
    if spec.classifier is not None:
        expected["classes"] = model.classify(hidden, real)
    assert list(found) == list(expected)
    return [
        distance(found[name][real], tensor[real]) if tensor.shape[:2] == real.shape else distance(found[name], tensor)
        for name, tensor in expected.items()
    ]


@pytest.mark.parametrize("seed", seeds(20, fast=0, slow=0))
@pytest.mark.parametrize("family", ["writing", "reading", "translating"])
def test_scores_match_at_any_shape(family: str, seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = random_model(family, seed)
    folder = export_model(tmp_path, model)
    assert capfd.readouterr() == ("", "")
    assert furthest(model, folder) < 1e-4


@pytest.mark.parametrize("seed", seeds(20, fast=6))
@pytest.mark.parametrize("family", ["writing", "reading", "translating"])
def test_traced_modules_match_the_model(family: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the modules before they become graphs; the model must be left unchanged."""
    model = random_model(family, seed)
    assert furthest_traced(model, monkeypatch) < 1e-5
    assert all("forward" not in vars(part) for part in model.modules())


def furthest_traced(model: AnyModel, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the result of `furthest` for the modules that are traced."""
    graphs = {graph.name: graph for graph in onnx_graphs.graphs_of(model)}

    def run_module(path: Path, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        graph = graphs[path.name]
        assert list(graph.inputs) == list(inputs)
        outputs = graph.module(**inputs)
        return dict(zip(graph.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))

    monkeypatch.setitem(globals(), "answers", run_module)
    return furthest(model, Path())


def test_row_of_padding_gives_no_nan() -> None:
    for family in ("reading", "translating"):
        graph = onnx_graphs.graphs_of(random_model(family, 0))[0]
        inputs = {name: torch.zeros(2, 5, dtype=torch.long) for name in graph.inputs}
        outputs = graph.module(**inputs)
        assert all(tensor.isfinite().all() for tensor in (outputs if isinstance(outputs, tuple) else (outputs,)))


EXPORTED_SEEDS = {"writing": 18, "reading": 6, "translating": 8}  # seeds


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[AnyModel, Path]]:
    """Convert one model of each family and return them with their folders."""
    models: dict[str, tuple[AnyModel, Path]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        for family, number in EXPORTED_SEEDS.items():
            model = random_model(family, number)
            models[family] = model, export_model(tmp_path_factory.mktemp(family), model)
    return models


FILES = {
    "writing": {"model.onnx"},
    "reading": {"model.onnx"},
    "translating": {"encoder.onnx", "decoder.onnx"},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", list(FILES))
def test_exported_graphs_match_and_have_dynamic_sizes(family: str, exported: dict[str, tuple[AnyModel, Path]]) -> None:
    model, folder = exported[family]
    assert furthest(model, folder) < 1e-4
    tokenizer_files = {"source_tokenizer.json"} if getattr(model.spec, "source_vocab_size", None) else set()
    assert {path.name for path in folder.iterdir()} == FILES[family] | tokenizer_files | {
        "tokenizer.json",
        "README.md",
        "manifest.json",
    }
    for name in FILES[family]:
        graph = onnx.load(folder / name)
        onnx.checker.check_model(graph, full_check=True)
        assert [opset.version for opset in graph.opset_import] == [onnx_folder.OPSET]
        length = "source_length" if name == "encoder.onnx" else "length"
        first = graph.graph.input[0].type.tensor_type.shape.dim
        assert [dim.dim_param for dim in first] == ["batch", length]
        assert str(Path.cwd()) not in str(graph), "paths of this machine are left out"


@pytest.mark.slow
@pytest.mark.parametrize("family", list(FILES))
def test_code_in_the_readme_runs(
    family: str,
    exported: dict[str, tuple[AnyModel, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, folder = exported[family]
    (tmp_path / "this_folder").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert len(code) == 1
    assert len(code[0].splitlines()) <= 16
    namespace: dict[str, Any] = {}
    exec(code[0], namespace)
    if isinstance(model, EncoderOnly):
        graph = onnx_graphs.graphs_of(model)[0]
        expected = graph.module(**{name: torch.from_numpy(array) for name, array in namespace["inputs"].items()})
        assert list(namespace["outputs"]) == list(graph.outputs)
        assert distance(torch.from_numpy(namespace["outputs"]["hidden"]), expected[0]) < 1e-4
        return
    assert capsys.readouterr().out.strip()
    ids = torch.tensor([namespace["ids"]])
    n_prompt = len(namespace["tokenizer"].encode("The").ids) if isinstance(model, DecoderOnly) else 1
    with torch.no_grad():
        if isinstance(model, DecoderOnly):
            logits = model(ids)
        else:
            assert isinstance(model, EncoderDecoder)
            logits = model(torch.from_numpy(namespace["source"]), ids)
    assert ids.shape[1] > n_prompt
    assert torch.equal(logits.argmax(-1)[0, n_prompt - 1 : -1], ids[0, n_prompt:])


@pytest.mark.slow
def test_large_weights_are_external_and_tied_ones_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_folder, "LARGE", 100)
    model = shaken(DecoderOnly(DecoderOnlySpec(vocab_size=1000, max_len=MAX_LEN, stack=STACK)), 0)
    folder = export_model(tmp_path, model)
    assert {"model.onnx", "model.onnx.data"} < {path.name for path in folder.iterdir()}
    n_stored = sum(int(np.prod(tensor.dims)) for tensor in onnx.load(folder / "model.onnx").graph.initializer)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert n_parameters <= n_stored < n_parameters + 100  # the rest are constants
    assert furthest(model, folder) < 1e-4
    convert(tmp_path / "ours", folder, force=True)
    assert not {"model.onnx", "model.onnx.data"} & {path.name for path in folder.iterdir()}


@pytest.mark.exhaustive
def test_context_of_one_token_is_exported(tmp_path: Path) -> None:
    model = shaken(DecoderOnly(DecoderOnlySpec(vocab_size=11, max_len=1, stack=STACK)), 0)
    folder = export_model(tmp_path, model)
    tokens = torch.randint(11, (3, 1))
    with torch.no_grad():
        assert distance(answers(folder / "model.onnx", input_ids=tokens)["logits"], model(tokens)) < 1e-5


def test_fault_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graphs, "rotate", lambda x, rotation: x)  # keys are still rotated
    assert furthest_traced(random_model("writing", 2), monkeypatch) > 1e-2


def test_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, *args: Any) -> Any:
        if name == "onnxscript":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args)

    folder = save_folder(tmp_path / "ours", random_model("writing", 0))
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"needs the package onnxscript; pip install 'tercet\[export\]'"):
        convert(folder, tmp_path / "theirs", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.mark.slow
def test_code_in_the_exporting_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "exporting.md").read_text()
    model = shaken(DecoderOnly(DecoderOnlySpec(vocab_size=17, max_len=29, stack=STACK)), 0)
    source = save_folder(tmp_path / "ours", model)
    commands = re.findall(r"^tercet convert runs/mine (\S+) --to (\S+)", page, re.MULTILINE)
    assert dict(commands) == {"mine-hf": "hf", "mine-ct2": "ctranslate2", "mine-onnx": "onnx", "mine-gguf": "gguf"}
    for folder, kind in commands:
        if kind != "gguf":  # GGUF would require a tokenizer that llama.cpp supports
            convert(source, tmp_path / folder, kind)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    pytest.importorskip("ctranslate2").set_random_seed(0)  # one block samples, and a text of spaces would test nothing
    for code in blocks:
        exec(code, {})
        assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=pytest.mark.exhaustive) for family in ("writing", "reading", "translating")]
)
def test_every_kind_of_block_is_exported(family: str, tmp_path: Path) -> None:
    stack_spec = StackSpec(
        d_model=16, n_layers=2, n_heads=2, d_ff=20, norm="layer_std", parallel=True, final_norm=False,
        bias=Biases(qkv=False, out=True, feedforward=False), position=Learned(size=40),
    )  # fmt: skip
    sizes: dict[str, Any] = {"vocab_size": 17, "max_len": MAX_LEN}
    fresh_model: AnyModel
    if family == "writing":
        fresh_model = DecoderOnly(DecoderOnlySpec(stack=stack_spec, logit_bias=True, **sizes))
    elif family == "reading":
        fresh_model = EncoderOnly(EncoderOnlySpec(stack=stack_spec, **sizes))
    else:
        fresh_model = EncoderDecoder(EncoderDecoderSpec(encoder=stack_spec, decoder=stack_spec, **sizes))
    model = shaken(fresh_model, 1)
    assert furthest(model, export_model(tmp_path, model)) < 1e-4
