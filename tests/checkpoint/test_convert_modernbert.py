"""Encoders of ModernBERT's form are exported, and `transformers` gives the same outputs."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import export_model, load_in_transformers, round_trip, save_folder, tensors
from folders_of_others import shaken

from sampled_cases import sampled
from tercet.checkpoint import convert, load_model, read_spec
from tercet.checkpoint.foreign.modernbert import from_modernbert, modernbert_spec, to_modernbert
from tercet.config import UserError
from tercet.models import Biases, Classifier, Dropout, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.models.presets import PRESETS
from tercet.models.specs import BranchDropout
from tercet.nn import Rotary
from tercet.nn.specs import LinearScaling, Window

STACK = StackSpec(
    d_model=12, n_layers=4, n_heads=3, d_ff=29, position=Rotary(base=160_000.0, local_base=37.0), norm_eps=1e-3,
    window=Window(size=4, global_layers=(0, 3)), norm_bias=False, bias=False, gated=True, first_norm=False,
)  # fmt: skip
SPEC = EncoderOnlySpec(
    vocab_size=23, max_len=17, embedding_norm=True, masked_head=MaskedHead(transform=True), stack=STACK
)
LABELS = ("good", "bad", "neither")
HEADS: dict[str, dict[str, Any]] = {
    "MaskedLM": {},
    "bare": {"masked_head": None},
    "mean": {"masked_head": None, "classifier": Classifier(labels=LABELS, transform=True)},
    "first": {"masked_head": None, "classifier": Classifier(labels=LABELS, pooling="first", transform=True)},
    "tokens": {"masked_head": None, "classifier": Classifier(labels=LABELS, over="tokens", transform=True)},
    "linear mean": {"masked_head": None, "classifier": Classifier(labels=LABELS)},
    "linear first": {"masked_head": None, "classifier": Classifier(labels=LABELS, pooling="first")},
    "linear tokens": {"masked_head": None, "classifier": Classifier(labels=LABELS, over="tokens")},
}
CLASSES = {
    "MaskedLM": transformers.AutoModelForMaskedLM,
    "bare": transformers.AutoModel,
    "mean": transformers.AutoModelForSequenceClassification,
    "first": transformers.AutoModelForSequenceClassification,
    "tokens": transformers.AutoModelForTokenClassification,
    "linear mean": transformers.AutoModelForSequenceClassification,
    "linear first": transformers.AutoModelForSequenceClassification,
    "linear tokens": transformers.AutoModelForTokenClassification,
}


def ours(seed: int = 0, stack: dict[str, Any] | None = None, **spec: Any) -> EncoderOnly:
    return shaken(EncoderOnly(replace(SPEC, stack=replace(STACK, **(stack or {})), **spec), seed=seed), seed)


def random_model(seed: int) -> tuple[str, EncoderOnly]:
    draw = random.Random(seed)
    kind, heads, n_layers = list(HEADS)[seed % len(HEADS)], draw.choice([1, 2, 3]), draw.choice([1, 2, 4])
    layers = tuple(layer for layer in range(n_layers) if draw.random() < 0.5)
    window = draw.choice([None, Window(size=draw.choice([2, 3, 5]), global_layers=layers)])
    is_mixed = window is not None and 0 < len(layers) < n_layers
    stack: dict[str, Any] = {
        "n_heads": heads, "d_model": heads * draw.choice([6, 8]), "n_layers": n_layers, "window": window,
        "position": Rotary(base=37.0, local_base=draw.choice([None, 5.0]) if is_mixed else None),
        "d_ff": draw.choice([None, 31]), "activation": draw.choice(["silu", "gelu", "relu"]),
        "bias": draw.choice([False, True, Biases(qkv=True, out=False, feedforward=False)]),
        "norm_bias": draw.random() < 0.4, "norm_eps": draw.choice([1e-6, 1e-3]),
    }  # fmt: skip
    masked = {"masked_head": MaskedHead(transform=True, bias=draw.random() < 0.5)} if kind == "MaskedLM" else {}
    if masked and draw.random() < 0.5:  # without a dense layer before the unembedding
        stack |= {"norm_eps": 1e-6, "norm_bias": False, "bias": Biases(qkv=True, out=True, feedforward=False)}
        masked = {"masked_head": MaskedHead(bias=draw.random() < 0.5)}
    return kind, ours(
        seed, stack, **HEADS[kind] | masked,
        vocab_size=draw.choice([17, 31]), pad_vocab_to=draw.choice([1, 64]), tie_embeddings=draw.random() < 0.5,
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
@pytest.mark.parametrize("seed", sampled(range(24), keep=(0, 1, 4, 5, 6, 7)))  # the kinds of heads in turn
def test_every_modernbert_head_has_the_same_outputs(seed: int, tmp_path: Path) -> None:
    kind, model = random_model(seed)
    folder = export_model(tmp_path, model)
    theirs = load_in_transformers(folder, CLASSES[kind])
    assert type(theirs).__name__.startswith("ModernBert")
    assert furthest(model, theirs) < 1e-5
    imported = load_model(folder).model
    assert isinstance(imported, EncoderOnly)
    assert imported.spec == read_spec(folder)
    assert furthest(imported, theirs) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(HEADS, keep=(0, 5)))
def test_conversion_back_is_bitwise_identical_with_each_head(kind: str, tmp_path: Path) -> None:
    folder = export_model(tmp_path, ours(**HEADS[kind]))
    before, after = round_trip(tmp_path / "again", folder)
    assert before == after
    assert read_spec(folder).stack.window == STACK.window


@pytest.mark.parametrize("bias", sampled([True, False]))
def test_head_without_a_dense_layer_gets_layers_that_change_nothing(bias: bool, tmp_path: Path) -> None:
    model = ours(stack={"norm_eps": 1e-6}, masked_head=MaskedHead(bias=bias))
    folder = export_model(tmp_path, model)
    theirs = load_in_transformers(folder, CLASSES["MaskedLM"])
    assert theirs.config.classifier_activation == "linear"
    assert furthest(model, theirs) < 1e-5
    assert read_spec(folder).masked_head == MaskedHead(bias=bias)
    assert furthest(load_model(folder).model, theirs) < 1e-5
    before, after = round_trip(tmp_path / "again", folder)
    assert before == after


def test_preset_modern_encoder_is_a_modernbert() -> None:
    spec = replace(PRESETS["modern-encoder"], vocab_size=23)
    config, state = to_modernbert(EncoderOnly(spec, seed=0))
    again = modernbert_spec(config, state)
    assert (again.stack.norm_eps, again.stack.d_ff, again.stack.window) == (1e-6, 1024, None)
    assert again.masked_head == spec.masked_head


def test_final_norm_with_a_weight_of_zero_is_rejected() -> None:
    model = ours(stack={"norm_eps": 1e-6}, masked_head=MaskedHead())
    model.stack.final_norm.weight.data[3] = 0.0
    with pytest.raises(UserError, match=r"stack\.final_norm has a weight of 0, which the head of ModernBERT cannot"):
        to_modernbert(model)


@pytest.mark.parametrize("name", ["head.dense.weight", "head.norm.weight"])
def test_linear_layers_that_change_hidden_states_are_rejected(name: str) -> None:
    config, state = to_modernbert(ours(stack={"norm_eps": 1e-6}, masked_head=MaskedHead()))
    with pytest.raises(UserError, match=r"classifier_activation is 'linear', .*layers of the head change nothing"):
        from_modernbert(config, state | {name: state[name] * 1.01})


@pytest.mark.parametrize("name", ["head.dense.weight", "head.dense.bias", "head.norm.weight", "classifier.weight"])
def test_classifier_with_other_linear_layers_is_rejected(name: str) -> None:
    config, state = to_modernbert(ours(**HEADS["linear mean"]))
    changed = state[name].clone()
    changed.view(-1)[-1] += 0.5
    message = r"classifier_activation is 'linear', .*only if the layers before the scores change nothing"
    with pytest.raises(UserError, match=message):
        from_modernbert(config, state | {name: changed})
    with pytest.raises(UserError, match=message):
        from_modernbert(config, {key: tensor for key, tensor in state.items() if key != "head.dense.bias"})


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-6, 1.0, 1e6])
@torch.no_grad()
def test_linear_classifier_is_read_back_at_every_size_of_its_weights(size: float) -> None:
    model = ours(**HEADS["linear mean"])
    model.classifier.weight.mul_(size)
    config, state = to_modernbert(model)
    assert state["head.dense.weight"].abs().max() < 1.0
    assert torch.equal(from_modernbert(config, state).classifier.weight, model.classifier.weight)


def test_only_the_classifier_of_two_heads_is_written() -> None:
    config, state = to_modernbert(ours(classifier=Classifier(labels=LABELS, over="tokens", transform=True)))
    assert config["architectures"] == ["ModernBertForTokenClassification"]
    assert "decoder.weight" not in state
    assert {"head.dense.weight", "head.norm.weight", "classifier.weight"} <= state.keys()


def test_dropout_rates_are_kept() -> None:
    rates = Dropout(
        embedding=0.1, attention=0.2, activation=0.3, residual=BranchDropout(attention=0.2, feedforward=0.0)
    )
    config, state = to_modernbert(ours(stack={"dropout": rates}))
    assert modernbert_spec(config, state).stack.dropout == rates


def test_keys_of_older_files_mean_the_same() -> None:
    config, state = to_modernbert(ours())
    spec = modernbert_spec(config, state)
    assert spec.stack.position == STACK.position
    old = {key: value for key, value in config.items() if key not in ("rope_parameters", "layer_types")}
    assert modernbert_spec(old | {"global_attn_every_n_layers": 3}, state) == spec
    assert modernbert_spec(config | {"local_attention": 9, "sliding_window": 2}, state) == spec
    defaults = modernbert_spec({**old, "global_rope_theta": None, "local_rope_theta": None}, state)
    assert defaults.stack.position == Rotary(base=160_000.0, local_base=10_000.0)
    assert defaults.stack.window == STACK.window


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stack": {"first_norm": True}}, r"stack\.first_norm is true, which ModernBERT of .*first_norm: false can"),
        ({"stack": {"qk_norm": True}}, r"stack\.qk_norm is true, which ModernBERT of transformers does not support"),
        ({"stack": {"placement": "sandwich"}}, r"stack\.placement is sandwich, .*placement: pre"),
        ({"stack": {"norm": "layer_std"}}, r"stack\.norm is layer_std, .*norm: layer can be converted"),
        ({"stack": {"gated": False}}, r"stack\.gated is false"),
        ({"stack": {"n_kv_heads": 1}}, r"stack\.n_kv_heads is 1, .*n_kv_heads: 3"),
        ({"stack": {"d_head": 6}}, r"stack\.d_head is 6, .*d_head: 4"),
        ({"stack": {"position": Rotary(share=0.5)}}, r"stack\.position\.share is 0\.5"),
        ({"stack": {"position": Rotary(scaling=LinearScaling(factor=2.0))}}, r"position\.scaling\.kind is linear"),
        ({"embedding_norm": False}, r"embedding_norm is false"),
        ({"n_segments": 2}, r"n_segments is 2, .*n_segments: 0"),
        ({"masked_head": MaskedHead()}, r"masked_head\.transform is false"),
        ({"pooler": True}, r"pooler is true"),
        (
            {"classifier": Classifier(labels=tuple("abcdef"))},
            r"number of classifier\.labels is 6, .*number of classifier\.labels: 5",
        ),
        ({"logit_softcap": 15.0}, r"logit_softcap is 15\.0"),
        ({"scale_embedding": True}, r"scale_embedding is true"),
    ],
)
def test_options_without_modernbert_equivalent_are_rejected(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = save_folder(tmp_path / "ours", ours(0, change.pop("stack", None), **change))
    with pytest.raises(UserError, match=message) as error:
        convert(folder, tmp_path / "theirs", "hf")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.mark.parametrize("placement", ["post", "branch"])
def test_first_norm_requires_a_norm_before_attention(placement: str) -> None:
    with pytest.raises(ValueError, match=f"placement={placement} has no norm before self-attention; set first_norm"):
        replace(STACK, placement=placement)


QUESTIONS = ["ModernBertForQuestionAnswering"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["local"] * 4}, "layer_types must contain 'sliding_attention' or"),
        ({"layer_types": None, "global_attn_every_n_layers": 0}, "every_n_layers is 0; it must be at least 1"),
        ({"classifier_activation": "silu"}, "classifier_activation is 'silu', but Tercet supports only the activation"),
        ({"classifier_bias": True}, "classifier_bias is True, but Tercet supports only the value of mlp_bias"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max'; supported: 'mean', 'cls'"),
        ({"architectures": QUESTIONS}, r"architectures is \['ModernBertForQuestionAnswering'\]; Tercet supports these"),
        (
            {"architectures": None},
            r"architectures is None; .*: ModernBertForSequenceClassification, Modern",
        ),
        ({"rope_parameters": 3}, "config.json has 3 as rope_parameters"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
            "the rotation is scaled by 'linear', which Tercet does not support for ModernBERT",
        ),
        ({"num_attention_heads": 5}, "config of this ModernBERT is inconsistent: d_model=12"),
        ({"norm_bias": True}, r"ModernBERT: .*norm\.bias"),
    ],
)
def test_wrong_modernbert_config_is_rejected_in_one_line(change: dict[str, Any], message: str) -> None:
    config, state = to_modernbert(ours(**HEADS["mean"]))
    from_modernbert(config, state)
    with pytest.raises(UserError, match=message) as error:
        from_modernbert(config | change, state)
    assert "\n" not in str(error.value)


@torch.no_grad()
def test_classifier_and_masked_head_share_the_transform() -> None:
    model = ours(classifier=Classifier(labels=LABELS, over="tokens", transform=True))
    hidden = torch.randn(2, 5, 12)
    expected = model.transform.norm(torch.nn.functional.gelu(model.transform.dense(hidden)))
    torch.testing.assert_close(model.classify(hidden), model.classifier(expected))
    torch.testing.assert_close(model.mlm_transform(hidden), expected)
    assert sum("dense" in name for name in model.state_dict()) == 1


def test_regression_scores_have_the_unit_of_the_labels_after_a_transform(tmp_path: Path) -> None:
    head = Classifier(labels=("stars",), problem_type="regression", target_mean=3.0, target_std=2.0, transform=True)
    model = ours(masked_head=None, classifier=head)
    folder = export_model(tmp_path, model)
    assert json.loads((folder / "config.json").read_text())["problem_type"] == "regression"
    assert tensors(folder)["classifier.weight"].shape == (1, 12)
    imported, tokens = load_model(folder).model, torch.randint(23, (2, 9))
    assert isinstance(imported, EncoderOnly)
    with torch.no_grad():
        expected = 3 + 2 * model.classify(model.hidden(tokens))
        assert (imported.classify(imported.hidden(tokens)) - expected).abs().max() < 1e-5
