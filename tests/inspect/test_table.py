"""The model table: parameters equal PyTorch's count, and FLOPs equal those of its counter."""

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tercet.inspect import model_table
from tercet.models import (
    PRESETS,
    AnySpec,
    Classifier,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
    build,
    model_spec,
)
from tercet.nn import Rotary
from tercet.notebook import PREFIXES, format_bytes, format_count, format_duration

SMALL = DecoderOnlySpec(
    vocab_size=13,
    max_len=7,
    stack=StackSpec(d_model=24, n_layers=2, n_heads=6, n_kv_heads=2, position=Rotary(), gated=True),
)
READER = StackSpec(d_model=24, n_layers=1, n_heads=4, d_head=5, d_ff=31)
WRITER = StackSpec(d_model=24, n_layers=3, n_heads=6, n_kv_heads=2, gated=True, position=Rotary())
PAIRS = EncoderDecoderSpec(vocab_size=13, max_len=7, encoder=READER, decoder=WRITER)


ENCODER = EncoderOnlySpec(
    vocab_size=13,
    max_len=7,
    n_segments=2,
    embedding_norm=True,
    masked_head=MaskedHead(transform=True, bias=True),
    pooler=True,
    next_sentence=True,
    classifier=Classifier(labels=("a", "b", "c"), pooling="pooler"),
    stack=READER,
)


def shrunk(preset: str) -> AnySpec:
    stacks = ("encoder", "decoder") if isinstance(PRESETS[preset], EncoderDecoderSpec) else ("stack",)
    sizes = {stack: {"d_model": 24, "n_heads": 3} for stack in stacks}
    return model_spec({"preset": preset, "vocab_size": 13, "max_len": 9, **sizes})


DISTINCT_PRESETS = ("gpt2", "transformer-tiny", "modern-translator", "bert-original")  # the others are similar
SAMPLED_PRESETS = [
    pytest.param(preset, marks=() if preset in DISTINCT_PRESETS else pytest.mark.exhaustive) for preset in PRESETS
]


@pytest.mark.slow
@pytest.mark.parametrize("preset", SAMPLED_PRESETS)
def test_parameters_are_those_of_the_model(preset: str) -> None:
    table = model_table(PRESETS[preset])
    with FakeTensorMode():
        expected = sum(parameter.numel() for parameter in build(PRESETS[preset]).parameters())
    assert table.parameters == sum(row.parameters for row in table.rows) == expected


@pytest.mark.slow
def test_gpt2_has_the_published_parameters() -> None:
    table = model_table(PRESETS["gpt2"])
    assert table.parameters == 124_439_808
    assert [row.tied_to for row in table.rows if row.tied_to] == ["embedding"]
    untied = model_table(replace(PRESETS["gpt2"], tie_embeddings=False))
    assert untied.parameters == 124_439_808 + 50_257 * 768
    assert untied.flops_forward == table.flops_forward  # logits are computed with and without tied weights
    assert table.memory.cache_per_token_bfloat16 == 2 * 12 * 768 * 2


SPECS = {
    "grouped": SMALL,
    "padded": replace(SMALL, pad_vocab_to=16, tie_embeddings=False),
    "sandwich": replace(
        SMALL, stack=replace(SMALL.stack, n_kv_heads=None, gated=False, d_head=8, placement="sandwich")
    ),
    "pairs": PAIRS,
    "two vocabularies": replace(PAIRS, share_embeddings=False, source_vocab_size=29),
    "encoder": replace(ENCODER, stack=replace(WRITER, placement="post")),
}
LENGTHS = {"grouped": 5, "padded": 7, "sandwich": 5, "pairs": 5, "two vocabularies": 7, "encoder": 5}


