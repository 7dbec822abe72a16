"""Files of token ids are read unchanged, in any format, and invalid files are rejected before anything is written."""

import gzip
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import Documents, HeldOut, TextSpec, prepare
from tercet.data.sources import files as files_module
from tercet.data.sources import id_files as id_files_module
from tercet.data.sources.id_files import IdFile, contains_ids
from tercet.tokens import BPE, Characters, PlainIds, Tokenizer, TokenizerFile


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, lists: list[list[int]], dtype: str = "uint16") -> Path:
    flat = [number for numbers in lists for number in numbers]
    match path.suffixes[0]:
        case ".bin":
            content = np.array(flat, dtype).tobytes()
        case ".npy":
            np.save(packed := io.BytesIO(), np.array(flat, dtype))
            content = packed.getvalue()
        case _:
            content = "".join(json.dumps(numbers) + "\n" for numbers in lists).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(file: IdFile) -> list[list[int]]:
    lists, numbers = list[list[int]](), list[int]()
    for block in file.blocks():
        numbers += block.ids.tolist()
        if block.last:
            lists, numbers = [*lists, numbers], []
    assert not numbers
    return lists


@given(
    lists=st.lists(st.lists(st.integers(0, (1 << 16) - 1), max_size=9), min_size=1, max_size=4).filter(any),
    name=st.sampled_from(["a.bin", "a.bin.gz", "a.npy", "a.npy.gz", "a.jsonl", "a.jsonl.gz"]),
    dtype=st.sampled_from(["uint16", "uint32"]),
)
def test_written_ids_are_read_back(
    lists: list[list[int]], name: str, dtype: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("ids") / name, lists, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_files_module, "BLOCK", 8)
        patch.setattr(files_module, "BLOCK", 7)
        file = IdFile(path=path, dtype=dtype)
        assert contains_ids(file)
        assert read(file) == (lists if ".jsonl" in name else [[number for numbers in lists for number in numbers]])
        assert file.largest() == max(map(max, filter(None, lists)))


@pytest.mark.parametrize("dtype", ["int8", "int64", ">i4", "<u8"])
def test_npy_file_keeps_its_dtype(dtype: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([3, 1, 100], dtype))
    assert read(IdFile(path=tmp_path / "a.npy")) == [[3, 1, 100]]


@given(content=st.binary(max_size=200), suffix=st.sampled_from([".bin", ".npy", ".jsonl"]), npy=st.booleans())
def test_any_bytes_are_ids_or_rejected(
    content: bytes, suffix: str, npy: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / f"a{suffix}"
    path.write_bytes((b"\x93NUMPY\x01\x00" if npy else b"") + content)
    try:
        lists = read(IdFile(path=path))
    except UserError as error:
        lists, message = [[0]], str(error)
    else:
        message = ""
    assert any(lists)
    assert "\n" not in message


MALFORMED: dict[str, tuple[str, bytes, str]] = {
    "odd bytes": ("a.bin", b"abc", "does not contain a whole number of uint16 ids; set data.dtype"),
    "empty": ("a.bin", b"", "has no ids"),
    "no npy": ("a.npy", b"\x93NUMPY nothing", "not a complete .npy file"),
    "a list of text": ("a.jsonl", b'[1, 2]\n["a"]\n', r'line 2: "a" is not an id'),
    "a switch": ("a.jsonl", b"[true]\n", "true is not an id"),
    "negative": ("a.jsonl", b"[1, -1]\n", "line 1: -1 is not an id"),
    "a fraction": ("a.jsonl", b"[1, 2.5]\n", "2.5 is not an id"),
    "huge": ("a.jsonl", b"[1, 99999999999]\n", "has the id 99999999999"),
    "no list": ("a.jsonl", b"[1]\n5\n", "line 2 is not a JSON object"),
    "text": ("a.jsonl", b'[1]\n{"text": "a"}\n', "line 2 is not a list of ids"),
    "no field": ("a.jsonl", b'[1]\n{"ids": [1]}\n', "line 2 has no field 'text'"),
    "not json": ("a.jsonl", b"[1]\n[1,\n", "line 2 is not JSON"),
}


@pytest.mark.parametrize(("name", "content", "words"), MALFORMED.values(), ids=MALFORMED)
def test_invalid_id_file_is_rejected_in_one_line(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=words) as error_info:
        read(IdFile(path=tmp_path / name))
    assert "\n" not in str(error_info.value)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 3), np.uint16), r"of shape \(2, 3\)"),
        (np.zeros(3, np.float32), "contains float32"),
        (np.array([1, -5]), "has the id -5"),
        (np.array([1 << 40]), "has the id 1099511627776"),
        (np.array([{"a": 1}]), "contains object"),
    ],
)
def test_arrays_without_ids_are_rejected(array: np.ndarray, words: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(UserError, match=words):
        read(IdFile(path=tmp_path / "a.npy"))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "harmed",))

    np.save(tmp_path / "a.npy", np.array([Harm()], object), allow_pickle=True)
    with pytest.raises(UserError):
        read(IdFile(path=tmp_path / "a.npy"))
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(UserError):
        read(IdFile(path=tmp_path / "b.npy"))
    assert not (tmp_path / "harmed").exists()


