"""Loading a folder runs no code, reads no file outside it, and allocates no memory for claimed sizes."""

import io
import json
import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import save_folder
from folders_of_others import shaken, write_folder
from gguf_models import export_model, llama
from hypothesis import given, settings
from hypothesis import strategies as st

import tercet
from sampled_cases import sampled
from tercet.checkpoint import convert, load_model
from tercet.checkpoint.foreign.gguf_file import GgufFile, write_gguf
from tercet.checkpoint.foreign.state_dict import read_state_dict
from tercet.config import UserError
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec

SPEC = DecoderOnlySpec(vocab_size=11, max_len=7, stack=StackSpec(d_model=8, n_layers=1, n_heads=2, d_ff=13))


class MaliciousPickle:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def theirs(folder: Path, *, pickled: bool = False) -> Path:
    config = transformers.GPT2Config(
        vocab_size=11, n_embd=8, n_head=2, n_layer=1, n_positions=7, bos_token_id=1, eos_token_id=2
    )
    return write_folder(folder, shaken(transformers.GPT2LMHeadModel(config), 0), pickled=pickled)


def ours(folder: Path) -> Path:
    save_folder(folder, shaken(DecoderOnly(SPEC), 0))
    (folder / "manifest.json").unlink()  # which would detect the damage first
    return folder


def check_rejected(folder: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        load_model(folder)
    assert "\n" not in str(error.value)


def test_planted_pickle_works_when_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(MaliciousPickle(tmp_path / "ran")))
    assert (tmp_path / "ran").is_dir()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_pickle_planted_as_weights_is_not_executed(whole: bool, zipped: bool, tmp_path: Path) -> None:
    folder, ran = theirs(tmp_path / "theirs", pickled=True), tmp_path / "ran"
    state: dict[str, Any] = torch.load(folder / "pytorch_model.bin") if whole else {}
    torch.save(
        {**state, "transformer.wte.weight": MaliciousPickle(ran)},
        folder / "pytorch_model.bin",
        _use_new_zipfile_serialization=zipped,
    )
    check_rejected(folder, r"pytorch_model\.bin is not a complete file of weights")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(MaliciousPickle(ran), protocol=2))
    check_rejected(folder, r"pytorch_model\.bin is not a complete file of weights")
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    check_rejected(folder, r"model\.safetensors is not a complete safetensors file")
    (folder / "model.safetensors").rename(folder / "model.gguf")
    check_rejected(folder / "model.gguf", r"model\.gguf is not a supported GGUF file")
    assert not ran.exists()


@pytest.mark.slow
@pytest.mark.parametrize("zipped", [True, False])
def test_broken_pickle_is_rejected_or_read(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    stream = io.BytesIO()
    torch.save({"a": torch.zeros(3), "b": torch.ones(2, 2)}, stream, _use_new_zipfile_serialization=zipped)
    whole = stream.getvalue()
    pickle_part = whole[: whole.index(b"data/")] if zipped else whole

    @settings(max_examples=100, deadline=None)
    @given(flips=st.lists(st.tuples(st.integers(0, len(pickle_part) - 1), st.integers(1, 255)), min_size=1, max_size=3))
    def check(flips: list[tuple[int, int]]) -> None:
        data = bytearray(whole)
        for place, value in flips:
            data[place] ^= value
        path.write_bytes(data)
        try:
            state = read_state_dict(tmp_path)
        except UserError as error:
            message = str(error)
        else:
            message = ""
            assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
        assert "\n" not in message

    check()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"])
@pytest.mark.parametrize("make", [ours, theirs])
def test_pickle_planted_as_a_text_file_is_rejected(make: Callable[[Path], Path], name: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "folder")
    (folder / name).write_bytes(pickle.dumps(MaliciousPickle(tmp_path / "ran")))
    check_rejected(folder, r"is not valid JSON|cannot read the tokenizer|cannot read .*UTF-8")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name",
    sampled(["tokenizer.pkl", "training_args.bin", "tokenizer.pickle", "optimizer.pt", "spiece.model"], keep=(0, 1)),
)
@pytest.mark.parametrize("make", [ours, theirs])
def test_other_pickles_in_the_folder_are_not_read(make: Callable[[Path], Path], name: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "folder")
    (folder / name).write_bytes(pickle.dumps(MaliciousPickle(tmp_path / "ran")))
    for code in ("modeling_mine.py", "conftest.py", "__init__.py", "sitecustomize.py"):
        (folder / code).write_text(f"import os; os.mkdir({str(tmp_path / 'ran')!r})")
    assert load_model(folder).model.spec.vocab_size == 11
    convert(folder, tmp_path / "out", "hf")
    assert not (tmp_path / "ran").exists()


