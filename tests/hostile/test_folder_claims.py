"""Model folders with false sizes, files or headers are rejected in one line before they use memory or time."""

import json
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from attack import attack, attack_function
from folder_copies import assert_rejected, copy_folder
from hurt_folders import safe_header, write_safe_header

from tercet.checkpoint import load_model
from tercet.config import UserError

IS_FULL = int(os.environ.get("TERCET_HOSTILE", "1")) > 1
HUGE = (10**6, 10**12, 10**100, *((10**9, 2**63) if IS_FULL else ()))
INVALID_SIZES = (
    -1, float("nan"), True, "x", None, [], *((0, float("inf"), float("-inf"), "", {}) if IS_FULL else ()),
)  # fmt: skip
SIZES = {
    "ours decoder": ("stack.d_model", "stack.n_layers", "stack.n_heads", "stack.d_ff", "max_len", "vocab_size"),
    "bert": (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
        "type_vocab_size",
    ),
    "gpt2": ("n_embd", "n_layer", "n_head", "vocab_size", "n_positions"),
    "llama sharded": (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "num_key_value_heads",
    ),
    "marian": ("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_ffn_dim"),
}


@pytest.fixture
def copy_model(tmp_path: Path) -> Callable[[str], Path]:
    return lambda kind: copy_folder(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SIZES)
def test_a_config_with_larger_sizes_than_its_weights_is_rejected(kind: str, copy_model: Callable[[str], Path]) -> None:
    folder = copy_model(kind)
    path = folder / "config.json"
    before = json.loads(path.read_text())

    def claim(key: str, value: Any) -> None:
        config = json.loads(json.dumps(before))
        *parents, last = key.split(".")
        inner = config
        for name in parents:
            inner = inner[name]
        inner[last] = value
        path.write_text(json.dumps(config))

    changes = {
        f"{key} = {value}": lambda key=key, value=value: claim(key, value)
        for key in SIZES[kind]
        for value in (*HUGE, *INVALID_SIZES)
        if not (value in (None, 10**6, 10**9, True) and key in ("max_len", "num_key_value_heads"))
        and not (value in (None, 1) and "heads" in key + "heads")
    }
    assert_rejected(changes, folder)


@pytest.mark.slow
def test_rejecting_false_sizes_is_fast_on_the_command_line(copy_model: Callable[[str], Path]) -> None:
    folder = copy_model("ours decoder")
    config = json.loads((folder / "config.json").read_text())
    for key, value in (("n_layers", 10**6), ("d_model", 10**9), ("n_layers", 1000), ("d_ff", 2**19)):
        (folder / "config.json").write_text(json.dumps({**config, "stack": {**config["stack"], key: value}}))
        outcome = attack(["generate", str(folder), "--prompt", "a"])
        assert outcome.refused_in_one_line(), outcome.stderr
        assert outcome.memory < 200 << 20
    (folder / "config.json").write_text(json.dumps({**config, "pad_vocab_to": 2**20}))
    assert attack(["generate", str(folder), "--prompt", "a"]).refused_in_one_line()