def check_flops(spec: AnySpec, length: int) -> None:
    table = model_table(spec, length=length)
    model = build(spec)
    tokens = torch.zeros(2, table.length, dtype=torch.long)
    # Use the unfused attention: the counter does not support the fused kernels of the CPU, including Tercet's, which
    # ignores passes with gradients.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(tokens, tokens) if isinstance(model, EncoderDecoder) else model(tokens)
    assert counter.get_total_flops() == table.flops_forward * tokens.numel()
    assert sum(row.flops for row in table.rows) == table.flops_forward
    assert table.flops_training == 3 * table.flops_forward


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_flops_are_those_that_pytorch_counts(name: str) -> None:
    check_flops(SPECS[name], LENGTHS[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("length", [9, 5])
@pytest.mark.parametrize("preset", PRESETS)
def test_flops_of_presets_are_those_that_pytorch_counts(preset: str, length: int) -> None:
    check_flops(shrunk(preset), length)


@pytest.mark.slow
def test_a_model_and_its_spec_give_the_same_table() -> None:
    model, pairs = DecoderOnly(SMALL), EncoderDecoder(PAIRS)
    assert model_table(model) == model_table(SMALL)
    assert model_table(pairs) == model_table(PAIRS)
    assert not model.embedding._forward_hooks
    assert all(module.training for module in model.modules())


@pytest.mark.slow
@pytest.mark.parametrize("spec", [SMALL, PAIRS], ids=["language", "pairs"])
def test_cache_sizes_equal_those_of_the_table(spec: AnySpec) -> None:
    memory, model = model_table(spec).memory, build(spec)
    tokens, source = torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 5, dtype=torch.long)
    how = {"source": source} if isinstance(model, EncoderDecoder) else {}
    _, cache = model.start(tokens, torch.ones(2).long(), capacity=6, **how)
    self_bytes = sum(layer.self_kv.keys.nbytes + layer.self_kv.values.nbytes for layer in cache.layers)
    assert self_bytes == memory.cache_per_token_float32 * 2 * (6 + 1)  # a spare column
    cross_bytes = sum(table.nbytes for layer in cache.layers for table in layer.cross_kv.pair or ())
    assert cross_bytes == memory.cache_per_source_token_float32 * source.numel()
    assert memory.cache_per_source_token_bfloat16 * 2 == memory.cache_per_source_token_float32


@pytest.mark.slow
def test_a_translator_has_rows_for_both_sides() -> None:
    table = model_table(PAIRS)
    rows = {row.name: row for row in table.rows}
    assert (table.unit, table.length, model_table(SMALL).unit) == ("token pair", 7, "token")
    assert [row.tied_to for row in table.rows if row.tied_to] == ["source_embedding", "source_embedding"]
    reads, cross_attention = rows["encoder.blocks.*.self_attention"], rows["decoder.blocks.*.cross_attention"]
    assert (reads.kind, reads.count, reads.shape, reads.flops) == ("Attention", 1, (7, 24), 4 * 7 * 4 * 5)
    assert (cross_attention.kind, cross_attention.count, cross_attention.shape, cross_attention.flops) == (
        "Attention",
        3,
        (7, 24),
        3 * 4 * 7 * 24,
    )
    key = rows["decoder.blocks.*.cross_attention.key"]
    assert (key.count, key.shape, key.parameters, key.flops) == (3, (7, 8), 3 * (24 * 8 + 8), 3 * 2 * 24 * 8)
    assert rows["encoder.final_norm"].parameters == rows["decoder.final_norm"].parameters == 48
    assert "encoder.blocks.*.cross_attention.key" not in rows
    separate = model_table(replace(PAIRS, share_embeddings=False, source_vocab_size=29))
    assert separate.parameters == table.parameters + 29 * 24
    assert separate.flops_forward == table.flops_forward


@pytest.mark.slow
def test_encoder_flops_count_every_position() -> None:
    table = model_table(ENCODER)
    rows = {row.name: row for row in table.rows}
    assert table.parameters == sum(row.parameters for row in table.rows)
    assert table.parameters == sum(parameter.numel() for parameter in build(ENCODER).parameters())
    assert (rows["unembedding"].tied_to, rows["unembedding"].parameters) == ("embedding", 13)  # the bias is separate
    assert (rows["unembedding"].shape, rows["unembedding"].flops) == ((7, 13), 2 * 24 * 13)
    assert (rows["transform.dense"].shape, rows["transform.dense"].flops) == ((7, 24), 2 * 24 * 24)
    text_rows = rows["pooler.dense"], rows["next_sentence"], rows["classifier"]  # once per text, not per token
    assert [(row.shape, row.flops) for row in text_rows] == [((24,), 0), ((2,), 0), ((3,), 0)]
    over_tokens = replace(ENCODER, classifier=Classifier(labels=("a", "b"), over="tokens"))
    assert model_table(over_tokens).flops_forward == table.flops_forward + 2 * 24 * 2
    bare = replace(ENCODER, masked_head=None)
    assert model_table(bare).flops_forward == table.flops_forward - 2 * 24 * (24 + 13)
    assert table.memory.cache_per_token_float32 == table.memory.cache_per_source_token_float32 == 0
    console = Console(file=io.StringIO(), width=120)
    console.print(table.view())
    output = console.file.getvalue()  # pyright: ignore
    assert "= embedding + 13" in output
    assert "every place scored" in " ".join(output.split())
    assert "cache" not in output


def test_rows_of_equal_blocks_are_merged() -> None:
    table = model_table(SMALL)
    rows = {row.name: row for row in table.rows}
    query = rows["stack.blocks.*.self_attention.query"]
    assert (query.kind, query.count, query.shape, query.parameters) == ("Linear", 2, (7, 24), 2 * (24 * 24 + 24))
    assert query.flops == 2 * 2 * 24 * 24
    assert rows["stack.blocks.*.self_attention.key"].shape == (7, 8)
    assert rows["stack.blocks.*.feedforward.gate"].shape == (7, 64)
    assert rows["unembedding"].shape == (7, 13)
    assert table.rows[0].name == "embedding"


@pytest.mark.slow
def test_positions_have_a_row() -> None:
    rows = {row.name: row for row in model_table(PRESETS["gpt2"]).rows}
    assert rows["stack.position.table"].parameters == 1024 * 768
    assert rows["stack.position.table"].shape == (1024, 768)


@pytest.mark.slow
def test_the_table_allocates_and_samples_nothing() -> None:
    rng_state = torch.get_rng_state()
    huge = DecoderOnlySpec(
        vocab_size=128_000, max_len=8192, stack=StackSpec(d_model=16_384, n_layers=4, n_heads=128, position=Rotary())
    )
    table = model_table(huge)
    assert table.memory.weights_float32 > 50 << 30
    assert torch.equal(torch.get_rng_state(), rng_state)


@pytest.mark.slow
def test_tables_as_json_and_as_text() -> None:
    table = model_table(PRESETS["gpt2"])
    data = json.loads(json.dumps(table.to_dict()))
    assert data["parameters"] == 124_439_808
    assert data["memory"]["weights_float32"] == 4 * 124_439_808
    assert data["rows"][0]["name"] == "embedding"
    output = io.StringIO()
    Console(file=output, width=110).print(table.view())
    for words in ("124,439,808", "12 x Attention", "= embedding", "1024 x 768", "474.7 MiB", "6 N + 12 L d T"):
        assert words in output.getvalue()


@pytest.mark.slow
def test_tables_of_a_translator_as_json_and_as_text() -> None:
    table = model_table(PRESETS["transformer-base"])
    data = json.loads(json.dumps(table.to_dict()))
    assert (data["parameters"], data["unit"], data["length"]) == (63_082_496, "token pair", 512)
    assert data["memory"]["cache_per_source_token_bfloat16"] == 2 * 6 * 512 * 2
    output = io.StringIO()
    Console(file=output, width=120).print(table.view())
    for words in ("63,082,496", "FLOPs/token pair", "6 x Attention", "= source_embedding", "cache per target token"):
        assert words in output.getvalue()
    assert "L = 18 attentions, T = 512 on each side" in " ".join(output.getvalue().split())


def test_a_spec_without_a_vocabulary() -> None:
    with pytest.raises(ValueError, match=r"vocab_size=0 must be at least 1"):
        model_table(replace(SMALL, vocab_size=0))


@pytest.mark.parametrize(("number", "words"), [
    (0, "0"), (999, "999"), (1000, "1 k"), (85_056_000, "85.1 M"), (999_499, "999 k"), (999_500, "1 M"),
    (999_999, "1 M"), (10**27 - 1, "1,000 Y"), (123 * 10**27, "123,000 Y"),
])  # fmt: skip
def test_short_forms_of_numbers(number: int, words: str) -> None:
    assert format_count(number) == words


@pytest.mark.parametrize(("number", "words"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 << 29, "1.5 GiB"), ((1 << 20) - 1, "1 MiB"),
    (1 << 93, "8,192 YiB"),
])  # fmt: skip
def test_short_forms_of_bytes(number: int, words: str) -> None:
    assert format_bytes(number) == words


