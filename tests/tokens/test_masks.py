"""A mask in a text is one mask token in the place of a word, and word starts follow the tokenizer."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.config import UserError, parse
from tercet.data.specs import TextSpec
from tercet.tokens import BPE, Characters, Tokenizer, TokenizerFile, Unigram, WordPiece, Words

TEXT = (
    "The cat sat on a mat, didn't it? 12 times.\n\n\tتجربة عربية 🙂 naïve\0end we'll <mask> [MASK] 中文 'tis cat's "
    "t-shirt 5th"
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cn", "Co"]), max_size=40)
KNOWN = st.text(st.sampled_from(sorted(set(TEXT))), max_size=40)  # only characters that every kind can encode
MASKED = {
    "characters": Characters(pad=True, bos=True, mask=True),
    "bytes": Characters(byte_fallback=True, bos=True, mask=True),
    "words": Words(bos=True, mask=True),
    "bpe": BPE(vocab_size=300, bos=True, mask=True),
    "unigram": Unigram(vocab_size=90, bos=True, mask=True),
    "words after a space": Words(bos=True, mask=True, prefix_space=True),
    "bpe after a space": BPE(vocab_size=300, bos=True, mask=True, prefix_space=True),
    "unigram after a space": Unigram(vocab_size=90, mask=True, prefix_space=True),
    "wordpiece": WordPiece(vocab_size=150),
    "wordpiece with capitals": WordPiece(vocab_size=150, lowercase=False),
}
MADE = {name: Tokenizer.train(spec, [TEXT] * 3) for name, spec in MASKED.items()}
LOSSLESS = ("bytes", "bpe", "bpe after a space")
AT_PLACES = ("", " ", "  ", "\n", " \n", "\n ", ".", "x", " x", "\xa0")


@pytest.fixture(params=list(MADE))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return MADE[request.param]


def mask(tokenizer: Tokenizer) -> int:
    assert tokenizer.mask_id is not None
    return tokenizer.mask_id


def test_mask_is_a_special_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.mask_id in tokenizer.special_ids
    assert tokenizer.mask_token == ("[MASK]" if tokenizer.kind == "wordpiece" else "<mask>")
    assert tokenizer.tokens([mask(tokenizer)]) == [tokenizer.mask_token]
    assert tokenizer.decode([mask(tokenizer)]) == ""
    assert tokenizer.decode([mask(tokenizer)], skip_special=False) == tokenizer.mask_token
    again = Tokenizer.from_json(tokenizer.to_json())
    assert (again.mask_id, again.mask_token, again.kind) == (tokenizer.mask_id, tokenizer.mask_token, tokenizer.kind)


@pytest.mark.parametrize("spec", [Characters(), Words(), BPE(vocab_size=300), Unigram()])
def test_mask_token_only_shifts_ids(spec: Characters | Words | BPE | Unigram) -> None:
    plain, more = Tokenizer.train(spec, [TEXT]), Tokenizer.train(replace(spec, mask=True), [TEXT])
    assert (plain.mask_id, plain.mask_token, more.eos_id, more.mask_id) == (None, None, 0, 1)
    if not isinstance(spec, BPE):
        assert more.encode(TEXT) == [token + 1 for token in plain.encode(TEXT)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "bpe", "vocab_size": 257, "mask": True}, "bpe needs vocab_size >= 258"),
        ({"kind": "words", "vocab_size": 4, "mask": True}, "vocab_size >= 5"),
        ({"kind": "unigram", "vocab_size": 5, "bos": True, "mask": True}, "unigram needs vocab_size >= 6"),
    ],
)
def test_mask_token_counts_toward_the_vocabulary_size(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(TextSpec, {"source": "animals", "tokenizer": settings})


@pytest.mark.parametrize("name", LOSSLESS)
@given(text=TEXTS | st.sampled_from([TEXT, "<mask>", " <mask>[MASK]", "[MASK] [MASK]"]))
def test_mask_in_ordinary_text_is_text(name: str, text: str) -> None:
    made = MADE[name]
    ids = made.encode(text)
    assert not made.special_ids & set(ids)
    assert made.decode(ids) == text


def test_mask_in_a_training_text_is_text(tokenizer: Tokenizer) -> None:
    assert not tokenizer.special_ids & set(tokenizer.encode(TEXT))
    if tokenizer.kind != "wordpiece":
        assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


@given(before=KNOWN, after=KNOWN, name=st.sampled_from(["<mask>", "[MASK]"]))
def test_mask_at_any_position_is_one_token(before: str, after: str, name: str) -> None:
    before, after = (part.replace("<mask>", "").replace("[MASK]", "") for part in (before, after))
    for made in MADE.values():
        ids = made.encode_masked(before + name + after)
        assert ids.dtype == np.uint32
        (place,) = np.flatnonzero(ids == mask(made))
        spaced = made.kind in ("words", "bpe", "unigram")
        # The part before the mask, without one space if words include theirs; a prefix space belongs to the mask.
        if not (spaced and before[-1:].isspace()):
            assert ids[:place].tolist() == made.encode(before)
        elif before.endswith(" ") and not (made.prefix_space and before == " "):
            assert ids[:place].tolist() == made.encode(before[:-1])
        if not made.prefix_space:
            assert ids[place + 1 :].tolist() == made.encode(after)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bytes", "bpe", "bpe after a space", "words", "words after a space"])
@given(
    before=st.sampled_from([left + space for left in ("", "The", "a mat,") for space in AT_PLACES]),
    after=st.sampled_from([space + right for right in ("", "cat", "on", "?") for space in ("", " ", "  ", "\n", ",")]),
)
def test_mask_replaces_exactly_one_word(name: str, before: str, after: str) -> None:
    """Replacing the mask by a word gives the same ids, except for the mask and that word's token."""
    word = "12" if name == "bytes" else "sat"  # one token within a sentence
    made = Tokenizer.train(
        replace(MASKED[name], vocab_size=400) if name != "bytes" else MASKED[name],
        [" sat sat\n12 sat\nsat", before + after, TEXT] * 3,
    )
    if before[-1:].isalpha() or after[:1].isalpha():
        return  # the word would merge with its neighbors
    whole, masked = made.encode(f"{before}{word}{after}"), made.encode_masked(f"{before}<mask>{after}").tolist()
    place = masked.index(mask(made))
    hidden = whole[place : len(whole) - (len(masked) - place - 1)]
    assert [*whole[:place], mask(made), *whole[place + len(hidden) :]] == masked
    shown = "".join(made.tokens(hidden))
    assert shown.lstrip(" ") == word
    assert shown.startswith(" ") == (name != "bytes" and (before.endswith(" ") or (made.prefix_space and not before)))


