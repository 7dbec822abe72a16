"""Scores of attention heads.

    previous    mean weight on the previous token
    induction   in repeated text, mean weight on the token after the previous occurrence of the current token
    ablation    increase of the loss with the head's output set to zero

Olsson et al., "In-context Learning and Induction Heads" (2022). The first two are measured on random tokens, in which
only the repetition is predictable; the repeated part contains each token at most once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.generation.protocol import device_of, parts_of
from tercet.inspect.lens import stacks_of
from tercet.inspect.losses import mean_loss, token_losses
from tercet.inspect.recording import Recording, compute_logits
from tercet.models import AnyModel, Edit, EncoderDecoder, record
from tercet.models.inference import inference_mode
from tercet.nn import Attention

LENGTH = 64  # tokens of the repeated part


@dataclass(frozen=True, kw_only=True)
class HeadScores:
    """Scores of all heads.

    Attributes:
        previous: Scores of the heads of each self-attention, by its name.
        induction: The same, only for causal stacks.
    """

    previous: dict[str, Float[Tensor, " H"]]
    induction: dict[str, Float[Tensor, " H"]]


def head_scores(
    model: AnyModel,
    *,
    length: int | None = None,
    rows: int = 8,
    ids: Sequence[int] | None = None,
    source_ids: Sequence[int] | None = None,
    seed: int = 0,
) -> HeadScores:
    """Measure the attention of each head on `rows` texts of `length` random tokens, repeated once.

    Args:
        model: Model to measure.
        length: Number of tokens in the repeated part (default: half of the context, at most 64 and at most the number
            of ids).
        rows: Number of texts.
        ids: Token ids to draw from, such as all that are not special (default: the whole vocabulary).
        source_ids: Token ids to draw from for the encoder of a translator (default: `ids` if source and target share a
            vocabulary, else the whole source vocabulary).
        seed: Seed of the random tokens.

    Raises:
        ValueError: If `length` is less than 2, more than half of the context, or more than the number of ids, or if a
            subclass of `Attention` has its own `attend`.
    """
    ids = range(model.vocab_size) if ids is None else ids
    generator = torch.Generator().manual_seed(seed)
    length = min(LENGTH, model.max_len // 2, len(ids)) if length is None else length
    if length < 2 or 2 * length > model.max_len:
        raise ValueError(
            f"length={length} must be at least 2 and fit twice into the context of {model.max_len} tokens; "
            "if no length does, use a model with a longer context"
        )
    texts = [_draw_repeated(ids, length, rows, generator)]
    if isinstance(model, EncoderDecoder):
        size = model.source_embedding.num_embeddings
        vocab = source_ids if source_ids is not None else ids if model.spec.source_vocab_size is None else range(size)
        texts.insert(0, _draw_repeated(vocab, min(length, len(vocab)), rows, generator))
    with inference_mode(parts_of(model)), record(model, patterns=["*.self_attention.weights"]) as activations:
        device = device_of(model)
        if isinstance(model, EncoderDecoder):
            model.hidden(texts[1].to(device), model.encode(texts[0].to(device)))
        else:
            model.hidden(texts[0].to(device))
    scores = HeadScores(previous={}, induction={})
    for name, stack in stacks_of(model).items():
        for i in range(len(stack.blocks)):
            attention = f"{name}.blocks.{i}.self_attention"
            if f"{attention}.weights" not in activations:
                raise ValueError(f"{stack.spec.attention!r} does not record its attention weights")
            weights = activations[f"{attention}.weights"].float()  # (B, H, T, T)
            scores.previous[attention] = _mean_weight(weights, -1)
            if stack.causal:
                scores.induction[attention] = _mean_weight(weights[:, :, length:], 1)
    return scores


def score_heads(trained_model: TrainedModel) -> HeadScores:
    """Apply `head_scores` to tokens that are not special.

    Raises:
        UserError: If the context is too short for repetition.
    """
    ids, source_ids = (
        sorted(set(range(tokenizer.vocab_size)) - tokenizer.special_ids)
        for tokenizer in (trained_model.tokenizer, trained_model.source_tokenizer)
    )
    try:
        return head_scores(trained_model.model, ids=ids, source_ids=source_ids)
    except ValueError as error:
        raise UserError(str(error)) from None


def ablations(
    model: AnyModel, loss: Callable[[], float], *, edits: Sequence[Edit] = ()
) -> dict[str, tuple[float, ...]]:
    """Return the increase of `loss` with each head set to zero, as one number per head of each attention, by name.

    Args:
        model: Model to measure.
        loss: Function that evaluates the model; it should use evaluation mode without gradients.
        edits: Edits of every forward pass, to compare heads in an edited model.
    """
    with record(model, edits=edits, patterns=()):  # same arithmetic: heads without effect give exactly 0
        baseline = loss()

    def loss_increase(attention: str, head: int) -> float:
        with record(model, edits=[*edits, Edit(name=f"{attention}.heads", heads=(head,))], patterns=()):
            return loss() - baseline

    return {
        name: tuple(loss_increase(name, head) for head in range(part.n_heads))
        for name, part in model.named_modules()
        if isinstance(part, Attention)
    }


def ablate_heads(
    trained_model: TrainedModel,
    recording: Recording,
    *,
    edits: Sequence[Edit] = (),
    original_ids: Sequence[int] | None = None,
) -> dict[str, tuple[float, ...]]:
    """Return `ablations` for the mean loss of a recording; empty if the recording has no loss.

    Args:
        trained_model: Model that was recorded.
        recording: Recording of the text.
        edits: Edits of every forward pass.
        original_ids: Ids before masking, as in `token_losses`.
    """

    def mean(logits: Float[Tensor, "T V"]) -> float | None:
        return mean_loss(token_losses(recording, logits, original_ids=original_ids))

    if recording.logits is None or mean(recording.logits) is None:
        return {}

    def loss() -> float:
        value = mean(compute_logits(trained_model.model, recording))
        assert value is not None  # the same rows have a loss as in the recording
        return value

    return ablations(trained_model.model, loss, edits=edits)


def heads_to_dicts(
    names: Sequence[str], scores: HeadScores, loss_increases: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """Return the scores of the heads of each attention, for JSON; None for scores that were not measured."""

    def to_list(values: Tensor | None) -> list[float] | None:
        return None if values is None else values.tolist()

    return [
        {
            "name": name,
            "previous": to_list(scores.previous.get(name)),
            "induction": to_list(scores.induction.get(name)),
            "ablation": list(loss_increases[name]) if name in loss_increases else None,
        }
        for name in names
    ]


def _draw_repeated(ids: Sequence[int], length: int, rows: int, generator: torch.Generator) -> Int[Tensor, "B T"]:
    if length > len(ids):
        raise ValueError(f"cannot draw {length} distinct tokens from {len(ids)}; pass length={len(ids)}")
    order = torch.stack([torch.randperm(len(ids), generator=generator)[:length] for _ in range(rows)])
    return torch.tensor(list(ids))[order].repeat(1, 2)  # (B, T)


def _mean_weight(weights: Float[Tensor, "B H T S"], offset: int) -> Float[Tensor, " H"]:
    """Return the mean weight over the queries with a key at query index + `offset`."""
    return weights.diagonal(offset, -2, -1).mean((0, -1)).cpu()
