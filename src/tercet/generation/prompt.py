"""Prompts as token ids, and the ids that a generated text begins with if there is no prompt."""

from contextlib import suppress

from tercet.config import UserError
from tercet.tokens import Tokenizer

BREAKS = ("\n", " ")  # fallback for vocabularies without special tokens: a line or a word begins after these


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the ids of a prompt after the ids with which the tokenizer opens a text, such as bos for Llama.

    If there is neither a prompt nor an opening, the result is that of `start_ids`.

    Raises:
        UserError: If a character is not in the vocabulary, or `prompt` is not valid Unicode.
    """
    return [*tokenizer.opening, *tokenizer.encode(prompt)] or start_ids(tokenizer)


def start_ids(tokenizer: Tokenizer) -> list[int]:
    """Return ids after which a text begins, as the prompt if there is no other.

    They are the first of these that the tokenizer has: the ids that it puts before a text (its `opening`); eos, which
    separates documents in training; bos, if the tokenizer was not trained by Tercet (language models of Tercet are not
    trained with bos); the ids of a line break; those of a space; the first token that is text; id 0.
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
