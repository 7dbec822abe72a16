"""The content of a model's diagram, read from the modules of the spec.

The model is built on the meta device, which stores shapes but no numbers, so large models need no memory. Sizes that
depend on the data (a trained vocabulary, labels) stay letters.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn

from tercet.models import AnyModel, AnySpec, EncoderDecoder, EncoderDecoderSpec, EncoderOnly, EncoderOnlySpec, build
from tercet.models.stack import Stack
from tercet.models.vocabulary import TokenEmbedding
from tercet.nn import Block, Residual
from tercet.plots.diagrams.boxes import (
    Box,
    Shape,
    Size,
    format_activation,
    has_bias,
    read_attention,
    read_feedforward,
    read_linear,
    read_norm,
    read_position,
)

SEES_EARLIER = "causal mask: no later tokens"
SEES_ALL = "attends to all tokens"
SEES_SOURCE = "attends to all source tokens"


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A branch of a sublayer, from its input to the residual stream.

    `before` is the norm of the input of this branch only, `norm` that of the output; both may be None. `body.dropout`
    acts after `norm`.
    """

    body: Box
    norm: Box | None
    before: Box | None = None


@dataclass(frozen=True, kw_only=True)
class Sublayer:
    """A residual connection: x plus one branch, or plus several parallel branches with the same input.

    `before` is the norm of the input of the branches, `after` that of the sum; both may be None.
    """

    before: Box | None
    branches: tuple[Branch, ...]
    after: Box | None


@dataclass(frozen=True, kw_only=True)
class StackDiagram:
    """A stack with its inputs.

    Attributes:
        name: `encoder`, `decoder`, or `stack` if there is only one.
        tokens, embedding: Boxes of the token ids and of the token embedding.
        additions: Boxes of the vectors that are added to the token embedding, in order.
        embedding_norm: Norm of the sum; None if there is none.
        dropout: Dropout rate of the sum, after this norm.
        n_layers: Number of blocks.
        sublayers: Sublayers of a block.
        final_norm: Norm after the last block; None if there is none.
        shape: Shape of the residual stream.
    """

    name: str
    tokens: Box
    embedding: Box
    additions: tuple[Box, ...]
    embedding_norm: Box | None
    dropout: float
    n_layers: int
    sublayers: tuple[Sublayer, ...]
    final_norm: Box | None
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class ModelDiagram:
    """A model as boxes with shapes.

    Attributes:
        family: Family of the model.
        parameters: Number of parameters, with tied ones counted once; None if it depends on the data.
        sides: The encoder and the decoder, or the single stack.
        heads: Heads on the last hidden states, each from bottom to top.
        letters: Meaning of the letters in shapes.
    """

    family: str
    parameters: int | None
    sides: tuple[StackDiagram, ...]
    heads: tuple[tuple[Box, ...], ...]
    letters: dict[str, str]


def describe_model(
    spec: AnySpec, *, batch: int | None = None, length: int | None = None, source_length: int | None = None
) -> ModelDiagram:
    """Describe the model of a spec as boxes with shapes.

    Args:
        spec: Spec of the model.
        batch, length, source_length: Numbers for the letters B, T and S in shapes. By default the letters are kept, and
            S is T if T has a number.

    Raises:
        ValueError: If a number is below 1 or a length exceeds the context, if `source_length` is given for a model that
            is not a translator, or if the sizes of the spec do not fit together.
    """
    model, is_complete = build_on_meta(spec)
    letters, b, t, s = resolve_sizes(spec, batch, length, source_length)
    tokens: Size = spec.vocab_size or "V"
    if isinstance(model, EncoderDecoder):
        assert isinstance(spec, EncoderDecoderSpec)
        source_vocabulary = tokens if spec.share_embeddings or spec.vocab_size else "V of the source"
        source_vocabulary = source_vocabulary if spec.source_vocab_size is None else spec.source_vocab_size
        sides = (
            _describe_side(
                model,
                model.encoder,
                "encoder",
                _describe_embedding(model, "source_embedding", (b, s), source_vocabulary),
            ),
            _describe_side(model, model.decoder, "decoder", _describe_embedding(model, "embedding", (b, t), tokens)),
        )
    else:
        sides = (_describe_side(model, model.stack, "stack", _describe_embedding(model, "embedding", (b, t), tokens)),)
    letters |= {} if spec.vocab_size else {"V": "tokens of the vocabulary"}
    if isinstance(spec, EncoderOnlySpec) and spec.classifier is not None and not spec.classifier.labels:
        letters["L"] = "labels"
    return ModelDiagram(
        family=spec.family,
        parameters=sum(parameter.numel() for parameter in model.parameters()) if is_complete else None,
        sides=sides,
        heads=_describe_heads(model, spec, b, t, tokens),
        letters=letters,
    )