@pytest.mark.parametrize(
    ("form", "base", "digits", "units"),
    [
        (format_count, 1000, 3, PREFIXES),
        (format_bytes, 1024, 4, ["B", *(f"{prefix.upper()}iB" for prefix in PREFIXES[1:])]),
    ],
    ids=["count", "bytes"],
)
@given(
    power=st.integers(0, 7), near=st.integers(-2000, 2000), factor=st.integers(1, 999) | st.sampled_from([1000, 1024])
)
def test_short_forms_are_below_the_next_unit_and_precise(
    form: Callable[[int], str], base: int, digits: int, units: list[str], power: int, near: int, factor: int
) -> None:
    number = max(0, factor * base**power + near * max(1, base**power // 100_000))
    value, _, unit = form(number).partition(" ")
    assert "e" not in value
    assert float(value) < base
    assert float(value) * base ** units.index(unit) == pytest.approx(number, rel=0.5 * 10 ** (1 - digits) + 1e-12)


@given(st.floats(0, 1e9))
@example(59.96)
@example(3599.6)
@example(86_370.0)
@example(86_369.9)
@example(84_700.0)
def test_parts_of_durations_are_below_the_next_unit(seconds: float) -> None:
    words = format_duration(seconds).replace(",", "").split()
    sizes, limits = {"s": 1, "min": 60, "h": 3600, "d": 86_400}, {"s": 60, "min": 60, "h": 24, "d": math.inf}
    parts = list(zip(map(float, words[::2]), words[1::2], strict=True))
    assert all(value < limits[unit] for value, unit in parts)
    step = {"s": 0.05, "min": 0.5, "h": 30, "d": 1800}[parts[0][1]]
    assert sum(value * sizes[unit] for value, unit in parts) == pytest.approx(seconds, abs=step + 1e-6)
