"""Multi-label and regression heads give the same scores in `transformers` and ONNX, in the original units."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import load_in_transformers, round_trip, save_folder
from folders_of_others import shaken, write_folder

from sampled_cases import sampled
from tercet.checkpoint import convert, load_model, read_spec
from tercet.checkpoint.foreign import onnx_graphs
from tercet.checkpoint.foreign.label_names import read_labels, read_problem_type
from tercet.checkpoint.foreign.onnx_readme import card
from tercet.cli.main import main
from tercet.config import UserError
from tercet.encoding import regress
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, StackSpec

V, B, T = 23, 3, 7
SIZES: dict[str, dict[str, Any]] = {
    "Bert": {"hidden_size": 20, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 29},
    "Roberta": {"hidden_size": 20, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 29},
    "DistilBert": {"dim": 20, "n_heads": 2, "n_layers": 1, "hidden_dim": 29},
}
KINDS: dict[str, dict[str, Any]] = {
    "regression": {"num_labels": 1},
    "multi_label_classification": {"num_labels": 4, "problem_type": "multi_label_classification"},
}


def theirs(family: str, kind: str, seed: int = 1, **config: Any) -> Any:
    their_config = getattr(transformers, f"{family}Config")(
        vocab_size=V, max_position_embeddings=19, pad_token_id=1, **SIZES[family], **{**KINDS[kind], **config}
    )
    torch.manual_seed(seed)
    return shaken(getattr(transformers, f"{family}ForSequenceClassification")(their_config), seed)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(3, V, (B, T), generator=torch.Generator().manual_seed(5))
    mask = torch.arange(T) < torch.tensor([[T], [T - 3], [T]])
    return tokens.where(mask, 1), mask


@torch.no_grad()
def their_logits(model: Any) -> torch.Tensor:
    tokens, mask = batch()
    return model(input_ids=tokens, attention_mask=mask.long()).logits


@torch.no_grad()
def our_numbers(model: EncoderOnly) -> torch.Tensor:
    tokens, mask = batch()
    head = model.spec.classifier
    assert head is not None
    return head.target_mean + head.target_std * model.classify(model.hidden(tokens, token_mask=mask), mask)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", sampled(SIZES))
def test_transformers_folders_are_read_and_written(family: str, kind: str, tmp_path: Path) -> None:
    reference = theirs(family, kind)
    folder = write_folder(tmp_path / "theirs", reference)
    model = load_model(folder).require("classify").model
    assert model.spec.classifier is not None
    assert model.spec.classifier.problem_type == kind
    assert read_spec(folder) == model.spec
    torch.testing.assert_close(our_numbers(model), their_logits(reference), rtol=1e-4, atol=1e-5)
    out = convert(folder, tmp_path / "again", "hf")
    assert json.loads((out / "config.json").read_text())["problem_type"] == kind
    reexported = load_in_transformers(out, transformers.AutoModelForSequenceClassification)
    assert reexported.config.num_labels == KINDS[kind]["num_labels"]
    torch.testing.assert_close(their_logits(reexported), their_logits(reference), rtol=1e-4, atol=1e-5)
    if family != "Roberta":  # RoBERTa is written as BERT
        round_trip(tmp_path, folder)


def regression(width: int = 20, *, mean: float = -250.0, std: float = 40.0, **spec: Any) -> EncoderOnly:
    head = Classifier(
        labels=("stars",), problem_type="regression", target_mean=mean, target_std=std, pooling="pooler", dropout=0.0
    )
    stack = StackSpec(d_model=width, n_layers=1, n_heads=2, d_ff=29, placement="post", norm_eps=1e-12)
    settings = {"n_segments": 2, **spec}
    model_spec = EncoderOnlySpec(
        vocab_size=V, max_len=19, stack=stack, classifier=head, embedding_norm=True, pooler=True, masked_head=None,
        **settings,
    )  # fmt: skip
    return shaken(EncoderOnly(model_spec, seed=2), 3)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [{}, {"n_segments": 0, "pooler_activation": "relu"}], ids=["BERT", "DistilBERT"])
def test_scale_is_folded_into_the_exported_head(spec: dict[str, Any], tmp_path: Path) -> None:
    ours = regression(**spec)
    numbers = our_numbers(ours)
    assert numbers.std() > 1
    out = convert(save_folder(tmp_path / "ours", ours), tmp_path / "theirs", "hf")
    config = json.loads((out / "config.json").read_text())
    assert (config["problem_type"], config["id2label"]) == ("regression", {"0": "stars"})
    exported = load_in_transformers(out, transformers.AutoModelForSequenceClassification)
    torch.testing.assert_close(their_logits(exported), numbers, rtol=1e-5, atol=1e-3)
    # Their loss for these numbers is zero, so both libraries define regression in the same way.
    tokens, mask = batch()
    loss = exported(input_ids=tokens, attention_mask=mask.long(), labels=numbers[:, 0]).loss
    assert loss.item() < 1e-5
    reloaded = load_model(out).require("classify").model
    assert reloaded.spec.classifier == replace(ours.spec.classifier, target_mean=0.0, target_std=1.0)  # pyright: ignore
    torch.testing.assert_close(our_numbers(reloaded), numbers, rtol=1e-5, atol=1e-3)
    copied = load_model(convert(tmp_path / "ours", tmp_path / "again")).model
    assert copied.spec == ours.spec, "Tercet folders keep the scale"


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_have_the_same_outputs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = regression()
    if kind != "regression":
        head = Classifier(labels=("a", "b", "c"), problem_type=kind, dropout=0.0)  # pyright: ignore[reportArgumentType]
        model = shaken(EncoderOnly(replace(model.spec, classifier=head)), 4)
    expected = our_numbers(model)
    [graph] = onnx_graphs.graphs_of(model)
    tokens, mask = batch()
    outputs = graph.module(tokens, mask.long(), torch.zeros_like(tokens))
    torch.testing.assert_close(outputs[graph.outputs.index("classes")], expected, rtol=1e-5, atol=1e-3)
    assert torch.equal(our_numbers(model), expected), "the model is unchanged"


@pytest.mark.exhaustive
def test_onnxruntime_has_the_same_outputs(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    ours = regression()
    out = convert(save_folder(tmp_path / "ours", ours), tmp_path / "theirs", "onnx")
    tokens, mask = batch()
    inputs = {"input_ids": tokens, "attention_mask": mask.long(), "token_type_ids": torch.zeros_like(tokens)}
    session = onnxruntime.InferenceSession(out / "model.onnx")
    [classes] = session.run(["classes"], {name: tensor.numpy() for name, tensor in inputs.items()})
    torch.testing.assert_close(torch.from_numpy(classes), our_numbers(ours), rtol=1e-5, atol=1e-3)
    assert "`classes`, the number stars" in card(load_model(tmp_path / "ours"), ("hidden", "classes"))


def test_missing_problem_type_has_the_default_of_transformers() -> None:
    assert read_problem_type({}, 1, "texts") == "regression"
    assert read_problem_type({"problem_type": None}, 2, "texts") == "single_label_classification"
    assert read_problem_type({"problem_type": "single_label_classification"}, 1, "texts").startswith("single")
    assert read_problem_type({"problem_type": "regression"}, 3, "tokens") == "single_label_classification"
    with pytest.raises(UserError, match="regression with 3 outputs; Tercet supports only one"):
        read_problem_type({"problem_type": "regression"}, 3, "texts")
    with pytest.raises(UserError, match="problem_type is 'ranking'; supported: single_label_classification, multi"):
        read_problem_type({"problem_type": "ranking"}, 3, "texts")


def test_labels_are_named_by_their_numbers_in_any_order() -> None:
    assert read_labels({"id2label": {"2": "c", "0": "a", "1": "b"}}, 3) == ("a", "b", "c")
    assert read_labels({"id2label": {1: "b", 0: "a"}}, 2) == ("a", "b")
    assert read_labels({"num_labels": 3, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, 3)[2] == "LABEL_2"
    with pytest.raises(UserError, match="has 3 labels, but id2label has 2"):
        read_labels({"id2label": {"0": "a", "2": "c"}}, 3)


def test_numbers_with_a_large_mean_keep_their_digits(tmp_path: Path) -> None:
    """Numbers are computed in float64: a mean of 1e9 leaves a deviation of 1, unlike in float32."""
    near, far = regression(mean=0.0, std=1.0), regression(mean=1e9, std=1.0)
    tokenizer = load_model(save_folder(tmp_path / "ours", near)).tokenizer
    texts = ["w3 w4 w9", "w7", "w11 w3"]
    for near_number, far_number in zip(*(regress(model, tokenizer, texts) for model in (near, far)), strict=True):
        assert far_number.value - 1e9 == pytest.approx(near_number.value, abs=1e-6)


def test_inconsistent_folder_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "theirs", theirs("Bert", "multi_label_classification"))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"problem_type": "regression"}))
    capsys.readouterr()
    assert main(["classify", str(folder), "--device", "cpu", "--input", str(path)]) == 2
    error = capsys.readouterr().err
    assert "regression with 4 outputs" in error
    assert error.count("\n") == 1
