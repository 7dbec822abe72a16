"""Encoders with rotary positions are exported as EuroBERTs, and `transformers` gives the same outputs."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import export_model, load_in_transformers, round_trip, save_folder, tensors
from folders_of_others import edit_folder, seeds, shaken, write_folder

from sampled_cases import sampled
from tercet.checkpoint import convert, load_model, read_spec
from tercet.checkpoint.adapter import Adapter
from tercet.checkpoint.foreign import eurobert
from tercet.checkpoint.foreign.eurobert import from_eurobert, to_eurobert
from tercet.checkpoint.foreign.peft_folder import _export_adapter
from tercet.config import UserError
from tercet.models import Biases, Classifier, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.nn import Rotary

STACK = StackSpec(
    d_model=12, n_layers=2, n_heads=3, n_kv_heads=1, d_head=6, d_ff=29, position=Rotary(base=37.0), norm="rms",
    norm_bias=False, norm_eps=1e-3, bias=False, gated=True, activation="silu",
)  # fmt: skip
SPEC = EncoderOnlySpec(vocab_size=23, max_len=17, tie_embeddings=False, stack=STACK)
LABELS = ("good", "bad", "neither")
HEADS: dict[str, dict[str, Any]] = {
    "MaskedLM": {},
    "bare": {"masked_head": None},
    "mean": {"masked_head": None, "classifier": Classifier(labels=LABELS)},
    "first": {"masked_head": None, "classifier": Classifier(labels=LABELS, pooling="first")},
    "tokens": {"masked_head": None, "classifier": Classifier(labels=LABELS, over="tokens")},
}
CLASSES = {
    "MaskedLM": transformers.AutoModelForMaskedLM,
    "bare": transformers.AutoModel,
    "mean": transformers.AutoModelForSequenceClassification,
    "first": transformers.AutoModelForSequenceClassification,
    "tokens": transformers.AutoModelForTokenClassification,
}


def ours(seed: int = 0, stack: dict[str, Any] | None = None, **spec: Any) -> EncoderOnly:
    return shaken(EncoderOnly(replace(SPEC, stack=replace(STACK, **(stack or {})), **spec), seed=seed), seed)


def random_model(seed: int) -> tuple[str, EncoderOnly]:
    draw = random.Random(seed)
    kind, heads, norm, tied = list(HEADS)[seed % 5], draw.choice([1, 2, 3]), draw.random() < 0.4, draw.random() < 0.5
    activation = draw.choice(["silu", "gelu", "relu", "relu_squared"])
    stack: dict[str, Any] = {
        "n_heads": heads, "d_model": heads * draw.choice([6, 8]), "d_head": draw.choice([None, 4]),
        "n_layers": draw.choice([1, 2, 3]), "d_ff": draw.choice([None, 31]), "activation": activation,
        "gated": activation != "relu_squared", "n_kv_heads": draw.choice([None, 1]),
        "bias": draw.choice([False, True, Biases(qkv=True, out=False, feedforward=False)]),
        "norm_eps": draw.choice([1e-6, 1e-3]),
    }  # fmt: skip
    masked = {"masked_head": MaskedHead(bias=draw.random() < 0.5)} if kind == "MaskedLM" else {}
    return kind, ours(
        seed, stack, **HEADS[kind] | masked,
        vocab_size=draw.choice([17, 31]), pad_vocab_to=draw.choice([1, 64]), tie_embeddings=tied, embedding_norm=norm,
        scale_embedding=(norm or not tied) and draw.random() < 0.5,
    )  # fmt: skip


@torch.no_grad()
def furthest(model: EncoderOnly, theirs: Any) -> float:
    """Return the largest difference in hidden states at real tokens and in the head."""
    tokens = torch.randint(model.spec.vocab_size, (3, 11), generator=torch.Generator().manual_seed(1))
    real = torch.arange(11) < torch.tensor([[11], [1], [7]])
    inputs = {"input_ids": tokens, "attention_mask": real.long()}
    hidden = model.hidden(tokens, token_mask=real)
    pairs = [(hidden[real], getattr(theirs, "model", theirs)(**inputs).last_hidden_state[real])]
    if model.spec.classifier is not None:
        scores, expected = model.classify(hidden, real), theirs(**inputs).logits
        pairs.append((scores, expected) if scores.ndim == 2 else (scores[real], expected[real]))
    elif model.spec.masked_head is not None:
        pairs.append((model.logits(hidden)[real], theirs(**inputs).logits[real]))
    assert all(a.shape == b.shape for a, b in pairs)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=5))
def test_every_head_has_the_same_outputs(seed: int, tmp_path: Path) -> None:
    kind, model = random_model(seed)
    folder = export_model(tmp_path, model)
    theirs = load_in_transformers(folder, CLASSES[kind])
    assert type(theirs).__name__.startswith("EuroBert")
    assert furthest(model, theirs) < 1e-5
    imported = load_model(folder).model
    assert isinstance(imported, EncoderOnly)
    assert imported.spec == read_spec(folder)
    assert furthest(imported, theirs) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(HEADS, keep=(0, 2)))
def test_conversion_back_is_bitwise_identical(kind: str, tmp_path: Path) -> None:
    folder = export_model(tmp_path, ours(**HEADS[kind]))
    before, after = round_trip(tmp_path / "again", folder)
    assert before == after


def test_only_the_classifier_of_two_heads_is_exported() -> None:
    config, state = to_eurobert(ours(classifier=Classifier(labels=LABELS, over="tokens")))
    assert config["architectures"] == ["EuroBertForTokenClassification"]
    assert not [name for name in state if name.startswith("lm_head")]


def test_adapter_of_a_text_classifier_contains_both_layers() -> None:
    model = ours(**HEADS["mean"])
    config, state = to_eurobert(model)
    weights = {f"classifier.{part}": model.state_dict()[f"classifier.{part}"] for part in ("weight", "bias")}
    adapter = _export_adapter(Adapter(base="", layers={}, full_weights=weights), model, config["model_type"], state)
    names = {f"{layer}.{part}" for layer in ("classifier", "dense") for part in ("weight", "bias")}
    assert adapter.full_weights.keys() == names
    assert all(torch.equal(adapter.full_weights[name], state[name]) for name in names)


def test_wrong_order_of_rotary_pairs_changes_the_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The halves of a head must be rotated with each other: (i, i + K/2), not (2i, 2i + 1)."""
    model = ours(**HEADS["bare"])
    write = eurobert.export_state

    def interleave(*inputs: Any, **options: Any) -> Any:
        state = write(*inputs, **options)
        for name in [name for name in state if "q_proj" in name or "k_proj" in name]:
            state[name] = state[name].unflatten(0, (-1, 2, 3)).transpose(1, 2).flatten(0, 2)
        return state

    monkeypatch.setattr(eurobert, "export_state", interleave)
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModel)
    assert furthest(model, theirs) > 1e-2


