"""A BERT written by `transformers` opens with the same outputs in each layer and from each head.

Masked accuracy detects only two of eight planted faults, and three of them improve the loss. So the tests compare the
numbers themselves, and each fault planted below must be detected.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor
from weights_of_others import minilm, rxnfp

from tercet.checkpoint import Card, from_bert, load_model, save_model
from tercet.config import UserError
from tercet.models import EncoderOnly
from tercet.nn import pool
from tercet.tokens import Tokenizer

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
CONFIG = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 41,
    "max_position_embeddings": 17,
    "type_vocab_size": 3,
    "layer_norm_eps": 1e-3,
    "num_labels": 5,
}
CLASSES = (
    transformers.BertModel,
    transformers.BertForPreTraining,
    transformers.BertForMaskedLM,
    transformers.BertForSequenceClassification,
    transformers.BertForTokenClassification,
)


def theirs(kind: Any = transformers.BertForPreTraining, **config: Any) -> Any:
    """Return a small `transformers` BERT with weights large enough for every part to matter."""
    model = kind(transformers.BertConfig(**CONFIG | config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


def ours(model: Any, **changes: Any) -> EncoderOnly:
    return from_bert(json.loads(model.config.to_json_string(use_diff=False)) | changes, model.state_dict())


@torch.no_grad()
def layers(model: EncoderOnly, tokens: Tensor, **inputs: Any) -> list[Tensor]:
    """Return the input of the first block and the output of each block."""
    outputs: list[Tensor] = []
    hooks = [model.stack.embedding_norm.register_forward_hook(lambda _m, _i, output: outputs.append(output))]
    hooks += [
        block.register_forward_hook(lambda _m, _i, output: outputs.append(output)) for block in model.stack.blocks
    ]
    model.hidden(tokens, **inputs)
    for hook in hooks:
        hook.remove()
    return outputs


@torch.no_grad()
def furthest(model: EncoderOnly, reference: Any, tokens: Tensor, token_mask: Tensor, segments: Tensor) -> float:
    """Return the largest difference in hidden states at real tokens of all layers and in every head."""
    body = getattr(reference, "bert", reference)
    inputs = {"attention_mask": token_mask.long(), "token_type_ids": segments}
    expected = body(tokens, **inputs, output_hidden_states=True)
    mine = layers(model, tokens, token_mask=token_mask, segments=segments)
    pairs = [(a[token_mask], b[token_mask]) for a, b in zip(mine, expected.hidden_states, strict=True)]
    hidden = model.hidden(tokens, token_mask=token_mask, segments=segments)
    if model.spec.pooler:
        pairs.append((model.pooled(hidden, token_mask), expected.pooler_output))
    if reference is not body:
        answer = reference(tokens, **inputs)
        if "prediction_logits" in answer:
            pairs.append((model.logits(hidden)[token_mask], answer.prediction_logits[token_mask]))
            pairs.append((model.next_sentence_logits(hidden, token_mask), answer.seq_relationship_logits))
        elif model.spec.masked_head is not None:
            pairs.append((model.logits(hidden)[token_mask], answer.logits[token_mask]))
        else:
            classes = model.classify(hidden, token_mask)
            pairs.append(
                (classes, answer.logits) if classes.ndim == 2 else (classes[token_mask], answer.logits[token_mask])
            )
    return max((a - b).abs().max().item() for a, b in pairs)


def batch(vocab_size: int = 31, types: int = 3, length: int = 11) -> tuple[Tensor, Tensor, Tensor]:
    tokens, segments = torch.randint(vocab_size, (3, length)), torch.randint(types, (3, length))
    return tokens, torch.arange(length) < torch.tensor([[length], [1], [length // 2]]), segments


class TestSmallOnes:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "act"),
        [
            pytest.param(
                kind, act, marks=() if act == "gelu" or kind is transformers.BertModel else pytest.mark.exhaustive
            )
            for kind in CLASSES
            for act in ("gelu", "gelu_new", "relu", "silu")
        ],
    )
    def test_each_class_has_the_same_outputs(self, kind: Any, act: str) -> None:
        model = theirs(kind, hidden_act=act)
        assert furthest(ours(model), model, *batch()) < 1e-5

    def test_untied_head_is_read(self) -> None:
        model = theirs(tie_word_embeddings=False)
        mine = ours(model)
        assert mine.unembedding.weight is not mine.embedding.weight
        assert furthest(mine, model, *batch()) < 1e-5

    def test_dropout_and_labels_come_from_the_config(self) -> None:
        names = {"id2label": {0: "b", 1: "a", 2: "c"}, "label2id": {"b": 0, "a": 1, "c": 2}}
        dropouts = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "classifier_dropout": 0.4}
        model = theirs(transformers.BertForSequenceClassification, **(names | dropouts | {"num_labels": 3}))
        spec = ours(model).spec
        assert spec.classifier is not None
        assert (spec.classifier.labels, spec.classifier.pooling) == (("b", "a", "c"), "pooler")
        assert (spec.classifier.dropout, spec.stack.dropout.attention, spec.stack.dropout.residual) == (0.4, 0.3, 0.2)

    @pytest.mark.parametrize("change", ["no prefix", "old norms", "no decoder", "twins", "position ids", "half"])
    def test_older_file_formats_change_nothing(self, change: str) -> None:
        model = theirs()
        state = dict(model.state_dict())
        expected, tolerance = ours(model).state_dict(), 0.0
        match change:
            case "no prefix":
                state = {name.removeprefix("bert."): tensor for name, tensor in state.items()}
            case "old norms":
                for new, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
                    state = {name.replace(new, old): tensor for name, tensor in state.items()}
                assert any(name.endswith("gamma") for name in state)
            case "no decoder":
                state = {name: tensor for name, tensor in state.items() if "predictions.decoder" not in name}
            case "twins":
                state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"].clone()
                state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"].clone()
            case "position ids":
                state["bert.embeddings.position_ids"] = torch.arange(17)[None]
            case "half":
                state, tolerance = {name: tensor.half() for name, tensor in state.items()}, 1e-2
        found = from_bert(model.config.to_dict(), state).state_dict()
        assert set(found) == set(expected)
        for name, tensor in found.items():
            assert (tensor - expected[name]).abs().max() <= tolerance, name

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"bert.encoder.layer.9.output.dense.weight": torch.ones(1)},
                r"encoder\.layer\.9\.output\.dense\.weight unk",
            ),
            ({"lstm.weight": torch.ones(1)}, r"lstm\.weight unknown"),
            ({"bert.pooler.dense.bias": None}, r"pooler\.dense\.bias missing"),
            ({"cls.predictions.bias": None, "cls.predictions.decoder.bias": None}, r"cls\.predictions\.bias missing"),
            ({"cls.predictions.decoder.bias": torch.ones(31)}, r"decoder\.bias is not the same as cls\.predictions\.b"),
            ({"cls.predictions.decoder.weight": torch.ones(31, 24)}, r"decoder\.weight is not the same as embeddings"),
            ({"bert.pooler.dense.weight": torch.ones(24, 23)}, r"has shape 24x23, but the config requires 24x24"),
            ({"pooler.dense.weight": torch.ones(24, 24)}, r"pooler\.dense\.weight occurs twice in the weights"),
        ],
    )
    def test_wrong_names_and_shapes_are_reported(self, change: dict[str, Tensor | None], message: str) -> None:
        model = theirs()
        state = {name: t for name, t in (model.state_dict() | change).items() if t is not None}
        with pytest.raises(UserError, match=message) as error:
            from_bert(model.config.to_dict(), state)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("key", ["hidden_act", "layer_norm_eps", "type_vocab_size", "hidden_size"])
    def test_incomplete_config_is_rejected(self, key: str) -> None:
        model = theirs()
        config = model.config.to_dict()
        config.pop(key)
        with pytest.raises(UserError, match=f"config.json has no {key}; put back the"):
            from_bert(config, model.state_dict())

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"hidden_act": "gelu_nwe"},
                r"hidden_act is 'gelu_nwe', which Tercet does not support; did you mean 'gelu_new'",
            ),
            ({"hidden_act": 3}, "config.json has 3 as hidden_act"),
            ({"layer_norm_eps": "1e-12"}, "config.json has '1e-12' as layer_norm_eps"),
            ({"position_embedding_type": "relative_key"}, "'relative_key'; Tercet supports BERT only with 'absolute'"),
            ({"model_type": "roberta"}, "model_type is 'roberta'; expected 'bert'"),
            ({"is_decoder": True}, "it is a decoder"),
            ({"num_attention_heads": 5}, "d_model=24 must be divisible by n_heads=5"),
            ({"hidden_dropout_prob": 1.5}, "is inconsistent: embedding=1.5 must be at least 0"),
        ],
    )
    def test_unsupported_config_is_rejected(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError, match=message):
            ours(theirs(), **change)

    def test_classifier_needs_its_labels(self) -> None:
        model = theirs(transformers.BertForSequenceClassification)
        with pytest.raises(UserError, match="the classifier has 5 labels, but id2label has 2 names; name all"):
            ours(model, id2label={"0": "no", "1": "yes"})
        stale = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "num_labels": 5}
        classifier = ours(model, **stale).spec.classifier
        assert classifier is not None
        assert classifier.labels == tuple(f"LABEL_{n}" for n in range(5))

    def test_loading_does_not_change_global_random_state(self) -> None:
        model = theirs()
        before = torch.get_rng_state()
        ours(model)
        assert torch.equal(torch.get_rng_state(), before)


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Save a BERT with its tokenizer by `transformers`, and return the folder."""
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    tokenizer = transformers.BertTokenizerFast(vocab={name: n for n, name in enumerate(VOCABULARY)})
    theirs(initializer_range=0.3).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


