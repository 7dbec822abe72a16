"""Prompts as token ids, and the ids that a generated text begins with if there is no prompt."""

from contextlib import suppress

from tercet.config import UserError
from tercet.tokens import Tokenizer

BREAKS = ("\n", " ")  # fallback for vocabularies without special tokens: a line or a word begins after these


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Encode a prompt, preceded by the ids that open a text for the tokenizer (such as bos for Llama).

    An empty prompt without such ids is the beginning of a text; see `start_ids`.

    Raises:
        UserError: If a character is not in the vocabulary, or `prompt` is not valid Unicode.
    """
    return [*tokenizer.opening, *tokenizer.encode(prompt)] or start_ids(tokenizer)


def start_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids after which a text begins.

    These are, in this order of preference: the ids that the tokenizer puts before a text (its `opening`); eos, which
    separates documents in training; bos, if the tokenizer was not trained by Tercet (language models of Tercet are not
    trained with bos); a new line; a space; the first token that is text.
    """
    if tokenizer.opening:
        return list(tokenizer.opening)
    marks = (tokenizer.eos_id, tokenizer.bos_id if tokenizer.kind == "file" else None)
    for mark in marks:
        if mark is not None:
            return [mark]
    for text in BREAKS:
        with suppress(UserError):  # the character is not in the vocabulary
            if (ids := tokenizer.encode(text)) and tokenizer.unk_id not in ids:
                return ids
    silent = tokenizer.special_ids | {tokenizer.unk_id}
    ordinary = (token for token in range(tokenizer.vocab_size) if token not in silent and tokenizer.tokens([token])[0])
    return [next(ordinary, 0)]