def test_regression_scores_have_the_unit_of_the_labels(tmp_path: Path) -> None:
    head = Classifier(labels=("stars",), problem_type="regression", target_mean=3.0, target_std=2.0)
    model = ours(masked_head=None, classifier=head)
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForSequenceClassification)
    assert theirs.config.problem_type == "regression"
    tokens = torch.randint(23, (2, 9))
    with torch.no_grad():
        expected = 3 + 2 * model.classify(model.hidden(tokens))
        assert (theirs(tokens, attention_mask=torch.ones_like(tokens)).logits - expected).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stack": {"qk_norm": True}}, r"stack\.qk_norm is true, which EuroBERT of transformers does not support"),
        ({"stack": {"placement": "sandwich"}}, r"stack\.placement is sandwich, .*placement: pre"),
        ({"stack": {"gated": False}}, r"stack\.gated is false"),
        ({"stack": {"n_heads": 5, "n_kv_heads": 5}}, r"stack\.n_heads is 5, .*stack\.n_heads: 4"),
        ({"stack": {"position": Rotary(share=0.67)}}, r"stack\.position\.share is 0\.67"),
        ({"n_segments": 2}, r"n_segments is 2, .*n_segments: 0"),
        ({"masked_head": MaskedHead(transform=True)}, r"masked_head\.transform is true"),
        ({"pooler": True}, r"pooler is true"),
        ({"logit_softcap": 15.0}, r"logit_softcap is 15\.0"),
        ({"tie_embeddings": True, "scale_embedding": True}, r"scale_embedding is true"),
        (
            {"pooler": True, "classifier": Classifier(labels=LABELS, pooling="pooler")},
            r"pooler is true and classifier\.pooling is pooler, .*pooling: mean or first can",
        ),
        ({"classifier": Classifier(labels=tuple("abcdefg"))}, r"number of classifier\.labels is 7, .*labels: 6 can be"),
    ],
)
def test_unsupported_options_are_rejected_by_name(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "ours", ours(0, change.pop("stack", None), **change))
    with pytest.raises(UserError, match=message) as error:
        convert(folder, tmp_path / "theirs", "hf")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the exported classifier of texts, which tests must copy before they change it."""
    return export_model(tmp_path_factory.mktemp("classifier"), ours(**HEADS["mean"]))


@pytest.mark.parametrize("name", ["classifier.weight", "dense.weight", "dense.bias"])
def test_text_classifier_that_is_not_linear_is_rejected(name: str, classifier: Path, tmp_path: Path) -> None:
    state, config = tensors(classifier), json.loads((classifier / "config.json").read_text())
    from_eurobert(config, state)
    state[name] = state[name].index_fill(0, torch.tensor([1]), 0.5)
    with pytest.raises(UserError, match="text classifier of this EuroBERT has a hidden layer, which Tercet does not"):
        from_eurobert(config, state)


def test_untrained_text_classifier_of_others_is_rejected(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "intermediate_size": 29,
    }
    their_config = transformers.EuroBertConfig(vocab_size=23, pad_token_id=0, max_position_embeddings=19, **sizes)
    theirs = transformers.EuroBertForSequenceClassification(their_config)
    folder = write_folder(tmp_path / "theirs", theirs)
    with pytest.raises(UserError, match=r"theirs: the text classifier .*; open the model from which it was fine-tuned"):
        load_model(folder)
    edit_folder(folder, {"dense.weight": None, "dense.bias": None})
    assert read_spec(folder).family == "encoder-only"  # the same names as of a classifier over tokens


def test_unknown_pooling_is_rejected(classifier: Path) -> None:
    config = json.loads((classifier / "config.json").read_text()) | {"classifier_pooling": "max"}
    with pytest.raises(UserError, match="classifier_pooling is 'max'; supported: 'mean', 'late', 'bos'"):
        from_eurobert(config, tensors(classifier))


def test_late_pooling_is_the_mean(classifier: Path) -> None:
    config = json.loads((classifier / "config.json").read_text())
    assert config["classifier_pooling"] == "mean"
    late = from_eurobert(config | {"classifier_pooling": "late"}, tensors(classifier))
    theirs = transformers.EuroBertForSequenceClassification.from_pretrained(classifier, classifier_pooling="late")
    assert furthest(late, theirs.eval()) < 1e-5