class TestFolders:
    @pytest.mark.slow
    def test_folder_opens_and_is_saved_as_a_tercet_folder(self, folder: Path, tmp_path: Path) -> None:
        trained_model = load_model(folder)
        assert isinstance(trained_model.model, EncoderOnly)
        reference = transformers.BertForPreTraining.from_pretrained(folder).eval()
        assert furthest(trained_model.model, reference, *batch()) < 1e-5
        save_model(tmp_path / "ours", trained_model.model, trained_model.tokenizer, Card())
        assert not (tmp_path / "ours" / "generation_config.json").exists()  # encoders have no generation settings
        reloaded = load_model(tmp_path / "ours").model
        assert reloaded.spec == trained_model.model.spec
        for name, tensor in trained_model.model.state_dict().items():
            assert torch.equal(reloaded.state_dict()[name], tensor), name

    @pytest.mark.slow
    def test_pickled_weights_of_an_old_folder_run_no_code(self, folder: Path) -> None:
        state = safetensors.torch.load_file(folder / "model.safetensors")
        expected = load_model(folder).model.state_dict()
        (folder / "model.safetensors").unlink()
        torch.save(state, folder / "pytorch_model.bin")
        for name, tensor in load_model(folder).model.state_dict().items():
            assert torch.equal(tensor, expected[name]), name
        torch.save({"a": Path}, folder / "pytorch_model.bin")
        with pytest.raises(UserError, match=r"pytorch_model\.bin is not a complete file of weights") as error:
            load_model(folder)
        assert "\n" not in str(error.value)
        torch.save({"epoch": 3}, folder / "pytorch_model.bin")
        with pytest.raises(UserError, match="contains objects other than named tensors"):
            load_model(folder)
        (folder / "pytorch_model.bin").write_bytes(b"")
        with pytest.raises(UserError, match="is not a complete file of weights"):
            load_model(folder)

    def test_broken_folder_is_reported(self, folder: Path) -> None:
        whole = json.loads((folder / "config.json").read_text())
        cases = [
            (whole | {"vocab_size": 30}, "word_embeddings.weight has shape 31x24, but the config requires 30x24"),
            (whole | {"model_type": "mamba"}, "a model of type 'mamba'; Tercet opens its own folders and those of"),
            ({"hidden_size": 3}, "no family and no model_type"),
        ]
        for config, message in cases:
            (folder / "config.json").write_text(json.dumps(config))
            with pytest.raises(UserError, match=message):
                load_model(folder)
        (folder / "config.json").write_text(json.dumps(whole))
        (folder / "tokenizer.json").unlink()
        with pytest.raises(UserError, match=r"tokenizer\.json missing"):
            load_model(folder)


