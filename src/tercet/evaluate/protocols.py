"""What is done to text before translations are compared with references; a score means nothing without saying it.

    detokenised  nothing: the text as people read it, cased; sacrebleu tokenizes it by its rule for the language
    lc-tok       lower-cased, punctuation normalised, cut by Moses: `lc.norm.tok`, as Multi30k's papers have it

The second gives higher numbers for the same translations. The order matters: if a text is tokenized before it is
lower-cased, the German reference of test_2016_flickr has one word fewer than the 12,103 of the literature.
"""

import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Literal, cast, get_args

from tercet.config import UserError

Protocol = Literal["detokenised", "lc-tok"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

# The tokenizers of sacrebleu for target languages whose words 13a cannot find: by code (ISO 639) and English name.
BLEU_TOKENIZERS = {
    "zh": ("zh", "zho", "chi", "cmn", "yue", "chinese", "mandarin", "cantonese"),
    "ja-mecab": ("ja", "jpn", "japanese"),
    "ko-mecab": ("ko", "kor", "korean"),
    "char": (
        "th", "tha", "thai", "lo", "lao", "km", "khm", "khmer", "my", "mya", "bur", "burmese", "bo", "bod", "tib",
        "tibetan",
    ),
}  # fmt: skip
DEFAULT_BLEU_TOKENIZER = "13a"
MECAB = {"ja-mecab": ("ja", "ipadic"), "ko-mecab": ("ko", "mecab_ko")}  # the extra, and a package of it
KANA, HAN = "[\u3040-\u30ff]", "[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003134f]"
UNSPACED_SCRIPTS = "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]"  # Thai, Lao, Tibetan, Burmese, Khmer

MIN_TOKENIZED_LINES = 100  # lines ending in " ." from which on sacrebleu, too, takes text for tokenised


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
    normalize, tokenize = _moses(language)
    return [tokenize(normalize(text.strip().lower())) for text in texts]


def bleu_tokenizer(protocol: Protocol, language: str | None, references: Sequence[str]) -> str:
    """Return the name of sacrebleu's tokenizer for these references.

    13a splits at spaces and punctuation. It takes a Chinese sentence for one word, so that a perfect translation of
    fewer than four sentences has BLEU 0. If the language is unknown, or is not one of `BLEU_TOKENIZERS`, the script of
    the references decides.

    Args:
        language: of the references: a code such as "zh" or "zh-CN", or an English name.

    Raises:
        UserError: if the tokenizer needs MeCab and it is not installed.
    """
    if protocol == "lc-tok":  # Moses has tokenized the text
        return "none"
    code = re.split("[-_ ]", (language or "").strip().lower())[0]
    names = (name for name, languages in BLEU_TOKENIZERS.items() if code in languages)
    tokenizer = next(names, None) or _tokenizer_of_script(references)
    extra, package = MECAB.get(tokenizer, ("", ""))
    if package and find_spec(package) is None:
        raise UserError(f"BLEU of {extra} needs MeCab: pip install 'tercet[{extra}]'")
    return tokenizer


def _tokenizer_of_script(texts: Sequence[str]) -> str:
    text = "".join(texts)
    n_kana, n_han, n_unspaced = (len(re.findall(script, text)) for script in (KANA, HAN, UNSPACED_SCRIPTS))
    if 2 * (n_kana + n_han + n_unspaced) <= sum(map(str.isalpha, text)):
        return DEFAULT_BLEU_TOKENIZER
    if n_unspaced > n_kana + n_han:
        return "char"
    return "ja-mecab" if 10 * n_kana > n_han else "zh"


def signature_suffix(protocol: Protocol, language: str | None) -> str:
    """What a signature says of the preparation; nothing where there is none."""
    if protocol == "detokenised":
        return ""
    return f"|prep:lc.norm.tok-{language}|sacremoses:{version('sacremoses')}"


def looks_tokenized(texts: Sequence[str]) -> bool:
    """Whether so many lines end with a full stop by itself that they have hardly been put together again."""
    return sum(text.endswith(" .") for text in texts) >= MIN_TOKENIZED_LINES


def _moses(language: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise UserError("the protocol lc-tok needs sacremoses; pip install 'tercet[moses]'") from None
    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return normalizer.normalize, lambda text: cast(str, tokenizer.tokenize(text, return_str=True))
