"""Protocols: how translations and references are prepared before they are compared.

    detokenized  no change: cased text; sacrebleu tokenizes it by its rule for the language
    lc-tok       lowercased, punctuation normalized, tokenized by Moses: `lc.norm.tok`, as in the papers on Multi30k

A score is meaningless without its protocol: lc-tok results in higher scores for the same translations. The order of its
steps matters: if texts are tokenized before they are lowercased, the German reference of test_2016_flickr has one word
fewer than the 12,103 of the literature.
"""

import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Literal, cast, get_args

from tercet.config import UserError

Protocol = Literal["detokenized", "lc-tok"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

# Tokenizers of sacrebleu for languages whose words 13a does not separate, by code (ISO 639) and English name.
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
MECAB = {"ja-mecab": ("ja", "ipadic"), "ko-mecab": ("ko", "mecab_ko")}  # Tercet's extra, and a package that it installs
KANA, HAN = "[\u3040-\u30ff]", "[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003134f]"
UNSPACED_SCRIPTS = "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]"  # Thai, Lao, Tibetan, Burmese, Khmer

MIN_TOKENIZED_LINES = 100  # number of lines ending in " ." from which text counts as tokenized, as in sacrebleu


def prepare_texts(texts: Sequence[str], protocol: Protocol, language: str | None) -> list[str]:
    """Return the texts prepared for `protocol`.

    Args:
        texts: Translations or references.
        protocol: The protocol.
        language: Language code, such as "de", which selects the rules of Moses; only used by lc-tok.

    Raises:
        UserError: If lc-tok is used without a language, or without the package sacremoses.
    """
    if protocol == "detokenized":
        return list(texts)
    if language is None:
        raise UserError(
            "the protocol lc-tok requires the language of the translations; pass it, for example --language de"
        )
    normalize, tokenize = _moses(language)
    return [tokenize(normalize(text.strip().lower())) for text in texts]


def bleu_tokenizer(protocol: Protocol, language: str | None, references: Sequence[str]) -> str:
    """Return the name of sacrebleu's tokenizer for these references.

    The default, 13a, splits at spaces and ASCII punctuation. It makes one word of a Chinese sentence, so that even
    perfect translations can have BLEU 0. The language selects another tokenizer (`BLEU_TOKENIZERS`). If it is unknown
    or not one of these, the tokenizer depends on the script of the references.

    Args:
        protocol: The protocol.
        language: Language of the references: a code such as "zh" or "zh-CN", or an English name.
        references: The references.

    Raises:
        UserError: If the tokenizer requires MeCab and it is not installed.
    """
    if protocol == "lc-tok":  # Moses has tokenized the text
        return "none"
    code = re.split("[-_ ]", (language or "").strip().lower())[0]
    names = (name for name, languages in BLEU_TOKENIZERS.items() if code in languages)
    tokenizer = next(names, None) or _tokenizer_of_script(references)
    extra, package = MECAB.get(tokenizer, ("", ""))
    if package and find_spec(package) is None:
        raise UserError(f"BLEU of {extra} requires MeCab: pip install 'tercet[{extra}]'")
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
    """Return the part of a signature that describes the preparation of the texts; empty for detokenized."""
    if protocol == "detokenized":
        return ""
    return f"|prep:lc.norm.tok-{language}|sacremoses:{version('sacremoses')}"


def looks_tokenized(texts: Sequence[str]) -> bool:
    """Return whether at least `MIN_TOKENIZED_LINES` lines end with a separate full stop."""
    return sum(text.endswith(" .") for text in texts) >= MIN_TOKENIZED_LINES


def _moses(language: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise UserError("the protocol lc-tok requires sacremoses: pip install 'tercet[moses]'") from None
    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return normalizer.normalize, lambda text: cast(str, tokenizer.tokenize(text, return_str=True))