def build_on_meta(spec: AnySpec) -> tuple[AnyModel, bool]:
    """Build the model on the meta device; also return whether the spec contains all sizes.

    Sizes that depend on the data are replaced by 1.
    """
    full = replace(spec, vocab_size=spec.vocab_size or 1)
    if isinstance(full, EncoderOnlySpec) and full.classifier is not None and not full.classifier.labels:
        full = replace(full, classifier=replace(full.classifier, labels=("label",)))
    with torch.device("meta"):
        return build(full), full == spec


def resolve_sizes(
    spec: AnySpec, batch: int | None, length: int | None, source_length: int | None
) -> tuple[dict[str, str], Size, Size, Size]:
    """Return the meaning of the letters that have no number, and B, T and S as numbers or letters.

    Raises:
        ValueError: If a size is rejected, as in `describe_model`.
    """
    has_source = isinstance(spec, EncoderDecoderSpec)
    if source_length is not None and not has_source:
        raise ValueError(f"source_length={source_length} is for translators; the {spec.family} family has no source")
    for name, size in (("batch", batch), ("length", length), ("source_length", source_length)):
        if size is not None and size < 1:
            raise ValueError(f"{name}={size} must be at least 1")
        if size is not None and name != "batch" and size > spec.max_len:
            raise ValueError(f"{name}={size} does not fit into the context of max_len={spec.max_len} tokens")
    letters = {"B": "batch size", "T": "tokens of the target" if has_source else "tokens of a text"}
    letters |= {"S": "tokens of the source"} if has_source else {}
    source_length = length if source_length is None else source_length
    sizes: dict[str, Size | None] = {"B": batch, "T": length, "S": source_length}
    left = {letter: words for letter, words in letters.items() if sizes[letter] is None}
    b, t, s = (letter if size is None else size for letter, size in sizes.items())
    return left, b, t, s


def _describe_side(model: AnyModel, stack: Stack, name: str, embedding: Box) -> StackDiagram:
    spec, wide = stack.spec, embedding.shape
    additions = [read_position(stack, name, wide)]
    if isinstance(model, EncoderOnly) and model.spec.n_segments:
        rows = f"{model.spec.n_segments} × {spec.d_model}"
        segment = Box(
            kind="embedding", title="Segment embedding", name="segment_embedding", details=(rows,), shape=wide
        )
        additions.insert(0, segment)
    title = {"encoder": "Source tokens", "decoder": "Target tokens"}.get(name, "Tokens")
    return StackDiagram(
        name=name,
        tokens=Box(kind="input", title=title, details=("ids of the vocabulary",), shape=wide[:-1]),
        embedding=embedding,
        additions=tuple(step for step in additions if step is not None),
        embedding_norm=read_norm(stack.embedding_norm, f"{name}.embedding_norm", wide),
        dropout=stack.dropout.p,
        n_layers=len(stack.blocks),
        sublayers=_describe_sublayers(stack, name, wide),
        final_norm=read_norm(stack.final_norm, f"{name}.final_norm", wide),
        shape=wide,
    )


def _describe_embedding(model: AnyModel, name: str, shape: Shape, tokens: Size) -> Box:
    """Describe a token embedding.

    Args:
        model: Model with the embedding.
        name: Name of the embedding in the model.
        shape: Shape of the ids.
        tokens: Size of the vocabulary, or its letter.
    """
    part = model.get_submodule(name)
    assert isinstance(part, TokenEmbedding)
    rows, width = part.weight.shape
    padding = f" ({tokens} tokens)" if isinstance(tokens, int) and rows != tokens else ""
    details = [f"{rows if isinstance(tokens, int) else tokens} × {width}{padding}"]
    if part.scale != 1.0:
        details.append(f"times √{width} = {part.scale:.4g}")
    if name == "source_embedding" and part.weight is model.embedding.weight:
        details.append("shared with the target")
    elif hasattr(model, "unembedding") and model.unembedding.weight is part.weight:
        details.append("shared with the unembedding")
    return Box(kind="embedding", title="Token embedding", name=name, details=tuple(details), shape=(*shape, width))


