"""Tokenizers of third-party folders encode and decode as their own libraries do, including special tokens."""

import contextlib
import gzip
import importlib.util
import json
import os
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spm_files import number, spm, text
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tercet.config import UserError
from tercet.tokens import Tokenizer
from tercet.tokens.foreign import load_tokenizers
from tercet.tokens.sentencepiece import HIDDEN_PREFIX, build_unigram, read_pieces

TEXT = "The cat sat on the mat. Don't they say: naïve größe, 1234 567? \n\n  def f(x):\n    return x\n" * 3
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters=HIDDEN_PREFIX), max_size=40)


@cache
def byte_level(*, special: tuple[str, ...] = ("<|endoftext|>",), llama3: bool = False) -> tokenizers.Tokenizer:
    """Return GPT-2's kind, or one with its own pattern before the byte level, as in Llama 3 and SmolLM2."""
    library = tokenizers.Tokenizer(models.BPE())
    cut = [pre_tokenizers.Split(tokenizers.Regex(r"\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")]
    split_then_bytes = pre_tokenizers.Sequence([*cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    library.pre_tokenizer = split_then_bytes if llama3 else pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=list(special), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )  # fmt: skip
    library.train_from_iterator([TEXT], trainer)
    return library


@cache
def byte_fallback(*, metaspace: bool) -> tokenizers.Tokenizer:
    """Return Llama 2's kind; spaces come from the normalizer (older files) or from Metaspace (newer ones)."""
    letters = sorted(set(TEXT.replace("\n", "").replace(" ", "▁")))
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "s"), ("a", "t"), ("▁s", "at"), ("▁", "▁"), ("c", "at")]
    names += ["".join(merge) for merge in merges]
    vocabulary = {name: place for place, name in enumerate(names)}
    library = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if metaspace:
        library.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    else:
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    return library


KINDS = {
    "gpt2": byte_level,
    "llama3": lambda: byte_level(special=("<|begin_of_text|>", "<|end_of_text|>"), llama3=True),
    "llama2": lambda: byte_fallback(metaspace=False),
    "llama2 metaspace": lambda: byte_fallback(metaspace=True),
}


@cache
def pair(kind: str) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Return our tokenizer and the library's, both from the same file."""
    library = KINDS[kind]()
    return Tokenizer.from_json(library.to_str()), tokenizers.Tokenizer.from_str(library.to_str())


