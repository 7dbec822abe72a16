"""Diagrams match the model: shapes equal those of the running modules, and numbers those of the spec."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Text
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tercet.cli.inspect import find_spec
from tercet.models import (
    PRESETS,
    AnySpec,
    Biases,
    BranchDropout,
    Classifier,
    DecoderOnlySpec,
    Dropout,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
    build,
    record,
)
from tercet.nn.residual import PLACEMENTS
from tercet.nn.specs import ALiBi, RelativeBias, Rotary
from tercet.plots.diagrams import ModelDiagram, describe_attention, describe_model, plot_attention_shapes, plot_model
from tercet.plots.diagrams.boxes import Box
from tercet.plots.picture_file import save
from tercet.training.recipe.files import recipes_from_scratch

pytestmark = pytest.mark.slow

B, T, S = 2, 5, 7
NAMES = [*PRESETS, *(name for name in recipes_from_scratch() if name not in PRESETS)]
SOME_NAMES = [  # a third of them, since each takes up to a second
    pytest.param(name, marks=[] if number % 3 == 0 else pytest.mark.exhaustive) for number, name in enumerate(NAMES)
]
SMALL = StackSpec(d_model=24, n_layers=3, n_heads=6, n_kv_heads=2, d_head=10, d_ff=31, qk_norm=True)


def read_spec(name: str) -> AnySpec:
    return find_spec(name, settle=False)[0]


def full(spec: AnySpec) -> AnySpec:
    """Fill in values of the spec that depend on the data."""
    spec = replace(spec, vocab_size=spec.vocab_size or 53)
    if isinstance(spec, EncoderOnlySpec) and spec.classifier is not None and not spec.classifier.labels:
        labels = ("number",) if spec.classifier.problem_type == "regression" else ("yes", "no", "maybe")
        spec = replace(spec, classifier=replace(spec.classifier, labels=labels))
    return spec


def stacks(spec: AnySpec) -> list[StackSpec]:
    return [spec.encoder, spec.decoder] if isinstance(spec, EncoderDecoderSpec) else [spec.stack]


def steps(diagram: ModelDiagram) -> Iterator[Box]:
    """Yield every box."""
    for side in diagram.sides:
        boxes = [side.tokens, side.embedding, *side.additions, side.embedding_norm, side.final_norm]
        for sublayer in side.sublayers:
            boxes += [sublayer.before, sublayer.after]
            boxes += [step for branch in sublayer.branches for step in (branch.body, branch.norm)]
        yield from (step for step in boxes if step is not None)
    for head in diagram.heads:
        yield from head


def running_shapes(spec: AnySpec) -> dict[str, tuple[int, ...]]:
    """Return the output shape of each module, by name, for B rows, T tokens and S source tokens."""
    shapes: dict[str, tuple[int, ...]] = {}

    def hook(name: str) -> Any:
        def note(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            shapes[name] = tuple(output.shape)

        return note

    with FakeTensorMode():
        model = build(spec).eval()
        for name, part in model.named_modules():
            part.register_forward_hook(hook(name))
        tokens, source = torch.zeros(B, T, dtype=torch.long), torch.zeros(B, S, dtype=torch.long)
        if isinstance(model, EncoderDecoder):
            model(source, tokens)
        elif isinstance(model, EncoderOnly):
            assert isinstance(spec, EncoderOnlySpec)
            hidden = model.hidden(tokens, segments=tokens if spec.n_segments else None)
            for is_used, head in (
                (spec.masked_head, model.logits), (spec.pooler, model.pooled),
                (spec.next_sentence, model.next_sentence_logits), (spec.classifier, model.classify),
            ):  # fmt: skip
                if is_used:
                    head(hidden)
        else:
            model(tokens)
    return shapes


@pytest.mark.parametrize("name", SOME_NAMES)
def test_shapes_equal_those_of_the_running_model(name: str) -> None:
    spec = full(read_spec(name))
    source = {"source_length": S} if isinstance(spec, EncoderDecoderSpec) else {}
    diagram = describe_model(spec, batch=B, length=T, **source)
    assert diagram.letters == {}
    shapes = running_shapes(spec)
    n_checked = 0
    for step in steps(diagram):
        place = step.name.replace("*", "0")
        if place and step.kind != "position":  # positions are read, not called
            assert step.shape == shapes[place], step
            n_checked += 1
    assert n_checked >= 3 + 2 * len(diagram.sides)
    with FakeTensorMode():
        assert diagram.parameters == sum(p.numel() for p in build(spec).parameters())


@pytest.mark.parametrize("name", NAMES)
def test_components_equal_those_of_the_spec(name: str) -> None:
    spec = read_spec(name)
    diagram = describe_model(spec)
    for side, stack in zip(diagram.sides, stacks(spec), strict=True):
        has_norm_before, has_branch, has_norm_after = PLACEMENTS[stack.placement]
        assert side.n_layers == stack.n_layers
        assert side.dropout == stack.dropout.embedding
        assert (side.embedding_norm is not None) == spec.embedding_norm
        assert (side.final_norm is not None) == stack.has_final_norm
        assert len(side.sublayers) == (3 if side.name == "decoder" else 2)
        for sublayer in side.sublayers:
            (branch_boxes,) = sublayer.branches
            norms = sublayer.before, branch_boxes.norm, sublayer.after
            assert [norm is not None for norm in norms] == [has_norm_before, has_branch, has_norm_after]
            network = branch_boxes.body.kind == "feedforward"
            rates = stack.dropout.branches
            assert branch_boxes.body.dropout == (rates.feedforward if network else rates.attention)
            rate = stack.dropout.activation if network else stack.dropout.attention
            assert any(f"dropout {rate:g} on the" in text for text in branch_boxes.body.details) == bool(rate)
            biases = stack.biases
            if network:
                assert branch_boxes.body.details[1] == ("with biases" if biases.feedforward else "no biases")
            else:
                words = {(True, True): "with biases", (False, False): "no biases"}
                words |= {(True, False): "biases on q, k, v only", (False, True): "a bias on out only"}
                assert words[biases.qkv, biases.out] in branch_boxes.body.details
        attention, network = side.sublayers[0].branches[0].body, side.sublayers[-1].branches[0].body
        assert attention.details[0].startswith(f"{stack.n_heads} heads of {stack.head_width}")
        assert ("causal" in attention.details[1]) == (side.name == "decoder" or spec.family == "decoder-only")
        assert f" {stack.inner_width} " in f" {network.details[0].replace(',', ' ')} "
        assert any("sqrt" in text or "√" in text for text in side.embedding.details) == spec.scale_embedding
        assert [step.title for step in side.additions if step.kind == "position"] == {
            "learned": ["Learned positions"], "sinusoidal": ["Sinusoidal positions"],
        }.get(stack.position.kind, [])  # fmt: skip
        assert any("rotary" in text for text in attention.details) == (stack.position.kind == "rotary")


@pytest.mark.parametrize("name", SOME_NAMES)
def test_the_svg_contains_the_numbers_without_overlaps(name: str, tmp_path: Path) -> None:
    spec = read_spec(name)
    figure = plot_model(describe_model(spec), name=name, note="a note")
    save(figure, tmp_path / "model.svg", as_text=True)
    root = ElementTree.parse(tmp_path / "model.svg").getroot()
    texts = ["".join(element.itertext()).strip() for element in root.iter() if element.tag.endswith("}text")]
    words = " | ".join(texts)
    assert {name, "a note"} <= set(texts)
    for letter, stack in zip("ST" if len(stacks(spec)) == 2 else "T", stacks(spec), strict=True):
        assert f"(B, {letter}, {stack.d_model})" in words
        assert f"{stack.n_layers} ×" in words
        assert f"{stack.n_heads} heads of {stack.head_width}" in words
        assert str(stack.inner_width) in words
        branches = stack.dropout.branches
        rates = {stack.dropout.embedding, branches.attention, branches.feedforward} - {0.0}
        assert {f"dropout {rate:g}" for rate in rates} <= set(texts)
    if spec.vocab_size:
        assert str(spec.vocab_size) in words
    assert_readable(figure)


def assert_readable(figure: Any) -> None:
    """Check that texts lie within the figure and their box, and do not overlap."""
    figure.set_dpi(300)  # a resolution at which letters have their real width
    figure.draw_without_rendering()
    width, height = figure.canvas.get_width_height()
    boxes = [(text.get_text(), text.get_window_extent()) for text in figure.findobj(Text) if text.get_text()]
    for words, box in boxes:
        assert box.x0 >= 0, words
        assert box.y0 >= 0, words
        assert box.x1 <= width, words
        assert box.y1 <= height, words
    patches = [patch.get_window_extent() for patch in figure.findobj(FancyBboxPatch) if patch.get_zorder() > 0]
    for words, box in boxes:
        for patch in patches:
            if patch.contains(*(box.min + box.size / 2)):
                assert patch.x0 <= box.x0, words
                assert box.x1 <= patch.x1, words
                assert patch.y0 <= box.y0, words
                assert box.y1 <= patch.y1, words
    for number, (words, box) in enumerate(boxes):
        for other_words, other_box in boxes[:number]:
            assert type(box).intersection(box.padded(-2), other_box.padded(-2)) is None, (words, other_words)


def test_unknown_sizes_are_letters() -> None:
    spec = DecoderOnlySpec(stack=SMALL)
    diagram = describe_model(spec, length=9)
    assert diagram.parameters is None
    assert diagram.letters == {"B": "batch size", "V": "tokens of the vocabulary"}
    assert diagram.heads[0][0].shape == ("B", 9, "V")
    assert diagram.sides[0].embedding.details[0] == "V × 24"
    labels = EncoderOnlySpec(vocab_size=40, stack=SMALL, masked_head=None, classifier=Classifier())
    diagram = describe_model(labels)
    assert diagram.letters == {"B": "batch size", "T": "tokens of a text", "L": "labels"}
    assert diagram.heads[0][-1].shape == ("B", "L")
    assert diagram.sides[0].embedding.details[0] == "40 × 24"
    two = EncoderDecoderSpec(share_embeddings=False, encoder=SMALL, decoder=SMALL)
    assert [side.embedding.details[0] for side in describe_model(two).sides] == ["V of the source × 24", "V × 24"]


def test_tied_matrices_are_described() -> None:
    def details(**fields: Any) -> list[tuple[str, ...]]:
        diagram = describe_model(EncoderDecoderSpec(vocab_size=50, encoder=SMALL, decoder=SMALL, **fields))
        return [side.embedding.details[1:] for side in diagram.sides] + [diagram.heads[0][0].details[1:]]

    target_note, unembedding_note, head = "shared with the target", "shared with the unembedding", "shared with the"
    assert details() == [(target_note,), (unembedding_note,), (f"{head} token embedding",)]
    assert details(share_embeddings=False) == [(), (unembedding_note,), (f"{head} token embedding",)]
    assert details(tie_embeddings=False) == [(target_note,), (), ()]
    padded = describe_model(DecoderOnlySpec(vocab_size=50, pad_vocab_to=64, logit_softcap=15.0, stack=SMALL))
    assert padded.sides[0].embedding.details[0] == "64 × 24 (50 tokens)"
    assert padded.heads[0][0].details[1] == "64 rows; those beyond the vocabulary are ignored"
    assert "then 15 · tanh(score / 15)" in padded.heads[0][0].details


def test_all_heads_of_an_encoder() -> None:
    stack = replace(SMALL, dropout=Dropout(embedding=0.1, attention=0.2, residual=0.3))
    spec = EncoderOnlySpec(
        vocab_size=50, stack=stack, n_segments=2, masked_head=MaskedHead(transform=True, bias=True), pooler=True,
        next_sentence=True, classifier=Classifier(labels=("a", "b", "c"), pooling="pooler"),
    )  # fmt: skip
    diagram = describe_model(spec)
    assert [[step.title for step in head] for head in diagram.heads] == [
        ["Dense layer", "Layer norm", "Linear layer to logits", "Softmax"],
        ["First token", "Pooler", "Next sentence or not"],
        ["First token", "Pooler", "Classifier"],
    ]
    assert "dropout 0.2 on the weights" in diagram.sides[0].sublayers[0].branches[0].body.details
    assert_readable(plot_model(diagram))
    bare = describe_model(EncoderOnlySpec(vocab_size=50, stack=SMALL, masked_head=None))
    assert bare.heads == ()
    assert_readable(plot_model(bare))


@pytest.mark.parametrize(
    ("placement", "cross", "parallel"),
    [
        ("pre", False, True),
        ("post", True, True),
        ("sandwich", False, True),
        ("branch", True, True),
        ("pre", True, "separate_norms"),
        ("sandwich", False, "separate_norms"),
    ],
)
def test_parts_side_by_side(placement: Any, cross: bool, parallel: Any) -> None:
    """Parallel sublayers are drawn as one with several branches, and norms match those of the block."""
    dropout = Dropout(activation=0.2, residual=BranchDropout(attention=0.1, feedforward=0.4))
    stack = replace(SMALL, parallel=parallel, placement=placement, dropout=dropout, norm="layer_std", gated=True)
    common: dict[str, Any] = {"vocab_size": 50, "logit_bias": True}
    spec: AnySpec = DecoderOnlySpec(stack=stack, **common)
    if cross:
        spec = EncoderDecoderSpec(encoder=SMALL, decoder=stack, **common)
    diagram = describe_model(spec)
    (sublayer,) = diagram.sides[-1].sublayers
    kinds = ["attention", "attention", "feedforward"] if cross else ["attention", "feedforward"]
    assert [branch.body.kind for branch in sublayer.branches] == kinds
    assert [branch.body.dropout for branch in sublayer.branches] == [0.1] * (len(kinds) - 1) + [0.4]
    assert "dropout 0.2 on the activations" in sublayer.branches[-1].body.details
    names = {name for name, _ in build(spec).named_parameters()}
    norms = [
        sublayer.before,
        sublayer.after,
        *(norm for branch in sublayer.branches for norm in (branch.before, branch.norm)),
    ]
    drawn_norms = {f"{norm.name.replace('*', '0')}.weight" for norm in norms if norm is not None}
    block = f"{diagram.sides[-1].name}.blocks.0."
    assert drawn_norms == {name for name in names if name.startswith(block) and name.endswith(
        tuple(f"residual.{place}.weight" for place in ("before", "branch", "after")))}  # fmt: skip
    assert all(norm.title == "Layer norm, by the deviation" for norm in norms if norm is not None)
    assert diagram.heads[0][0].details[0] == "24 → 50, with bias"
    assert_readable(plot_model(diagram))


def test_biases_of_each_kind() -> None:
    def words(**kinds: bool) -> tuple[str, str]:
        spec = DecoderOnlySpec(vocab_size=50, stack=replace(SMALL, bias=Biases(**kinds)))
        attention, network = (sublayer.branches[0].body for sublayer in describe_model(spec).sides[0].sublayers)
        return attention.details[3], network.details[1]

    assert words(qkv=True, out=False, feedforward=True) == ("biases on q, k, v only", "with biases")
    assert words(qkv=False, out=True, feedforward=False) == ("a bias on out only", "no biases")
    post = DecoderOnlySpec(vocab_size=50, stack=replace(SMALL, placement="post", final_norm=True))
    assert describe_model(post).sides[0].final_norm is not None
    pre = DecoderOnlySpec(vocab_size=50, stack=replace(SMALL, final_norm=False))
    assert describe_model(pre).sides[0].final_norm is None


@pytest.mark.parametrize("which", ["self", "encoder", "decoder", "cross"])
def test_attention_shapes_equal_those_of_the_module(which: str) -> None:
    stack = replace(SMALL, position=Rotary())
    spec: AnySpec = EncoderDecoderSpec(vocab_size=50, encoder=stack, decoder=stack)
    if which == "self":
        spec = DecoderOnlySpec(vocab_size=50, stack=replace(stack, position=ALiBi()))
    model = build(spec).eval()
    source = {} if which == "self" else {"source_length": S}
    diagram = describe_attention(spec, which=which, batch=B, length=T, **source)
    tokens = torch.zeros(B, T, dtype=torch.long)
    with record(model) as activations, torch.no_grad():
        model(tokens) if which == "self" else model(torch.zeros(B, S, dtype=torch.long), tokens)
    name = diagram.name.replace("*", "0")
    boxes = {step.name: step for column in diagram.columns.values() for step in column if step.name in ("q", "k", "v")}
    boxes |= {step.name: step for step in (diagram.scores, diagram.weights, diagram.heads)}
    assert set(boxes) == {"q", "k", "v", "scores", "weights", "heads"}
    for kind, step in boxes.items():
        assert step.shape == tuple(activations[f"{name}.{kind}"].shape), kind
    for column, linear in (("query", "query"), ("key", "key"), ("value", "value")):
        assert diagram.columns[column][0].shape == tuple(activations[f"{name}.{linear}"].shape)
    assert diagram.out.shape == tuple(activations[name].shape)
    assert diagram.concatenated.shape == (*diagram.out.shape[:2], 6 * 10)
    n_rotations = [[step.title for step in column].count("Rotation") for column in diagram.columns.values()]
    assert n_rotations == ([1, 1, 0] if which in ("encoder", "decoder") else [0, 0, 0])
    assert [column[2].title for name, column in diagram.columns.items() if name != "value"] == ["RMS norm"] * 2
    assert "3 query heads share each key/value head" in diagram.scores.details
    assert ("ALiBi: scores fall with distance" in diagram.scores.details) == (which == "self")
    assert ("causal" in diagram.weights.details[0]) == (which in ("self", "decoder"))
    assert len(diagram.inputs) == (2 if which == "cross" else 1)
    assert_readable(plot_attention_shapes(diagram, name="tiny"))


@pytest.mark.parametrize(("per_layer", "sharing"), [(False, "shared by all blocks"), (True, "each block's own")])
def test_a_relative_bias_is_described(per_layer: bool, sharing: str) -> None:
    stack = replace(SMALL, position=RelativeBias(per_layer=per_layer))
    spec = EncoderDecoderSpec(vocab_size=50, encoder=stack, decoder=stack)
    description = f"learned bias of 32 buckets of distance, {sharing}"
    for which in ("encoder", "decoder", "cross"):
        assert (description in describe_attention(spec, which=which).scores.details) == (which != "cross")
    bodies = [branch.body for side in describe_model(spec).sides for step in side.sublayers for branch in step.branches]
    assert [description in body.details for body in bodies] == [True, False, True, False, False]


@pytest.mark.parametrize("name", SOME_NAMES)
def test_every_attention_can_be_drawn(name: str) -> None:
    spec = read_spec(name)
    for which in ("encoder", "decoder", "cross") if isinstance(spec, EncoderDecoderSpec) else (None,):
        diagram = describe_attention(spec, which=which)
        assert_readable(plot_attention_shapes(diagram, name=name))


def test_unsuitable_arguments_are_rejected() -> None:
    spec = DecoderOnlySpec(vocab_size=50, max_len=9, stack=SMALL)
    with pytest.raises(ValueError, match=r"length=10 does not fit into the context of max_len=9"):
        describe_model(spec, length=10)
    with pytest.raises(ValueError, match=r"source_length=3 is for translators"):
        describe_model(spec, source_length=3)
    with pytest.raises(ValueError, match=r"batch=0 must be at least 1"):
        describe_attention(spec, batch=0)
    with pytest.raises(ValueError, match=r"which='cross': the decoder-only family has self"):
        describe_attention(spec, which="cross")
    with pytest.raises(ValueError, match=r"d_model=24 must be divisible by n_heads=5"):
        describe_model(replace(spec, stack=replace(SMALL, n_heads=5, d_head=None, n_kv_heads=None)))
