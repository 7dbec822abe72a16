"""README.md of a folder for CTranslate2, with code that runs the model."""

from tercet.checkpoint.foreign.ctranslate2_vocabulary import Vocabulary
from tercet.checkpoint.foreign.export_files import extend_card, sample_text
from tercet.checkpoint.trained_model import TrainedModel
from tercet.models import DecoderOnly, EncoderOnly
from tercet.tokens import Tokenizer

PROGRAM = "CTranslate2"

TRANSLATOR = """
import ctranslate2
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("this_folder/tokenizer.json")
source_tokenizer = Tokenizer.from_file("this_folder/{source}")
source_tokenizer.encode_special_tokens = True  # text never becomes special tokens
translator = ctranslate2.Translator("this_folder", compute_type="float32")  # "int8": smaller and faster
answer = translator.translate_batch(
    [source_tokenizer.encode("A sentence.").tokens],
    beam_size=5, max_input_length={max_len}, max_decoding_length={max_len}, suppress_sequences={forbidden_tokens},
)[0]
print(tokenizer.decode([tokenizer.token_to_id(token) for token in answer.hypotheses[0]]))
"""

GENERATOR = """
import ctranslate2
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("this_folder/tokenizer.json")
tokenizer.encode_special_tokens = True  # text never becomes special tokens
generator = ctranslate2.Generator("this_folder", compute_type="float32")  # "int8": smaller and faster
prompt = tokenizer.encode({text!r}).tokens
answer = generator.generate_batch(
    [prompt], max_length={max_len} - len(prompt), sampling_topk=0, include_prompt_in_result=False{ends}
)[0]
print({text!r} + tokenizer.decode(answer.sequences_ids[0]))
"""

ENCODER = """
import ctranslate2
import numpy
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("this_folder/tokenizer.json")
encoder = ctranslate2.Encoder("this_folder", compute_type="float32")  # "int8": smaller and faster
tokenizer.enable_truncation({max_len})
tokens = [tokenizer.encode(text).tokens for text in ("A sentence.", "Another, longer one.")]
hidden = numpy.array(encoder.forward_batch(tokens).last_hidden_state)
vectors = [rows[: len(row)].mean(0) for rows, row in zip(hidden, tokens)]
"""

WORDS = {
    "translator": "Special tokens and the unknown token are never generated. Longer sources than "
    "`max_input_length` are truncated.",
    "generator": "Prompt and generated text have at most {max_len} tokens. Without `sampling_topk=0` the most "
    "likely token is always chosen.",
    "encoder": "The outputs are hidden states{pooler}, without other heads. A vector is the mean of a text's hidden "
    "states. CTranslate2 pads the texts.",
}


def card(trained_model: TrainedModel) -> str:
    """Return the content of README.md: the model's card, and code that runs the model."""
    model, tokenizer = trained_model.model, trained_model.tokenizer
    max_len = model.spec.max_len
    if isinstance(model, DecoderOnly):
        ends = tokenizer.tokens(tokenizer.end_ids) if tokenizer.other_end_ids else []
        code = GENERATOR.format(
            max_len=max_len, text=sample_text(tokenizer), ends=f", end_token={ends!r}" if ends else ""
        )
        return extend_card(trained_model, PROGRAM, code, WORDS["generator"].format(max_len=max_len))
    if isinstance(model, EncoderOnly):
        pooler = ", and its pooler's output as `pooler_output`," if model.spec.pooler else ""
        words = WORDS["encoder"].format(pooler=pooler)
        return extend_card(trained_model, PROGRAM, ENCODER.format(max_len=max_len), words)
    has_source_tokenizer = trained_model.source_tokenizer is not tokenizer
    source = "source_tokenizer.json" if has_source_tokenizer else "tokenizer.json"
    code = TRANSLATOR.format(
        max_len=max_len, source=source, forbidden_tokens=[[token] for token in forbidden_tokens(tokenizer)]
    )
    return extend_card(trained_model, PROGRAM, code, WORDS["translator"])


def forbidden_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return the special tokens, except eos, and the unknown token, which a translation never contains."""
    special = {tokenizer.bos_id, tokenizer.pad_id, tokenizer.unk_id, *tokenizer.special_ids} - {tokenizer.eos_id, None}
    names = Vocabulary.of(tokenizer).tokens
    return [names[number] for number in sorted(number for number in special if number is not None)]
