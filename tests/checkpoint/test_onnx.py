"""Every family is exported to ONNX, and onnxruntime gives the same scores for any batch size and length."""

import importlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import onnx
import onnx_models
import pytest
import torch
from converted import save_folder
from folders_of_others import seeds, shaken
from onnx_models import MAX_LEN, STACK, export_model, logits_of_calls, random_model

from sampled_cases import sampled
from tercet.checkpoint import convert
from tercet.checkpoint.foreign import onnx_folder, onnx_graphs
from tercet.config import UserError
from tercet.models import (
    AnyModel,
    Biases,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    StackSpec,
)
from tercet.nn import Learned

SHAPES = [(1, 1), (3, 2), (1, 7), (2, MAX_LEN)]  # not used for tracing


@pytest.fixture(autouse=True)
def disable_annotation_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations that are checked while a graph is traced would fix its sizes."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def token_mask(batch: int, length: int) -> torch.Tensor:
    """Return a mask with real tokens anywhere, at least one in each row."""
    real = torch.rand(batch, length) < 0.7
    real[torch.arange(batch), torch.randint(length, (batch,))] = True
    return real


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return (found - expected).abs().max().item()


def cut(length: int) -> list[slice]:
    """Return consecutive slices of a text: a prefill, single steps, and several tokens at once."""
    ends = sorted({min(length, end) for end in (length // 2, length // 2 + 1, length // 2 + 2, length)} - {0})
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


@torch.no_grad()
def furthest(model: AnyModel, folder: Path) -> float:
    """Return the largest difference over all shapes and outputs; hidden states at padding are undefined."""
    worst = 0.0
    for batch, length in SHAPES:
        tokens = torch.randint(model.vocab_size, (batch, length))
        if isinstance(model, DecoderOnly):
            worst = max(worst, *furthest_writing(model, folder, tokens))
        elif isinstance(model, EncoderOnly):
            worst = max(worst, *furthest_reading(model, folder, tokens))
        else:
            worst = max(worst, *furthest_translating(model, folder, tokens))
    return worst


def furthest_writing(model: DecoderOnly, folder: Path, tokens: torch.Tensor) -> list[float]:
    """Return the largest difference without padding, with padding on the left, and with padding anywhere."""
    batch, length = tokens.shape
    left = torch.arange(length) >= torch.randint(length, (batch, 1))
    found = []
    for real in (torch.ones_like(left), left, token_mask(batch, length)):
        positions = (real.long().cumsum(1) - 1).masked_fill(~real, 1)  # as transformers and transformers.js do
        calls = [
            {
                "input_ids": tokens[:, part],
                "attention_mask": real[:, : part.stop].long(),
                "position_ids": positions[:, part],
            }
            for part in cut(length)
        ]
        logits = logits_of_calls(folder / "model.onnx", calls, model.spec.stack, batch=batch)
        found.append(distance(logits[real], model(tokens, token_mask=real)[real]))
    return found


def furthest_translating(model: EncoderDecoder, folder: Path, tokens: torch.Tensor) -> list[float]:
    batch, length = tokens.shape
    size = MAX_LEN + 1 - length
    source, real = torch.randint(model.spec.source_vocab_size or 17, (batch, size)), token_mask(batch, size)
    mask = real.long()
    inputs = {"input_ids": source, "attention_mask": mask}
    memory = onnx_models.answers(folder / "encoder_model.onnx", inputs)["last_hidden_state"]
    memory_inputs = {"encoder_hidden_states": memory, "encoder_attention_mask": mask}
    calls = [{"input_ids": tokens[:, part], **memory_inputs} for part in cut(length)]
    path = folder / "decoder_model_merged.onnx"
    logits = logits_of_calls(path, calls, model.spec.decoder, batch=batch, cross=True)
    return [
        distance(memory[real], model.encode(source, token_mask=real)[real]),
        distance(logits, model(source, tokens, source_token_mask=real)),
    ]


def furthest_reading(model: EncoderOnly, folder: Path, tokens: torch.Tensor) -> list[float]:
    spec, real = model.spec, token_mask(*tokens.shape)
    segments = torch.randint(spec.n_segments, tokens.shape) if spec.n_segments > 1 else None
    segment_inputs = {} if segments is None else {"token_type_ids": segments}
    found = onnx_models.answers(
        folder / "model.onnx", {"input_ids": tokens, "attention_mask": real.long(), **segment_inputs}
    )
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


@pytest.mark.slow
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

    def run_module(path: Path, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        graph = graphs[path.name]
        assert list(graph.inputs) == list(inputs)
        outputs = graph.module(*inputs.values())
        return dict(zip(graph.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))

    monkeypatch.setattr(onnx_models, "answers", run_module)
    return furthest(model, Path())


def test_row_of_padding_gives_no_nan() -> None:
    for family in ("writing", "reading", "translating"):
        for graph in onnx_graphs.graphs_of(random_model(family, 0)):
            outputs = graph.module(*map(torch.zeros_like, graph.inputs.values()))
            assert all(tensor.isfinite().all() for tensor in (outputs if isinstance(outputs, tuple) else (outputs,)))


EXPORTED_SEEDS = {"writing": 3, "reading": 6, "translating": 8}
Export = Callable[[str], tuple[AnyModel, Path]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Return a function that converts one model of a family, once, and returns it with its folder."""

    @cache
    def convert_one(family: str) -> tuple[AnyModel, Path]:
        model = random_model(family, EXPORTED_SEEDS[family])
        return model, export_model(tmp_path_factory.mktemp(family), model)

    return convert_one


FILES = {
    "writing": {"model.onnx"},
    "reading": {"model.onnx"},
    "translating": {"encoder_model.onnx", "decoder_model_merged.onnx"},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", sampled(FILES, keep=(0, 2)))
def test_exported_graphs_match_and_have_dynamic_sizes(family: str, exported: Export) -> None:
    model, folder = exported(family)
    assert furthest(model, folder) < 1e-4
    extra_files = {"source_tokenizer.json"} if getattr(model.spec, "source_vocab_size", None) else set()
    if family != "reading":
        extra_files |= {"config.json", "generation_config.json", "tokenizer_config.json"}
    shared = {"tokenizer.json", "README.md", "manifest.json"}
    assert {path.name for path in folder.iterdir()} == FILES[family] | extra_files | shared
    for name in FILES[family]:
        graph = onnx.load(folder / name)
        onnx.checker.check_model(graph, full_check=True)
        assert [opset.version for opset in graph.opset_import] == [onnx_folder.OPSET]
        length = "source_length" if name == "encoder_model.onnx" else "length"
        shapes = {
            value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in graph.graph.input
        }
        assert shapes["input_ids"] == ["batch_size", length]
        tables = {tuple(shape) for table, shape in shapes.items() if table.startswith("past_key_values.")}
        spec = model.spec.decoder if isinstance(model, EncoderDecoder) else getattr(model.spec, "stack", STACK)
        lengths = {"model.onnx": ["past_length"], "decoder_model_merged.onnx": ["past_length", "past_source_length"]}
        expected = lengths.get(name, []) if family != "reading" else []
        assert tables == {("batch_size", spec.kv_heads, past, spec.head_width) for past in expected}
        assert str(Path.cwd()) not in str(graph), "paths of this machine are left out"


@pytest.mark.slow
@pytest.mark.parametrize("family", sampled(FILES, keep=(0, 2)))
def test_code_in_the_readme_runs(
    family: str,
    exported: Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, folder = exported(family)
    (tmp_path / "this_folder").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert len(code) == 1
    assert len(code[0].splitlines()) <= 19
    namespace: dict[str, Any] = {}
    exec(code[0], namespace)
    if isinstance(model, EncoderOnly):
        graph = onnx_graphs.graphs_of(model)[0]
        expected = graph.module(*map(torch.from_numpy, namespace["inputs"].values()))
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
    assert all(
        table.shape[2] in {ids.shape[1] - 1, namespace.get("source", ids).shape[1]}
        for table in namespace["past"].values()
    )


@pytest.mark.exhaustive
def test_large_weights_are_external_and_tied_ones_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_folder, "LARGE", 100)
    model = shaken(DecoderOnly(DecoderOnlySpec(vocab_size=1000, max_len=MAX_LEN, stack=STACK)), 0)
    folder = export_model(tmp_path, model)
    assert {"model.onnx", "model.onnx_data"} < {path.name for path in folder.iterdir()}
    n_stored = sum(int(np.prod(tensor.dims)) for tensor in onnx.load(folder / "model.onnx").graph.initializer)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert n_parameters <= n_stored < n_parameters + 100  # the rest are constants
    assert furthest(model, folder) < 1e-4
    convert(tmp_path / "ours", folder, force=True)
    assert not {"model.onnx", "model.onnx_data"} & {path.name for path in folder.iterdir()}


@pytest.mark.exhaustive
def test_context_of_one_token_is_exported(tmp_path: Path) -> None:
    model = shaken(DecoderOnly(DecoderOnlySpec(vocab_size=11, max_len=1, stack=STACK)), 0)
    folder = export_model(tmp_path, model)
    tokens = torch.randint(11, (3, 1))
    with torch.no_grad():
        assert max(furthest_writing(model, folder, tokens)) < 1e-5


def test_fault_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graphs, "rotate", lambda x, rotation: x)  # keys are still rotated
    assert furthest_traced(random_model("writing", 2), monkeypatch) > 1e-2


def test_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, *args: Any, **options: Any) -> Any:
        if name == "onnxscript":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **options)

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
    commands = dict(re.findall(r"^tercet convert runs/mine (mine\S+) --to (\S+)", page, re.MULTILINE))
    assert set(commands.values()) == {"hf", "ctranslate2", "onnx", "gguf", "sentence-transformers"}
    for folder, kind in commands.items():
        if kind not in ("gguf", "sentence-transformers"):  # they require another tokenizer, and an encoder
            convert(source, tmp_path / folder, kind)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    blocks = [code for code in blocks if "sentence_transformers" not in code]  # not a dependency
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
