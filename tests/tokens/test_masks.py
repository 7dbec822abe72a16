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
KNOWN_TEXT = st.text(st.sampled_from(sorted(set(TEXT))), max_size=40)  # only characters that every kind can encode
MASKED_SPECS = {
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
TOKENIZERS = {name: Tokenizer.train(spec, [TEXT] * 3) for name, spec in MASKED_SPECS.items()}
LOSSLESS = ("bytes", "bpe", "bpe after a space")
ENDINGS = ("", " ", "  ", "\n", " \n", "\n ", ".", "x", " x", "\xa0")


@pytest.fixture(params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def mask(tokenizer: Tokenizer) -> int:
    assert tokenizer.mask_id is not None
    return tokenizer.mask_id


def test_mask_is_a_special_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.mask_id in tokenizer.special_ids
    assert tokenizer.mask_token == ("[MASK]" if tokenizer.kind == "wordpiece" else "<mask>")
    assert tokenizer.tokens([mask(tokenizer)]) == [tokenizer.mask_token]
    assert tokenizer.decode([mask(tokenizer)]) == ""
    assert tokenizer.decode([mask(tokenizer)], skip_special=False) == tokenizer.mask_token
    copy = Tokenizer.from_json(tokenizer.to_json())
    assert (copy.mask_id, copy.mask_token, copy.kind) == (tokenizer.mask_id, tokenizer.mask_token, tokenizer.kind)


@pytest.mark.parametrize("spec", [Characters(), Words(), BPE(vocab_size=300), Unigram()])
def test_mask_token_only_shifts_ids(spec: Characters | Words | BPE | Unigram) -> None:
    plain, with_mask = Tokenizer.train(spec, [TEXT]), Tokenizer.train(replace(spec, mask=True), [TEXT])
    assert (plain.mask_id, plain.mask_token, with_mask.eos_id, with_mask.mask_id) == (None, None, 0, 1)
    if not isinstance(spec, BPE):
        assert with_mask.encode(TEXT) == [token + 1 for token in plain.encode(TEXT)]


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
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.decode(ids) == text


def test_mask_in_a_training_text_is_text(tokenizer: Tokenizer) -> None:
    assert not tokenizer.special_ids & set(tokenizer.encode(TEXT))
    if tokenizer.kind != "wordpiece":
        assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


@given(before=KNOWN_TEXT, after=KNOWN_TEXT, name=st.sampled_from(["<mask>", "[MASK]"]))
def test_mask_at_any_position_is_one_token(before: str, after: str, name: str) -> None:
    before, after = (part.replace("<mask>", "").replace("[MASK]", "") for part in (before, after))
    for tokenizer in TOKENIZERS.values():
        ids = tokenizer.encode_masked(before + name + after)
        assert ids.dtype == np.uint32
        (place,) = np.flatnonzero(ids == mask(tokenizer))
        includes_spaces = tokenizer.kind in ("words", "bpe", "unigram")
        # The part before the mask, without one space if words include theirs; a prefix space belongs to the mask.
        if not (includes_spaces and before[-1:].isspace()):
            assert ids[:place].tolist() == tokenizer.encode(before)
        elif before.endswith(" ") and not (tokenizer.prefix_space and before == " "):
            assert ids[:place].tolist() == tokenizer.encode(before[:-1])
        if not tokenizer.prefix_space:
            assert ids[place + 1 :].tolist() == tokenizer.encode(after)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bytes", "bpe", "bpe after a space", "words", "words after a space"])
@given(
    before=st.sampled_from([left + space for left in ("", "The", "a mat,") for space in ENDINGS]),
    after=st.sampled_from([space + right for right in ("", "cat", "on", "?") for space in ("", " ", "  ", "\n", ",")]),
)
def test_mask_replaces_exactly_one_word(name: str, before: str, after: str) -> None:
    """Replacing the mask by a word gives the same ids, except for the mask and that word's token."""
    word = "12" if name == "bytes" else "sat"  # one token within a sentence
    tokenizer = Tokenizer.train(
        replace(MASKED_SPECS[name], vocab_size=400) if name != "bytes" else MASKED_SPECS[name],
        [" sat sat\n12 sat\nsat", before + after, TEXT] * 3,
    )
    if before[-1:].isalpha() or after[:1].isalpha():
        return  # the word would merge with its neighbors
    whole, masked = (
        tokenizer.encode(f"{before}{word}{after}"),
        tokenizer.encode_masked(f"{before}<mask>{after}").tolist(),
    )
    place = masked.index(mask(tokenizer))
    hidden = whole[place : len(whole) - (len(masked) - place - 1)]
    assert [*whole[:place], mask(tokenizer), *whole[place + len(hidden) :]] == masked
    hidden_text = "".join(tokenizer.tokens(hidden))
    assert hidden_text.lstrip(" ") == word
    assert hidden_text.startswith(" ") == (
        name != "bytes" and (before.endswith(" ") or (tokenizer.prefix_space and not before))
    )


def test_example_of_the_documentation() -> None:
    for name in ("words", "bpe", "unigram"):
        tokenizer = TOKENIZERS[name]
        assert tokenizer.encode_masked("The <mask> sat").tolist() == [
            *tokenizer.encode("The"),
            mask(tokenizer),
            *tokenizer.encode(" sat"),
        ]
    for name in ("words after a space", "bpe after a space", "unigram after a space"):
        tokenizer = TOKENIZERS[name]
        sat = tokenizer.encode("sat")
        assert tokenizer.encode_masked("The <mask> sat").tolist() == [*tokenizer.encode("The"), mask(tokenizer), *sat]
        assert tokenizer.encode_masked("<mask> sat").tolist() == [mask(tokenizer), *sat]
        assert tokenizer.encode_masked("<mask> <mask>").tolist() == [mask(tokenizer)] * 2
    tokenizer = TOKENIZERS["wordpiece"]
    assert tokenizer.encode_masked("The [MASK] sat").tolist() == [*tokenizer.encode("the"), 4, *tokenizer.encode("sat")]
    tokenizer = TOKENIZERS["characters"]
    assert tokenizer.encode_masked("a <mask>t").tolist() == [
        *tokenizer.encode("a "),
        mask(tokenizer),
        *tokenizer.encode("t"),
    ]


@given(parts=st.lists(KNOWN_TEXT, min_size=2, max_size=5))
def test_several_masks_are_separate_tokens(parts: list[str]) -> None:
    parts = [part.replace("<mask>", "").replace("[MASK]", "") for part in parts]
    for tokenizer in TOKENIZERS.values():
        ids = tokenizer.encode_masked("[MASK]".join(parts))
        assert np.count_nonzero(ids == mask(tokenizer)) == len(parts) - 1


@given(text=TEXTS)
def test_encode_masked_without_masks_equals_encode(text: str) -> None:
    text = text.replace("<mask>", "").replace("[MASK]", "")
    for name in (*LOSSLESS, "words", "unigram after a space", "wordpiece"):
        assert TOKENIZERS[name].encode_masked(text).tolist() == TOKENIZERS[name].encode(text)


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
        TOKENIZERS["bpe"].encode_masked("a<mask>b\ud800")


def test_foreign_mask_absorbs_whitespace_as_configured() -> None:
    library = tokenizers.Tokenizer.from_str(TOKENIZERS["bpe"].to_json())
    library.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, special=True)])
    structure = library.to_str().replace('"lstrip":false', '"lstrip":true')
    roberta = Tokenizer.from_json(structure)
    library = tokenizers.Tokenizer.from_str(structure)
    for text in ("The \n <mask> sat", "The<mask>", "<mask>"):
        assert roberta.encode_masked(text).tolist() == library.encode(text).ids


