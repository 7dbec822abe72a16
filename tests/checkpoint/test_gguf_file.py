"""The GGUF container: files are readable by Tercet and the `gguf` package, and unsupported values are rejected.

A third-party file may contain anything. It is read as a whole model or rejected with a one-line error: no other
exception is raised, and no memory is allocated for sizes that the file merely claims.
"""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_models import export_model, gpt2, llama
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tercet.checkpoint import load_model
from tercet.checkpoint.foreign import gguf_file
from tercet.checkpoint.foreign.gguf_file import GgufFile, write_gguf
from tercet.config import UserError

TEXTS = st.text(max_size=9)
FLOATS = st.floats(width=32, allow_nan=False)
VALUES = st.one_of(
    TEXTS, st.booleans(), st.integers(0, 2**32 - 1), FLOATS, st.lists(TEXTS, max_size=4),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4), st.lists(FLOATS, max_size=4),
)  # fmt: skip
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)
FUZZ = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.mark.slow
def test_written_file_is_read_back(tmp_path: Path) -> None:
    @FUZZ
    @given(
        fields=st.dictionaries(TEXTS.filter(lambda key: key != "general.alignment"), VALUES, max_size=5),
        sizes=st.dictionaries(TEXTS, SIZES, max_size=4),
    )
    def check(fields: dict[str, Any], sizes: dict[str, list[int]]) -> None:
        tensors = {name: torch.randn(shape) for name, shape in sizes.items()}
        write_gguf(tmp_path / "a.gguf", fields, tensors)
        read = GgufFile(tmp_path / "a.gguf")
        assert read.settings == fields
        assert {name: type(value) for name, value in read.settings.items()} == {n: type(v) for n, v in fields.items()}
        assert list(read.locations) == list(tensors)
        assert all(torch.equal(read.tensor(name), tensor) for name, tensor in tensors.items())

    check()


def test_written_file_is_read_by_the_gguf_package(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(7)}
    fields = {"general.architecture": "x", "n": 7, "t": True, "f": 0.5, "l": ["a", "ä"], "i": [-1, 2], "s": [0.5, -1.5]}
    write_gguf(tmp_path / "a.gguf", fields, tensors)
    read = gguf.GGUFReader(tmp_path / "a.gguf")
    found = {name: field.contents() for name, field in read.fields.items() if not name.startswith("GGUF.")}
    assert found == fields
    assert all((entry.data == tensors[entry.name].numpy()).all() for entry in read.tensors)


def written_by_theirs(path: Path, alignment: int | None = None, **packed: Any) -> Path:
    """Write a file by the package's writer, with one value of each kind and tensors of the named types."""
    writer = gguf.GGUFWriter(path, "test")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for kind, value in (
        ("uint8", 255), ("int8", -128), ("uint16", 65535), ("int16", -5), ("uint32", 4), ("int32", -4),
        ("uint64", 2**63), ("int64", -(2**63)), ("float64", 0.1), ("float32", 0.5), ("bool", False), ("string", "ä"),
    ):  # fmt: skip
        getattr(writer, f"add_{kind}")(f"one.{kind}", value)
    writer.add_array("one.array", [1, 2, 3])
    for name, (data, kind) in packed.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("alignment", [None, 64])
