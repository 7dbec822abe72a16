"""`convert --to sentence-transformers`: the exported folder gives the vectors of `tercet embed`."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from test_sentence_folder import DENSE, NORMALIZE, STEPS, bert, write, write_dense

import tercet
from sampled_cases import sampled
from tercet.checkpoint import Card, convert, load_model, save_model
from tercet.checkpoint.sentence_settings import SETTINGS, WEIGHTS, SentenceSettings
from tercet.config import UserError
from tercet.models import Classifier, DecoderOnly, DecoderOnlySpec, StackSpec, build, model_spec
from tercet.tokens import Tokenizer, WordPiece

TEXTS = ["the cat sat on the mat", "a dog", "", "the [MASK] and [SEP] the dogs, and the cats and the dogs again"]
PADDED = ["w5 w6", "w7", "w5 w6 w7 w8 w9 w10 w5 w6"]
ST = "sentence-transformers"
FUNCTIONS: dict[str, Any] = {
    "torch.nn.modules.activation.Tanh": torch.tanh, "torch.nn.modules.activation.GELU": torch.nn.functional.gelu,
    "torch.nn.modules.linear.Identity": lambda x: x,
}  # fmt: skip

bert = bert  # the fixture


def vectors_of_files(folder: Path, texts: list[str]) -> np.ndarray:
    """Return the vectors that the files of a Sentence-Transformers folder define, computed by `transformers`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModel.from_pretrained(folder).eval()
    length = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    steps = json.loads((folder / "modules.json").read_text())
    assert [step["type"].rpartition(".")[2] for step in steps[:2]] == ["Transformer", "Pooling"]
    batch = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
    with torch.no_grad():
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
        config = json.loads((folder / steps[1]["path"] / "config.json").read_text())
        flags = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
        x = {
            "pooling_mode_cls_token": hidden[:, 0],
            "pooling_mode_mean_tokens": (hidden * mask).sum(1) / mask.sum(1),
            "pooling_mode_max_tokens": hidden.masked_fill(mask == 0, -1e9).max(1).values,
        }[flags[0]]
        for step in steps[2:]:
            if step["type"].endswith("Normalize"):
                x = x / x.norm(dim=-1, keepdim=True)
                continue
            config = json.loads((folder / step["path"] / "config.json").read_text())
            state = tercet.checkpoint.weights.read_tensors(folder / step["path"] / "model.safetensors")
            x = FUNCTIONS[config["activation_function"]](x @ state["linear.weight"].T + state.get("linear.bias", 0))
    assert len(flags) == 1
    return x.numpy()


