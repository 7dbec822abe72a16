"""Writing with a trained model: filters of its logits, draws from them, tokens as a stream, and text."""

from tercet.generation.protocol import Cache, Decoder
from tercet.generation.sampling import Sampling, distribution, draw
from tercet.generation.stop import StopMatcher
from tercet.generation.stream import Column, Token, stream, window_start
from tercet.generation.text import Completion, encode_prompt, generate, stream_text

__all__ = [
    "Cache",
    "Column",
    "Completion",
    "Decoder",
    "Sampling",
    "StopMatcher",
    "Token",
    "distribution",
    "draw",
    "encode_prompt",
    "generate",
    "stream",
    "stream_text",
    "window_start",
]
