"""Generation with a trained model: logit filters, sampling, streams of tokens, beam search, text and translations."""

from tercet.generation.alignment import align, cross_attention, word_alignment, words_of
from tercet.generation.beam import Beam, Hypothesis, LengthPenalty, beam_search
from tercet.generation.ensemble import Ensemble
from tercet.generation.prompt import encode_prompt, start_ids
from tercet.generation.protocol import Cache, Decoder, RewindingCache, SourceDecoder, SpeculativeDecoder
from tercet.generation.sampling import Sampling, distribution, draw
from tercet.generation.speculative import Draft, Lookup, Pass, speculate
from tercet.generation.stop_matcher import StopMatcher
from tercet.generation.stream import Column, Token, stream, window_start
from tercet.generation.text import Completion, draft_for, generate, stream_text
from tercet.generation.translate import Translation, translate, translate_stream

__all__ = [
    "Beam",
    "Cache",
    "Column",
    "Completion",
    "Decoder",
    "Draft",
    "Ensemble",
    "Hypothesis",
    "LengthPenalty",
    "Lookup",
    "Pass",
    "RewindingCache",
    "Sampling",
    "SourceDecoder",
    "SpeculativeDecoder",
    "StopMatcher",
    "Token",
    "Translation",
    "align",
    "beam_search",
    "cross_attention",
    "distribution",
    "draft_for",
    "draw",
    "encode_prompt",
    "generate",
    "speculate",
    "start_ids",
    "stream",
    "stream_text",
    "translate",
    "translate_stream",
    "window_start",
    "word_alignment",
    "words_of",
]