def test_mask_survives_a_file(tmp_path: Any) -> None:
    TOKENIZERS["wordpiece"].save(tmp_path / "tokenizer.json")
    reloaded = Tokenizer.train(TokenizerFile(path=str(tmp_path / "tokenizer.json")), [])
    assert (reloaded.mask_id, reloaded.mask_token) == (4, "[MASK]")


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
    first = [current != previous for previous, current in pairwise(words)]
    unknown = [token == tokenizer.unk_id for token in encoding.ids]  # a separate word, and so is the next token
    return [a or b or c for a, b, c in zip(first, unknown, [False, *unknown], strict=False)]


@pytest.mark.slow
@given(
    text=TEXTS
    | KNOWN_TEXT
    | st.sampled_from([TEXT, "'tis we'll '' 's's 'sa", "  a \n b\t\tc   ", "e\u0301t\u0301 1\u0301"])
)
@settings(max_examples=60)
def test_words_start_where_the_library_cuts(text: str) -> None:
    for name, tokenizer in TOKENIZERS.items():
        is_known = tokenizer.kind != "unigram" or set(text) <= set(TEXT)  # otherwise its <unk> may be a space or a word
        if name != "characters" and is_known:
            ids = np.array(tokenizer.encode(text), dtype=np.int64)
            assert tokenizer.word_starts(ids).tolist() == begins(tokenizer, text), tokenizer.tokens(ids)