def stream_text(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    stream = tokenizer.stream()
    return "".join(map(stream.push, ids)) + stream.flush()


@pytest.mark.parametrize("kind", KINDS)
class TestAllInOne:
    @given(line=texts | st.sampled_from([TEXT, " the cat", "the  cat\n", "日本 🙂", ""]))
    @settings(suppress_health_check=[HealthCheck.differing_executors])
    def test_text_is_encoded_and_decoded_as_by_the_library(self, kind: str, line: str) -> None:
        ours, library = pair(kind)
        library.encode_special_tokens = True  # special tokens spelled out in a document are text
        ids = ours.encode(line)
        assert ids == library.encode(line, add_special_tokens=False).ids
        assert ours.decode(ids) == library.decode(ids) == stream_text(ours, ids)
        if "llama2" not in kind:
            assert ours.decode(ids) == line
            assert not line.isascii() or "".join(ours.tokens(ids)) == line

    def test_end_tokens_are_found_by_name(self, kind: str) -> None:
        ours, library = pair(kind)
        end = {"gpt2": "<|endoftext|>", "llama3": "<|end_of_text|>"}.get(kind, "</s>")
        begin = {"gpt2": None, "llama3": "<|begin_of_text|>"}.get(kind, "<s>")
        assert ours.eos_id == library.token_to_id(end)
        assert ours.bos_id == (None if begin is None else library.token_to_id(begin))
        assert ours.decode([ours.eos_id or 0]) == ""
        assert ours.tokens([ours.eos_id or 0]) == [end]


def gpt2_files(folder: Path, **config: Any) -> Path:
    byte_level().model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class TestTwoFiles:
    @pytest.mark.parametrize("prefix_space", [False, True])
    def test_gpt2_vocabulary_and_merges_are_read(self, prefix_space: bool, tmp_path: Path) -> None:
        from transformers import GPT2TokenizerFast

        folder = gpt2_files(
            tmp_path, add_prefix_space=prefix_space, eos_token="<|endoftext|>", bos_token="<|endoftext|>"
        )
        ours, source = load_tokenizers(folder, {"eos_token_id": 50_256})
        assert source is ours
        assert (ours.eos_id, ours.bos_id, ours.pad_id) == (0, 0, None)
        assert ours.decode([0, *ours.encode("the")]).strip() == "the"
        theirs = GPT2TokenizerFast(
            vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), add_prefix_space=prefix_space
        )
        for line in (TEXT, "", " the", "größe 🙂"):
            assert ours.encode(line) == theirs(line)["input_ids"], line
            assert ours.decode(ours.encode(line)) == theirs.decode(
                theirs(line)["input_ids"], clean_up_tokenization_spaces=False
            )

    def test_broken_files_are_reported(self, tmp_path: Path) -> None:
        folder = gpt2_files(tmp_path)
        whole = {name: (folder / name).read_text() for name in ("vocab.json", "merges.txt")}
        for name, content in (
            ("vocab.json", "{"), ("vocab.json", '{"a": "b"}'), ("vocab.json", "[1]"),
            ("merges.txt", "#version: 0.2\na b c\n"), ("merges.txt", "zz qq\n"), ("merges.txt", "a\n"),
        ):  # fmt: skip
            (folder / name).write_text(content)
            with pytest.raises(
                UserError, match=r"are not a byte-level BPE|not valid JSON|expected a JSON object"
            ) as error:
                load_tokenizers(folder, {})
            assert "\n" not in str(error.value)
            (folder / name).write_text(whole[name])
        (folder / "merges.txt").unlink()
        with pytest.raises(UserError, match=r"cannot read .*tokenizer\.json"):
            load_tokenizers(folder, {})


