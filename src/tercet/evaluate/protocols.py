"""What is done to text before translations are compared with references; a score means nothing without saying it.

    detokenised  nothing: the text as people read it, cased; sacrebleu cuts it into words by its rule 13a
    lc-tok       lower-cased, punctuation normalised, cut by Moses: `lc.norm.tok`, as Multi30k's papers have it

The second gives higher numbers for the same translations. The order matters: if a text is tokenized before it is
lower-cased, the German reference of test_2016_flickr has one word fewer than the 12,103 of the literature.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Literal, cast, get_args

from tercet.config import UserError

Protocol = Literal["detokenised", "lc-tok"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

TOKENISED = 100  # lines ending in " ." from which on sacrebleu, too, takes text for tokenised


def prepare_texts(texts: Sequence[str], protocol: Protocol, language: str | None) -> list[str]:
    """The texts as `protocol` compares them.

    Args:
        language: such as "de"; Moses has rules for each.

    Raises:
        UserError: for lc-tok without a language, or without the package sacremoses.
    """
    if protocol == "detokenised":
        return list(texts)
    if language is None:
        raise UserError("the protocol lc-tok needs the language of the translations, such as --language de")
    normalise, tokenise = _moses(language)
    return [tokenise(normalise(text.strip().lower())) for text in texts]


def label(protocol: Protocol, language: str | None) -> str:
    """What a signature says of the preparation; nothing where there is none."""
    if protocol == "detokenised":
        return ""
    return f"|prep:lc.norm.tok-{language}|sacremoses:{version('sacremoses')}"


def looks_tokenised(texts: Sequence[str]) -> bool:
    """Whether so many lines end with a full stop by itself that they have hardly been put together again."""
    return sum(text.endswith(" .") for text in texts) >= TOKENISED


def _moses(language: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise UserError("the protocol lc-tok needs sacremoses; pip install 'tercet[moses]'") from None
    normaliser, tokeniser = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return normaliser.normalize, lambda text: cast(str, tokeniser.tokenize(text, return_str=True))