@cache
def _minilm() -> tuple[EncoderOnly, Tokenizer, Any]:
    trained_model = load_model(minilm())
    assert isinstance(trained_model.model, EncoderOnly)
    reference = transformers.BertModel.from_pretrained(minilm(), attn_implementation="eager").eval()
    return trained_model.model, trained_model.tokenizer, reference


def sentences(tokenizer: Tokenizer) -> tuple[Tensor, Tensor, Tensor]:
    assert tokenizer.bos_id is not None
    assert tokenizer.eos_id is not None
    assert tokenizer.pad_id is not None
    texts = [[tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id] for text in SENTENCES]
    tokens = torch.full((3, max(map(len, texts))), tokenizer.pad_id)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
    token_mask = torch.arange(tokens.shape[1]) < torch.tensor([[len(text)] for text in texts])
    return tokens, token_mask, torch.zeros_like(tokens)


def cosines(model: EncoderOnly, tokens: Tensor, token_mask: Tensor) -> list[float]:
    with torch.no_grad():
        vectors = torch.nn.functional.normalize(
            pool(model.hidden(tokens, token_mask=token_mask), token_mask, "mean"), dim=-1
        )
    return [float(vectors[a] @ vectors[b]) for a, b in ((0, 1), (0, 2), (1, 2))]