def test_file_of_the_gguf_package_is_read(alignment: int | None, tmp_path: Path) -> None:
    types = gguf.GGMLQuantizationType
    numbers = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    kinds = (types.F16, types.BF16, types.Q4_0, types.Q4_1, types.Q5_0, types.Q5_1, types.Q8_0, types.TQ2_0)
    packed = {kind.name: (gguf.quants.quantize(numbers, kind), kind) for kind in kinds}
    packed["F32"] = (numbers, types.F32)
    read = GgufFile(written_by_theirs(tmp_path / "a.gguf", alignment, **packed))
    assert read.settings["one.uint64"] == 2**63
    assert read.settings["one.int8"] == -128
    assert read.settings["one.bool"] is False
    assert read.settings["one.array"] == [1, 2, 3]
    for name, (data, kind) in packed.items():
        expected = data if kind == types.F32 else gguf.quants.dequantize(data, kind)
        assert read.tensor(name).dtype == torch.float32
        assert (read.tensor(name).numpy() == expected).all(), name
    assert abs(read.tensor("Q8_0").numpy() - numbers).max() < 0.03
    assert all(location.start % (alignment or 32) == 0 for location in read.locations.values())


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ2_XXS", "MXFP4"])
def test_any_type_of_the_package_is_unpacked(kind: str, tmp_path: Path) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    numbers, n_bytes = gguf.GGML_QUANT_SIZES[quantization]
    data = np.random.default_rng(0).integers(0, 60, (3, 2 * 256 // numbers * n_bytes), dtype=np.uint8)
    read = GgufFile(written_by_theirs(tmp_path / "a.gguf", a=(data, quantization)))
    assert read.locations["a"].shape == (3, 512)
    assert np.array_equal(read.tensor("a").numpy(), gguf.quants.dequantize(data, quantization), equal_nan=True)


def test_unsupported_type_is_rejected(tmp_path: Path) -> None:
    quantization = gguf.GGMLQuantizationType.I32
    read = GgufFile(written_by_theirs(tmp_path / "a.gguf", a=(np.zeros((3, 4), np.int32), quantization)))
    with pytest.raises(UserError, match="a is stored as I32, which the gguf package cannot dequantize"):
        read.tensor("a")


def test_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    types = gguf.GGMLQuantizationType
    data = gguf.quants.quantize(np.zeros((3, 32), np.float32), types.Q8_0)
    plain = written_by_theirs(tmp_path / "a.gguf", a=(np.ones((3, 32), np.float32), types.F32))
    packed = written_by_theirs(tmp_path / "b.gguf", a=(data, types.Q8_0))
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    assert GgufFile(plain).tensor("a").sum() == 96
    with pytest.raises(UserError, match=r"require the gguf package; pip install 'tercet\[export\]'"):
        GgufFile(packed)


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str) -> bytes:
    return number(len(value)) + value.encode()


def header(n_tensors: int = 0, n_settings: int = 0, *, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<I", version) + number(n_tensors) + number(n_settings)


def setting(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, sizes: list[int], kind: int, place: int) -> bytes:
    return text(name) + struct.pack("<I", len(sizes)) + b"".join(map(number, sizes)) + struct.pack("<IQ", kind, place)


HUGE = 2**63
BROKEN_FILES = {
    "nothing": (b"", r"ends inside a value of 4 bytes"),
    "a pickle": (b"\x80\x04cposix\nsystem\n", r"does not begin with GGUF"),
    "cut short": (header()[:-1], r"ends inside a value of 8 bytes at byte 16"),
    "version 1": (header(version=1), r"version is 1; Tercet reads the little-endian versions 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), r"its numbers are big-endian"),
    "tensors": (header(n_tensors=HUGE), rf"claims {HUGE} tensors"),
    "settings": (header(n_settings=HUGE), rf"{HUGE} settings; the maximum is 65536"),
    "a key": (header(n_settings=1) + number(HUGE), rf"ends inside a value of {HUGE} bytes"),
    "a text": (header(n_settings=1) + setting("a", 8, number(2**40)), rf"ends inside a value of {2**40} bytes"),
    "numbers": (header(n_settings=1) + setting("a", 9, struct.pack("<IQ", 12, HUGE)), rf"lists claim {HUGE} items"),
    "texts": (header(n_settings=1) + setting("a", 9, struct.pack("<IQ", 8, HUGE)), rf"lists claim {HUGE} items"),
    "lists": (header(n_settings=1) + setting("a", 9, struct.pack("<IQ", 9, 3)), r"value of the unknown kind 9"),
    "a kind": (header(n_settings=1) + setting("a", 13, bytes(8)), r"value of the unknown kind 13 at byte"),
    "no UTF-8": (header(n_settings=1) + setting("a", 8, number(1) + b"\xff"), r"a text in it is not UTF-8"),
    "a key twice": (header(n_settings=2) + 2 * setting("a", 7, b"\1"), r"the setting 'a' occurs twice"),
    "alignment 0": (header(n_settings=1) + setting("general.alignment", 4, bytes(4)), r"alignment is 0; it must be"),
    "alignment 3": (header(n_settings=1) + setting("general.alignment", 4, struct.pack("<I", 3)), r"is 3; it must be"),
    "alignment": (header(n_settings=1) + setting("general.alignment", 8, text("x")), r"is 'x'; it must be a power"),
    "a tensor twice": (header(2) + 2 * tensor("a", [1], 0, 0) + bytes(99), r"the tensor 'a' occurs twice"),
    "no dimensions": (header(1) + tensor("a", [], 0, 0), r"has 0 dimensions; expected 1 to 4"),
    "dimensions": (header(1) + tensor("a", [1] * 9, 0, 0), r"has 9 dimensions; expected 1 to 4"),
    "an empty tensor": (header(1) + tensor("a", [4, 0], 0, 0), r"the tensor 'a' has rows of 4"),
    "a large tensor": (header(1) + tensor("a", [HUGE] * 4, 0, 0), r"the tensor 'a' ends at byte \d+, and the file at"),
    "a far tensor": (header(1) + tensor("a", [1], 0, 1 << 40), r"the tensor 'a' ends at byte"),
    "off the grid": (header(1) + tensor("a", [1], 0, 4) + bytes(99), r"begins at 4, which is not a multiple of 32"),
    "a type": (header(1) + tensor("a", [1], 9999, 0) + bytes(99), r"'a' is of the unknown type 9999"),
    "part of a block": (header(1) + tensor("a", [33], 8, 0) + bytes(99), r"rows of 33, but its type has blocks of 32"),
    "shared bytes": (
        header(2) + tensor("a", [9], 0, 0) + tensor("b", [1], 0, 32) + bytes(199), r"tensors 'a' and 'b' overlap",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN_FILES)
def test_impossible_header_is_rejected_without_allocation(case: str, tmp_path: Path) -> None:
    data, message = BROKEN_FILES[case]
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    __import__("gguf")
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=message) as error:
            load_model(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_header_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "MAX_GGUF_HEADER_BYTES", 100)
    write_gguf(tmp_path / "a.gguf", {"a": "b" * 200}, {})
    with pytest.raises(UserError, match=r"maximum of 100 bytes of settings is exceeded inside a value of 200 bytes"):
        GgufFile(tmp_path / "a.gguf")
    write_gguf(tmp_path / "a.gguf", {}, {"a": torch.zeros(1000)})  # the limit applies to the header, not to the file
    assert GgufFile(tmp_path / "a.gguf").tensor("a").numel() == 1000


def test_folder_and_missing_file_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such folder: .*a\.gguf"):
        load_model(tmp_path / "a.gguf")
    with pytest.raises(UserError, match=r"cannot read .* not a regular file"):
        GgufFile(tmp_path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Return small Llama and GPT-2 files, in which most bytes belong to the header."""
    folder = tmp_path_factory.mktemp("files")
    small = {"d_model": 6, "n_layers": 1, "n_heads": 1}
    models = {
        "llama": llama(0, {**small, "d_ff": 3, "n_kv_heads": None}),
        "gpt2": gpt2(0, {**small, "d_ff": 3}, max_len=5),
    }
    return [export_model(folder / name, model).read_bytes() for name, model in models.items()]


def opens_or_is_refused(data: bytes, path: Path) -> bool:
    """Return whether a file opens; exceptions other than ours fail the test."""
    path.write_bytes(data)
    message, model = "", None
    try:
        model = load_model(path).model
    except UserError as error:
        message = str(error)
    assert "\n" not in message
    assert model is None or sum(parameter.numel() for parameter in model.parameters()) < 4 * len(data)
    return model is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "n", [pytest.param(50, id="some"), pytest.param(3000, id="many", marks=pytest.mark.exhaustive)]
)
def test_flipped_bytes_give_an_error_or_a_whole_model(n: int, files: list[bytes], tmp_path: Path) -> None:
    ends: list[int] = []
    for data in files:
        assert opens_or_is_refused(data, tmp_path / "a.gguf")
        ends.append(min(location.start for location in GgufFile(tmp_path / "a.gguf").locations.values()))
    places = st.one_of(st.integers(0, 600), st.integers(-900, -1), st.integers(0, 20_000))  # the middle has only tokens

    @settings(FUZZ, max_examples=n)
    @given(index=st.integers(0, 1), flips=st.lists(st.tuples(places, st.integers(1, 255)), max_size=4))
    def check(index: int, flips: list[tuple[int, int]]) -> None:
        data = bytearray(files[index])
        for place, value in flips:
            data[place % ends[index]] ^= value
        opens_or_is_refused(bytes(data), tmp_path / "a.gguf")

    check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "n", [pytest.param(50, id="some"), pytest.param(2000, id="many", marks=pytest.mark.exhaustive)]
)
def test_truncated_file_or_file_with_holes_is_rejected(n: int, files: list[bytes], tmp_path: Path) -> None:
    @settings(FUZZ, max_examples=n)
    @given(index=st.integers(0, 1), start=st.integers(0, 10**6), length=st.integers(1, 40))
    def check(index: int, start: int, length: int) -> None:
        data = files[index]
        start %= len(data) - 32  # the padding of the last tensor may be missing
        assert not opens_or_is_refused(data[:start], tmp_path / "a.gguf")
        opens_or_is_refused(data[:start] + data[start + length :], tmp_path / "a.gguf")

    check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "n", [pytest.param(50, id="some"), pytest.param(2000, id="many", marks=pytest.mark.exhaustive)]
)
def test_settings_of_any_value_give_an_error_or_a_whole_model(n: int, files: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "plain.gguf").write_bytes(files[0])
    plain = GgufFile(tmp_path / "plain.gguf")
    tensors = {name: plain.tensor(name) for name in plain.locations}
    odd = st.one_of(VALUES, st.sampled_from([0, 1, 2, 2**31 - 1, 2**32 - 1, float("nan"), float("inf"), -0.0, ""]))

    @settings(FUZZ, max_examples=n)
    @given(changes=st.dictionaries(st.sampled_from(list(plain.settings)), odd, min_size=1, max_size=3))
    @example(changes={"general.architecture": ["gpt2"]})
    def check(changes: dict[str, Any]) -> None:
        write_gguf(tmp_path / "b.gguf", {**plain.settings, **changes}, tensors)
        opens_or_is_refused((tmp_path / "b.gguf").read_bytes(), tmp_path / "a.gguf")

    check()
