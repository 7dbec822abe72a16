"""What the decoder looked at: cross-attention while a given target is written, and which word comes from which.

Row t of the weights is the attention by which token t of the target is predicted; it sums to one over the source's real
tokens.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.generation.ensemble import Ensemble
from tercet.generation.protocol import device_of, parts_of
from tercet.models import EncoderDecoder, record
from tercet.models.inference import inference_mode
from tercet.objectives import pad_rows


def cross_attention(
    model: EncoderDecoder,
    source: Int[Tensor, "B S"],
    target_inputs: Int[Tensor, "B T"],
    source_token_mask: Bool[Tensor, "B S"] | None = None,
) -> Float[Tensor, "L B H T S"]:
    """The weights of all L layers and H heads while the target is read, which is what they were while it was written.

    Args:
        target_inputs: what the decoder reads: the beginning token and the target without its last token; padded on the
            right with any id, whose rows mean nothing.
        source_token_mask: True at the source's real tokens.
    """
    with inference_mode(parts_of(model)), record(model, patterns=["*.cross_attention.weights"]) as activations:
        memory = model.encode(source, token_mask=source_token_mask)
        model.hidden(target_inputs, memory, memory_token_mask=source_token_mask)
    return torch.stack(list(activations.values()))


def coverage_penalties(model: object, source: Sequence[int], targets: Sequence[Sequence[int]]) -> list[float]:
    """Wu et al. 2016, equation 14: for each target the sum over source tokens of log(min(attention it got, 1)).

    The attention is that of the last layer, the mean of its heads; in an ensemble the mean of its members.

    Args:
        targets: whole targets, the beginning token included.

    Raises:
        ValueError: for a model without cross-attention.
    """
    members = model.members if isinstance(model, Ensemble) else (model,)
    device = device_of(model)
    inputs, target_mask = pad_rows([target[:-1] for target in targets], device)  # (B, T)
    sources = torch.tensor([list(source)] * len(targets), device=device)  # (B, S)
    attentions: list[Tensor] = []
    for member in members:
        if not isinstance(member, EncoderDecoder):
            raise ValueError(f"coverage needs a model with cross-attention, not {type(member).__name__}; set it to 0")
        attentions.append(cross_attention(member, sources, inputs)[-1].float().mean(1))  # (B, T, S)
    coverage = (torch.stack(attentions).mean(0) * target_mask[..., None]).sum(1)  # (B, S)
    smallest = torch.finfo(coverage.dtype).tiny  # a token that no one looked at costs much, not everything
    return coverage.clamp(min=smallest, max=1.0).log().sum(-1).tolist()


def align(weights: Float[Tensor, "L H T S"], *, layer: int | None = None) -> list[int]:
    """For each target token the source token that it looks at most, by the mean of a layer's heads.

    By default the last layer but one, where there are several: its attention follows human alignments best, while the
    last one already looks ahead to what comes next (Garg et al. 2019, "Jointly Learning to Align and Translate").
    """
    return _mean_of_heads(weights, layer).argmax(-1).tolist()


def word_alignment(
    weights: Float[Tensor, "L H T S"],
    source_words: Sequence[range],
    target_words: Sequence[range],
    *,
    layer: int | None = None,
) -> list[int]:
    """For each target word the source word that its tokens together look at most; words are given as by `words_of`."""
    mean = _mean_of_heads(weights, layer)  # (T, S)
    word_weights = torch.stack([mean[:, word.start : word.stop].sum(-1) for word in source_words], dim=-1)  # (T, words)
    return [int(word_weights[word.start : word.stop].sum(0).argmax()) for word in target_words]


def words_of(pieces: Sequence[str]) -> list[range]:
    """Which tokens make up each word: one begins with a piece that begins with white space, or that follows some.

    Args:
        pieces: the text of each token, as from `Tokenizer.tokens`. White space that is a piece by itself belongs to the
            word after it.
    """
    if not pieces:
        return []
    starts = [0]
    for index in range(1, len(pieces)):
        previous, piece = pieces[index - 1], pieces[index]
        blank = not "".join(pieces[starts[-1] : index]).strip()  # so far only white space: the word is still to come
        if not blank and (piece[:1].isspace() or previous[-1:].isspace()):
            starts.append(index)
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(pieces)], strict=True)]


def _mean_of_heads(weights: Float[Tensor, "L H T S"], layer: int | None) -> Float[Tensor, "T S"]:
    layer_index = max(len(weights) - 2, 0) if layer is None else layer
    return weights[layer_index].float().mean(0)