def _describe_sublayers(stack: Stack, name: str, shape: Shape) -> tuple[Sublayer, ...]:
    block = stack.blocks[-1]  # the first one may lack a norm
    assert isinstance(block, Block)
    prefix, spec = f"{name}.blocks.*", stack.spec
    sees = SEES_EARLIER if stack.causal else SEES_ALL
    self_attention = read_attention(
        block.self_attention, f"{prefix}.self_attention", shape, sees=sees, position=spec.position
    )
    if not spec.first_norm:
        self_attention = replace(self_attention, details=(*self_attention.details, "no norm before it in block 0"))
    title = "Masked multi-head self-attention" if stack.causal else "Multi-head self-attention"
    parts: list[tuple[Residual, str, Box]] = [
        (block.self_residual, "self_residual", replace(self_attention, title=title))
    ]
    if block.cross_attention is not None and block.cross_residual is not None:
        cross_attention = read_attention(
            block.cross_attention, f"{prefix}.cross_attention", shape, sees=SEES_SOURCE, position=None
        )
        parts.append(
            (block.cross_residual, "cross_residual", replace(cross_attention, title="Multi-head cross-attention"))
        )
    network = read_feedforward(block.feedforward, spec, f"{prefix}.feedforward", shape)
    parts.append((block.feedforward_residual, "feedforward_residual", network))
    sublayers = [
        Sublayer(
            before=read_norm(residual.before, f"{prefix}.{part}.before", shape),
            branches=(
                Branch(
                    body=replace(body, dropout=residual.dropout.p),
                    norm=read_norm(residual.branch, f"{prefix}.{part}.branch", shape),
                ),
            ),
            after=read_norm(residual.after, f"{prefix}.{part}.after", shape),
        )
        for residual, part, body in parts
    ]
    if not block.parallel:
        return tuple(sublayers)
    shared = None if block.parallel == "separate_norms" else sublayers[0].before
    branches = tuple(
        replace(branch, before=sublayer.before if shared is None else None)
        for sublayer in sublayers
        for branch in sublayer.branches
    )
    return (Sublayer(before=shared, branches=branches, after=sublayers[-1].after),)


def _describe_heads(model: AnyModel, spec: AnySpec, b: Size, t: Size, tokens: Size) -> tuple[tuple[Box, ...], ...]:
    if isinstance(model, EncoderOnly):
        assert isinstance(spec, EncoderOnlySpec)
        return _describe_encoder_heads(model, spec, b, t, tokens)
    return (_describe_scores(model, model.unembedding, (b, t, tokens)),)


def _describe_encoder_heads(
    model: EncoderOnly, spec: EncoderOnlySpec, b: Size, t: Size, tokens: Size
) -> tuple[tuple[Box, ...], ...]:
    heads: list[tuple[Box, ...]] = []
    width = spec.stack.d_model
    if spec.masked_head is not None:
        steps = _describe_transform(model, spec, (b, t, width)) if spec.masked_head.transform else []
        heads.append((*steps, *_describe_scores(model, model.unembedding, (b, t, tokens))))
    pooled: tuple[Box, ...] = ()
    if spec.pooler:
        first = Box(kind="pool", title="First token", shape=(b, width))
        pooled = (
            first,
            read_linear(
                model.pooler.dense,
                "pooler.dense",
                (b, width),
                title="Pooler",
                extra_details=(f"then {spec.pooler_activation}",),
            ),
        )
    by_pooler = spec.classifier is not None and spec.classifier.over == "texts" and spec.classifier.pooling == "pooler"
    if spec.next_sentence:
        follows = read_linear(model.next_sentence, "next_sentence", (b, 2), title="Next sentence or not")
        heads.append((*pooled, follows))
    elif pooled and not by_pooler:
        heads.append(pooled)
    if spec.classifier is not None:
        count: Size = len(spec.classifier.labels) or "L"
        texts = spec.classifier.over == "texts"
        steps = list(pooled) if by_pooler else []
        if texts and not by_pooler:
            words = {"mean": "Mean of all real tokens", "first": "First token"}.get(
                str(spec.classifier.pooling), "Pool"
            )
            steps.append(Box(kind="pool", title=words, shape=(b, width)))
        if spec.classifier.transform:
            steps += _describe_transform(model, spec, (b, width) if texts else (b, t, width))
        bias = "with bias" if has_bias(model.classifier) else "no bias"
        rate = spec.classifier.dropout
        details = (f"{width} → {count}, {bias}", *([f"dropout {rate:g} on its input"] if rate else []))
        shape: Shape = (b, count) if texts else (b, t, count)
        steps.append(Box(kind="linear", title="Classifier", name="classifier", details=details, shape=shape))
        heads.append(tuple(steps))
    return tuple(heads)


def _describe_transform(model: EncoderOnly, spec: EncoderOnlySpec, shape: Shape) -> list[Box]:
    act = f"then {format_activation(spec.stack.activation)}"
    dense = read_linear(model.transform.dense, "transform.dense", shape, title="Dense layer", extra_details=(act,))
    norm = read_norm(model.transform.norm, "transform.norm", shape)
    return [dense] if norm is None else [dense, norm]


def _describe_scores(model: AnyModel, part: nn.Linear, shape: Shape) -> tuple[Box, ...]:
    width, tokens = part.in_features, shape[-1]
    bias = "with bias" if has_bias(part) else "no bias"
    details = [f"{width} → {tokens}, {bias}"]
    if isinstance(tokens, int) and part.out_features != tokens:
        details.append(f"{part.out_features} rows; those beyond the vocabulary are ignored")
    if part.weight is model.embedding.weight:
        details.append("shared with the token embedding")
    softcap = model.spec.logit_softcap
    if softcap is not None:
        details.append(f"then {softcap:g} · tanh(score / {softcap:g})")
    return (
        Box(kind="linear", title="Linear layer to logits", name="unembedding", details=tuple(details), shape=shape),
        Box(kind="outside", title="Softmax", details=("in the loss and in decoding",), shape=shape),
    )
