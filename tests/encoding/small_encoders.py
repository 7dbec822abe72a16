"""Encoders with random weights, large enough that each text has a distinct result, and their tokenizers."""

import torch

from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.nn.specs import Rotary
from tercet.tokens import BPE, Characters, Tokenizer, Unigram, WordPiece, Words

TEXTS = [
    "the cat sat on the mat",
    "a dog ran",
    "the dog and the cat sat and sat and ran until the mat was worn",
    "cats",
    "unbelievable dogs sat on believable mats, and ran",
    "",
    "on",
]
KINDS = {
    "wordpiece": WordPiece(vocab_size=80),
    "bpe": BPE(vocab_size=300, bos=True, pad=True, mask=True, prefix_space=True),
    "bpe without prefix": BPE(vocab_size=300, bos=True, pad=True, mask=True),
    "unigram": Unigram(vocab_size=60, bos=True, pad=True, mask=True, prefix_space=True),
    "words": Words(vocab_size=60, bos=True, pad=True, mask=True, prefix_space=True),
    "characters": Characters(bos=True, pad=True, mask=True),
}


def build_tokenizer(kind: str = "wordpiece") -> Tokenizer:
    return Tokenizer.train(KINDS[kind], TEXTS)


def encoder(vocab_size: int, *, max_len: int = 37, classifier: Classifier | None = None) -> EncoderOnly:
    """Return an encoder with weights as large as trained ones, so that results depend on every token."""
    stack = StackSpec(d_model=24, n_layers=2, n_heads=3, d_ff=41, position=Rotary())
    spec = EncoderOnlySpec(
        vocab_size=vocab_size, max_len=max_len, stack=stack, masked_head=MaskedHead(bias=True), classifier=classifier
    )
    model = EncoderOnly(spec, seed=5).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3, generator=generator)
    return model