def result_of_library(call: str, folder: Path, texts: list[str] | list[tuple[str, str]]) -> np.ndarray:
    """Return the result of `call`, an expression with the names `folder` and `texts`, in a process of its own.

    TERCET_TEST_SENTENCE_TRANSFORMERS is a Python with the package, if that of the tests does not have it.
    """
    python = os.environ.get("TERCET_TEST_SENTENCE_TRANSFORMERS", "")
    if not python and find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    code = (
        "import json, sys; from sentence_transformers import CrossEncoder, SentenceTransformer; "
        f"folder, texts = sys.argv[1], json.load(sys.stdin); print(json.dumps({call}.tolist()))"
    )
    result = subprocess.run(
        [python or sys.executable, "-c", code, str(folder)],
        input=json.dumps(texts), capture_output=True, text=True, check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return np.array(json.loads(result.stdout.splitlines()[-1]), np.float32)


def encoder(folder: Path, preset: str = "bert-base", classifier: Classifier | None = None, **settings: Any) -> Path:
    """Write an encoder with random weights, with a classifier or a masked head."""
    tokenizer = Tokenizer.train(WordPiece(vocab_size=80), TEXTS)
    changes: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "max_len": 16}
    if classifier is not None:
        changes |= {"masked_head": None, "classifier": asdict(classifier), "pooler": classifier.pooling == "pooler"}
    stack = {"d_model": 24, "n_layers": 2, "n_heads": 4}
    spec = model_spec({"preset": preset, **changes, "stack": stack}, name="model")
    torch.manual_seed(3)
    model: Any = build(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    save_model(folder, model, tokenizer, Card(name="mine"), **settings)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("pooling", sampled(["mean", "first", "max"]))
def test_exported_encoder_has_the_vectors_of_embed(pooling: Any, tmp_path: Path) -> None:
    source = encoder(tmp_path / "mine", sentence=SentenceSettings(pooling=pooling, max_len=9))
    folder = convert(source, tmp_path / "out", ST)
    expected = tercet.load(source).embed(TEXTS, truncate=True)
    np.testing.assert_allclose(vectors_of_files(folder, TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(tercet.load(folder).embed(TEXTS, truncate=True), expected, atol=1e-6)
    assert 'SentenceTransformer("this_folder")' in (folder / "README.md").read_text()


AFTER_DENSE = {**NORMALIZE, "path": "3_Normalize"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "activation"),
    [
        ([], None),
        ([DENSE, AFTER_DENSE], None),
        ([DENSE], "activation.GELU"),
        pytest.param([NORMALIZE], None, marks=pytest.mark.exhaustive),
        pytest.param([DENSE, AFTER_DENSE], "linear.Identity", marks=pytest.mark.exhaustive),
        pytest.param([DENSE], "linear.Identity", marks=pytest.mark.exhaustive),
        pytest.param([DENSE], None, marks=pytest.mark.exhaustive),
        pytest.param([DENSE, AFTER_DENSE], "activation.GELU", marks=pytest.mark.exhaustive),
        *(
            pytest.param(steps, activation, marks=pytest.mark.exhaustive)  # no step has an activation
            for steps in ([], [NORMALIZE])
            for activation in ("activation.GELU", "linear.Identity")
        ),
    ],
)
def test_vectors_are_equal_after_a_conversion_to_tercet_and_back(
    bert: Path, steps: Any, activation: str | None, tmp_path: Path
) -> None:
    config = {} if activation is None else {"activation_function": f"torch.nn.modules.{activation}"}
    prompts = {"prompts": {"query": "w9 "}, "default_prompt_name": None, "similarity_fn_name": "dot"}
    folder = write_dense(write(bert, {"pooling_mode": "cls"}, [*STEPS, *steps], config_sentence_transformers=prompts))
    write_config = folder / "2_Dense" / "config.json"
    write_config.write_text(json.dumps(json.loads(write_config.read_text()) | config))
    native = convert(folder, tmp_path / "native")
    again = convert(native, tmp_path / "again", ST)
    normalize, has_dense = NORMALIZE["type"] in [step["type"] for step in steps], DENSE in steps
    expected = tercet.load(folder).embed(PADDED, normalize=normalize)
    assert expected.shape == (3, 3 if has_dense else 8)
    assert np.array_equal(tercet.load(native).embed(PADDED, normalize=normalize), expected)
    np.testing.assert_allclose(vectors_of_files(again, PADDED), expected, atol=1e-6)
    assert json.loads((again / "config_sentence_transformers.json").read_text()) == prompts
    assert (native / WEIGHTS).exists() == has_dense
    assert not (native / "modules.json").exists()


@pytest.mark.slow
def test_sentence_transformers_opens_the_folder(tmp_path: Path) -> None:
    source = encoder(tmp_path / "mine")
    folder = convert(source, tmp_path / "out", ST)
    vectors = result_of_library("SentenceTransformer(folder, device='cpu').encode(texts)", folder, TEXTS)
    np.testing.assert_allclose(vectors, tercet.load(source).embed(TEXTS), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["bert-base", "modern-encoder"])
def test_cross_encoder_has_the_scores_of_rerank(preset: str, tmp_path: Path) -> None:
    pooling: Any = "pooler" if preset == "bert-base" else "mean"
    head = Classifier(labels=("relevant",), problem_type="multi_label_classification", pooling=pooling)
    source = encoder(tmp_path / "mine", preset, classifier=head)
    folder, query = convert(source, tmp_path / "out", "hf"), "the dogs and the cat sat on the mat"
    pairs = [(query, text) for text in TEXTS] + [(TEXTS[3], query)]
    scores = result_of_library("CrossEncoder(folder, device='cpu').predict(texts)", folder, pairs)
    run = tercet.load(source)
    expected = [run.rerank(first, [second])[0] for first, second in pairs]
    assert any(ranked.truncated for ranked in expected)
    np.testing.assert_allclose(scores, [ranked.score for ranked in expected], atol=1e-6)


def test_default_settings_need_no_file_and_damaged_ones_are_reported(tmp_path: Path) -> None:
    folder = encoder(tmp_path / "plain")
    assert not (folder / SETTINGS).exists()
    folder = encoder(tmp_path / "mine", sentence=SentenceSettings(pooling="first"))
    assert load_model(folder).sentence == SentenceSettings(pooling="first")
    for change, message in (
        ({"pooling": "last"}, "pooling"),
        ({"max_len": 2}, "max_len"),
        ({"dense": ["softmax"]}, "unknown activation 'softmax'"),
        ({"dense": ["tanh"]}, "text_vectors.safetensors"),
    ):
        (folder / "manifest.json").unlink(missing_ok=True)
        (folder / SETTINGS).write_text(json.dumps(change))
        with pytest.raises(UserError, match=message):
            load_model(folder)


def test_model_replaces_the_steps_of_the_previous_one(bert: Path, tmp_path: Path) -> None:
    source = write_dense(write(bert, {"pooling_mode": "max"}, [*STEPS, DENSE]))
    folder = convert(source, tmp_path / "out", ST)
    (folder / "mine").mkdir()
    assert (folder / "2_Dense" / "config.json").exists()
    convert(source, folder, "hf", force=True)
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"mine"}
    assert not (folder / "modules.json").exists()


def test_model_without_vectors_is_rejected(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(WordPiece(vocab_size=80), TEXTS)
    stack = StackSpec(d_model=8, n_layers=1, n_heads=2)
    gpt = DecoderOnly(DecoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=8, stack=stack))
    save_model(tmp_path / "gpt", gpt, tokenizer, Card())
    with pytest.raises(UserError, match="a language model, not an encoder"):
        convert(tmp_path / "gpt", tmp_path / "out", ST)
    assert not (tmp_path / "out").exists()
