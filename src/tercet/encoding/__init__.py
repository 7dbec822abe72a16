"""What an encoder is used for: missing words, vectors, labels and likelihoods, whatever texts are beside it."""

from tercet.encoding.batches import Encoded, encode_texts
from tercet.encoding.classify import Classified, Tagged, classify, tag
from tercet.encoding.embed import Embedded, embed
from tercet.encoding.fill import Candidate, Filled, fill
from tercet.encoding.pseudo import PseudoScore, pseudo_logprobs, pseudo_scores

__all__ = [
    "Candidate",
    "Classified",
    "Embedded",
    "Encoded",
    "Filled",
    "PseudoScore",
    "Tagged",
    "classify",
    "embed",
    "encode_texts",
    "fill",
    "pseudo_logprobs",
    "pseudo_scores",
    "tag",
]
