"""Pickles instead of weights are not run and take no memory."""

import builtins
import code
import codecs
import collections
import ctypes
import functools
import importlib
import io
import json
import linecache
import operator
import os
import pickle
import runpy
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import timeit
import urllib.request
import webbrowser
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from folder_copies import assert_rejected, copy_folder


@pytest.fixture
def copy_model(tmp_path: Path) -> Callable[[str], Path]:
    return lambda kind: copy_folder(kind, tmp_path)


class Call:
    """Object that calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def make_payloads(ran: Path) -> dict[str, Any]:
    """Return objects that run code or take memory when they are unpickled."""
    touch, path = f"open({str(ran)!r}, 'w').close()", str(ran)
    calls: dict[str, Any] = {
        "os.system": Call(os.system, f"touch {path}"),
        "os.mkdir": Call(os.mkdir, path),
        "os.makedirs": Call(os.makedirs, path),
        "os.popen": Call(os.popen, f"touch {path}"),
        "os.open": Call(os.open, path, os.O_CREAT),
        "exec": Call(exec, touch),
        "eval": Call(eval, touch),
        "open": Call(open, path, "w"),
        "compile": Call(compile, touch, "a", "exec"),
        "getattr": Call(getattr, "os", "system"),
        "nested getattr": Call(getattr, Call(__import__, "os"), "system"),
        "import": Call(__import__, "antigravity"),
        "breakpoint": Call(breakpoint),
        "subprocess": Call(subprocess.call, ["touch", path]),
        "Popen": Call(subprocess.Popen, ["touch", path]),
        "run": Call(subprocess.run, ["touch", path]),
        "globals": Call(builtins.globals),
        "setattr": Call(setattr, "os", "a", 1),
        "bytearray": Call(bytearray, 10**11),
        "map": Call(map, os.mkdir, [path]),
        "list": Call(list, Call(map, os.mkdir, [path])),
        "tuple": Call(tuple, Call(map, os.mkdir, [path])),
        "set": Call(set, Call(map, os.mkdir, [path])),
        "Counter": Call(collections.Counter, {"a": 1}),
        "sys.exit": Call(sys.exit, 0),
        "os._exit": Call(os._exit, 0),
        "os.kill": Call(os.kill, os.getpid(), 9),
        "torch.load": Call(torch.load, path),
        "torch.zeros": Call(torch.zeros, 10**11),
        "UntypedStorage": Call(torch.UntypedStorage, 10**11),
        "FloatStorage": Call(torch.FloatStorage, 10**9),
        "torch.save": Call(torch.save, 1, path),
        "torch.hub": Call(torch.hub.load, "a", "b"),
        "Path.touch": Call(Path.touch, ran),
        "pickle.loads": Call(pickle.loads, pickle.dumps(Call(os.mkdir, path))),
        "json.loads": Call(json.loads, "1"),
        "rmtree": Call(shutil.rmtree, path),
        "chdir": Call(os.chdir, "/"),
        "chmod": Call(os.chmod, path, 0),
        "symlink": Call(os.symlink, "/", path),
        "putenv": Call(os.putenv, "A", "B"),
        "fork": Call(os.fork),
        "signal": Call(signal.alarm, 1),
        "timeit": Call(timeit.timeit, touch),
        "runpy": Call(runpy.run_path, path),
        "webbrowser": Call(webbrowser.open, path),
        "socket": Call(socket.socket),
        "codeop": Call(code.interact),
        "ctypes": Call(ctypes.CDLL, "libc.so.6"),
        "partial": Call(functools.partial, os.mkdir, path),
        "methodcaller": Call(operator.methodcaller, "a"),
        "attrgetter": Call(operator.attrgetter, "a"),
        "reduce": Call(functools.reduce, os.mkdir, [path, 0o777]),
        "memoryview": Call(memoryview, b"a"),
        "type": Call(type, "A", (), {}),
        "super": Call(super),
        "input": Call(input),
        "print": Call(print, "a"),
        "urlopen": Call(urllib.request.urlopen, "file:///etc/hostname"),
        "range": Call(range, 10**9),
        "sorted": Call(sorted, [1]),
        "tempfile": Call(tempfile.mkdtemp),
        "linecache": Call(linecache.getlines, path),
        "site": Call(importlib.import_module, "antigravity"),
        "nn.Module": Call(torch.nn.Linear, 10, 10),
        "complex": Call(complex, 1, 2),
        "encode": Call(codecs.encode, "a", "rot13"),
    }
    return calls


def raw_pickles(ran: Path) -> dict[str, bytes]:
    """Return handwritten pickles."""
    path = str(ran).encode()
    call = b"cos\nmkdir\n(S'" + path + b"'\ntR."
    return {
        "protocol 0": call,
        "INST": b"(S'" + path + b"'\nios\nmkdir\n.",
        "persistent id": b"Pa\n.",
        "EXT1": b"\x82\x01.",
        "BUILD": b"cos\nenviron\n}S'a'\nS'b'\nsb.",
        "OBJ": b"(cos\nmkdir\nS'" + path + b"'\no.",
        "NEWOBJ": b"\x80\x02cos\nmkdir\nS'" + path + b"'\n\x85\x81.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93\x8c" + bytes([len(path)]) + path + b"\x85R.",
        "nested names": b"\x80\x04\x8c\x05torch\x8c\x14os.system.__class__.x\x93.",
        "long": b"\x8e" + b"\xff" * 8 + b".",
        "memo": b"r\xff\xff\xff\x7f.",
        "long string": b"\x8d" + struct.pack("<Q", 2**62) + b".",
        "nothing": b"",
        "dot": b".",
        "many marks": b"(" * 10**6 + b".",
        "deep tuples": b")" + b"\x85" * 10**6 + b".",
        "long int": b"\x8b\xff\xff\xff\x7f.",
        "a long name": b"c" + b"a" * 10**6 + b"\nb\n.",
    }


@pytest.mark.slow
@pytest.mark.parametrize("form", ["zip", "old", "bare", "bare in a zip"])
def test_no_pickle_is_run(form: str, copy_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder, ran = copy_model("bert pickled"), tmp_path / "ran"
    path = folder / "pytorch_model.bin"
    weights = torch.load(path)

    def save(data: Any) -> None:
        if form in ("zip", "old"):
            torch.save({**weights, "a": data}, path, _use_new_zipfile_serialization=form == "zip")
        else:
            write(pickle.dumps({"a": data}, protocol=4))

    def write(data: bytes) -> None:
        if form == "bare":
            path.write_bytes(data)
            return
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", data)
            archive.writestr("archive/version", "3\n")
            archive.writestr("archive/byteorder", "little")

    changes: dict[str, Callable[[], None]] = {
        name: lambda data=data: save(data) for name, data in make_payloads(ran).items()
    }
    if form.startswith("bare"):
        changes |= {name: lambda data=data: write(data) for name, data in raw_pickles(ran).items()}
    assert len(changes) >= 63
    if form != "zip":  # other forms only differ in the wrapping: test every fourth object, and handwritten ones once
        names = [*list(make_payloads(ran))[::4], *(raw_pickles(ran) if form == "bare" else ())]
        changes = {name: changes[name] for name in names}
    assert_rejected(changes, folder)
    assert not ran.exists()


@pytest.mark.slow
def test_compressed_and_tar_archives_and_shared_storages_are_rejected(copy_model: Callable[[str], Path]) -> None:
    folder = copy_model("bert pickled")
    path = folder / "pytorch_model.bin"
    whole = path.read_bytes()
    weights = torch.load(path)
    embedding = "bert.embeddings.word_embeddings.weight"
    scalar = torch.zeros(1)

    def bomb() -> None:
        with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
            for name in old.namelist():
                new.writestr(name, bytes(200 << 20) if name.endswith("data/0") else old.read(name))

    def tar() -> None:
        with tarfile.open(path, "w") as archive:
            for name in ("sys_info", "pickle", "storages", "tensors"):
                info = tarfile.TarInfo(name)
                info.size = 1
                archive.addfile(info, io.BytesIO(b"."))

    def claim() -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 2**15, "vocab_size": 2**19}))
        torch.save({**weights, embedding: scalar.expand(2**19, 2**15)}, path)

    assert_rejected(
        {
            "compressed": bomb,
            "tar": tar,
            "one number for all": claim,
            "a view of one number": lambda: torch.save({**weights, embedding: scalar.expand(19, 8)}, path),
            "a tensor of another layout": lambda: torch.save({"a": torch.eye(3).to_sparse()}, path),
            "on no device": lambda: torch.save({"a": torch.zeros(3, device="meta")}, path),
            "many names for one": lambda: torch.save({f"a{n}": weights[embedding] for n in range(5000)}, path),
        },
        folder,
    )
