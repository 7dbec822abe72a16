"""Text generation: sampling, beam search, speculative decoding, chat and translation."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.generation.alignment import align as align
    from tercet.generation.alignment import cross_attention as cross_attention
    from tercet.generation.alignment import word_alignment as word_alignment
    from tercet.generation.alignment import words_of as words_of
    from tercet.generation.beam import Hypothesis as Hypothesis
    from tercet.generation.beam import beam_search as beam_search
    from tercet.generation.chat import ChatAnswer as ChatAnswer
    from tercet.generation.chat import ChatModel as ChatModel
    from tercet.generation.chat import ChatPrompt as ChatPrompt
    from tercet.generation.chat import answer_budget as answer_budget
    from tercet.generation.ensemble import Ensemble as Ensemble
    from tercet.generation.prompt import encode_prompt as encode_prompt
    from tercet.generation.prompt import start_ids as start_ids
    from tercet.generation.protocol import Cache as Cache
    from tercet.generation.protocol import Decoder as Decoder
    from tercet.generation.protocol import RewindingCache as RewindingCache
    from tercet.generation.protocol import SourceDecoder as SourceDecoder
    from tercet.generation.protocol import SpeculativeDecoder as SpeculativeDecoder
    from tercet.generation.sampling import distribution as distribution
    from tercet.generation.sampling import draw as draw
    from tercet.generation.specs import Beam as Beam
    from tercet.generation.specs import LengthPenalty as LengthPenalty
    from tercet.generation.specs import Sampling as Sampling
    from tercet.generation.speculative import Draft as Draft
    from tercet.generation.speculative import Lookup as Lookup
    from tercet.generation.speculative import Pass as Pass
    from tercet.generation.speculative import speculate as speculate
    from tercet.generation.stop_matcher import StopMatcher as StopMatcher
    from tercet.generation.stream import Column as Column
    from tercet.generation.stream import Token as Token
    from tercet.generation.stream import stream as stream
    from tercet.generation.stream import window_start as window_start
    from tercet.generation.text import Completion as Completion
    from tercet.generation.text import choose_speculation as choose_speculation
    from tercet.generation.text import generate as generate
    from tercet.generation.text import make_draft as make_draft
    from tercet.generation.text import stream_text as stream_text
    from tercet.generation.translate import Translation as Translation
    from tercet.generation.translate import source_lines as source_lines
    from tercet.generation.translate import translate as translate
    from tercet.generation.translate import translate_lines as translate_lines
    from tercet.generation.translate import translate_stream as translate_stream
else:
    export_lazily(__name__)