@given(texts=st.lists(TEXTS | KNOWN_TEXT, min_size=1, max_size=5), rows=st.integers(1, 3))
def test_rows_and_documents_are_independent(texts: list[str], rows: int) -> None:
    """With special tokens between texts and any number of rows, words start as in separate texts."""
    for name in ("bytes", "bpe", "words", "unigram after a space", "wordpiece"):
        tokenizer = TOKENIZERS[name]
        bos, eos = tokenizer.bos_id or 0, tokenizer.eos_id or 0
        row, expected = [], []
        for text in texts:
            ids = tokenizer.encode(text)
            row += [bos, *ids, eos]
            expected += [True, *tokenizer.word_starts(np.array(ids, dtype=np.uint16)).tolist(), True]
        found = tokenizer.word_starts(np.array([[row] * rows] * 2, dtype=np.uint16))
        assert found.shape == (2, rows, len(row))
        assert found.dtype == bool
        assert (found == np.array(expected)).all()


@given(ids=st.lists(st.integers(-2, 320) | st.just(10**9), min_size=1, max_size=20))
def test_any_ids_have_words(ids: list[int]) -> None:
    for tokenizer in TOKENIZERS.values():
        starts = tokenizer.word_starts(np.array(ids))
        assert starts[0] or not tokenizer.decode(ids[:1]), "a row starts with a word"
        for place, token in enumerate(ids):
            if token in tokenizer.special_ids or not 0 <= token < tokenizer.vocab_size:
                assert starts[place : place + 1].all()


def test_words_of_a_sentence() -> None:
    ids = np.array([2, *TOKENIZERS["wordpiece"].encode("the xat's 12"), 3])
    words = TOKENIZERS["wordpiece"].word_starts(ids)
    assert [token for token, new in zip(TOKENIZERS["wordpiece"].tokens(ids), words, strict=True) if not new] == [
        token for token in TOKENIZERS["wordpiece"].tokens(ids) if token.startswith("##")
    ]
    text = "Naïve cat, didn't it?\n12"
    tokenizer = TOKENIZERS["bytes"]
    starts = tokenizer.word_starts(np.array(tokenizer.encode(text)))
    assert starts.sum() == len(["Naïve", " cat", ",", " didn", "'", "t", " it", "?", "\n", "12"])


def test_partial_characters_are_one_word() -> None:
    tokenizer = TOKENIZERS["bpe"]
    ids = tokenizer.encode("ø€ø")
    assert len(ids) == 7
    assert np.flatnonzero(tokenizer.word_starts(np.array(ids))).tolist() == [0, 2, 5]


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
