"""A reranker's scores depend on the query and the document only, and equal those of `transformers`."""

from pathlib import Path

import pytest
import torch
import transformers
from small_encoders import TEXTS, build_tokenizer

from tercet.checkpoint import Card, convert, save_model
from tercet.config import UserError
from tercet.data.rows.pair_rows import frame_pair
from tercet.encoding import classify_multi_label, encode_texts, regress, rerank
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec

RELEVANT = Classifier(labels=("relevant",), problem_type="multi_label_classification", pooling="pooler")
QUERY = "which cat sat?"
TOKENIZER = build_tokenizer()


def reranker(head: Classifier | None = RELEVANT, *, max_len: int = 61, n_segments: int = 2) -> EncoderOnly:
    stack = StackSpec(d_model=24, n_layers=2, n_heads=3, d_ff=41, norm_eps=1e-12, placement="post")
    spec = EncoderOnlySpec(
        vocab_size=TOKENIZER.vocab_size, max_len=max_len, stack=stack, n_segments=n_segments, embedding_norm=True,
        masked_head=MaskedHead() if head is None else None, pooler=True, classifier=head,
    )  # fmt: skip
    model = EncoderOnly(spec, seed=5).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2, generator=generator)
    return model


def scores_by_document(model: EncoderOnly, documents: list[str], **settings: int) -> dict[str, float]:
    ranking = rerank(model, TOKENIZER, QUERY, documents, **settings)
    assert [ranked.score for ranked in ranking] == sorted((ranked.score for ranked in ranking), reverse=True)
    assert sorted(ranked.index for ranked in ranking) == list(range(len(documents)))
    return {documents[ranked.index]: ranked.score for ranked in ranking}


def test_a_score_depends_neither_on_the_order_nor_on_the_batch() -> None:
    model = reranker()
    scores = scores_by_document(model, TEXTS)
    assert len({round(score, 4) for score in scores.values()}) == len(TEXTS)
    assert scores_by_document(model, TEXTS[::-1]) == pytest.approx(scores, abs=1e-6)
    for text in TEXTS:
        assert scores_by_document(model, [text]) == pytest.approx({text: scores[text]}, abs=1e-6)
    assert scores_by_document(model, TEXTS, batch_tokens=1) == pytest.approx(scores, abs=1e-6)
    assert rerank(model, TOKENIZER, QUERY, []) == []


def test_equal_documents_keep_their_order() -> None:
    assert [ranked.index for ranked in rerank(reranker(), TOKENIZER, QUERY, ["a dog ran"] * 4)] == [0, 1, 2, 3]


def test_both_texts_and_their_order_and_segments_matter() -> None:
    model, pairs = reranker(), [("cats", "a dog ran"), ("a dog ran", "cats"), ("cats", "the dog")]
    scores = [labels.scores["relevant"] for labels in classify_multi_label(model, TOKENIZER, pairs)]
    assert len({round(score, 4) for score in scores}) == 3
    with torch.no_grad():
        model.segment_embedding.weight[1] = model.segment_embedding.weight[0]
    without = [labels.scores["relevant"] for labels in classify_multi_label(model, TOKENIZER, pairs)]
    assert max(abs(a - b) for a, b in zip(scores, without, strict=True)) > 1e-3


@pytest.mark.parametrize("n_segments", [0, 1])
def test_a_model_without_a_second_segment_reads_pairs(n_segments: int) -> None:
    assert len(rerank(reranker(n_segments=n_segments), TOKENIZER, QUERY, TEXTS)) == len(TEXTS)


def test_the_query_is_complete_and_the_document_is_cut() -> None:
    model, long = reranker(max_len=23), " ".join(["the dog sat on the mat"] * 9)
    encoded = encode_texts(TOKENIZER, [(QUERY, long), (QUERY, "cats")], max_len=model.max_len)
    query = TOKENIZER.encode(QUERY)
    assert encoded.cut == [True, False]
    for row in encoded.rows:
        assert row[1 : len(query) + 1] == query
    assert len(encoded.rows[0]) == 23
    [ranked] = rerank(model, TOKENIZER, QUERY, [long])
    assert ranked.truncated
    [cut] = rerank(model, TOKENIZER, QUERY, [long + " a dog ran"])  # the end is not read
    assert cut.score == pytest.approx(ranked.score, abs=1e-6)


def test_a_regression_ranks_by_its_number() -> None:
    head = Classifier(labels=("stars",), problem_type="regression", target_mean=3.0, target_std=2.0, pooling="pooler")
    model = reranker(head)
    numbers = [answer.value for answer in regress(model, TOKENIZER, [(QUERY, text) for text in TEXTS])]
    ranking = rerank(model, TOKENIZER, QUERY, TEXTS)
    assert [ranked.score for ranked in ranking] == pytest.approx(sorted(numbers, reverse=True), abs=1e-5)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (None, "the model has no classifier, but reranking requires one score per pair of texts; train one with"),
        (Classifier(labels=("a", "b")), "the model has a classifier of texts with 2 outputs, but reranking requires"),
        (Classifier(labels=("a", "b"), over="tokens"), "the model has a classifier of tokens with 2 outputs"),
    ],
)
def test_other_models_are_rejected(head: Classifier | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rerank(reranker(head), TOKENIZER, QUERY, TEXTS)


@pytest.mark.slow
def test_scores_equal_those_of_transformers(tmp_path: Path) -> None:
    model = reranker()
    save_model(tmp_path / "ours", model, TOKENIZER, Card(name="reranker"))
    folder = convert(tmp_path / "ours", tmp_path / "theirs", "hf")
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    documents = [*TEXTS, " ".join(["the dog sat on the mat"] * 20)]
    batch = their_tokenizer(
        [QUERY] * len(documents),
        documents,
        truncation="longest_first",
        max_length=61,
        padding=True,
        return_tensors="pt",
    )
    ours = [
        frame_pair(TOKENIZER.encode(QUERY), TOKENIZER.encode(text), max_len=61, bos=_id("bos"), eos=_id("eos"))
        for text in documents
    ]
    for ids, mask, row in zip(batch["input_ids"], batch["attention_mask"], ours, strict=True):
        assert ids[mask.bool()].tolist() == row.ids
    with torch.no_grad():
        expected = theirs(**batch).logits[:, 0].double().sigmoid().tolist()
    scores = [0.0] * len(documents)
    for ranked in rerank(model, TOKENIZER, QUERY, documents):
        scores[ranked.index] = ranked.score
    assert scores == pytest.approx(expected, abs=1e-5)


def _id(role: str) -> int:
    number = getattr(TOKENIZER, f"{role}_id")
    assert isinstance(number, int)
    return number