def test_truncated_npy_file_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npy", [list(range(50))])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="90 bytes of ids, but its header specifies 100"):
        read(IdFile(path=path))


@pytest.mark.parametrize("name", ["a.bin", "a.npy"])
def test_a_corpus_has_the_ids_of_the_file(name: str, tmp_path: Path, cache: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 50, 1000).tolist()
    spec = TextSpec(source=str(write(tmp_path / name, [ids])), tokenizer=PlainIds(eos=False))
    corpus = prepare(spec)
    assert np.concatenate([corpus.train, corpus.validation]).tolist() == ids
    assert corpus.tokenizer.vocab_size == 50
    assert corpus.train_bytes + corpus.validation_bytes == len(" ".join(map(str, ids)))
    assert corpus.tokenizer.decode(corpus.train[:5]) == " ".join(map(str, ids[:5]))


def test_documents_end_at_the_configured_token(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_files_module, "BLOCK", 8)  # documents continue across blocks
    path = write(tmp_path / "a.bin", [[5, 6, 9, 9, 7, 7, 7, 7, 7, 7, 9, 8]])
    tokenizer = PlainIds(eos_id=9)
    corpus = prepare(TextSpec(source=str(path), tokenizer=tokenizer, validation=HeldOut(source=str(path))))
    assert corpus.train.tolist() == [5, 6, 9, 9, 7, 7, 7, 7, 7, 7, 9, 8, 9]
    assert corpus.train_documents.tolist() == corpus.validation_documents.tolist() == [0, 3, 4, 11]
    assert corpus.tokenizer.eos_id == 9


def test_lists_are_documents_between_bos_and_eos(tmp_path: Path, cache: Path) -> None:
    lines = [[n, n + 1] for n in range(20)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"input_ids": line}) + "\n" for line in lines))
    spec = TextSpec(
        source=str(path),
        text_field="input_ids",
        tokenizer=PlainIds(bos=True, mask=True, pad=True),
        validation=Documents(),
    )
    corpus = prepare(spec)
    tokenizer = corpus.tokenizer
    assert (tokenizer.id_limit, tokenizer.vocab_size) == (21, 25)
    assert corpus.train[:4].tolist() == [tokenizer.bos_id, 0, 1, tokenizer.eos_id]
    assert len(corpus.train_documents) + len(corpus.validation_documents) == 20


def test_given_tokenizer_decodes_the_ids(tmp_path: Path, cache: Path) -> None:
    tokenizer = Tokenizer.train(BPE(vocab_size=300), ["the cat and the dog " * 9])
    tokenizer.save(tmp_path / "tokenizer.json")
    ids = tokenizer.encode("the cat and the dog" * 40)
    path, spec = write(tmp_path / "a.bin", [ids]), TokenizerFile(path=str(tmp_path / "tokenizer.json"))
    corpus = prepare(TextSpec(source=str(path), tokenizer=spec))
    assert corpus.tokenizer.decode(corpus.train[:12]).startswith("the cat and the dog")
    assert corpus.train_bytes == tokenizer.count_bytes(corpus.train)