def test_example_of_the_documentation() -> None:
    for name in ("words", "bpe", "unigram"):
        made = MADE[name]
        assert made.encode_masked("The <mask> sat").tolist() == [*made.encode("The"), mask(made), *made.encode(" sat")]
    for name in ("words after a space", "bpe after a space", "unigram after a space"):
        made = MADE[name]
        sat = made.encode("sat")
        assert made.encode_masked("The <mask> sat").tolist() == [*made.encode("The"), mask(made), *sat]
        assert made.encode_masked("<mask> sat").tolist() == [mask(made), *sat]
        assert made.encode_masked("<mask> <mask>").tolist() == [mask(made)] * 2
    made = MADE["wordpiece"]
    assert made.encode_masked("The [MASK] sat").tolist() == [*made.encode("the"), 4, *made.encode("sat")]
    made = MADE["characters"]
    assert made.encode_masked("a <mask>t").tolist() == [*made.encode("a "), mask(made), *made.encode("t")]


@given(parts=st.lists(KNOWN, min_size=2, max_size=5))
def test_several_masks_are_separate_tokens(parts: list[str]) -> None:
    parts = [part.replace("<mask>", "").replace("[MASK]", "") for part in parts]
    for made in MADE.values():
        ids = made.encode_masked("[MASK]".join(parts))
        assert np.count_nonzero(ids == mask(made)) == len(parts) - 1


@given(text=TEXTS)
def test_encode_masked_without_masks_equals_encode(text: str) -> None:
    text = text.replace("<mask>", "").replace("[MASK]", "")
    for name in (*LOSSLESS, "words", "unigram after a space", "wordpiece"):
        assert MADE[name].encode_masked(text).tolist() == MADE[name].encode(text)


def test_other_specials_stay_text(tokenizer: Tokenizer) -> None:
    if tokenizer.kind == "characters":
        assert set(tokenizer.encode_masked("<mask>asd").tolist()) & tokenizer.special_ids == {mask(tokenizer)}
        return
    ids = tokenizer.encode_masked("<bos> [CLS] <mask> [SEP]<eos>")
    assert set(ids.tolist()) & tokenizer.special_ids == {mask(tokenizer)}


def test_mask_without_a_mask_token_is_rejected_with_a_remedy() -> None:
    plain = Tokenizer.train(Words(), [TEXT])
    assert plain.encode_masked("The cat").tolist() == plain.encode("The cat")
    with pytest.raises(UserError, match="no mask token; train one with mask: true, or use the kind wordpiece"):
        plain.encode_masked("The [MASK]")
    with pytest.raises(UserError, match=r"half a surrogate pair \(U\+D800\) at character 8"):
        MADE["bpe"].encode_masked("a<mask>b\ud800")


def test_foreign_mask_absorbs_whitespace_as_configured() -> None:
    library = tokenizers.Tokenizer.from_str(MADE["bpe"].to_json())
    library.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, special=True)])
    structure = library.to_str().replace('"lstrip":false', '"lstrip":true')
    roberta = Tokenizer.from_json(structure)
    library = tokenizers.Tokenizer.from_str(structure)
    for text in ("The \n <mask> sat", "The<mask>", "<mask>"):
        assert roberta.encode_masked(text).tolist() == library.encode(text).ids


