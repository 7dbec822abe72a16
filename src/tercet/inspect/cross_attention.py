"""Cross-attention of a finished translation, and the word alignment that it implies.

The weights are those of the second to last layer, which are closest to a word alignment (Garg et al. 2019). With one or
two layers, they are those of the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.config import UserError
from tercet.generation import Translation, cross_attention, word_alignment, words_of
from tercet.generation.protocol import device_of
from tercet.generation.translate import encode_sources
from tercet.models import EncoderDecoder
from tercet.tokens import Tokenizer

END = "(end)"


@dataclass(frozen=True, kw_only=True)
class CrossAttentionMap:
    """The cross-attention weights of one sentence pair, with its tokens.

    Attributes:
        source: Text of each source token, including the end.
        opening: Number of source tokens before those of the text, such as bos.
        target: Text of each target token.
        has_end: If True, the last target token is the end.
        weights: Weight of each target token on each source token in all heads of one layer; rows sum to one. The heads
            of an ensemble's models are concatenated.
        layer: Index of the layer, from 0; the same in all models of an ensemble.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    has_end: bool
    opening: int = 0
    weights: Float[Tensor, "H T S"]
    layer: int

    @property
    def words(self) -> tuple[list[range], list[range]]:
        """The token ranges of each source word and each target word, without special tokens."""
        words = words_of(self.source[self.opening : -1])
        source_words = [range(word.start + self.opening, word.stop + self.opening) for word in words]
        return source_words, words_of(self.target[:-1] if self.has_end else self.target)

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """The source word with the largest weight for each target word, as pairs of indices (source, target) from 0.

        Empty if source or target has no words.
        """
        source_words, target_words = self.words
        if not source_words or not target_words:
            return []
        sources = word_alignment(self.weights[None], source_words, target_words, layer=0)
        return sorted((source, target) for target, source in enumerate(sources))

    @property
    def pharaoh(self) -> str:
        """The alignment in Pharaoh format: `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.alignment)


def read_cross_attention(
    models: Sequence[EncoderDecoder],
    tokenizer: Tokenizer,
    translation: Translation,
    *,
    source_tokenizer: Tokenizer | None = None,
    prefix: str = "",
) -> CrossAttentionMap:
    """Run the decoder over a finished translation and return its cross-attention, the same as in decoding.

    Args:
        models: The model that translated, or the members of an ensemble.
        tokenizer: Tokenizer of the target.
        translation: Finished translation. An empty one has an empty map.
        source_tokenizer: Tokenizer of the source (default: `tokenizer`).
        prefix: Forced beginning of the translation.

    Raises:
        UserError: If the models of an ensemble differ in depth.
    """
    encoder_tokenizer = tokenizer if source_tokenizer is None else source_tokenizer
    # Empty lines are not decoded.
    if not translation.ids or encoder_tokenizer.eos_id is None or tokenizer.bos_id is None:
        return CrossAttentionMap(source=(), target=(), has_end=False, weights=torch.zeros(1, 0, 0), layer=0)
    depths = sorted({len(model.decoder.blocks) for model in models})
    if len(depths) > 1:
        raise UserError(
            "--alignment and --attention require models with equal numbers of decoder layers, "
            f"got {depths}; use a single model"
        )
    layer = max(depths[0] - 2, 0)
    max_len = min(model.max_len for model in models)
    (source_ids,), _ = encode_sources(encoder_tokenizer, [translation.source], max_len=max_len)
    target = [*tokenizer.encode(prefix), *translation.ids]
    device = device_of(models[0])
    source = torch.tensor([source_ids], device=device)
    opening = tokenizer.target_opening
    decoder_inputs = torch.tensor([[*opening, *target[:-1]]], device=device)
    weights = [cross_attention(model, source, decoder_inputs)[layer, 0, len(opening) - 1 :] for model in models]
    has_end = translation.finish == "eos"
    target_texts = tokenizer.tokens(target[:-1] if has_end else target)
    return CrossAttentionMap(
        source=(*encoder_tokenizer.tokens(source_ids[:-1]), END),
        target=(*target_texts, *([END] if has_end else [])),
        has_end=has_end,
        opening=len(encoder_tokenizer.opening),
        weights=torch.cat(weights).float().cpu(),
        layer=layer,
    )