class TestMiniLM:
    @pytest.mark.slow
    def test_every_layer_matches_transformers(self) -> None:
        model, tokenizer, reference = _minilm()
        tokens, token_mask, segments = sentences(tokenizer)
        assert tokens[0, :8].tolist() == [101, 1996, 4633, 2003, 8403, 2651, 1012, 102]
        assert sum(p.numel() for p in model.parameters()) == 22_713_728 - 512  # without the position ids
        assert furthest(model, reference, tokens, token_mask, segments) < 1e-5
        assert furthest(model, reference, *batch(30_522, 2, 97)) < 1e-5

    def test_similarities_of_three_sentences_match_published_values(self) -> None:
        model, tokenizer, _ = _minilm()
        tokens, token_mask, _ = sentences(tokenizer)
        assert cosines(model, tokens, token_mask) == pytest.approx([0.6660, 0.1046, 0.1411], abs=5e-5)

    @pytest.mark.slow
    def test_vectors_do_not_depend_on_padding(self) -> None:
        model, tokenizer, _ = _minilm()
        tokens, token_mask, _ = sentences(tokenizer)
        expected = cosines(model, tokens, token_mask)
        for left, right in ((0, 190), (190, 0), (7, 31)):
            wide = torch.nn.functional.pad(tokens, (left, right), value=5)
            real = torch.nn.functional.pad(token_mask, (left, right), value=False)
            assert cosines(model, wide, real) == pytest.approx(expected, abs=1e-5)

    @pytest.mark.exhaustive
    def test_wrong_gelu_eps_and_types_are_detected(self) -> None:
        model, tokenizer, reference = _minilm()
        tokens, token_mask, segments = sentences(tokenizer)
        for change in ({"hidden_act": "gelu_new"}, {"layer_norm_eps": 1e-5}):
            assert furthest(_load_altered(minilm(), change), reference, tokens, token_mask, segments) > 1e-4, change
        assert (
            max(
                (a - b)[token_mask].abs().max().item()
                for a, b in zip(
                    layers(model, tokens, token_mask=token_mask, segments=segments + 1),
                    layers(model, tokens, token_mask=token_mask, segments=segments),
                    strict=True,
                )
            )
            > 0.1
        )


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = json.loads((folder / "config.json").read_text())
    path = folder / "model.safetensors"
    if path.is_file():
        return config, safetensors.torch.load_file(path)
    return config, torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")


