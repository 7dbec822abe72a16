"""Adapters can be exchanged with `peft` in both directions, and other files are rejected."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted_models import BERT, MODELS, randomize
from torch import Tensor

from sampled_cases import sampled
from tercet.checkpoint import Card, convert, load_model, read_card, read_spec, save_model
from tercet.checkpoint.adapter import read_adapter
from tercet.config import UserError, parse
from tercet.models import EncoderDecoder, EncoderOnly, build
from tercet.models.specs import SPECS
from tercet.nn.lora import add_lora, lora_layers
from tercet.nn.specs import LoRA
from tercet.tokens import Words
from tercet.tokens.tokenizer import Tokenizer

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # from within peft
    pytest.mark.slow,
]

B, T, S = 2, 5, 7
THEIR_TARGETS = {
    "gpt2": ["c_attn", "c_proj", "c_fc"], "llama": ["q_proj", "v_proj", "down_proj"], "qwen3": ["q_proj", "k_proj"],
    "bert": ["query", "output.dense"], "marian": ["q_proj", "k_proj", "out_proj", "fc1", "fc2"],
    "t5": ["q", "v", "wi_0", "wo"], "t5gemma": ["q_proj", "v_proj", "down_proj"],
}  # fmt: skip


def words() -> Tokenizer:
    return Tokenizer.train(Words(min_count=1, pad=True, bos=True, eos=True), [" ".join("abcdefghijklm")])


def run_of(name: str, folder: Path, targets: tuple[str, ...] = ("all",)) -> Path:
    """Write the folder of a run with an adapter: `pretrained/` and `best/`."""
    tokenizer = words()
    plain = {**MODELS[name], "vocab_size": tokenizer.vocab_size}
    model = randomize(build(parse(SPECS[plain["family"]], plain), seed=1), 2)
    save_model(folder / "pretrained", model, tokenizer, Card(name="base"))
    add_lora(model, LoRA(rank=3, alpha=5.0, targets=targets))
    for layer in lora_layers(model).values():
        torch.nn.init.normal_(layer.lora_B)
    if name == "bert":
        for parameter in model.classifier.parameters():
            parameter.requires_grad_(True).data.normal_()
    save_model(folder / "best", model, tokenizer, Card(name="adapted"))
    return folder


def logits(model: Any) -> Tensor:
    ids = torch.arange(B * T).reshape(B, T) % 11 + 3
    source = torch.arange(B * S).reshape(B, S) % 7 + 3
    with torch.no_grad():
        if isinstance(model, EncoderDecoder):
            return model(source, ids)
        if isinstance(model, EncoderOnly):
            return model.classify(model.hidden(ids), None)
        if isinstance(model, torch.nn.Module) and not hasattr(model, "config"):
            return model(ids)
        inputs = (
            {"decoder_input_ids": ids, "input_ids": source} if model.config.is_encoder_decoder else {"input_ids": ids}
        )
        return model(**inputs).logits


def theirs(folder: Path) -> Any:
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    return getattr(transformers, architecture).from_pretrained(folder).eval()


@pytest.mark.parametrize("name", sampled(MODELS, keep=(0, 3)))  # gpt2 and bert
def test_exported_adapter_is_the_same_in_peft(name: str, tmp_path: Path) -> None:
    run = run_of(name, tmp_path / "run")
    base = theirs(convert(run / "pretrained", tmp_path / "base", "hf"))
    base_logits = logits(base)
    peft_model = peft.PeftModel.from_pretrained(base, convert(run, tmp_path / "adapter", "peft")).eval()
    expected = logits(load_model(run).model)
    torch.testing.assert_close(logits(peft_model.get_base_model()), expected, rtol=1e-4, atol=1e-4)
    assert (base_logits - expected).abs().max() > 0.1
    merged = theirs(convert(run, tmp_path / "merged", "hf", merge=True))
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "task_type", "opener"),
    [
        ("gpt2", "CAUSAL_LM", "AutoPeftModelForCausalLM"),
        ("bert", "SEQ_CLS", "AutoPeftModelForSequenceClassification"),
        *(
            pytest.param(name, "SEQ_2_SEQ_LM", "AutoPeftModelForSeq2SeqLM", marks=pytest.mark.exhaustive)
            for name in ("marian", "t5", "t5gemma")
        ),
    ],
)
def test_adapter_opens_by_itself_next_to_its_base(
    name: str, task_type: str, opener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(name, tmp_path / "run")
    convert(run / "pretrained", tmp_path / "base", "hf")
    settings = json.loads((convert(run, tmp_path / "adapter", "peft") / "adapter_config.json").read_text())
    assert (settings["base_model_name_or_path"], settings["task_type"]) == ("base", task_type)
    monkeypatch.chdir(tmp_path)  # the current folder of both commands
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # otherwise peft requests a tokenizer from the hub
    peft_model = getattr(peft, opener).from_pretrained("adapter").eval()
    expected = logits(load_model(run).model)
    torch.testing.assert_close(logits(peft_model.get_base_model()), expected, rtol=1e-4, atol=1e-4)


def test_regression_values_keep_their_unit_in_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean and deviation are in the last layer, which is part of the adapter."""
    scale = {"problem_type": "regression", "target_mean": -7.0, "target_std": 3.0}
    monkeypatch.setitem(MODELS, "bert", {**BERT, "classifier": {"labels": ["n"], "pooling": "pooler", **scale}})
    run = run_of("bert", tmp_path / "run")
    base = theirs(convert(run / "pretrained", tmp_path / "base", "hf"))
    peft_model = peft.PeftModel.from_pretrained(base, convert(run, tmp_path / "adapter", "peft")).eval()
    expected = -7 + 3 * logits(load_model(run).model)
    torch.testing.assert_close(logits(peft_model.get_base_model()), expected, rtol=1e-4, atol=1e-4)


