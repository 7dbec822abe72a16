"""Encoders attend in both directions, ignore padding and other documents, and have the heads of their spec."""

from dataclasses import replace

import pytest
import torch
from small import MAX_LEN, POSITIONS, STACK, V, encoder, padded
from torch import Tensor

import tercet.nn.attention as attention
from pairwise import parametrize_pairs
from tercet.config import parse, to_plain
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, MaskedHead, build
from tercet.nn import NoPosition, pool

ALL_HEADS = {
    "n_segments": 2,
    "embedding_norm": True,
    "masked_head": MaskedHead(transform=True, bias=True),
    "pooler": True,
    "next_sentence": True,
    "classifier": Classifier(labels=("a", "b", "c"), pooling="pooler"),
}
LENGTHS = (MAX_LEN, 1, 5, 8)
WITH_POSITIONS = [position for position in POSITIONS if not isinstance(position, NoPosition)]


def answers(model: EncoderOnly, tokens: Tensor, token_mask: Tensor | None = None) -> list[Tensor]:
    """Return every kind of output: first those per token, then those per text."""
    hidden = model.hidden(tokens, token_mask=token_mask)
    texts = [pool(hidden, token_mask, "mean"), pool(hidden, token_mask, "first"), model.pooled(hidden, token_mask)]
    return [
        hidden,
        model.logits(hidden),
        *texts,
        model.next_sentence_logits(hidden, token_mask),
        model.classify(hidden, token_mask),
    ]


