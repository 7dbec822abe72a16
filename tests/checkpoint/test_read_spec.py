"""The spec of a folder is read without building its model."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from converted import save_folder
from folders_of_others import edit_folder, shaken, write_folder
from gguf_models import export_model, random_gpt2, random_llama

from sampled_cases import sampled
from tercet.checkpoint import folder, load_model, read_spec
from tercet.config import UserError
from tercet.models import AnySpec, DecoderOnly, DecoderOnlySpec, StackSpec

STACK = StackSpec(d_model=8, n_layers=1, n_heads=2, d_ff=13)
SIZES = {"vocab_size": 23, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 17}


def marian(**changes: Any) -> Any:
    sides = {f"{side}_{part}": n for side in ("encoder", "decoder") for part, n in
             (("layers", 1), ("attention_heads", 2), ("ffn_dim", 13))}  # fmt: skip
    config = transformers.MarianConfig(
        vocab_size=23, d_model=12, max_position_embeddings=19, eos_token_id=2, decoder_start_token_id=0,
        pad_token_id=0, **sides, **changes,
    )  # fmt: skip
    return transformers.MarianMTModel(config)


THEIRS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=23, n_positions=19, n_embd=12, n_layer=2, n_head=3)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, max_position_embeddings=19, num_key_value_heads=3)
    ),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, max_position_embeddings=19)),
    "a bert that classifies": lambda: transformers.BertForSequenceClassification(
        transformers.BertConfig(**SIZES, max_position_embeddings=19, num_labels=3)
    ),
    "a bare bert": lambda: transformers.BertModel(transformers.BertConfig(**SIZES, max_position_embeddings=19)),
    "marian": marian,
}


def read_unbuilt(path: Path, monkeypatch: pytest.MonkeyPatch) -> AnySpec:
    """Return the spec; building a model would fail."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was built")

    with monkeypatch.context() as patch:
        for family in ("DecoderOnly", "EncoderOnly", "EncoderDecoder"):
            for module in ("bert", "gpt2", "llama", "marian"):
                patch.setattr(f"tercet.checkpoint.foreign.{module}.{family}", refuse, raising=False)
        patch.setattr(folder, "build", refuse)
        patch.setattr(folder, "read_weights", refuse)
        return read_spec(path)


@pytest.mark.parametrize(
    ("name", "pickled"),
    sampled([*((name, False) for name in THEIRS), *((name, True) for name in THEIRS)], keep=(0, 1, 2, 3, 5, 8)),
)
def test_spec_of_transformers_folders_is_read(
    name: str, pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_folder(tmp_path / "theirs", shaken(THEIRS[name](), 0), n_ids=20, pickled=pickled)
    assert read_unbuilt(path, monkeypatch) == load_model(path).model.spec


@pytest.mark.parametrize("build_model", [random_llama, random_gpt2])
def test_spec_of_gguf_files_is_read(build_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export_model(tmp_path, build_model(1))
    assert read_unbuilt(path, monkeypatch) == load_model(path).model.spec


def test_spec_of_tercet_folders_and_runs_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DecoderOnlySpec(vocab_size=11, max_len=7, stack=STACK)
    save_folder(tmp_path / "run" / "last", DecoderOnly(spec))
    assert read_unbuilt(tmp_path / "run", monkeypatch) == load_model(tmp_path / "run").model.spec == spec


def test_broken_folder_is_rejected_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        read_spec(tmp_path / "none")
    path = write_folder(tmp_path / "theirs", shaken(THEIRS["a bert that classifies"](), 0))
    edit_folder(path, {"classifier.weight": load_model(path).require("classify").model.classifier.weight.detach()[:2]})
    with pytest.raises(UserError, match=f"{path}: the classifier has 2 labels, but id2label has 3"):
        read_spec(path)
