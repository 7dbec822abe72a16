"""Cross-attention for a given target, and the word alignment derived from it.

Row t of the weights is the attention with which token t of the target is predicted; it sums to one over the real tokens
of the source.
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
    """Return the cross-attention weights of all L layers and H heads for a given target.

    They equal the weights with which the model would generate this target token by token.

    Args:
        model: A translation model.
        source: Source ids.
        target_inputs: Inputs of the decoder: the beginning token and the target without its last token. Padded on the
            right with any id; the rows of padding are meaningless.
        source_token_mask: True at the real tokens of the source; None if there is no padding.
    """
    with inference_mode(parts_of(model)), record(model, patterns=["*.cross_attention.weights"]) as activations:
        memory = model.encode(source, token_mask=source_token_mask)
        model.hidden(target_inputs, memory, memory_token_mask=source_token_mask)
    if not activations:
        raise ValueError(f"{model.spec.decoder.attention!r} does not record its attention weights")
    return torch.stack(list(activations.values()))


def coverage_penalties(model: object, source: Sequence[int], targets: Sequence[Sequence[int]]) -> list[float]:
    """Return the coverage penalty of each target (Wu et al. 2016, equation 14).

    The penalty is the sum over source tokens of log(min(total attention to the token, 1)), so it is at most 0. The
    attention is the mean over the heads of the last layer and, in an ensemble, over the members.

    Args:
        model: A translation model or an `Ensemble`.
        source: Source ids, the same for all targets.
        targets: Complete targets, including the beginning token.

    Raises:
        ValueError: If the model, or a member of the ensemble, has no cross-attention.
    """
    members = model.members if isinstance(model, Ensemble) else (model,)
    device = device_of(model)
    inputs, target_mask = pad_rows([target[:-1] for target in targets], device)  # (B, T)
    sources = torch.tensor([list(source)] * len(targets), device=device)  # (B, S)
    attentions: list[Tensor] = []
    for member in members:
        if not isinstance(member, EncoderDecoder):
            raise ValueError(
                f"coverage requires a model with cross-attention, not {type(member).__name__}; set it to 0"
            )
        attentions.append(cross_attention(member, sources, inputs)[-1].float().mean(1))  # (B, T, S)
    coverage = (torch.stack(attentions).mean(0) * target_mask[..., None]).sum(1)  # (B, S)
    smallest = torch.finfo(coverage.dtype).tiny  # a finite penalty for a token without attention
    return coverage.clamp(min=smallest, max=1.0).log().sum(-1).tolist()


def align(weights: Float[Tensor, "L H T S"], *, layer: int | None = None) -> list[int]:
    """Return, for each target token, the index of the source token with the most attention.

    The attention is the mean over the heads of a layer.

    Args:
        weights: Cross-attention weights of one sentence pair.
        layer: Index of the layer. By default, the second last layer, or the only one: its attention agrees best with
            human alignments, while the last layer already attends to tokens for the next prediction (Garg et al. 2019,
            "Jointly Learning to Align and Translate").
    """
    return _mean_of_heads(weights, layer).argmax(-1).tolist()


def word_alignment(
    weights: Float[Tensor, "L H T S"],
    source_words: Sequence[range],
    target_words: Sequence[range],
    *,
    layer: int | None = None,
) -> list[int]:
    """Return, for each target word, the index of the source word to which its tokens attend most.

    Args:
        weights: Cross-attention weights of one sentence pair.
        source_words: Range of token indices of each source word, as from `words_of`.
        target_words: Range of token indices of each target word.
        layer: Index of the layer, as in `align`.
    """
    mean = _mean_of_heads(weights, layer)  # (T, S)
    word_weights = torch.stack([mean[:, word.start : word.stop].sum(-1) for word in source_words], dim=-1)  # (T, words)
    return [int(word_weights[word.start : word.stop].sum(0).argmax()) for word in target_words]


def words_of(pieces: Sequence[str]) -> list[range]:
    """Return the range of token indices of each word.

    A word begins with the first piece, and with each piece that begins with white space or follows white space. A piece
    of white space belongs to the word after it, if there is one.

    Args:
        pieces: Text of each token, as from `Tokenizer.tokens`.
    """
    if not pieces:
        return []
    starts = [0]
    for index in range(1, len(pieces)):
        previous, piece = pieces[index - 1], pieces[index]
        blank = not "".join(pieces[starts[-1] : index]).strip()  # only white space so far
        if not blank and (piece[:1].isspace() or previous[-1:].isspace()):
            starts.append(index)
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(pieces)], strict=True)]


def _mean_of_heads(weights: Float[Tensor, "L H T S"], layer: int | None) -> Float[Tensor, "T S"]:
    layer_index = max(len(weights) - 2, 0) if layer is None else layer
    return weights[layer_index].float().mean(0)
