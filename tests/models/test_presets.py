"""Presets have the expected sizes and first loss, and a padded vocabulary changes no logits."""

import math

import pytest
import torch
import torch.nn.functional as F
from small import V, model
from torch._subclasses.fake_tensor import FakeTensorMode

from tercet.config import UserError, parse, to_plain
from tercet.models import (
    PRESETS,
    SPECS,
    AnyModel,
    DecoderOnly,
    DecoderOnlySpec,
    Dropout,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    StackSpec,
    build,
    model_spec,
)

SMALL = {"d_model": 24, "n_layers": 2, "n_heads": 4, "d_ff": 50}
LANGUAGE = [name for name, spec in PRESETS.items() if isinstance(spec, DecoderOnlySpec)]
ENCODERS = [name for name, spec in PRESETS.items() if isinstance(spec, EncoderOnlySpec)]
TRANSLATION = [name for name, spec in PRESETS.items() if isinstance(spec, EncoderDecoderSpec)]


def small(preset: str, stack=SMALL, **changes) -> AnyModel:
    """Build the preset of any family at these sizes."""
    stacks = ("encoder", "decoder") if preset in TRANSLATION else ("stack",)
    return build(
        model_spec({"preset": preset, "max_len": 64, **dict.fromkeys(stacks, stack), **changes}), seed=1
    ).eval()


