"""Models with scaled rotations have the same outputs in `transformers` and in the other formats."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_models
import jaxtyping
import numpy as np
import pytest
import torch
import transformers
from converted import load_in_transformers, save_folder
from folders_of_others import generate_greedily, shaken, write_folder
from onnx_models import export_model as export_onnx
from onnx_models import logits_of_calls

from sampled_cases import sampled
from tercet.checkpoint import convert, load_model
from tercet.checkpoint.foreign.llama import llama_spec
from tercet.config import UserError
from tercet.models import DecoderOnly, DecoderOnlySpec
from tercet.nn import Rotary
from tercet.nn.specs import DynamicScaling, LinearScaling, Llama3Scaling, Scaling, YaRNScaling

CONTEXT, LENGTH = 16, 29
ORIGINAL = {"original_max_position_embeddings": CONTEXT}
KINDS = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma")


def draw_scaling(draw: random.Random) -> dict[str, Any]:
    factor = {"factor": draw.choice([2.0, 3.5, 8.0])}
    return draw.choice([
        {"rope_type": "linear"} | factor,
        {"rope_type": "dynamic"} | factor,
        {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 3.0} | ORIGINAL | factor,
        {"rope_type": "yarn"} | ORIGINAL | factor,
        {"rope_type": "yarn", "mscale": 0.707, "mscale_all_dim": 0.5} | ORIGINAL | factor,
        {"rope_type": "yarn", "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False} | ORIGINAL | factor,
        {"rope_type": "yarn", "attention_factor": 1.7} | ORIGINAL | factor,
    ])  # fmt: skip


def random_model(seed: int) -> Any:
    draw = random.Random(seed)
    name, scaling = draw.choice(KINDS), draw_scaling(draw)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=23, max_position_embeddings=CONTEXT if scaling["rope_type"] == "dynamic" else 31, hidden_size=24,
        intermediate_size=29, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=draw.choice([1, 3]),
        head_dim=8, rope_parameters={"rope_theta": draw.choice([37.0, 10_000.0]), **scaling},
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
        **({"sliding_window": None} if name == "Mistral" else {}),
    )  # fmt: skip
    torch.manual_seed(seed)
    return shaken(getattr(transformers, f"{name}ForCausalLM")(config), seed)


def ours(scaling: Scaling | None, **stack: Any) -> DecoderOnly:
    base = replace(gguf_models.LLAMA, d_head=8, position=Rotary(base=37.0, scaling=scaling), **stack)
    return shaken(DecoderOnly(DecoderOnlySpec(vocab_size=23, max_len=31, stack=base)), 1)


@torch.no_grad()
def furthest(model: Any, theirs: Any) -> float:
    """Return the largest difference of logits, for texts that are longer than the original context."""
    tokens = torch.randint(23, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    return (model(tokens) - theirs(input_ids=tokens, use_cache=False).logits).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(20), keep=(0, 3, 9)))  # linear, yarn and llama3
def test_logits_and_greedy_tokens_survive_import_and_export(seed: int, tmp_path: Path) -> None:
    theirs = random_model(seed)
    model = load_model(write_folder(tmp_path / "theirs", theirs)).model
    assert isinstance(model, DecoderOnly)
    assert furthest(model, theirs) < 1e-4
    out = convert(tmp_path / "theirs", tmp_path / "again", "hf")
    exported = load_in_transformers(out, transformers.AutoModelForCausalLM)
    assert furthest(model, exported) < 1e-4
    assert load_model(out).model.spec == model.spec
    prompt = torch.randint(23, (2, 5))
    generated = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=20, min_new_tokens=20,
        pad_token_id=0,
    )  # fmt: skip
    assert torch.equal(generate_greedily(model, prompt, 20), generated[:, 5:])


def test_scaling_in_older_files_is_read(tmp_path: Path) -> None:
    theirs = random_model(1)
    folder = write_folder(tmp_path, theirs)
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    old = {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {"type": rope.pop("rope_type"), **rope}}
    (folder / "config.json").write_text(json.dumps(config | old))
    assert furthest(load_model(folder).model, theirs) < 1e-4


def test_context_is_that_for_which_the_scaling_is_made() -> None:
    """`max_position_embeddings` often remains the original context."""
    for rope, context in (
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}, 400),
        ({"rope_type": "yarn", "original_max_position_embeddings": 20}, 128),
        ({"rope_type": "dynamic", "factor": 2.0}, 256),
        ({"rope_type": "linear", "factor": 2.0}, 128),
    ):
        config = transformers.LlamaConfig(max_position_embeddings=128).to_dict() | {"rope_parameters": rope}
        assert llama_spec(config, {}).max_len == context


@pytest.mark.parametrize(
    "scaling",
    sampled(
        [
            LinearScaling(factor=3.3),
            YaRNScaling(factor=4.0, original_max_len=CONTEXT),
            Llama3Scaling(factor=8.0, original_max_len=256),
            Llama3Scaling(factor=32.0, original_max_len=1024),
        ],
        keep=(1, 2),
    ),
    ids=lambda scaling: scaling.kind,
)
def test_gguf_keeps_the_scaling(scaling: Scaling, tmp_path: Path) -> None:
    model = gguf_models.llama(0, {"position": Rotary(base=5e3, scaling=scaling), "d_head": 8}, max_len=64)
    file = gguf_models.export_model(tmp_path, model)
    imported = load_model(file).model
    assert isinstance(imported, DecoderOnly)
    assert imported.spec.stack.position == model.spec.stack.position
    tokens = torch.randint(300, (2, LENGTH))
    assert (imported(tokens) - model(tokens)).abs().max() < 1e-5
    assert convert(file, tmp_path / "again", "gguf").joinpath("model.gguf").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("scaling", "stack", "kind", "message"),
    [
        (DynamicScaling(factor=2.0, original_max_len=9), {}, "gguf", r"scaling\.kind is dynamic, which Llama of llama"),
        (Llama3Scaling(), {"qk_norm": True}, "gguf", r"scaling\.kind is llama3, .*: linear or yarn or null can"),
        (YaRNScaling(factor=2.0, original_max_len=9, beta_fast=9.0), {}, "gguf", r"beta_fast is 9\.0, which Llama of"),
        (YaRNScaling(factor=2.0, original_max_len=9, attention_factor=2.0), {}, "gguf", r"attention_factor is 2\.0"),
        (Llama3Scaling(), {}, "ctranslate2", r"scaling\.kind is llama3, which CTranslate2 .*: linear or null can"),
    ],
)
def test_scaling_that_a_format_lacks_is_rejected(
    scaling: Scaling, stack: dict[str, Any], kind: Any, message: str, tmp_path: Path
) -> None:
    folder = save_folder(tmp_path / "ours", ours(scaling, **stack))
    with pytest.raises(UserError, match=message):
        convert(folder, tmp_path / "theirs", kind)


def test_ctranslate2_has_linear_scaling(tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    model = ours(LinearScaling(factor=3.3))
    folder = convert(save_folder(tmp_path / "ours", model), tmp_path / "theirs", "ctranslate2")
    tokens = torch.randint(3, 23, (1, LENGTH))
    logits = ctranslate2.Generator(str(folder)).forward_batch([[f"w{number}" for number in tokens[0].tolist()]])
    assert (torch.from_numpy(np.array(logits)) - model(tokens)).abs().max() < 1e-4


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "scaling",
    [YaRNScaling(factor=4.0, original_max_len=5), DynamicScaling(factor=3.0, original_max_len=5)],
    ids=lambda scaling: scaling.kind,
)
def test_onnx_has_the_scaling(scaling: Scaling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model = ours(scaling)
    path = export_onnx(tmp_path, model) / "model.onnx"
    tokens = torch.randint(3, 23, (2, LENGTH))
    positions = torch.arange(LENGTH).expand(2, -1)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "position_ids": positions}
    found = logits_of_calls(path, [inputs], model.spec.stack, batch=2)
    assert (found - model(tokens)).abs().max() < 1e-4
