"""A trained model reports its kind and its verbs, and rejects unsupported methods."""

from pathlib import Path
from typing import Any

import pytest

from tercet.checkpoint import Encoder, LanguageModel, TrainedModel, Translator
from tercet.config import UserError
from tercet.evaluate import (
    LabelsEvaluation,
    LanguageEvaluation,
    MaskedEvaluation,
    TranslationEvaluation,
    VectorsEvaluation,
    evaluation_of,
)
from tercet.models import (
    Classifier,
    DecoderOnlySpec,
    EncoderDecoderSpec,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
    build,
)
from tercet.tokens import Characters, Tokenizer

TOKENIZER = Tokenizer.train(Characters(alphabet="abcde", bos=True, eos=True, pad=True), [])
STACK = StackSpec(d_model=6, n_layers=1, n_heads=2)
SIZES: Any = {"vocab_size": TOKENIZER.vocab_size, "max_len": 7}
MASKS, LABELS = MaskedHead(), Classifier(labels=("a", "b"))
SPECS = {
    "language": DecoderOnlySpec(**SIZES, stack=STACK),
    "translation": EncoderDecoderSpec(**SIZES, encoder=STACK, decoder=STACK),
    "masked": EncoderOnlySpec(**SIZES, stack=STACK, masked_head=MASKS),
    "labels": EncoderOnlySpec(**SIZES, stack=STACK, masked_head=None, classifier=LABELS),
    "both": EncoderOnlySpec(**SIZES, stack=STACK, masked_head=MASKS, classifier=LABELS),
    "vectors": EncoderOnlySpec(**SIZES, stack=STACK, masked_head=None),
}


def trained_model(name: str) -> TrainedModel:
    return TrainedModel.wrap(build(SPECS[name]), TOKENIZER, folder=Path("runs/mine"))


@pytest.mark.parametrize(
    ("name", "kind", "class_", "verbs"),
    [
        ("language", "a language model", LanguageModel, "generate evaluate"),
        ("translation", "a translator", Translator, "translate evaluate"),
        ("masked", "a masked language model", Encoder, "fill embed evaluate"),
        ("labels", "a classifier", Encoder, "classify embed evaluate"),
        ("both", "a classifier", Encoder, "classify fill embed evaluate"),
        ("vectors", "an encoder", Encoder, "embed evaluate"),
    ],
)
def test_trained_model_describes_itself(name: str, kind: str, class_: type[TrainedModel], verbs: str) -> None:
    model = trained_model(name)
    assert model.kind == kind
    assert model.task == ("labels" if name == "both" else name)
    assert type(model) is class_
    assert model.verbs == tuple(verbs.split())
    assert model.n_parameters == sum(weight.numel() for weight in model.model.parameters())


@pytest.mark.parametrize(
    ("name", "verb", "words"),
    [
        ("translation", "generate", "a translator, which needs a source; use `tercet translate runs/mine`"),
        ("masked", "generate", "a masked language model, which cannot generate text; use `tercet fill runs/mine`"),
        ("language", "translate", "a language model, not a translator; use `tercet generate runs/mine`"),
        ("language", "embed", "a language model, not an encoder; use `tercet generate runs/mine`"),
        ("labels", "fill", "a classifier, which cannot fill masks; use `tercet classify runs/mine`"),
        ("vectors", "classify", "an encoder, not a classifier; use `tercet embed runs/mine`"),
    ],
)
def test_unsupported_method_is_rejected_with_the_supported_ones(name: str, verb: Any, words: str) -> None:
    with pytest.raises(UserError) as error:
        trained_model(name).require(verb)
    assert str(error.value) == f"runs/mine is {words}"


@pytest.mark.parametrize("name", SPECS)
def test_supported_methods_are_available(name: str) -> None:
    model = trained_model(name)
    assert all(model.require(verb) is model for verb in model.verbs)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_word_labels_are_not_text_labels() -> None:
    classifier = trained_model("labels").require("classify")
    assert classifier.require_labels("texts") is classifier.model
    with pytest.raises(UserError, match="runs/mine assigns labels to texts, not to tokens"):
        classifier.require_labels("tokens")
    with pytest.raises(UserError, match="an encoder, not a classifier"):
        trained_model("vectors").require("embed").require_labels("texts")


def test_each_task_has_its_evaluation() -> None:
    classes = {name: type(evaluation_of(trained_model(name))) for name in SPECS}
    assert classes == {
        "language": LanguageEvaluation, "translation": TranslationEvaluation, "masked": MaskedEvaluation,
        "labels": LabelsEvaluation, "both": LabelsEvaluation,
        "vectors": VectorsEvaluation,
    }  # fmt: skip