def _load_altered(
    folder: Path, config: dict[str, Any], fault: Callable[[EncoderOnly], None] | None = None
) -> EncoderOnly:
    original_config, state = _read(folder)
    model = from_bert(original_config | config, state)
    if fault is not None:
        with torch.no_grad():
            fault(model)
    return model


@cache
def _reaction(name: str) -> Any:
    config, state = _read(rxnfp(name))
    kind = transformers.BertForPreTraining if name == "bert_pretrained" else transformers.BertForSequenceClassification
    count = {"num_labels": 50} if name != "bert_pretrained" else {}
    their_settings = (
        {key: config[key] for key in CONFIG if key in config} | {"hidden_act": config["hidden_act"]} | count
    )
    reference = kind(transformers.BertConfig(**their_settings, attn_implementation="eager")).eval()
    missing, unknown = reference.load_state_dict(state, strict=False)
    assert not unknown
    assert set(missing) <= {"cls.predictions.decoder.bias", "bert.embeddings.position_ids"}
    if name == "bert_pretrained":
        reference.tie_weights()
        assert torch.equal(reference.cls.predictions.decoder.bias, state["cls.predictions.bias"])
    return reference


def no_transform_norm(model: EncoderOnly) -> None:
    model.transform.norm = torch.nn.Identity()


def no_bias(model: EncoderOnly) -> None:
    assert model.unembedding.bias is not None
    model.unembedding.bias.zero_()


def no_types(model: EncoderOnly) -> None:
    model.segment_embedding.weight.zero_()


def gelu_by_tanh_in_the_head(model: EncoderOnly) -> None:
    model.transform.activation = lambda x: torch.nn.functional.gelu(x, approximate="tanh")


def no_activation_in_the_head(model: EncoderOnly) -> None:
    model.transform.activation = lambda x: x


class TestReactions:
    """rxnfp: a BERT of reaction SMILES with all heads, and one with a classifier."""

    @pytest.mark.slow
    def test_masked_words_next_sentences_and_pooler_match(self) -> None:
        model = _load_altered(rxnfp("bert_pretrained"), {})
        assert model.spec.masked_head is not None
        assert (model.spec.pooler, model.spec.next_sentence, model.spec.classifier) == (True, True, None)
        assert furthest(model, _reaction("bert_pretrained"), *batch(591, 2, 67)) < 1e-4

    @pytest.mark.exhaustive
    def test_classifier_with_fifty_labels_matches(self) -> None:
        model = _load_altered(rxnfp("bert_ft_10k_25s"), {})
        assert model.spec.classifier is not None
        assert (len(model.spec.classifier.labels), model.spec.classifier.pooling) == (50, "pooler")
        assert furthest(model, _reaction("bert_ft_10k_25s"), *batch(591, 2, 67)) < 1e-4

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("config", "fault"),
        [
            ({"hidden_act": "gelu_new"}, None),
            ({"layer_norm_eps": 1e-5}, None),
            ({}, gelu_by_tanh_in_the_head),
            ({}, no_activation_in_the_head),
            ({}, no_transform_norm),
            ({}, no_types),
            ({}, no_bias),
        ],
    )
    def test_each_fault_is_detected(self, config: dict[str, Any], fault: Callable[[EncoderOnly], None] | None) -> None:
        model = _load_altered(rxnfp("bert_pretrained"), config, fault)
        assert furthest(model, _reaction("bert_pretrained"), *batch(591, 2, 67)) > 1e-4


def test_loading_does_not_modify_the_folder(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    load_model(folder)
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "copy" / path.name).read_bytes()
    assert replace(Card(), name="bert") == load_model(folder).card
