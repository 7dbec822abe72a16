"""A translator with a few thousand weights, far from uniform, with simple byte tokenizers."""

import torch

from tercet.models import EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import Rotary
from tercet.tokens import Characters, Tokenizer

TOKENIZER = Tokenizer.train(Characters(alphabet="abcdefghij .", pad=True, bos=True, eos=True), [])
SOURCE_TOKENIZER = Tokenizer.train(Characters(alphabet="uvwxyz .", pad=True, bos=True, eos=True), [])


def small(*, joint: bool = True, max_len: int = 13, seed: int = 0) -> EncoderDecoder:
    stack = StackSpec(d_model=24, n_layers=2, n_heads=3, position=Rotary())
    spec = EncoderDecoderSpec(
        encoder=stack,
        decoder=stack,
        vocab_size=TOKENIZER.vocab_size,
        source_vocab_size=None if joint else SOURCE_TOKENIZER.vocab_size,
        share_embeddings=joint,
        max_len=max_len,
    )
    model = EncoderDecoder(spec, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 4
    return model.eval()
