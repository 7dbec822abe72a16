"""Labels of texts and words are those of the model's head, and do not depend on the batch."""

import numpy as np
import pytest
import torch
from small_encoders import TEXTS, build_tokenizer, encoder

from tercet.config import UserError
from tercet.data import encode_words
from tercet.encoding import classify, classify_multi_label, regress, tag
from tercet.models import Classifier, EncoderOnly
from tercet.tokens import Tokenizer

LABELS = ("bad", "fair", "good")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer()


@pytest.fixture(scope="module")
def texts(tokenizer: Tokenizer) -> EncoderOnly:
    return encoder(tokenizer.vocab_size, classifier=Classifier(labels=LABELS))


@pytest.fixture(scope="module")
def words(tokenizer: Tokenizer) -> EncoderOnly:
    return encoder(tokenizer.vocab_size, classifier=Classifier(labels=LABELS, over="tokens"))


def test_texts_have_the_probabilities_of_the_head(texts: EncoderOnly, tokenizer: Tokenizer) -> None:
    for text, prediction in zip(TEXTS, classify(texts, tokenizer, TEXTS, batch_tokens=31), strict=True):
        with torch.no_grad():
            p = texts.classify(
                texts.hidden(torch.tensor([[tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]]))
            )[0].softmax(-1)
        assert prediction.label == LABELS[int(p.argmax())]
        assert list(prediction.scores.values()) == sorted(prediction.scores.values(), reverse=True)
        assert prediction.probability == next(iter(prediction.scores.values()))
        np.testing.assert_allclose([prediction.scores[label] for label in LABELS], p, atol=1e-5)


@torch.no_grad()
def test_numbers_and_sets_of_labels_follow_from_the_logits(tokenizer: Tokenizer) -> None:
    head = Classifier(labels=("stars",), problem_type="regression", target_mean=1e4, target_std=20.0)
    numbers = encoder(tokenizer.vocab_size, classifier=head)
    sets = encoder(
        tokenizer.vocab_size, classifier=Classifier(labels=LABELS, problem_type="multi_label_classification")
    )
    values, predictions = (
        regress(numbers, tokenizer, TEXTS),
        classify_multi_label(sets, tokenizer, TEXTS, threshold=0.7),
    )
    for text, value, prediction in zip(TEXTS, values, predictions, strict=True):
        row = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]])
        assert value.value == pytest.approx(1e4 + 20.0 * numbers.classify(numbers.hidden(row))[0, 0].item(), abs=1e-2)
        p = sets.classify(sets.hidden(row))[0].sigmoid()
        np.testing.assert_allclose([prediction.scores[label] for label in LABELS], p, atol=1e-5)
        assert set(prediction.labels) == {
            label for label, probability in zip(LABELS, p.tolist(), strict=True) if probability > 0.7
        }
    assert len({prediction.labels for prediction in predictions}) > 1


def test_words_have_the_label_of_their_first_piece(words: EncoderOnly, tokenizer: Tokenizer) -> None:
    sentences = [text.split() for text in TEXTS]
    predictions = tag(words, tokenizer, sentences, batch_tokens=31)
    for sentence, tagged_sentence in zip(sentences, predictions, strict=True):
        assert list(tagged_sentence.words) == sentence
        ((ids, firsts),) = encode_words(tokenizer, [sentence])
        row = torch.tensor([[tokenizer.bos_id, *ids.tolist(), tokenizer.eos_id]])
        with torch.no_grad():
            p = words.classify(words.hidden(row))[0].softmax(-1)
        for first, prediction in zip(firsts, tagged_sentence.tags, strict=True):
            assert prediction is not None
            np.testing.assert_allclose([prediction.scores[label] for label in LABELS], p[first + 1], atol=1e-5)


def test_words_after_the_context_have_no_label(words: EncoderOnly, tokenizer: Tokenizer) -> None:
    (tagged_sentence,) = tag(words, tokenizer, [["cat"] * 60])
    assert tagged_sentence.truncated
    assert len(tagged_sentence.tags) == 60
    assert tagged_sentence.tags[0] is not None
    assert tagged_sentence.tags[-1] is None


def test_wrong_head_is_reported(texts: EncoderOnly, words: EncoderOnly, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"the model predicts labels for words; use tag\(\)"):
        classify(words, tokenizer, ["a"])
    with pytest.raises(UserError, match=r"the model predicts labels for texts; use classify\(\)"):
        tag(texts, tokenizer, [["a"]])
    with pytest.raises(UserError, match="the model has no classifier"):
        classify(encoder(tokenizer.vocab_size), tokenizer, ["a"])
