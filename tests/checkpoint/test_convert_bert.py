"""Encoders are exported as BERTs with all their heads, and `transformers` gives the same outputs."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import export_model, load_in_transformers, round_trip, save_folder, tensors
from folders_of_others import seeds, shaken, words
from weights_of_others import minilm

from tercet.checkpoint import convert, load_model
from tercet.checkpoint.foreign import bert
from tercet.checkpoint.foreign.bert import NAMES, to_bert
from tercet.config import UserError
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.nn import ALiBi, Learned, NoPosition, Rotary, Sinusoidal

STACK = StackSpec(d_model=12, n_layers=2, n_heads=3, d_ff=29, placement="post", norm_eps=1e-3)
MASKED = MaskedHead(transform=True, bias=True)
SPEC = EncoderOnlySpec(
    vocab_size=23, max_len=17, n_segments=2, embedding_norm=True, masked_head=MASKED, stack=STACK
)  # fmt: skip
LABELS = ("good", "bad", "neither")
HEADS: dict[str, dict[str, Any]] = {
    "masked": {},
    "pre-training": {"pooler": True, "next_sentence": True},
    "next sentence": {"masked_head": None, "pooler": True, "next_sentence": True},
    "bare": {"masked_head": None},
    "pooler": {"masked_head": None, "pooler": True},
    "texts": {"masked_head": None, "pooler": True, "classifier": Classifier(labels=LABELS, pooling="pooler")},
    "tokens": {"masked_head": None, "classifier": Classifier(labels=LABELS, over="tokens", dropout=0.3)},
}
RELU = HEADS["texts"] | {"pooler_activation": "relu"}
CLASSES = {
    "masked": transformers.AutoModelForMaskedLM,
    "pre-training": transformers.AutoModelForPreTraining,
    "next sentence": transformers.AutoModelForNextSentencePrediction,
    "pooler": transformers.AutoModel,
    "texts": transformers.AutoModelForSequenceClassification,
    "tokens": transformers.AutoModelForTokenClassification,
}


def ours(seed: int = 0, stack: dict[str, Any] | None = None, **spec: Any) -> EncoderOnly:
    return shaken(EncoderOnly(replace(SPEC, stack=replace(STACK, **(stack or {})), **spec), seed=seed), seed)


def random_model(seed: int) -> tuple[str, EncoderOnly]:
    draw = random.Random(seed)
    heads, bias = draw.choice([1, 2, 3]), draw.random() < 0.7
    kind = list(CLASSES)[seed % len(CLASSES)]
    spec = HEADS[kind]
    masked = spec.get("masked_head", MASKED) is not None
    tied = draw.random() < 0.6
    stack: dict[str, Any] = {
        "n_heads": heads, "d_model": heads * draw.choice([4, 6]), "n_layers": draw.choice([1, 2, 3]),
        "d_ff": draw.choice([None, 31]), "bias": bias, "norm_bias": bias,
        "position": draw.choice([Learned(), Learned(), Sinusoidal(), NoPosition()]),
        "activation": draw.choice(["gelu", "gelu_tanh", "relu"]), "norm_eps": draw.choice([1e-12, 1e-3]),
    }  # fmt: skip
    return kind, ours(
        seed, stack, **spec | ({"masked_head": MaskedHead(transform=True, bias=bias)} if masked else {}),
        vocab_size=draw.choice([17, 31]), pad_vocab_to=draw.choice([1, 64]), tie_embeddings=tied,
        scale_embedding=not (masked and tied) and draw.random() < 0.5, n_segments=draw.choice([0, 1, 3]),
    )  # fmt: skip


@torch.no_grad()
def furthest(model: EncoderOnly, theirs: Any) -> float:
    """Return the largest difference in hidden states at real tokens and in every head."""
    spec, draw = model.spec, torch.Generator().manual_seed(1)
    tokens = torch.randint(spec.vocab_size, (3, 11), generator=draw)
    segments = torch.randint(max(1, spec.n_segments), (3, 11), generator=draw) if spec.n_segments else None
    real = torch.arange(11) < torch.tensor([[11], [1], [7]])
    body = getattr(theirs, "bert", theirs)
    inputs = {"attention_mask": real.long(), "token_type_ids": segments}
    expected, answer = body(tokens, **inputs), theirs(tokens, **inputs)
    hidden = model.hidden(tokens, token_mask=real, segments=segments)
    pairs = [(hidden[real], expected.last_hidden_state[real])]
    if spec.pooler and expected.pooler_output is not None:
        pairs.append((model.pooled(hidden, real), expected.pooler_output))
    if "prediction_logits" in answer:
        pairs.append((model.logits(hidden)[real], answer.prediction_logits[real]))
        pairs.append((model.next_sentence_logits(hidden, real), answer.seq_relationship_logits))
    elif "logits" in answer and spec.masked_head is not None:
        pairs.append((model.logits(hidden)[real], answer.logits[real]))
    elif "logits" in answer and spec.classifier is not None:
        classes = model.classify(hidden, real)
        pairs.append((classes, answer.logits) if classes.ndim == 2 else (classes[real], answer.logits[real]))
    elif "logits" in answer:
        pairs.append((model.next_sentence_logits(hidden, real), answer.logits))
    assert all(a.shape == b.shape for a, b in pairs)
    assert len(pairs) > 1 or theirs is body
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=3))
def test_every_head_has_the_same_outputs(seed: int, tmp_path: Path) -> None:
    kind, model = random_model(seed)
    theirs = load_in_transformers(export_model(tmp_path, model), CLASSES[kind])
    assert furthest(model, theirs) < 1e-4


@pytest.mark.parametrize("kind", list(HEADS))
def test_class_named_in_the_config_has_the_heads(kind: str, tmp_path: Path) -> None:
    config, state = to_bert(ours(**HEADS[kind]))
    theirs = getattr(transformers, config["architectures"][0])
    model = theirs(transformers.BertConfig(**config), **({"add_pooling_layer": False} if kind == "bare" else {}))
    keys = model.load_state_dict(state, strict=False)
    assert keys.unexpected_keys == []
    assert set(keys.missing_keys) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}  # tied
    assert furthest(ours(**HEADS[kind]), model.eval()) < 1e-5


def test_labels_are_exported(tmp_path: Path) -> None:
    theirs = load_in_transformers(export_model(tmp_path, ours(**HEADS["tokens"])), CLASSES["tokens"])
    assert [theirs.config.id2label[number] for number in range(3)] == list(LABELS)
    assert theirs.config.classifier_dropout == 0.3
    spec = load_model(tmp_path / "theirs").model.spec
    assert isinstance(spec, EncoderOnlySpec)
    assert spec.classifier == HEADS["tokens"]["classifier"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
def test_round_trip_keeps_every_tensor(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kind = [
        transformers.BertForMaskedLM, transformers.BertForPreTraining, transformers.BertModel,
        transformers.BertForSequenceClassification, transformers.BertForTokenClassification,
    ][seed % 5]  # fmt: skip
    tied = draw.random() < 0.6
    config = transformers.BertConfig(
        vocab_size=draw.choice([17, 31]), hidden_size=12, num_hidden_layers=draw.choice([1, 2]), num_attention_heads=3,
        intermediate_size=19, max_position_embeddings=13, type_vocab_size=draw.choice([1, 2]), num_labels=3,
        hidden_act=draw.choice(["gelu", "relu"]), tie_word_embeddings=tied, hidden_dropout_prob=0.2,
    )  # fmt: skip
    folder = tmp_path / "theirs"
    shaken(kind(config), seed).save_pretrained(folder)
    words(config.vocab_size, ("[PAD]", "[CLS]", "[SEP]")).save(str(folder / "tokenizer.json"))
    # Only the decoder's bias of two is used, unless both are tied.
    before, after = round_trip(tmp_path, folder, unread=() if tied else ("cls.predictions.bias",))
    assert before["architectures"] == after["architectures"]
    common_keys = set(before) & set(after) - {"bos_token_id", "eos_token_id", "pad_token_id", "problem_type"}
    assert {key for key in common_keys if after[key] != before[key]} <= {"classifier_dropout"}


def test_tied_tensor_is_stored_once(tmp_path: Path) -> None:
    model = ours(**HEADS["pre-training"])
    stored = tensors(export_model(tmp_path, model))
    assert not [name for name in stored if "decoder" in name]
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("stack", "spec", "message"),
    [
        ({"position": Rotary()}, {}, r"stack\.position is rotary, which BERT .* learned or sinusoidal or none"),
        ({"position": ALiBi()}, {}, r"stack\.position is alibi"),
        ({"placement": "pre"}, {}, r"stack\.placement is pre, .* a model with stack\.placement: post can be"),
        ({"norm": "rms", "norm_bias": False}, {}, r"stack\.norm is rms"),
        ({"gated": True}, {}, r"stack\.gated is true"),
        ({"qk_norm": True}, {}, r"stack\.qk_norm is true"),
        ({"n_kv_heads": 1}, {}, r"stack\.n_kv_heads is 1"),
        ({"d_head": 6}, {}, r"stack\.d_head is 6"),
        ({}, {"embedding_norm": False}, r"embedding_norm is false, .* a model with embedding_norm: true can"),
        ({}, {"logit_softcap": 15.0}, r"logit_softcap is 15\.0"),
        ({}, {"scale_embedding": True}, r"scale_embedding is true"),
        ({}, {"masked_head": MaskedHead()}, r"masked_head\.transform is false, .* masked_head\.transform: true"),
        (
            {},
            {"masked_head": None, "classifier": Classifier(labels=LABELS)},
            r"classifier\.pooling is mean, .* a model with classifier\.pooling: pooler can be converted",
        ),
        ({}, HEADS["tokens"] | {"pooler": True}, r"pooler is true, .* a model with pooler: false can be converted"),
        ({}, RELU, r"stack\.norm_eps is 0\.001 and n_segments is 2, which .*: 1e-12 and n_segments: 0 can"),
        ({"norm_eps": 1e-12}, RELU, r"n_segments is 2, which DistilBERT .* n_segments: 0 can"),
        (
            {"norm_eps": 1e-12},
            HEADS["pooler"] | {"pooler_activation": "relu", "n_segments": 0},
            r"pooler is true, which DistilBERT .* pooler: false can",
        ),
    ],
)
def test_unsupported_options_are_rejected_by_name(
    stack: dict[str, Any], spec: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = save_folder(tmp_path / "ours", ours(0, stack, **spec))
    with pytest.raises(UserError, match=message) as error:
        convert(folder, tmp_path / "theirs", "hf")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.mark.parametrize("suffix", ["self_attention.query", "self_residual.after", "transform.norm"])
def test_swapped_weights_are_detected(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other_name = {
        "self_attention.query": "stack.blocks.N.self_attention.key",
        "self_residual.after": "stack.blocks.N.feedforward_residual.after",
        "transform.norm": "stack.embedding_norm",
    }[suffix]
    name = next(name for name in NAMES if name.endswith(suffix))
    monkeypatch.setattr(bert, "NAMES", NAMES | {name: NAMES[other_name], other_name: NAMES[name]})
    model = ours()
    config, state = to_bert(model)
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(**config)).eval()
    theirs.load_state_dict(state, strict=False)
    assert furthest(model, theirs) > 1e-2


@pytest.mark.exhaustive
def test_round_trip_keeps_real_weights(tmp_path: Path) -> None:
    """MiniLM: every tensor is bitwise identical, and so are the hidden states of sentences."""
    original = minilm()
    before, after = round_trip(tmp_path, original, unread=("embeddings.position_ids",))
    assert before["architectures"] == after["architectures"] == ["BertModel"]
    assert all(after[key] == before[key] for key in ("hidden_size", "layer_norm_eps", "hidden_act", "vocab_size"))
    sentences = ["The weather is lovely today.", "It's so sunny outside!", "Ünïcödé and 東京: unaffable."]
    outputs = []
    for folder in (original, tmp_path / "out"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModel.from_pretrained(folder).eval()
        batch = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
        with torch.no_grad():
            outputs.append((batch["input_ids"], model(**batch).last_hidden_state, model(**batch).pooler_output))
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert all((a - b).abs().max() < 1e-5 for a, b in zip(outputs[0][1:], outputs[1][1:], strict=True))
    readme = (tmp_path / "out" / "README.md").read_text()
    assert readme.startswith((original / "README.md").read_text().rstrip())
    assert "BertModel.from_pretrained" in readme
    card = json.loads((tmp_path / "in" / "card.json").read_text())
    assert card["name"] == original.name