def test_mask_survives_a_file(tmp_path: Any) -> None:
    MADE["wordpiece"].save(tmp_path / "tokenizer.json")
    again = Tokenizer.train(TokenizerFile(path=str(tmp_path / "tokenizer.json")), [])
    assert (again.mask_id, again.mask_token) == (4, "[MASK]")


# Where words start.


def begins(tokenizer: Tokenizer, text: str) -> list[bool]:
    """Return where words start, computed slowly from the library's word ids."""
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    library.encode_special_tokens = True
    if tokenizer.kind == "characters":
        library.pre_tokenizer = tokenizers.pre_tokenizers.Split(
            tokenizers.Regex(r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"), "isolated"
        )
    encoding = library.encode(text, add_special_tokens=False)
    assert encoding.ids == tokenizer.encode(text)
    words = [None, *encoding.word_ids]
    first = [one != before for before, one in pairwise(words)]
    unknown = [token == tokenizer.unk_id for token in encoding.ids]  # a separate word, and so is the next token
    return [one or two or three for one, two, three in zip(first, unknown, [False, *unknown], strict=False)]


@pytest.mark.slow
@given(
    text=TEXTS | KNOWN | st.sampled_from([TEXT, "'tis we'll '' 's's 'sa", "  a \n b\t\tc   ", "e\u0301t\u0301 1\u0301"])
)
@settings(max_examples=60)
def test_words_start_where_the_library_cuts(text: str) -> None:
    for name, made in MADE.items():
        known = made.kind != "unigram" or set(text) <= set(TEXT)  # otherwise its <unk> may be a space or a word
        if name != "characters" and known:
            ids = np.array(made.encode(text), dtype=np.int64)
            assert made.word_starts(ids).tolist() == begins(made, text), made.tokens(ids)


@given(texts=st.lists(TEXTS | KNOWN, min_size=1, max_size=5), rows=st.integers(1, 3))
def test_rows_and_documents_are_independent(texts: list[str], rows: int) -> None:
    """With special tokens between texts and any number of rows, words start as in separate texts."""
    for name in ("bytes", "bpe", "words", "unigram after a space", "wordpiece"):
        made = MADE[name]
        bos, eos = made.bos_id or 0, made.eos_id or 0
        row, expected = [], []
        for text in texts:
            ids = made.encode(text)
            row += [bos, *ids, eos]
            expected += [True, *made.word_starts(np.array(ids, dtype=np.uint16)).tolist(), True]
        found = made.word_starts(np.array([[row] * rows] * 2, dtype=np.uint16))
        assert found.shape == (2, rows, len(row))
        assert found.dtype == bool
        assert (found == np.array(expected)).all()


@given(ids=st.lists(st.integers(-2, 320) | st.just(10**9), min_size=1, max_size=20))
def test_any_ids_have_words(ids: list[int]) -> None:
    for made in MADE.values():
        starts = made.word_starts(np.array(ids))
        assert starts[0] or not made.decode(ids[:1]), "a row starts with a word"
        for place, token in enumerate(ids):
            if token in made.special_ids or not 0 <= token < made.vocab_size:
                assert starts[place : place + 1].all()


def test_words_of_a_sentence() -> None:
    ids = np.array([2, *MADE["wordpiece"].encode("the xat's 12"), 3])
    words = MADE["wordpiece"].word_starts(ids)
    assert [one for one, new in zip(MADE["wordpiece"].tokens(ids), words, strict=True) if not new] == [
        one for one in MADE["wordpiece"].tokens(ids) if one.startswith("##")
    ]
    text = "Naïve cat, didn't it?\n12"
    made = MADE["bytes"]
    starts = made.word_starts(np.array(made.encode(text)))
    assert starts.sum() == len(["Naïve", " cat", ",", " didn", "'", "t", " it", "?", "\n", "12"])


def test_partial_characters_are_one_word() -> None:
    made = MADE["bpe"]
    ids = made.encode("ø€ø")
    assert len(ids) == 7
    assert np.flatnonzero(made.word_starts(np.array(ids))).tolist() == [0, 2, 5]


def test_no_ids_have_no_words(tokenizer: Tokenizer) -> None:
    for shape in ((0,), (0, 5), (3, 0), (2, 0, 4)):
        assert tokenizer.word_starts(np.zeros(shape, dtype=np.uint16)).shape == shape


def test_sentencepiece_marks_its_words() -> None:
    names = {"<unk>": 0, "▁the": 1, "▁": 2, "re": 3, "<s>": 4}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=names, merges=[], unk_token="<unk>"))
    library.decoder = tokenizers.decoders.Metaspace()
    library.add_special_tokens(["<s>"])
    foreign = Tokenizer(library)
    assert foreign.kind == "file"
    assert foreign.word_starts(np.array([1, 3, 2, 3, 4, 3, 3])).tolist() == [
        True,
        False,
        True,
        False,
        True,
        True,
        False,
    ]