def test_ids_beyond_the_vocabulary_are_rejected_before_any_file_is_written(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a.bin", [[1, 2, 300]])
    trained_tokenizer = Tokenizer.train(Characters(), ["abc"])
    for settings, tokenizer in ((PlainIds(vocab_size=300, mask=True), None), (PlainIds(), trained_tokenizer)):
        with pytest.raises(UserError, match="the id 300 is outside the vocabulary") as error_info:
            prepare(TextSpec(source=str(path), tokenizer=settings), tokenizer=tokenizer)
        assert "\n" not in str(error_info.value)
    assert not [*cache.glob("corpora/*")]
    held_out = write(tmp_path / "b.bin", [[7000]])
    with pytest.raises(UserError, match=r"b\.bin: the id 7000 is outside"):
        prepare(TextSpec(source=str(path), tokenizer=PlainIds(), validation=HeldOut(source=str(held_out))))


def test_tokenizer_trained_on_text_is_rejected_for_ids(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a.npy", [[1, 2, 3]])
    with pytest.raises(
        UserError, match=r"contains ids, but data.tokenizer \(bpe\) is learned from text; set it to {kind"
    ):
        prepare(TextSpec(source=str(path), tokenizer=BPE()))


def test_text_of_numbers_is_ids_too(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.txt").write_text("5 6 7\n" * 50)
    corpus = prepare(TextSpec(source=str(tmp_path / "a.txt"), tokenizer=PlainIds(), documents="line"))
    assert corpus.train[:4].tolist() == [5, 6, 7, corpus.tokenizer.eos_id]


@pytest.mark.parametrize("vocab_size", [5, 300, 50_257, 128_256, 1 << 20])
@pytest.mark.parametrize("file_dtype", ["uint16", "uint32", "int64"])
@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_ids_of_another_width_are_rejected(vocab_size: int, file_dtype: str, dtype: Any, tmp_path: Path) -> None:
    ids = np.random.default_rng(vocab_size).zipf(1.2, 1000) % vocab_size
    if file_dtype == "uint16" and (vocab_size > 1 << 16 or dtype == "uint32"):
        return  # pairs of ids give numbers beyond any vocabulary
    path = write(tmp_path / "a.bin", [ids.tolist()], file_dtype)
    if file_dtype == dtype:
        assert read(IdFile(path=path, dtype=dtype)) == [ids.tolist()]
        return
    wide, narrow = {"uint16": (32, 16), "uint32": (64, 32)}[dtype]
    with pytest.raises(UserError, match=f"looks like ids of {wide} bits, but is read as {narrow}: every second .*; "):
        read(IdFile(path=path, dtype=dtype))


@given(ids=st.lists(st.integers(0, (1 << 16) - 1), min_size=64, max_size=80), high=st.integers(16, 99))
def test_ids_of_16_bits_are_read_unless_every_second_one_is_small(
    ids: list[int], high: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ids[1] = high
    path = write(tmp_path_factory.mktemp("ids") / "a.bin", [ids])
    assert read(IdFile(path=path)) == [ids]


@pytest.mark.parametrize(("magic", "dtype"), [(20240520, "uint16"), (20240801, "uint32")])
def test_header_is_not_read_as_ids(magic: int, dtype: str, tmp_path: Path) -> None:
    header = np.zeros(256, np.int32)
    header[:3] = magic, 1, 100
    (tmp_path / "a.bin").write_bytes(header.tobytes() + np.arange(100).astype(dtype).tobytes())
    for read_as in ("uint16", "uint32"):
        with pytest.raises(UserError, match=rf"header of llm.c; remove it with `tail -c \+1025`, .* to {dtype} "):
            read(IdFile(path=tmp_path / "a.bin", dtype=read_as))


def test_header_of_old_python_is_read_without_warning(tmp_path: Path) -> None:
    header = b"{'descr': '<u2', 'fortran_order': False, 'shape': (3L,), }\n"
    ids = np.array([1, 2, 3], np.uint16).tobytes()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + ids)
    assert read(IdFile(path=tmp_path / "a.npy")) == [[1, 2, 3]]
