"""BLEU tokenizes each target language as the sacrebleu program does; a perfect translation scores 100."""

from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu

import tercet.evaluate.protocols as protocols
from sampled_cases import sampled
from tercet.config import UserError
from tercet.data import PairsSpec
from tercet.data.datasets.pair_datasets import target_language
from tercet.evaluate import bleu, compare, paired_bootstrap, score_translations
from tercet.evaluate.protocols import bleu_tokenizer

CHINESE = ["这个数字是一千一百五十一。", "今天天气很好。", "我们明天去北京。"]
ALMOST = ["这个数字是一千一百五十二。", "今天天气很好。", "我们明天去北京。"]
THAI = ["วันนี้อากาศดีมาก", "พรุ่งนี้เราจะไปกรุงเทพ"]
JAPANESE = ["今日は天気がとても良いです。", "明日、私たちは東京へ行きます。"]
KOREAN = ["오늘은 날씨가 아주 좋습니다.", "우리는 내일 서울에 갑니다."]


@pytest.mark.parametrize(
    "language", sampled(["zh", "ZH_Hans", None, "zh-CN", "zho", "Chinese", "target"], keep=(0, 1, 2))
)
def test_chinese_by_code_name_or_script(language: str | None) -> None:
    scores = score_translations(ALMOST, CHINESE, language=language)
    assert scores.bleu == sacrebleu.corpus_bleu(ALMOST, [CHINESE], tokenize="zh").score
    assert "tok:zh" in scores.signature
    assert score_translations(CHINESE, CHINESE, language=language).bleu == pytest.approx(100)


@pytest.mark.parametrize("language", ["th", "tha", "Thai", None])
def test_languages_without_spaces_by_character(language: str | None) -> None:
    assert bleu(THAI, THAI, language=language) == pytest.approx(100)
    assert "tok:char" in score_translations(THAI, THAI, language=language).signature


@pytest.mark.parametrize(
    ("language", "package", "references", "tokenize"),
    [
        ("ja", "ipadic", JAPANESE, "ja-mecab"),
        (None, "ipadic", JAPANESE, "ja-mecab"),
        ("ko", "mecab_ko", KOREAN, "ko-mecab"),
    ],
)
def test_japanese_and_korean_by_mecab(language: str | None, package: str, references: list[str], tokenize: str) -> None:
    pytest.importorskip(package, reason="MeCab is not installed")
    translations = [references[0], references[0]]
    expected = sacrebleu.corpus_bleu(translations, [references], tokenize=tokenize).score
    assert bleu(translations, references, language=language) == expected


@pytest.mark.parametrize(
    ("language", "references"), [("ja", JAPANESE), ("jpn", ["a"]), (None, JAPANESE), ("ko", KOREAN)]
)
def test_missing_mecab_is_reported(
    language: str | None, references: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocols, "find_spec", lambda name: None)
    extra = "ko" if language == "ko" else "ja"
    with pytest.raises(UserError, match=rf"BLEU of {extra} requires MeCab: pip install 'tercet\[{extra}\]'"):
        bleu_tokenizer("detokenized", language, references)


@pytest.mark.parametrize(
    ("language", "references"),
    [
        ("de", ["Der Hund, „Waldi“, läuft."]),
        (None, ["The dog runs."]),
        ("ru", ["Собака бежит."]),
        (None, KOREAN),  # Korean has spaces between words
        (None, ["He said 你好 to the whole family, and they answered."]),
        (None, ["1 2 3", ""]),
    ],
)
def test_languages_with_spaces_by_13a(language: str | None, references: list[str]) -> None:
    assert bleu_tokenizer("detokenized", language, references) == "13a"
    assert bleu(references, references, language=language) == sacrebleu.corpus_bleu(references, [references]).score


def test_comparison_uses_the_same_tokenizer() -> None:
    rotated = [CHINESE[1], CHINESE[2], CHINESE[0]] * 10
    p_value = paired_bootstrap(CHINESE * 10, rotated, CHINESE * 10, language="zh")
    assert p_value < 0.01  # with 13a, both scores would depend on whole sentences
    scores = score_translations(CHINESE, CHINESE, language="zh").to_dict()
    with pytest.raises(UserError, match="different signature"):
        compare(scores, replace(score_translations(["a b"], ["a b"]), references=scores["references"]).to_dict())


def test_language_of_a_spec_is_used(tmp_path: Path) -> None:
    assert target_language(PairsSpec(source="multi30k")) == "en"
    assert target_language(PairsSpec(source="multi30k", source_language="en")) == "de"
    assert target_language(PairsSpec(source="a.zh", target="b.zh")) is None
    assert target_language(PairsSpec(source="a.tsv", target_language="chinese")) == "chinese"