def scores(model_: AnyModel, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of the tokens; translators get the reversed tokens as their source."""
    return model_(tokens.flip(1), tokens) if isinstance(model_, EncoderDecoder) else model_(tokens)


@torch.no_grad()
def first_loss(model_: AnyModel, shape: tuple[int, int] = (8, 64)) -> float:
    tokens = torch.randint(model_.vocab_size, shape)
    if isinstance(model_, EncoderOnly):  # of tokens that are not in its input
        logits = model_(torch.randint(model_.vocab_size, shape))
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).item()
    logits = scores(model_, tokens)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).item()


CASES = [
    (preset, vocab_size, stack)
    for preset in PRESETS
    for vocab_size, stack in ((65, SMALL), (50_257, SMALL | {"d_model": 12, "n_heads": 2}))
    if preset in LANGUAGE or vocab_size == 65
]


@pytest.mark.parametrize(("preset", "vocab_size", "stack"), CASES)
def test_new_model_has_the_loss_of_a_uniform_guess(preset: str, vocab_size: int, stack) -> None:
    # Tied embeddings of variance 1/D and hidden states of variance 1 give logits of variance 1, which add 1/2.
    sure = 0.5 if "original-" in preset or "transformer" in preset else 0.0
    loss = first_loss(small(preset, stack, vocab_size=vocab_size))
    assert loss == pytest.approx(math.log(vocab_size) + sure, abs=0.1 + sure / 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name in ("transformer-base", "transformer-big") else ())
        for name in TRANSLATION
    ],
)
def test_new_full_size_translator_has_the_loss_of_a_uniform_guess(preset: str) -> None:
    fresh = build(PRESETS[preset], seed=1).eval()
    assert first_loss(fresh, (2, 11)) == pytest.approx(math.log(fresh.vocab_size), rel=0.1)


def test_gpt2_has_gpt2s_parameters_with_the_tied_ones_counted_once() -> None:
    with torch.device("meta"):
        decoder = DecoderOnly(PRESETS["gpt2"])
    assert sum(p.numel() for p in decoder.parameters()) == 124_439_808


@pytest.mark.parametrize(
    ("preset", "vocab_size", "parameters"),
    [
        # An attention has 4 (512 * 512 + 512) = 1,050,624, a network 2 * 512 * 2048 + 2048 + 512 = 2,099,712, a norm
        # 1,024. So 6 (1,050,624 + 2,099,712 + 2 * 1,024) in the encoder, 6 (2 * 1,050,624 + 2,099,712 + 3 * 1,024) in
        # the decoder, 37,000 * 512 in the shared matrix: 63,082,496. The paper reports 65 million.
        ("transformer-base", 37_000, 18_914_304 + 25_224_192 + 18_944_000),
        # The same with 1024 and 4096; the paper reports 213 million.
        ("transformer-big", 37_000, 75_577_344 + 100_780_032 + 37_888_000),
    ],
)
def test_the_transformers_have_the_papers_parameters(preset: str, vocab_size: int, parameters: int) -> None:
    with torch.device("meta"):
        network = build(model_spec({"preset": preset, "vocab_size": vocab_size}))
    assert sum(p.numel() for p in network.parameters()) == parameters


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        # Sizes of transformers' BertForMaskedLM; bert-base is "110M". The embedding has (30,522 + 512 + 2) D + 2 D for
        # its norm, a layer 12 D² + 13 D, the head D² + 3 D + 30,522.
        ("bert-base", 109_514_298),
        ("bert-small", 28_795_194),
        ("bert-mini", 11_201_594),
        ("bert-tiny", 4_416_698),
        ("bert-original", 4_416_698 + (128 * 128 + 128) + (2 * 128 + 2)),  # BertForPreTraining: a pooler and two scores
        # 16 layers of 4 * 768² + 3 * 768 * 1536 and two norms; the embedding, its norm, the last norm. No bias.
        ("cramming", 16 * (4 * 768**2 + 3 * 768 * 1536 + 2 * 768) + 32_768 * 768 + 2 * 768),
        # As these, without the norm before the first attention.
        ("modern-encoder", 6 * (4 * 384**2 + 3 * 384 * 1024 + 2 * 384) + 8_192 * 384 + 384),
    ],
)
def test_encoders_have_the_papers_parameters(preset: str, parameters: int) -> None:
    with torch.device("meta"):
        network = build(PRESETS[preset])
    assert sum(p.numel() for p in network.parameters()) == parameters
    if preset in ("cramming", "modern-encoder"):
        assert not any("bias" in name for name, _ in network.named_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("preset", ENCODERS)
def test_every_encoder_learns_from_its_first_step(preset: str) -> None:
    """With every init scheme, each used part gets a gradient at some step while the unembedding is trained."""
    for init in ({"kind": "normal"}, {"kind": "xavier"}, {"kind": "zero_projections"}):
        encoder = small(preset, vocab_size=V, init=init).train()
        optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            encoder(torch.randint(V, (4, 64))).logsumexp(-1).sum().backward()
            optimizer.step()
        heads = ("pooler.", "next_sentence.")
        without_gradient = [
            name
            for name, p in encoder.named_parameters()
            if not name.startswith(heads) and (p.grad is None or not p.grad.any())
        ]
        # A key's bias shifts all scores of a query equally, so its gradient is zero except for rounding.
        assert [name for name in without_gradient if "key.bias" not in name] == []


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_survive_a_file(preset: str) -> None:
    spec = PRESETS[preset]
    assert parse(SPECS[spec.family], to_plain(spec)) == spec
    assert model_spec({"preset": preset}) == spec


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_builds_on_the_meta_device(preset: str) -> None:
    with torch.device("meta"):
        on_meta = build(PRESETS[preset])
    with FakeTensorMode():
        fake = build(PRESETS[preset])
    assert all(parameter.is_meta for parameter in on_meta.parameters())
    shapes = [{name: p.shape for name, p in network.named_parameters()} for network in (on_meta, fake)]
    assert shapes[0] == shapes[1]


def test_misspelled_preset_is_reported_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"model.preset: unknown preset 'gtp2'; did you mean 'gpt2'\?"):
        model_spec({"preset": "gtp2"})


@pytest.mark.parametrize("tied", [False, True])
def test_padding_the_vocabulary_adds_rows_but_no_logits(tied: bool) -> None:
    decoder = model(spec={"pad_vocab_to": 8, "tie_embeddings": tied})
    assert decoder.embedding.weight.shape == decoder.unembedding.weight.shape == (24, 24)
    tokens = torch.randint(V, (2, 5))
    logits = decoder(tokens)
    assert logits.shape == (2, 5, V)
    assert decoder.start(tokens, torch.tensor([5, 5]), capacity=6)[0].shape == (2, V)
    logits.logsumexp(-1).sum().backward()
    for weight in (decoder.embedding.weight, decoder.unembedding.weight):
        assert weight.grad is not None
        assert (weight.grad[V:] == 0).all()
        assert (weight.grad[:V] != 0).any()


def test_padding_65_characters_to_64_makes_128_rows() -> None:
    spec = DecoderOnlySpec(vocab_size=65, pad_vocab_to=64, stack=StackSpec(d_model=24, n_layers=1, n_heads=4))
    decoder = DecoderOnly(spec)
    assert decoder.embedding.num_embeddings == 128
    assert decoder(torch.randint(65, (2, 5))).shape == (2, 5, 65)


def test_logits_are_capped_and_embeddings_scaled() -> None:
    hidden = 100 * torch.randn(2, 5, 24)
    plain_model, capped_model = model(), model(spec={"logit_softcap": 3.0})
    capped_model.load_state_dict(plain_model.state_dict())
    torch.testing.assert_close(capped_model.logits(hidden), 3 * torch.tanh(plain_model.logits(hidden) / 3))
    scaled_model = model(spec={"scale_embedding": True, "tie_embeddings": False})
    unscaled_model = model(spec={"tie_embeddings": False})
    unscaled_model.load_state_dict(scaled_model.state_dict())
    with torch.no_grad():
        unscaled_model.embedding.weight.mul_(math.sqrt(24))
    tokens = torch.randint(V, (2, 5))
    torch.testing.assert_close(scaled_model(tokens), unscaled_model(tokens))


@pytest.mark.parametrize("place", ["embedding", "attention", "residual"])
def test_each_dropout_acts_in_training_only(place: str) -> None:
    decoder, tokens = model(dropout=Dropout(**{place: 0.5})), torch.randint(V, (2, 5))
    assert torch.equal(decoder(tokens), decoder(tokens))
    decoder.train()
    assert not torch.equal(decoder(tokens), decoder(tokens))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DecoderOnly(DecoderOnlySpec(stack=StackSpec(**SMALL))), "vocab_size=0 must be at least 1"),
        (lambda: StackSpec(**(SMALL | {"n_layers": 0})), "n_layers=0 must be at least 1"),
        (lambda: Dropout(residual=1.0), "residual=1.0 must be at least 0 and below 1"),
        (lambda: DecoderOnlySpec(stack=StackSpec(**SMALL), max_len=0), "max_len=0"),
        (lambda: DecoderOnlySpec(stack=StackSpec(**SMALL), logit_softcap=0.0), "logit_softcap=0.0 must be above 0"),
    ],
)
def test_invalid_sizes_are_rejected(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("preset", PRESETS)
@torch.no_grad()
def test_half_precision_stays_near_full(preset: str) -> None:
    dtype = torch.float16 if list(PRESETS).index(preset) % 2 else torch.bfloat16
    network = small(preset, vocab_size=V, init="normal")
    tokens = torch.randint(V, (2, 32))
    full = scores(network, tokens)
    with torch.autocast("cpu", dtype=dtype):
        autocast_logits = scores(network, tokens)
    half = scores(network.to(dtype), tokens)
    for logits in (autocast_logits, half):
        assert logits.dtype == torch.float32
        assert torch.cosine_similarity(logits, full, dim=-1).min() > 0.995