TEXTS = {
    "a gigabyte": b" " * (65 << 20),
    "deep": b"[" * 10**6,
    "deep objects": b'{"a":' * 10**6,
    "deep and whole": b'{"a":' * 100 + b"1" + b"}" * 100,
    "a key twice": b'{"model": {}, "model": {}}',
    "digits": b'{"a": ' + b"1" * 10**5 + b"}",
    "digits behind a point": b'{"a": 1e999}',
    "NaN": b'{"a": NaN}',
    "no UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "card.json", "generation_config.json"])
def test_malformed_json_files_are_rejected(name: str, copy_model: Callable[[str], Path]) -> None:
    folder = copy_model("ours decoder")
    changes = {case: lambda data=data: (folder / name).write_bytes(data) and None for case, data in TEXTS.items()}
    assert_rejected(changes, folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ours decoder", "gpt2", "llama sharded", "marian", "bert pickled", "gguf llama"])
def test_paths_that_are_not_regular_files_are_rejected(kind: str, copy_model: Callable[[str], Path]) -> None:
    model_path = copy_model(kind)
    folder = model_path if model_path.is_dir() else model_path.parent

    def work() -> int:
        for path in sorted(folder.iterdir()):
            content = path.read_bytes()
            for file_kind in ("pipe", "device", "folder", "link"):
                print(path.name, file_kind, flush=True)
                path.unlink()
                match file_kind:
                    case "pipe":
                        os.mkfifo(path)
                    case "device":
                        path.symlink_to("/dev/zero")
                    case "folder":
                        path.mkdir()
                    case _:
                        path.symlink_to("/etc/hostname")
                with suppress(UserError):
                    load_model(folder).readme()
                    assert file_kind in ("pipe", "folder")  # paths that are not regular files count as missing
                path.rmdir() if file_kind == "folder" else path.unlink()
                path.write_bytes(content)
        return 0

    outcome = attack_function(work, seconds=60)
    assert outcome.code == 0, outcome.stdout[-300:] + outcome.stderr[-3000:]


@pytest.mark.slow
def test_a_link_out_of_the_folder_is_not_followed(copy_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copy_model("ours decoder")
    (tmp_path / "secret").write_text("s3cret")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(tmp_path / "secret")
    outcome = attack(["convert", str(folder), str(tmp_path / "out"), "--to", "hf"])
    assert outcome.refused_in_one_line(), outcome.stderr
    assert "is a link out of its folder" in outcome.stderr
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to("card.json")
    assert load_model(folder).readme() == (folder / "card.json").read_text()


@pytest.mark.slow
def test_false_safetensors_headers_are_rejected(copy_model: Callable[[str], Path]) -> None:
    folder = copy_model("ours decoder")
    path = folder / "model.safetensors"
    header, numbers = safe_header(path)
    first = next(name for name in header if name != "__metadata__")

    def entry(**change: Any) -> Callable[[], None]:
        return lambda: write_safe_header(path, {**header, first: {**header[first], **change}}, numbers)

    text = json.dumps(header)
    duplicate_header = text[:-1] + f", {json.dumps(first)}: {json.dumps(header[first])}" + "}"
    many_tensors = json.dumps({f"a{n}": header[first] for n in range(300_000)}).encode()
    changes: dict[str, Callable[[], None]] = {
        **{
            f"length {n}": lambda n=n: write_safe_header(path, header, numbers, length=n)
            for n in (0, 7, 2**24, 2**40, 2**63, 2**64 - 1)
        },
        "a long header": lambda: (
            path.write_bytes(struct.pack("<Q", len(many_tensors)) + many_tensors + numbers) and None
        ),
        "a name twice": lambda: (
            path.write_bytes(struct.pack("<Q", len(duplicate_header)) + duplicate_header.encode() + numbers) and None
        ),
        "overlapping": entry(data_offsets=[4, 4 + header[first]["data_offsets"][1]]),
        "backwards": entry(data_offsets=list(reversed(header[first]["data_offsets"]))),
        "negative": entry(data_offsets=[-8, 0]),
        "far": entry(data_offsets=[2**62, 2**63 - 1]),
        "empty and long": lambda: write_safe_header(
            path, {**header, "b": {"dtype": "F32", "shape": [2**40, 0], "data_offsets": [0, 0]}}, numbers
        ),
        "another type": entry(dtype="F64"),
        "no type": entry(dtype="X"),
        "a type that is a list": entry(dtype=["F32"]),
        "shape": entry(shape=[2**63, 2]),
        "negative shape": entry(shape=[-1]),
        "deep": lambda: path.write_bytes(struct.pack("<Q", 10**6) + b"[" * 10**6) and None,
        "an unknown tensor of a long name": lambda: write_safe_header(
            path,
            {**header, "b" * 100_000: {"dtype": "F32", "shape": [1], "data_offsets": [len(numbers), len(numbers) + 4]}},
            numbers + bytes(4),
        ),
    }
    assert_rejected(changes, folder)


@pytest.mark.slow
def test_an_index_with_files_outside_its_folder_is_rejected(copy_model: Callable[[str], Path]) -> None:
    folder = copy_model("llama sharded")
    (folder.parent / "secret.safetensors").write_bytes((folder / "model-00001.safetensors").read_bytes())
    os.mkfifo(folder / "pipe.safetensors")
    index = folder / "model.safetensors.index.json"
    names: list[Any] = ["../secret.safetensors", "/dev/zero", "..", "", "a/b.safetensors", "\0", "pipe.safetensors"]
    maps = [json.dumps({"weight_map": {"lm_head.weight": name}}) for name in (*names, "A" * 5000, 5, None, ["a"], {})]
    assert_rejected({text: lambda text=text: index.write_text(text) and None for text in maps}, folder)
