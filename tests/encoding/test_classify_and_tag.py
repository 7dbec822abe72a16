"""Labels of texts and words are those of the model's head, and do not depend on the batch."""

import numpy as np
import pytest
import torch
from small_encoders import TEXTS, encoder, tokenizer

from tercet.config import UserError
from tercet.data import encode_words
from tercet.encoding import classify, classify_multi_label, regress, tag
from tercet.models import Classifier, EncoderOnly
from tercet.tokens import Tokenizer

LABELS = ("bad", "fair", "good")


@pytest.fixture(scope="module")
def own() -> Tokenizer:
    return tokenizer()


@pytest.fixture(scope="module")
def texts(own: Tokenizer) -> EncoderOnly:
    return encoder(own.vocab_size, classifier=Classifier(labels=LABELS))


@pytest.fixture(scope="module")
def words(own: Tokenizer) -> EncoderOnly:
    return encoder(own.vocab_size, classifier=Classifier(labels=LABELS, over="tokens"))


def test_texts_have_the_probabilities_of_the_head(texts: EncoderOnly, own: Tokenizer) -> None:
    for text, one in zip(TEXTS, classify(texts, own, TEXTS, batch_tokens=31), strict=True):
        with torch.no_grad():
            p = texts.classify(texts.hidden(torch.tensor([[own.bos_id, *own.encode(text), own.eos_id]])))[0].softmax(-1)
        assert one.label == LABELS[int(p.argmax())]
        assert list(one.scores.values()) == sorted(one.scores.values(), reverse=True)
        assert one.probability == next(iter(one.scores.values()))
        np.testing.assert_allclose([one.scores[label] for label in LABELS], p, atol=1e-5)


@torch.no_grad()
def test_numbers_and_sets_of_labels_follow_from_the_logits(own: Tokenizer) -> None:
    head = Classifier(labels=("stars",), problem_type="regression", target_mean=1e4, target_std=20.0)
    numbers = encoder(own.vocab_size, classifier=head)
    sets = encoder(own.vocab_size, classifier=Classifier(labels=LABELS, problem_type="multi_label_classification"))
    values, found = regress(numbers, own, TEXTS), classify_multi_label(sets, own, TEXTS, threshold=0.7)
    for text, value, one in zip(TEXTS, values, found, strict=True):
        row = torch.tensor([[own.bos_id, *own.encode(text), own.eos_id]])
        assert value.value == pytest.approx(1e4 + 20.0 * numbers.classify(numbers.hidden(row))[0, 0].item(), abs=1e-2)
        p = sets.classify(sets.hidden(row))[0].sigmoid()
        np.testing.assert_allclose([one.scores[label] for label in LABELS], p, atol=1e-5)
        assert set(one.labels) == {
            label for label, probability in zip(LABELS, p.tolist(), strict=True) if probability > 0.7
        }
    assert len({one.labels for one in found}) > 1


def test_words_have_the_label_of_their_first_piece(words: EncoderOnly, own: Tokenizer) -> None:
    sentences = [text.split() for text in TEXTS]
    found = tag(words, own, sentences, batch_tokens=31)
    for sentence, tagged in zip(sentences, found, strict=True):
        assert list(tagged.words) == sentence
        ((ids, firsts),) = encode_words(own, [sentence])
        row = torch.tensor([[own.bos_id, *ids.tolist(), own.eos_id]])
        with torch.no_grad():
            p = words.classify(words.hidden(row))[0].softmax(-1)
        for first, one in zip(firsts, tagged.tags, strict=True):
            assert one is not None
            np.testing.assert_allclose([one.scores[label] for label in LABELS], p[first + 1], atol=1e-5)


def test_words_after_the_context_have_no_label(words: EncoderOnly, own: Tokenizer) -> None:
    (tagged,) = tag(words, own, [["cat"] * 60])
    assert tagged.truncated
    assert len(tagged.tags) == 60
    assert tagged.tags[0] is not None
    assert tagged.tags[-1] is None


def test_wrong_head_is_reported(texts: EncoderOnly, words: EncoderOnly, own: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"the model predicts labels for words; use tag\(\)"):
        classify(words, own, ["a"])
    with pytest.raises(UserError, match=r"the model predicts labels for texts; use classify\(\)"):
        tag(texts, own, [["a"]])
    with pytest.raises(UserError, match="the model has no classifier"):
        classify(encoder(own.vocab_size), own, ["a"])