class TestWhoEnds:
    """The end token is set by name, then by the name itself, then by number."""

    FILES = (
        ("special_tokens_map.json", {"eos_token": "the"}),
        ("tokenizer_config.json", {"eos_token": {"content": "cat", "lstrip": False}}),
        ("generation_config.json", {"eos_token_id": [5, 6], "pad_token_id": 7}),
    )

    def load(self, folder: Path, config: dict[str, Any], library: tokenizers.Tokenizer) -> Tokenizer:
        library.save(str(folder / "tokenizer.json"))
        return load_tokenizers(folder, config)[0]

    def test_files_define_end_tokens_in_order(self, tmp_path: Path) -> None:
        nameless = byte_level(special=("[end]",))
        ids = {name: nameless.token_to_id(name) for name in ("the", "cat")}
        ids = {name: place for name, place in ids.items() if place is not None}
        found = [self.load(tmp_path, {"eos_token_id": 0, "bos_token_id": 9}, nameless)]
        for name, content in (self.FILES[2], self.FILES[0], self.FILES[1]):
            (tmp_path / name).write_text(json.dumps(content))
            found.append(self.load(tmp_path, {"eos_token_id": 0, "bos_token_id": 9}, nameless))
        expected = [0, 5, ids.get("the", 5), ids.get("cat", ids.get("the", 5))]
        assert [tokenizer.eos_id for tokenizer in found] == expected
        assert len(set(expected)) > 2
        assert [tokenizer.pad_id for tokenizer in found] == [None, 7, 7, 7]
        assert all(tokenizer.bos_id == 9 for tokenizer in found)

    def test_end_token_by_name_precedes_one_by_number(self, tmp_path: Path) -> None:
        assert self.load(tmp_path, {"eos_token_id": 9}, byte_level()).eos_id == 0

    @pytest.mark.parametrize("config", [{"eos_token_id": 50_256}, {"eos_token_id": None}, {"eos_token_id": True}, {}])
    def test_invalid_end_ids_are_ignored(self, config: dict[str, Any], tmp_path: Path) -> None:
        assert self.load(tmp_path, config, byte_level(special=("[end]",))).eos_id is None

    def test_translator_starts_with_its_decoder_start_token(self, tmp_path: Path) -> None:
        tokenizer = self.load(tmp_path, {"decoder_start_token_id": 1, "pad_token_id": 1}, byte_fallback(metaspace=True))
        assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id) == (1, 1, 2)

    def test_token_with_a_role_has_no_text(self) -> None:
        tokenizer = Tokenizer(byte_level(special=("[end]",)))
        with_eos = tokenizer.with_ids(eos_id=40)
        assert tokenizer.with_ids() is tokenizer
        assert (with_eos.eos_id, tokenizer.eos_id) == (40, None)
        with_both = with_eos.with_ids(bos_id=41)
        assert (with_both.bos_id, with_both.eos_id) == (41, 40)
        assert with_eos.decode([40]) == "" != tokenizer.decode([40])
        assert Tokenizer.from_json(with_eos.to_json()).decode([40]) == ""
        assert with_eos.encode(TEXT) == tokenizer.encode(TEXT)
        with pytest.raises(ValueError, match=r"the vocabulary has no id 999; ids are 0 to \d+$"):
            tokenizer.with_ids(eos_id=999)

    def test_broken_settings_are_reported(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer_config.json").write_text("[")
        with pytest.raises(UserError, match=r"tokenizer_config\.json is not valid JSON"):
            self.load(tmp_path, {}, byte_level())


SOURCE = {"▁": -2.0, "a": -2.5, "b": -2.5, "c": -3.0, "▁ab": -1.5, "abc": -4.0, "bc": -2.0}
TARGET = {"▁": -2.0, "a": -2.5, "ß": -4.0, "▁ß": -3.0, "aß": -3.5, "b": -2.6, "▁ab": -9.0}
IDS = {
    name: place
    for place, name in enumerate(
        dict.fromkeys(["</s>", "<unk>", *SOURCE, *TARGET, ">>fr<<", "<pad>"])
    )
}  # fmt: skip


def marian_files(folder: Path, **config: Any) -> Path:
    (folder / "source.spm").write_bytes(spm(SOURCE))
    (folder / "target.spm").write_bytes(spm(TARGET))
    (folder / "vocab.json").write_text(json.dumps(IDS, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def best(line: str, scores: dict[str, float]) -> float:
    """Return the best score of all segmentations of a line, which may contain only known characters."""
    line = "▁" + line.replace(" ", "▁")
    best_scores = [0.0, *[float("-inf")] * len(line)]
    for end in range(1, len(line) + 1):
        for start in range(end):
            best_scores[end] = max(best_scores[end], best_scores[start] + scores.get(line[start:end], float("-inf")))
    return best_scores[-1]


class TestPieces:
    def sides(self, folder: Path) -> tuple[Tokenizer, Tokenizer]:
        return load_tokenizers(marian_files(folder), {"decoder_start_token_id": IDS["<pad>"], "eos_token_id": 0})

    def test_each_side_is_segmented_by_its_own_scores(self, tmp_path: Path) -> None:
        target, source = self.sides(tmp_path)
        assert source.tokens(source.encode("ab  abc ")) == ["▁ab", "▁ab", "c"]  # -4.5, compared with -6.0 as abc
        assert target.tokens(target.encode("ab")) == ["▁", "a", "b"]
        assert [(tokenizer.eos_id, tokenizer.pad_id) for tokenizer in (source, target)] == [(0, IDS["<pad>"])] * 2
        assert target.bos_id == IDS["<pad>"]
        assert source.vocab_size == target.vocab_size == len(IDS)

    @pytest.mark.slow
    @given(line=st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=4).map(" ".join))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_no_other_segmentation_scores_better(self, tmp_path: Path, line: str) -> None:
        _, source = self.sides(tmp_path)
        ids = source.encode(line)
        names = source.tokens(ids)
        assert [IDS[name] for name in names] == ids
        assert sum(SOURCE[name] for name in names) == pytest.approx(best(line, SOURCE))
        assert source.decode(ids) == line == stream_text(source, ids)

    def test_pieces_of_the_other_side_keep_id_and_text_but_are_not_produced(self, tmp_path: Path) -> None:
        target, source = self.sides(tmp_path)
        ids = [IDS["abc"], IDS["▁ß"], IDS["aß"]]
        assert target.decode([0, *ids, IDS["<pad>"]]) == "abc ßaß"
        assert target.tokens(ids) == ["abc", "▁ß", "aß"]
        assert IDS["abc"] not in target.encode("abc abcabc")
        assert source.tokens(source.encode("aß")) == ["▁", "a", "ß"]  # one unknown character that the list has
        assert source.tokens(source.encode("aüa")) == ["▁", "a", "<unk>", "a"]
        assert source.unk_id == 1

    def test_text_does_not_produce_special_tokens(self, tmp_path: Path) -> None:
        for tokenizer in self.sides(tmp_path):
            for line in ("</s>", "<pad>", "a </s>a", f"{HIDDEN_PREFIX}abc", f"{HIDDEN_PREFIX}</s>"):
                assert not set(tokenizer.encode(line)) & {0, IDS["<pad>"]}, line

    def test_target_language_token_is_a_prefix(self, tmp_path: Path) -> None:
        _, source = self.sides(tmp_path)
        for line in (">>fr<< ab", ">>fr<<ab"):
            assert source.encode(line) == [IDS[">>fr<<"], IDS["▁ab"]]

    def test_tokenizer_survives_one_file(self, tmp_path: Path) -> None:
        for tokenizer in self.sides(tmp_path):
            reloaded = Tokenizer.from_json(tokenizer.to_json())
            assert reloaded.hash == tokenizer.hash
            for line in ("ab abc", "aßß ü", "</s>"):
                assert reloaded.encode(line) == tokenizer.encode(line)
                assert reloaded.tokens(tokenizer.encode(line)) == tokenizer.tokens(tokenizer.encode(line))

    def test_sides_may_have_separate_vocabularies(self, tmp_path: Path) -> None:
        folder = marian_files(tmp_path, separate_vocabs=True)
        target_ids = {name: place for place, name in enumerate(["<pad>", "</s>", "<unk>", *TARGET])}
        (folder / "target_vocab.json").write_text(json.dumps(target_ids))
        target, source = load_tokenizers(folder, {})
        assert (target.vocab_size, source.vocab_size) == (len(target_ids), len(IDS))
        assert (target.eos_id, source.eos_id) == (1, 0)
        assert target.tokens(target.encode("aß")) == ["▁", "aß"]

    @pytest.mark.parametrize(
        ("file", "message"),
        [
            (spm(SOURCE, model=2), "its model type is not Unigram"),
            (spm(SOURCE, kinds={"a": 4}), "the piece 'a' has the type 4"),
            (spm(SOURCE, kinds={"a": 6}), "the piece 'a' has the type 6"),
            (spm(SOURCE, f5=0), "does not write spaces as ▁"),
            (spm(SOURCE)[:-3], "it ends inside a value"),
            (b"", "it has no pieces"),
            (number(1, 7), "a number instead of bytes"),
            (b"\x0b", "unknown type of a field at byte 1"),
            (b"\xff" * 11, "is too long"),
            (text(1, text(1, b"\xff")), "invalid start byte"),
        ],
    )
    def test_unsupported_files_are_rejected_with_a_reason(self, file: bytes, message: str, tmp_path: Path) -> None:
        (marian_files(tmp_path) / "source.spm").write_bytes(file)
        with pytest.raises(UserError, match=message) as error:
            load_tokenizers(tmp_path, {})
        assert "source.spm is not a supported sentencepiece model" in str(error.value)
        assert "\n" not in str(error.value)

    @given(data=st.data())
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_damaged_file_is_read_or_rejected(self, data: st.DataObject, tmp_path: Path) -> None:
        whole = bytearray(spm(SOURCE, table=b"\x04\0\0\0abcdef"))
        for _ in range(data.draw(st.integers(0, 3))):
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        (marian_files(tmp_path) / "source.spm").write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        with contextlib.suppress(UserError):  # other exceptions fail the test
            load_tokenizers(tmp_path, {})

    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            ("{}", "does not map pieces to ids"),
            ('{"a": "b"}', "does not map pieces to ids"),
            ('{"a": 0, "b": 0}', "2 names must have the ids 0 to 1, each once"),
            ('{"a": 0, "b": 2}', "2 names must have the ids 0 to 1, each once"),
            ('{"</s>": 0, "<pad>": 1}', "it has no '<unk>'"),
        ],
    )
    def test_broken_vocabulary_is_reported(self, ids: str, message: str, tmp_path: Path) -> None:
        (marian_files(tmp_path) / "vocab.json").write_text(ids)
        with pytest.raises(UserError, match=message):
            load_tokenizers(tmp_path, {})

    @pytest.mark.parametrize(("joins_spaces", "adds_prefix"), [(1, 1), (0, 1), (1, 0)])
    def test_spaces_are_handled_as_the_file_defines(self, joins_spaces: int, adds_prefix: int, tmp_path: Path) -> None:
        (tmp_path / "x.spm").write_bytes(spm(SOURCE, f3=adds_prefix, f4=joins_spaces))
        tokenizer = Tokenizer(
            build_unigram(read_pieces(tmp_path / "x.spm"), IDS, unknown="<unk>", special=frozenset({"</s>", "<pad>"}))
        )
        names = "".join(tokenizer.tokens(tokenizer.encode("a  b")))
        assert names == "▁" * adds_prefix + "a" + "▁" * (2 - joins_spaces) + "b"


needs_sentencepiece = pytest.mark.skipif(
    importlib.util.find_spec("sentencepiece") is None, reason="sentencepiece is not installed"
)


@needs_sentencepiece
@pytest.mark.slow
class TestBesideSentencepiece:
    """Compare with sentencepiece on 900 pieces each of English and German captions."""

    def files(self, folder: Path) -> dict[str, list[str]]:
        """Write a Marian folder and return the lines of each side."""
        import sentencepiece

        data = Path(os.environ.get("TERCET_DATA", "")) / "multi30k"
        if not data.is_dir():
            pytest.skip("the captions are not installed; run make data")
        ids = {"</s>": 0, "<unk>": 1}
        lines: dict[str, list[str]] = {}
        for side, language in (("source", "en"), ("target", "de")):
            with gzip.open(data / f"train.{language}.gz", "rt", encoding="utf-8") as file:
                lines[side] = file.read().splitlines()[:5000]
            (folder / "lines.txt").write_text("\n".join(lines[side][:4000]))
            sentencepiece.SentencePieceTrainer.train(  # pyright: ignore
                input=str(folder / "lines.txt"), model_prefix=str(folder / side), vocab_size=900, minloglevel=2
            )
            (folder / f"{side}.model").rename(folder / f"{side}.spm")
            processor = sentencepiece.SentencePieceProcessor(str(folder / f"{side}.spm"))
            for place in range(3, len(processor)):
                ids.setdefault(processor.id_to_piece(place), len(ids))
        ids["<pad>"] = len(ids)
        (folder / "vocab.json").write_text(json.dumps(ids))
        (folder / "tokenizer_config.json").write_text("{}")
        return lines

    def test_ids_and_texts_match_marians_own_tokenizer(self, tmp_path: Path) -> None:
        lines = self.files(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from transformers import MarianTokenizer

            theirs = MarianTokenizer.from_pretrained(tmp_path)
        target, source = load_tokenizers(tmp_path, {})
        odd = ["ﬁne ½ Ⅳ é 漢字", "  a   b \t c\n d ", "", " ", "Ein　Mann", "zero\u200bwidth", "a\u00adb 🙂"]
        for line in [*odd, *lines["source"][4000:]]:
            assert source.encode(line) == theirs(line, add_special_tokens=False)["input_ids"], line
        for line in [*odd, *lines["target"][4000:]]:
            ids = theirs(text_target=line, add_special_tokens=False)["input_ids"]
            assert target.encode(line) == ids, line
            if target.unk_id not in ids:
                assert target.decode(ids) == theirs.decode(ids, use_source_tokenizer=False)
