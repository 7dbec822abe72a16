"""What a model continues: the ids of a prompt, or where there is none, those after which a text begins."""

from contextlib import suppress

from tercet.config import UserError
from tercet.tokens import Tokenizer

BREAKS = ("\n", " ")  # after which a line or a word begins, in a text without any mark of where it begins


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids that a model continues, after those that open a text for it (a Llama's bos).

    An empty prompt with nothing before it is the start of a text, as `start_ids` has it.

    Raises:
        UserError: where a character is not in the vocabulary, or `prompt` is not valid Unicode.
    """
    return [*tokenizer.opening, *tokenizer.encode(prompt)] or start_ids(tokenizer)


def start_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids after which a text begins, as far as the vocabulary tells.

    What opens a text; else eos, which in training stands between two documents; else bos of a tokenizer that Tercet did
    not make (Tercet's language models never see theirs); else a new line, a space, or the first token that is text.
    """
    if tokenizer.opening:
        return list(tokenizer.opening)
    marks = (tokenizer.eos_id, tokenizer.bos_id if tokenizer.kind == "file" else None)
    for mark in marks:
        if mark is not None:
            return [mark]
    for text in BREAKS:
        with suppress(UserError):  # a character that the vocabulary lacks
            if (ids := tokenizer.encode(text)) and tokenizer.unk_id not in ids:
                return ids
    silent = tokenizer.special_ids | {tokenizer.unk_id}
    ordinary = (token for token in range(tokenizer.vocab_size) if token not in silent and tokenizer.tokens([token])[0])
    return [next(ordinary, 0)]
