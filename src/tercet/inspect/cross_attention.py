"""Which source tokens a translator attends to for each token of a finished translation, and the word alignment in it.

The layer is the last but one, whose weights are nearest to what people call an alignment (Garg et al. 2019); of two
layers that is the first.
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
    """The cross-attention weights of one sentence and its translation, with their tokens.

    Attributes:
        source: the text of each source token, and of the end.
        opening: how many of the source's tokens stand before its text.
        target: the same of the translation.
        has_end: the translation's last token is its end.
        weights: of each target token on each source token, for all heads of one layer; a row sums to one.
        layer: which, counted from 0; the same in each model of an ensemble, whose heads stand side by side.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    has_end: bool
    opening: int = 0
    weights: Float[Tensor, "H T S"]
    layer: int

    @property
    def words(self) -> tuple[list[range], list[range]]:
        """Which tokens make up each word of the source, and each of the translation; what frames them is no word."""
        words = words_of(self.source[self.opening : -1])
        source_words = [range(word.start + self.opening, word.stop + self.opening) for word in words]
        return source_words, words_of(self.target[:-1] if self.has_end else self.target)

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """The source word that each target word attends to most, as (source, target) from 0."""
        source_words, target_words = self.words
        if not source_words or not target_words:
            return []
        sources = word_alignment(self.weights[None], source_words, target_words, layer=0)
        return sorted((source, target) for target, source in enumerate(sources))

    @property
    def pharaoh(self) -> str:
        """The alignment as tools of the field write it: `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.alignment)


def read_cross_attention(
    models: Sequence[EncoderDecoder],
    tokenizer: Tokenizer,
    translation: Translation,
    *,
    source_tokenizer: Tokenizer | None = None,
    prefix: str = "",
) -> CrossAttentionMap:
    """Run the decoder over a finished translation and keep its cross-attention, which is what it was in decoding.

    Args:
        models: the one that wrote it, or the members of an ensemble.
        prefix: how the translation was made to begin.

    Raises:
        UserError: for an ensemble of models of unequal depth.
    """
    encoder_tokenizer = tokenizer if source_tokenizer is None else source_tokenizer
    # An empty line was never decoded.
    if not translation.ids or encoder_tokenizer.eos_id is None or tokenizer.bos_id is None:
        return CrossAttentionMap(source=(), target=(), has_end=False, weights=torch.zeros(1, 0, 0), layer=0)
    depths = sorted({len(model.decoder.blocks) for model in models})
    if len(depths) > 1:
        raise UserError(f"models of {depths} layers have no layer in common to look at; ask one of them alone")
    layer = max(depths[0] - 2, 0)
    max_len = min(model.max_len for model in models)
    (source_ids,), _ = encode_sources(encoder_tokenizer, [translation.source], max_len=max_len)
    target = [*tokenizer.encode(prefix), *translation.ids]
    device = device_of(models[0])
    source = torch.tensor([source_ids], device=device)
    decoder_inputs = torch.tensor([[tokenizer.bos_id, *target[:-1]]], device=device)
    weights = [cross_attention(model, source, decoder_inputs)[layer, 0] for model in models]
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