def test_code_named_by_a_config_is_not_executed(tmp_path: Path) -> None:
    folder, ran = theirs(tmp_path / "theirs"), tmp_path / "ran"
    code = f"import os; os.mkdir({str(ran)!r})\n"
    (folder / "modeling_mine.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "modeling_mine.Config", "AutoModelForCausalLM": "modeling_mine.Model"}
    extra = {"auto_map": names, "trust_remote_code": True, "custom_pipelines": {"a": {"impl": "modeling_mine.Model"}}}
    (folder / "config.json").write_text(json.dumps({**config, **extra}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["modeling_mine.Tokenizer", None]}, "tokenizer_class": "Mine"})
    )
    assert load_model(folder).model.spec.vocab_size == 11
    out = convert(folder, tmp_path / "out", "hf")
    assert "auto_map" not in (out / "config.json").read_text() + (out / "tokenizer_config.json").read_text()
    (folder / "config.json").write_text(json.dumps({**config, **extra, "model_type": "mine"}))
    check_rejected(folder, r"a model of type 'mine'; Tercet opens")
    assert not ran.exists()


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/secret.safetensors", "a/../../secret.safetensors", "..", ".", "", 5, None, ["a"]],
)
def test_index_may_name_only_files_of_its_folder(name: Any, tmp_path: Path) -> None:
    folder = theirs(tmp_path / "theirs")
    (folder / "model.safetensors").rename(tmp_path / "secret.safetensors")
    file_name = str(tmp_path / "secret.safetensors") if name == "/secret.safetensors" else name
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"transformer.wte.weight": file_name}})
    )
    check_rejected(folder, r"index\.json does not map weights to files|is not a complete safetensors file")


HEADERS = {
    "longer than the file": struct.pack("<Q", 2**40) + b"{}",
    "longer than anything": struct.pack("<Q", 2**64 - 1) + b"{}",
    "not JSON": struct.pack("<Q", 4) + b"{{{{",
    "a tensor beyond the file": b"",
    "a tensor of no size": b"",
    "nothing": b"",
}
TENSORS = {
    "a tensor beyond the file": {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
    "a tensor of no size": {"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}},
}


@pytest.mark.parametrize("make", sampled([ours, theirs]))
@pytest.mark.parametrize("case", HEADERS)
def test_excessive_header_is_rejected(case: str, make: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = make(tmp_path / "folder")
    header = json.dumps(TENSORS[case]).encode() if case in TENSORS else b""
    data = struct.pack("<Q", len(header)) + header if header else HEADERS[case]
    (folder / "model.safetensors").write_bytes(data)
    tracemalloc.start()
    try:
        check_rejected(folder, r"model\.safetensors is not a complete safetensors file")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_links_are_followed_for_reading_but_not_for_writing(tmp_path: Path) -> None:
    folder = theirs(tmp_path / "snapshots" / "theirs")
    (tmp_path / "blobs").mkdir()
    for path in sorted(folder.iterdir()):
        path.rename(tmp_path / "blobs" / path.name)
        path.symlink_to(tmp_path / "blobs" / path.name)
    before = {path.name: path.read_bytes() for path in (tmp_path / "blobs").iterdir()}
    assert load_model(folder).model.spec.vocab_size == 11
    convert(ours(tmp_path / "ours"), folder, "hf", force=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "blobs").iterdir()} == before
    assert not (folder / "model.safetensors").is_symlink()


def test_name_in_a_gguf_file_is_not_a_path(tmp_path: Path) -> None:
    file = export_model(tmp_path, llama())
    (file.parent / "manifest.json").unlink()
    read = GgufFile(file)
    tensors = {name: read.tensor(name) for name in read.locations}
    write_gguf(file, {**read.settings, "general.name": "../../planted"}, tensors)
    before = sorted(tmp_path.iterdir())
    out = convert(file, tmp_path / "deep" / "out")
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "deep"])
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert load_model(out).card.name == "../../planted"
    write_gguf(file, read.settings, {**tensors, "../../planted": torch.zeros(1)})
    check_rejected(file, r"has \.\./\.\./planted, unlike a supported Llama")


def test_python_api_is_safe_too(tmp_path: Path) -> None:
    folder = theirs(tmp_path / "theirs", pickled=True)
    torch.save({"a": MaliciousPickle(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="not a complete file of weights"):
        tercet.load(folder)
    assert not (tmp_path / "ran").exists()
