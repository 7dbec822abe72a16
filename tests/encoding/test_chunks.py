"""Long texts in chunks: a text within the context is unchanged, and a long one is the mean of its chunks."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_encoders import KINDS, TEXTS, build_tokenizer, encoder

from tercet.config import UserError
from tercet.encoding import (
    Chunking,
    chunk_texts,
    classify,
    classify_multi_label,
    embed,
    embed_chunks,
    embed_documents,
    pseudo_logprobs,
    pseudo_scores,
    regress,
)
from tercet.encoding.chunks import chunk_rows, chunk_spans
from tercet.models import Classifier, EncoderOnly
from tercet.tokens import PlainIds, Tokenizer

pytestmark = pytest.mark.threads

LONG = "the cat sat on the mat and a dog ran until the mats were worn " * 7
CHUNKING = Chunking.create(37, overlap=12)  # long enough that every chunk begins and ends between words
TOKENIZERS = {kind: build_tokenizer(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> EncoderOnly:
    return encoder(tokenizer.vocab_size)


@settings(max_examples=150, deadline=None)
@given(
    words=st.lists(st.booleans(), max_size=60),
    size=st.integers(3, 20),
    overlap=st.one_of(st.none(), st.integers(0, 17)),
)
@example(words=[True] * 5, size=3, overlap=0)
@example(words=[False] * 40, size=20, overlap=17)
def test_chunks_cover_all_tokens_and_share_at_most_the_overlap(
    words: list[bool], size: int, overlap: int | None
) -> None:
    if overlap is not None and overlap >= size - 2:
        with pytest.raises(UserError, match=f"chunks of {size} tokens can share 0 to {size - 3}"):
            Chunking.create(20, size, overlap)
        return
    chunking = Chunking.create(20, size, overlap)
    spans = chunk_spans(np.array(words, dtype=bool), chunking)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(words)
    assert len(spans) <= chunking.max_chunks(len(words))
    assert (len(spans) == 1) == (chunking.max_chunks(len(words)) == 1)
    assert all(end - start <= size - 2 for start, end in spans)
    for (start, end), (next_start, next_end) in itertools.pairwise(spans):
        assert start < next_start <= end < next_end
        assert end - next_start <= chunking.overlap


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(
        st.one_of(st.text(alphabet="the catsdogn, .\n", max_size=90), st.sampled_from([LONG, *TEXTS, "  cat  sat "])),
        max_size=3,
    ),
    size=st.integers(3, 37),
)
@example(texts=["", LONG, ""], size=9)
def test_places_of_chunks_slice_the_text(kind: str, texts: list[str], size: int) -> None:
    if kind not in ("bpe", "bpe without prefix"):  # other kinds do not know all characters
        texts = [text for text in texts if text in (LONG, *TEXTS)]
    tokenizer = TOKENIZERS[kind]
    chunked = chunk_texts(tokenizer, texts, Chunking.create(37, size))
    assert len(chunked.rows) == len(chunked.chunks) == sum(chunked.counts)
    for number, text in enumerate(texts):
        chunks = [chunk for chunk in chunked.chunks if chunk.document == number]
        assert len(chunks) == chunked.counts[number] >= 1
        assert (chunks[0].start, chunks[-1].end) == (0, len(text))
        for chunk, following in itertools.pairwise(chunks):
            assert chunk.start <= following.start <= chunk.end <= following.end, "no character is left out"
    for row, chunk in zip(chunked.rows, chunked.chunks, strict=True):
        assert len(row) == chunk.tokens + 2 <= size
        shown = "".join(tokenizer.decode(row).split()).replace("##", "")
        if tokenizer.unk_id not in row and "\ufffd" not in shown:  # a character that is cut has no text
            part = texts[chunk.document][chunk.start : chunk.end]
            assert shown == "".join(part.split())


def test_words_of_chunks_encode_to_their_rows(tokenizer: Tokenizer) -> None:
    chunked = chunk_texts(tokenizer, [LONG], CHUNKING)
    assert chunked.counts[0] > 3
    for row, chunk in zip(chunked.rows, chunked.chunks, strict=True):
        assert row[1:-1] == tokenizer.encode(LONG[chunk.start : chunk.end]), "chunks begin and end between words"


def test_numbers_of_ids_have_places() -> None:
    tokenizer = Tokenizer.train(PlainIds(vocab_size=50, bos=True, pad=True, mask=True), [])
    text = " 7 12\t 3 " + "4 " * 9
    assert tokenizer.token_starts(text).tolist()[:4] == [0, 3, 7, 9]
    chunked = chunk_texts(tokenizer, [text], Chunking.create(6, overlap=1))
    for row, chunk in zip(chunked.rows, chunked.chunks, strict=True):
        assert row[1:-1] == [int(number) for number in text[chunk.start : chunk.end].split()]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_vector_of_a_long_text_is_the_weighted_mean_of_its_chunks(
    model: EncoderOnly, tokenizer: Tokenizer, pooling: Any, normalize: bool
) -> None:
    settings: dict[str, Any] = {"pooling": pooling, "normalize": normalize}
    found = embed_documents(model, tokenizer, [TEXTS[0], LONG, ""], chunking=CHUNKING, **settings)
    np.testing.assert_array_equal(found.vectors[[0, 2]], embed(model, tokenizer, [TEXTS[0], ""], **settings).vectors)
    chunked = chunk_texts(tokenizer, [LONG], CHUNKING)
    assert found.counts == [1, len(chunked.rows), 1]
    with torch.no_grad():
        states = [model.hidden(torch.tensor([row]))[0] for row in chunked.rows]
    pools = {"mean": lambda x: x.mean(0), "first": lambda x: x[0], "max": lambda x: x.amax(0)}
    weights = [len(row) - 2 for row in chunked.rows]
    expected = sum(n * pools[pooling](x) for n, x in zip(weights, states, strict=True)) / sum(weights)
    expected = expected / expected.norm() if normalize else expected
    np.testing.assert_allclose(found.vectors[1], expected.numpy(), atol=1e-5)


def test_vectors_of_chunks_are_those_of_their_texts(model: EncoderOnly, tokenizer: Tokenizer) -> None:
    texts = [LONG, "", TEXTS[0]]
    found = embed_chunks(model, tokenizer, texts, chunking=CHUNKING)
    assert found.vectors.shape == (len(found.chunks), 24)
    parts = [texts[chunk.document][chunk.start : chunk.end] for chunk in found.chunks]
    np.testing.assert_allclose(found.vectors, embed(model, tokenizer, parts).vectors, atol=1e-5)
    assert parts[-2:] == texts[1:]
    assert embed_chunks(model, tokenizer, [], chunking=CHUNKING).vectors.shape == (0, 24)


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification", "regression"])
def test_predictions_of_a_long_text_are_averaged(problem_type: Any, tokenizer: Tokenizer) -> None:
    labels = ("value",) if problem_type == "regression" else ("a", "b", "c")
    scale = {"target_mean": 3.0, "target_std": 2.0} if problem_type == "regression" else {}
    head = Classifier(labels=labels, problem_type=problem_type, **scale)  # type: ignore[arg-type]
    network = encoder(tokenizer.vocab_size, classifier=head)
    texts = [TEXTS[0], LONG, ""]
    chunked = chunk_texts(tokenizer, [LONG], CHUNKING)
    parts = [LONG[chunk.start : chunk.end] for chunk in chunked.chunks]
    weights = [chunk.tokens for chunk in chunked.chunks]
    if problem_type == "regression":
        values = [result.value for result in regress(network, tokenizer, parts)]
        found = regress(network, tokenizer, texts, chunking=CHUNKING)
        short = regress(network, tokenizer, [texts[0], texts[2]], chunking=CHUNKING)
        assert short == regress(network, tokenizer, [texts[0], texts[2]]), "bit for bit without a long text"
        assert found[1].value == pytest.approx(np.average(values, weights=weights), rel=1e-5)
        assert [found[n].value for n in (0, 2)] == pytest.approx([short[n].value for n in (0, 1)], rel=1e-5)
    else:
        function = classify if problem_type.startswith("single") else classify_multi_label
        part_scores = [result.scores for result in function(network, tokenizer, parts)]
        found = function(network, tokenizer, texts, chunking=CHUNKING)
        short = function(network, tokenizer, [texts[0], texts[2]], chunking=CHUNKING)
        assert short == function(network, tokenizer, [texts[0], texts[2]]), "bit for bit without a long text"
        for label in labels:
            expected = np.average([scores[label] for scores in part_scores], weights=weights)
            assert found[1].scores[label] == pytest.approx(expected, rel=1e-5)
        assert [found[n].scores for n in (0, 2)] == [pytest.approx(result.scores, rel=1e-5) for result in short]
    assert [result.chunks for result in found] == [1, len(parts), 1]
    assert not any(result.truncated for result in found)


def test_rows_of_ids_are_those_of_their_texts(tokenizer: Tokenizer) -> None:
    texts = [TEXTS[0], LONG, ""]
    expected, found = (
        chunk_texts(tokenizer, texts, CHUNKING),
        chunk_rows(tokenizer, [tokenizer.encode(text) for text in texts], CHUNKING),
    )
    assert (found.rows, found.counts, found.tokens) == (expected.rows, expected.counts, expected.tokens)
    assert expected.tokens == [chunk.tokens for chunk in expected.chunks]


@pytest.mark.parametrize(("name", "prefix"), [("chunk", ""), ("overlap", "--")])
def test_truncation_excludes_lengths_of_chunks(name: Any, prefix: str) -> None:
    assert Chunking.select(37, truncate=True) is None
    assert Chunking.select(37, chunk=12, overlap=3) == Chunking.create(37, 12, 3)
    lengths: dict[str, Any] = {name: 9}
    with pytest.raises(UserError, match=f"{prefix}truncate and {prefix}{name} exclude each other; pass one of them"):
        Chunking.select(37, truncate=True, prefix=prefix, **lengths)


def test_pairs_are_truncated_and_not_split(tokenizer: Tokenizer) -> None:
    network = encoder(tokenizer.vocab_size, classifier=Classifier(labels=("a", "b")))
    [found] = classify(network, tokenizer, [(LONG, "cat")], chunking=CHUNKING)
    assert found.truncated
    assert found.chunks == 1


@pytest.mark.slow
@pytest.mark.parametrize("stride", [7, 20, 35])
def test_each_token_is_scored_once_in_the_first_window_with_it(
    model: EncoderOnly, tokenizer: Tokenizer, stride: int
) -> None:
    text = " ".join(LONG.split()[:50])
    ids, room = tokenizer.encode(text), model.max_len - 2
    [found] = pseudo_logprobs(model, tokenizer, [text], stride=stride)
    expected, end, start = list[float](), 0, 0
    while end < len(ids):
        window = ids[start : start + room]
        for place in range(end - start, len(window)):
            row = [tokenizer.bos_id, *window[:place], tokenizer.mask_id, *window[place + 1 :], tokenizer.eos_id]
            with torch.no_grad():
                logits = model(torch.tensor([row]))[0, place + 1]
            expected.append(logits.log_softmax(-1)[window[place]].item())
        end, start = start + len(window), start + stride
    assert len(found) == len(ids) == len(expected)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    [score] = pseudo_scores(model, tokenizer, [text], stride=stride)
    assert (score.tokens, score.truncated) == (len(ids), False)
    assert score.windows > 1
    assert score.logprob == pytest.approx(sum(expected), abs=1e-4)


def test_windows_do_not_change_texts_within_the_context(model: EncoderOnly, tokenizer: Tokenizer) -> None:
    assert pseudo_scores(model, tokenizer, TEXTS, stride=9) == pseudo_scores(model, tokenizer, TEXTS)
    assert pseudo_scores(model, tokenizer, [], stride=9) == []
    with pytest.raises(UserError, match="windows of 37 tokens are 1 to 35 tokens apart"):
        pseudo_scores(model, tokenizer, TEXTS, stride=36)


@pytest.mark.parametrize(
    ("size", "overlap", "words"),
    [
        (38, None, "chunks of 38 tokens: a chunk has 3 to 37 tokens, the context of the model"),
        (2, None, "a chunk has 3 to 37 tokens"),
        (10, 8, "an overlap of 8 tokens: chunks of 10 tokens can share 0 to 7"),
    ],
)
def test_other_lengths_of_chunks_are_rejected(size: int, overlap: int | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Chunking.create(37, size, overlap)