def test_adapter_of_part_of_a_fused_matrix_is_the_same_in_peft(tmp_path: Path) -> None:
    """Adapters of GPT-2's fused matrix for the values only, with another rank in one layer."""
    run = run_of("gpt2", tmp_path / "run", targets=("value", "down"))
    base = theirs(convert(run / "pretrained", tmp_path / "base", "hf"))
    peft_model = peft.PeftModel.from_pretrained(base, convert(run, tmp_path / "adapter", "peft")).eval()
    torch.testing.assert_close(logits(peft_model.get_base_model()), logits(load_model(run).model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "use_rslora"), sampled([(name, number % 2 == 0) for number, name in enumerate(MODELS)], keep=(0, 3))
)
def test_imported_adapter_is_the_same_as_in_peft(name: str, use_rslora: bool, tmp_path: Path) -> None:
    base = convert(run_of(name, tmp_path / "run") / "pretrained", tmp_path / "base", "hf")
    settings = peft.LoraConfig(
        r=3, lora_alpha=7, target_modules=THEIR_TARGETS[name], init_lora_weights=False, use_rslora=use_rslora,
        fan_in_fan_out=name == "gpt2", modules_to_save=["classifier"] if name == "bert" else None,
        alpha_pattern={THEIR_TARGETS[name][0]: 11},
    )  # fmt: skip
    torch.manual_seed(3)
    peft_model = peft.get_peft_model(theirs(base), settings).eval()
    if name == "bert":
        peft_model.get_base_model().classifier.modules_to_save.default.weight.data.normal_()
    expected = logits(peft_model.get_base_model())
    peft_model.save_pretrained(tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": str(base)}))
    trained_model = load_model(tmp_path / "adapter")
    torch.testing.assert_close(logits(trained_model.model), expected, rtol=1e-4, atol=1e-4)
    assert trained_model.adapter is not None
    assert read_spec(tmp_path / "adapter") == trained_model.model.spec
    assert read_card(tmp_path / "adapter") == trained_model.card
    assert trained_model.card.name == "adapter"
    exported = convert(tmp_path / "adapter", tmp_path / "again", "peft")  # and back
    reloaded = peft.PeftModel.from_pretrained(theirs(base), exported).eval()
    torch.testing.assert_close(logits(reloaded.get_base_model()), expected, rtol=1e-4, atol=1e-4)


def test_exported_adapter_opens_on_a_tercet_model(tmp_path: Path) -> None:
    run = run_of("llama", tmp_path / "run")
    model = peft.PeftModel.from_pretrained(load_model(run / "pretrained").model, run / "best").eval()
    expected = logits(load_model(run).model)
    torch.testing.assert_close(logits(model.get_base_model()), expected, rtol=1e-4, atol=1e-4)


def test_adapter_of_another_model_is_rejected(tmp_path: Path) -> None:
    run, other_run = run_of("llama", tmp_path / "run"), run_of("gpt2", tmp_path / "other")
    adapter = convert(run, tmp_path / "adapter", "peft")
    config = adapter / "adapter_config.json"
    plain = json.loads(config.read_text())
    config.write_text(json.dumps({**plain, "base_model_name_or_path": str(other_run / "pretrained")}))
    (adapter / "manifest.json").unlink()
    with pytest.raises(UserError, match="does not fit this model, which has no "):
        load_model(adapter)
    config.write_text(json.dumps({**plain, "base_model_name_or_path": str(run / "best")}))
    with pytest.raises(UserError, match="is itself an adapter"):
        load_model(adapter)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("adapter_config.json", {"lora_alpha": None}, "lora_alpha is None"),
        ("adapter_config.json", {"use_dora": True}, "use_dora is True"),
        ("adapter_config.json", {"base_model_name_or_path": 3}, "base model of the adapter in .* not found: ''"),
        ("adapter_config.json", {"alpha_pattern": [1]}, "alpha_pattern is"),
        ("adapter_config.json", {"alpha_pattern": {"(a+)+$": 3}}, "alpha_pattern is .*use full names of layers"),
        ("adapter_model.safetensors", {}, "A and B of .* do not belong together"),
    ],
)
def test_damaged_adapter_is_rejected(file: str, change: dict[str, Any], words: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = run_of("llama", tmp_path / "run") / "best"
    (folder / "manifest.json").unlink()
    if file.endswith(".json"):
        (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **change}))
    else:
        tensors = load_file(folder / file)
        del tensors[next(name for name in tensors if "lora_B" in name)]
        save_file(tensors, folder / file)
    with pytest.raises(UserError, match=words):
        load_model(folder)


def test_model_without_an_adapter_is_rejected(tmp_path: Path) -> None:
    run = run_of("llama", tmp_path / "run")
    with pytest.raises(UserError, match="has no adapter for --to peft"):
        convert(run / "pretrained", tmp_path / "adapter", "peft")
    with pytest.raises(UserError, match="--to peft writes only the adapter; omit --merge"):
        convert(run, tmp_path / "adapter", "peft", merge=True)
    assert not (tmp_path / "adapter").exists()
    shutil.rmtree(run / "pretrained")
    with pytest.raises(UserError, match="base model of the adapter in"):
        read_adapter(run / "best") and load_model(run / "best")


def test_base_of_the_adapter_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_of("llama", Path("run"))
    expected = logits(load_model(run).model)
    convert(run / "pretrained", "base", "hf")
    convert(run, "adapter", "peft")
    for source, base in ((run, run / "pretrained"), (run / "best", run / "pretrained"), (Path("adapter"), "base")):
        with pytest.raises(UserError, match=r"(pretrained|base) is the (model to convert|base model of the adapter)"):
            convert(source, base, merge=True, force=True)
        torch.testing.assert_close(logits(load_model(source).model), expected, rtol=1e-4, atol=1e-4)
