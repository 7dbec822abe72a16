"""The query that the page opens with: the user's text, a line of the validation part, or a fixed sentence."""

from contextlib import suppress
from itertools import islice

from tercet.checkpoint import Encoder, TrainedModel
from tercet.checkpoint.training_data import open_training_data
from tercet.config import UserError
from tercet.data import ConversationCorpus, Corpus, LabelCorpus, ParallelCorpus, QueryCorpus
from tercet.explorer.queries import Query
from tercet.storage import DamagedFile
from tercet.tokens import Tokenizer

SENTENCE = "The cat sat on the mat."
MAX_TOKENS = 32  # maximum tokens of a default text, so that the page stays readable
FALLBACK_TOKENS = 6  # ordinary tokens to show if no default text can be encoded
MAX_LINES = 100  # number of lines to search for one without unknown tokens


def opening_query(trained_model: TrainedModel, text: str | None = None, *, target: str | None = None) -> Query:
    """Return the query that the page opens with.

    Args:
        trained_model: Model of the page.
        text: Text to read unchanged; None for a line of the validation part, or SENTENCE if there is none. In this
            default text, one token is masked if the model fills masks.
        target: Text that a translator's decoder reads; None for the model's own translation.

    Raises:
        DamagedFile: If a file of the training data is damaged.
    """
    if text is not None:
        return Query(text=text, target=target)
    tokenizer, max_len = trained_model.source_tokenizer, trained_model.model.max_len
    lines = (_encode_readable(tokenizer, line) for line in [*_read_held_out_lines(trained_model), SENTENCE])
    ids = next(filter(None, lines), None) or _any_tokens(tokenizer)
    ids = ids[: max(1, min(MAX_TOKENS, max_len - 2))]
    if isinstance(trained_model, Encoder):
        return _mask_middle_token(trained_model, ids)
    text = tokenizer.decode(ids)
    if (tokenizer.encode(text) if text else []) == ids:
        return Query(text=text, target=target)
    row = tokenizer.frame(ids, max_len=max_len) if "translate" in trained_model.verbs else ids
    return Query(text=text, target=target, ids=tuple(row))


def _mask_middle_token(trained_model: Encoder, ids: list[int]) -> Query:
    """Return a query for `ids` between bos and eos, with one token near the middle masked if possible."""
    tokenizer = trained_model.tokenizer
    frame = [token for token in (tokenizer.bos_id, tokenizer.eos_id) if token is not None]
    if len(frame) < 2 or trained_model.model.max_len < len(ids) + 2:
        return Query(text=tokenizer.decode(ids))
    row = [frame[0], *ids, frame[1]]
    if tokenizer.mask_id is None or "fill" not in trained_model.verbs:
        return Query(text=tokenizer.decode(ids), ids=tuple(row))
    words = [position for position, text in enumerate(tokenizer.tokens(ids)) if text.strip().isalpha()] or [0]
    position = 1 + min(words, key=lambda word: abs(word - len(ids) // 2))
    masked = [*row[:position], tokenizer.mask_id, *row[position + 1 :]]
    text = tokenizer.decode(masked[1:-1], skip_special=False)
    return Query(text=text, ids=tuple(masked), original_ids=tuple(row))


def _encode_readable(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text; empty if the tokenizer cannot represent all of it."""
    with suppress(UserError):
        ids = tokenizer.encode(text)
        return [] if tokenizer.unk_id in ids else ids
    return []


def _any_tokens(tokenizer: Tokenizer) -> list[int]:
    ordinary = [token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_ids]
    return ordinary[-FALLBACK_TOKENS:] or [0]


def _read_held_out_lines(trained_model: TrainedModel) -> list[str]:
    """Return the first lines of the validation part; for data without pairs, lines of several words come first.

    For sentence pairs, these are the sources. Empty if the data is not on this machine or has changed.
    """
    try:
        match data := open_training_data(trained_model):
            case ParallelCorpus():
                return [source for source, _ in data.validation_texts[:MAX_LINES]]
            case QueryCorpus():
                return [pair.query for pair in data.validation_texts[:MAX_LINES]]
            case LabelCorpus() | ConversationCorpus():
                part = data.validation
                ids = part.ids[part.starts[0] : part.starts[1]]
            case Corpus():
                ids = data.validation[: 50 * MAX_TOKENS]
            case None:
                return []
    except DamagedFile:
        raise
    except UserError:
        return []
    lines = list(
        islice(filter(None, map(str.strip, trained_model.tokenizer.decode(ids.tolist()).splitlines())), MAX_LINES)
    )
    # The first line may be the rest of a line that starts in the training part, so it comes last.
    return sorted([*lines[1:], *lines[:1]], key=lambda line: len(line.split()) < 2)