@parametrize_pairs(
    position=WITH_POSITIONS,
    placement=("pre", "post"),
    side=("left", "right", "scattered"),
    length=(MAX_LEN, MAX_LEN - 1),
    form=("attend", "attend_by_hand"),
)
@torch.no_grad()
def test_text_has_the_same_outputs_in_a_padded_batch(
    position, placement, side: str, length: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "attend", getattr(attention, form))
    model = encoder(spec=ALL_HEADS, position=position, placement=placement)
    sequences = [torch.randint(V, (min(length, text_length),)) for text_length in LENGTHS]
    tokens, token_mask = padded(sequences, side, length)
    batch = answers(model, tokens, token_mask)
    for row, sequence in enumerate(sequences):
        for number, (batched, separate) in enumerate(zip(batch, answers(model, sequence[None]), strict=True)):
            text_outputs = batched[row][token_mask[row]] if number < 2 else batched[row]
            torch.testing.assert_close(text_outputs, separate[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("position", WITH_POSITIONS, ids=lambda spec: spec.kind)
@torch.no_grad()
def test_packed_documents_are_independent(position) -> None:
    model = encoder(spec=ALL_HEADS, position=position)
    lengths = (5, 1, 6)
    tokens = torch.randint(V, (2, sum(lengths) + 1))
    documents = torch.tensor([3, 1, 4, 9]).repeat_interleave(torch.tensor((*lengths, 1))).expand(2, -1)
    token_mask = documents != 9
    packed, leaking = (model.hidden(tokens, token_mask=token_mask, documents=d) for d in (documents, None))
    for start, stop in ((0, 5), (5, 6), (6, 12)):
        separate = model.hidden(tokens[:, start:stop])
        torch.testing.assert_close(packed[:, start:stop], separate, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(
            leaking[:, start:stop], separate, atol=1e-3
        )  # shows that the comparison detects leaks
    changed_tokens = tokens.clone()
    changed_tokens[:, 7] = (changed_tokens[:, 7] + 1) % V
    changed_hidden = model.hidden(changed_tokens, token_mask=token_mask, documents=documents)
    assert torch.equal(changed_hidden[:, :6], packed[:, :6])
    assert not torch.allclose(changed_hidden[:, 6:12], packed[:, 6:12])


@torch.no_grad()
def test_token_attends_to_both_sides() -> None:
    model, tokens = encoder(), torch.randint(V, (1, 9))
    for place in (0, 8):
        changed_tokens = tokens.clone()
        changed_tokens[0, place] = (changed_tokens[0, place] + 1) % V
        difference = (model.hidden(changed_tokens) - model.hidden(tokens)).abs().amax(-1)[0]
        assert (difference > 1e-4).all()


@pytest.mark.parametrize("position", WITH_POSITIONS, ids=lambda spec: spec.kind)
def test_padding_has_no_gradient_and_padding_rows_are_finite(position) -> None:
    model = encoder(spec=ALL_HEADS | {"tie_embeddings": False}, position=position)
    pad, real = V - 1, torch.tensor([[True] * 5 + [False] * 4, [False] * 9, [False] * 2 + [True] * 7])
    tokens = torch.randint(V - 1, (3, 9)).masked_fill(~real, pad)
    outputs = answers(model, tokens, real)
    assert all(answer.isfinite().all() for answer in outputs)
    rows = torch.tensor([0, 2])
    total = sum((outputs[1][real].logsumexp(-1).sum(), *(answer[rows].square().sum() for answer in outputs[2:])))
    assert isinstance(total, Tensor)
    total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    grad = model.embedding.weight.grad
    assert grad is not None
    assert not grad[pad].any()
    assert grad[tokens[0, 0]].any()


@torch.no_grad()
def test_default_segment_is_the_first() -> None:
    model, tokens = encoder(spec={"n_segments": 2}), torch.randint(V, (2, 5))
    hidden = model.hidden(tokens)
    assert torch.equal(model.hidden(tokens, segments=torch.zeros_like(tokens)), hidden)
    assert not torch.allclose(model.hidden(tokens, segments=torch.ones_like(tokens)), hidden, atol=1e-3)
    with pytest.raises(ValueError, match=r"no segments \(n_segments=0\); omit `segments`"):
        encoder().hidden(tokens, segments=torch.zeros_like(tokens))


@torch.no_grad()
def test_embedding_norm_comes_after_positions_and_segments() -> None:
    model = encoder(spec={"n_segments": 2, "embedding_norm": True})
    norm_inputs: list[Tensor] = []
    model.stack.embedding_norm.register_forward_hook(lambda _module, inputs, _output: norm_inputs.append(inputs[0]))
    tokens = torch.randint(V, (2, 5))
    model.hidden(tokens)
    table = model.stack.position.table.weight  # pyright: ignore
    torch.testing.assert_close(
        norm_inputs[0], model.embedding.weight[tokens] + table[:5] + model.segment_embedding.weight[0]
    )


@torch.no_grad()
def test_logits_use_the_transform_the_tied_matrix_and_the_bias() -> None:
    model, hidden = encoder(spec=ALL_HEADS), torch.randn(3, 24)
    assert model.unembedding.weight is model.embedding.weight
    assert model.unembedding.bias is not None
    mlm_transform = model.transform.norm(torch.nn.functional.gelu(model.transform.dense(hidden)))
    torch.testing.assert_close(model.mlm_transform(hidden), mlm_transform)
    torch.testing.assert_close(model.logits(hidden), mlm_transform @ model.embedding.weight.T + model.unembedding.bias)
    plain_ = encoder()
    assert plain_.mlm_transform(hidden) is hidden
    assert plain_.unembedding.bias is None


@torch.no_grad()
def test_classifiers_over_texts_and_tokens() -> None:
    hidden, token_mask = torch.randn(2, 5, 24), torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    for over, shape in (("texts", (2, 3)), ("tokens", (2, 5, 3))):
        head = Classifier(labels=("a", "b", "c"), over=over, pooling="mean")
        model = encoder(spec={"classifier": head})
        x = hidden if over == "tokens" else pool(hidden, token_mask, "mean")
        assert model.classify(hidden, token_mask).shape == shape
        torch.testing.assert_close(model.classify(hidden, token_mask), model.classifier(x))
    assert model.classify(hidden.bfloat16().float()).dtype == torch.float32


@torch.no_grad()
def test_the_pooler_reads_the_first_real_token() -> None:
    hidden, token_mask = torch.randn(2, 5, 24), torch.tensor([[False] * 2 + [True] * 3, [True] * 5])
    model = encoder(spec={"pooler": True})
    torch.testing.assert_close(model.pooled(hidden, token_mask), model.pooler(hidden[[0, 1], [2, 0]]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, hidden: model.logits(hidden), "no masked_head: it cannot predict masked tokens"),
        (lambda model, hidden: model.mlm_transform(hidden), "no masked_head: it cannot predict masked tokens"),
        (lambda model, hidden: model.pooled(hidden), "no pooler: pool the hidden states with tercet.nn.pool"),
        (lambda model, hidden: model.next_sentence_logits(hidden), "no next_sentence: it was not trained on sentence"),
        (lambda model, hidden: model.classify(hidden), "no classifier: train it on labeled examples first"),
    ],
)
def test_missing_head_is_reported_with_a_remedy(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(encoder(spec={"masked_head": None}), torch.randn(2, 5, 24))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Classifier(labels=("a", "b", "a")), "duplicate label in labels: 'a'"),
        (lambda: Classifier(dropout=1.0), "dropout=1.0 must be at least 0 and below 1"),
        (lambda: encoder(spec={"next_sentence": True}), "next_sentence requires the pooler; set pooler to true"),
        (lambda: encoder(spec={"classifier": Classifier(pooling="pooler")}), "requires the pooler; set pooler to true"),
        (lambda: encoder(spec={"classifier": Classifier()}), "classifier.labels is empty; set it to the labels"),
        (lambda: encoder(spec={"n_segments": -1}), "n_segments=-1 must be at least 0"),
        (
            lambda: encoder().hidden(torch.zeros(1, 14, dtype=torch.long)),
            "text too long: 14 tokens do not fit .*max_len=13",
        ),
    ],
)
def test_invalid_settings_and_inputs_are_rejected(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_spec_survives_a_file() -> None:
    spec = EncoderOnlySpec(vocab_size=V, stack=STACK, **ALL_HEADS)
    assert parse(EncoderOnlySpec, to_plain(spec)) == spec
    assert to_plain(spec)["classifier"]["labels"] == ["a", "b", "c"]
    assert isinstance(build(spec), EncoderOnly)
    bare = replace(spec, masked_head=None)
    assert parse(EncoderOnlySpec, to_plain(bare)) == bare


@torch.no_grad()
def test_dropout_is_off_outside_training() -> None:
    model = encoder(spec={"classifier": Classifier(labels=("a", "b"), dropout=0.5)})
    hidden = torch.randn(2, 5, 24)
    assert torch.equal(model.classify(hidden), model.classify(hidden))
    model.train()
    assert not torch.equal(model.classify(hidden), model.classify(hidden))
