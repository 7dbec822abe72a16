"""Small model folders of every kind that Tercet opens, with one file damaged as a seed determines."""

import json
import os
import random
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

sys.path.append(str(Path(__file__).parents[1] / "checkpoint"))
sys.path.append(str(Path(__file__).parents[1] / "tokens"))

from folders_of_others import write_folder
from gguf_models import BYTES, export_model, gpt2, llama
from spm_files import spm

from tercet.checkpoint import Card, save_model
from tercet.models import (
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    StackSpec,
)
from tercet.tokens import Tokenizer, Unigram, WordPiece, Words

STACK = StackSpec(d_model=8, n_layers=1, n_heads=2, d_ff=13)
TEXT = "the cat sat on the mat, and the dog sat on the cat "
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
LETTERS = {name: -float(n) for n, name in enumerate(["▁the", "▁", "t", "h", "e", "c", "a", "s", "o", "n"], 1)}


def make_folders(root: Path) -> dict[str, Path]:
    """Create one folder, or file, of each kind, by name."""
    return {name: make(root / name) for name, make in MAKERS.items()}


def _ours_decoder(folder: Path) -> Path:
    save_model(folder, llama(), BYTES, Card(name="a", metrics={"loss": 1.5}), chat_template=TEMPLATE)
    return folder


def _ours_encoder(folder: Path) -> Path:
    tokenizer = Tokenizer.train(WordPiece(vocab_size=60), [TEXT])
    spec = EncoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=16, stack=STACK)
    save_model(folder, EncoderOnly(spec), tokenizer, Card(name="b"))
    return folder


def _ours_both(folder: Path) -> Path:
    target = Tokenizer.train(Words(vocab_size=12, bos=True), [TEXT])
    source = Tokenizer.train(Unigram(vocab_size=24), [TEXT])
    spec = EncoderDecoderSpec(
        vocab_size=target.vocab_size, source_vocab_size=source.vocab_size, share_embeddings=False, max_len=16,
        encoder=STACK, decoder=STACK,
    )  # fmt: skip
    save_model(folder, EncoderDecoder(spec), target, Card(name="c"), source_tokenizer=source)
    return folder


def _bert(folder: Path) -> Path:
    config = transformers.BertConfig(
        vocab_size=19, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=13,
        max_position_embeddings=16,
    )  # fmt: skip
    return write_folder(folder, transformers.BertForMaskedLM(config))


def _bert_pickled(folder: Path, *, as_zip: bool = True) -> Path:
    state = transformers.BertForMaskedLM.from_pretrained(_bert(folder)).state_dict()
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=as_zip)
    (folder / "model.safetensors").unlink()
    return folder


def _gpt2(folder: Path) -> Path:
    config = transformers.GPT2Config(vocab_size=BYTES.vocab_size, n_embd=8, n_head=2, n_layer=1, n_positions=16)
    write_folder(folder, transformers.GPT2LMHeadModel(config))
    (folder / "tokenizer.json").unlink()
    model = json.loads(BYTES.to_json())["model"]
    names = {**model["vocab"], **{token: BYTES.id_of(token) for token in ("<pad>", "<bos>", "<eos>")}}
    (folder / "vocab.json").write_text(json.dumps(names))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, model["merges"])))
    return folder


def _llama_sharded(folder: Path) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=19, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=13,
        max_position_embeddings=16,
    )  # fmt: skip
    write_folder(folder, transformers.LlamaForCausalLM(config))
    (folder / "model.safetensors").rename(folder / "model-00001.safetensors")
    names = safe_header(folder / "model-00001.safetensors")[0]
    weight_map = {name: "model-00001.safetensors" for name in names if name != "__metadata__"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    settings = {"chat_template": TEMPLATE, "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _marian(folder: Path) -> Path:
    ids = {"</s>": 0, "<unk>": 1, **{name: n for n, name in enumerate(LETTERS, 2)}}
    ids["<pad>"] = len(ids)
    config = transformers.MarianConfig(
        vocab_size=len(ids), decoder_vocab_size=len(ids), d_model=8, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=13, decoder_ffn_dim=13,
        max_position_embeddings=16, pad_token_id=ids["<pad>"], decoder_start_token_id=ids["<pad>"], eos_token_id=0,
    )  # fmt: skip
    write_folder(folder, transformers.MarianMTModel(config))
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(ids))
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(spm(LETTERS))
    return folder


def _gguf(folder: Path, model: DecoderOnly) -> Path:
    folder.mkdir()
    return export_model(folder, model)


def _library_steps(folder: Path) -> Path:
    """Save a Tercet model with a tokenizer.json of many components."""
    model = tokenizers.models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "<s>": 3}, merges=[("a", "b")])
    library_tokenizer = tokenizers.Tokenizer(model)
    library_tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    )
    library_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\p{L}+|\s+"), "isolated"),
            tokenizers.pre_tokenizers.Metaspace(),
        ]
    )
    library_tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.Strip(" ", 1, 0)]
    )
    library_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 3)]
    )
    library_tokenizer.add_special_tokens([tokenizers.AddedToken("<s>", special=True)])
    save_model(
        folder,
        DecoderOnly(DecoderOnlySpec(vocab_size=4, max_len=7, stack=STACK)),
        Tokenizer(library_tokenizer),
        Card(name="d"),
    )
    return folder


MAKERS: dict[str, Callable[[Path], Path]] = {
    "ours decoder": _ours_decoder,
    "ours encoder": _ours_encoder,
    "ours encoder-decoder": _ours_both,
    "ours steps": _library_steps,
    "bert": _bert,
    "bert pickled": _bert_pickled,
    "bert old pickle": lambda folder: _bert_pickled(folder, as_zip=False),
    "gpt2": _gpt2,
    "llama sharded": _llama_sharded,
    "marian": _marian,
    "gguf llama": lambda folder: _gguf(folder, llama()),
    "gguf gpt2": lambda folder: _gguf(folder, gpt2()),
}


# Ways to damage a file.

NUMBERS: list[Any] = [
    *(0, 1, -1, 2, 3, 7, 10**6, 10**9, 10**12, 2**31, 2**31 - 1, 2**32, 2**53, 2**63, 2**64, 10**30, 10**100, -(2**63)),
    *(0.5, -0.5, 1e308, -1e308, 1e-320, float("nan"), float("inf"), True, False),
]
ODD_VALUES: list[Any] = [
    *(None, "", "x", "12", "\0", "../x", "/dev/zero", "\ud800", "a" * 100_000, [], [[]], {}, {"kind": "rotary"}),
    *([0] * 50_000, {"a": 1}, ["a", "b"], {"Regex": "(a+)+$"}, {"String": ""}),
]
SIZES = [0, 1, 2, 255, 2**16, 2**24, 2**31, 2**32 - 1, 2**40, 2**60, 2**62, 2**63, 2**64 - 1]


def damage_copy(folder: Path, copy: Path, seed: int) -> tuple[Path, str]:
    """Copy a folder or file, damage one of its files, and return it with a description of the damage."""
    draw = random.Random(seed)
    if folder.is_file():
        copy.mkdir(parents=True)
        shutil.copy(folder, copy / folder.name)
        damaged_path = copy / folder.name
    else:
        shutil.copytree(folder, copy)
        damaged_path = copy
    files = sorted(path for path in copy.iterdir())
    path = draw.choice(files)
    ways = [_damage_bytes, _damage_bytes, _damage_sizes, _replace_path]
    if path.suffix == ".json":
        ways += 5 * [_damage_json]
    if path.suffix == ".safetensors":
        ways += 4 * [_damage_header]
    way = draw.choice(ways)
    return damaged_path, f"{path.name}: {way(path, draw)}"


def _damage_bytes(path: Path, draw: random.Random) -> str:
    data = bytearray(path.read_bytes())
    end = len(data) if draw.random() < 0.5 else min(len(data), 600)  # headers are at the start of a file
    place = draw.randrange(max(end, 1))
    match draw.randrange(6):
        case 0:
            for _ in range(draw.choice([1, 1, 3, 20])):
                data[draw.randrange(max(end, 1)) if data else 0 : 0] = b""
                if data:
                    data[draw.randrange(end)] = draw.randrange(256)
            description = "bytes changed"
        case 1:
            del data[place:]
            description = "cut short"
        case 2:
            data[place:place] = draw.randbytes(draw.choice([1, 8, 100]))
            description = "bytes put in"
        case 3:
            del data[place : place + draw.choice([1, 4, 8, 50])]
            description = "bytes left out"
        case 4:
            data[place:place] = data[place : place + draw.choice([8, 64, 500])] * draw.choice([1, 3, 50])
            description = "bytes repeated"
        case _:
            data[place : place + 8] = b"\xff" * 8
            description = "bytes of 255"
    path.write_bytes(data)
    return description


def _damage_sizes(path: Path, draw: random.Random) -> str:
    """Replace a number near the start with a huge one, as if it were a length or an offset."""
    data = bytearray(path.read_bytes())
    place, size = draw.randrange(max(1, min(len(data), 3000))), draw.choice(SIZES)
    form = draw.choice(["<Q", "<I", ">I"])
    number = struct.pack(form, size % 2 ** (64 if form == "<Q" else 32))
    data[place : place + len(number)] = number
    path.write_bytes(data)
    return f"{form} {size} at {place}"


def _replace_path(path: Path, draw: random.Random) -> str:
    path.unlink()
    match replacement := draw.choice(
        ["nothing", "a folder", "a pipe", "zeros", "a secret", "a loop", "no bytes", "text"]
    ):
        case "a folder":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case "zeros":
            path.symlink_to("/dev/zero")
        case "a secret":
            path.symlink_to("/etc/hostname")
        case "a loop":
            path.symlink_to(path.name)
        case "no bytes":
            path.write_bytes(b"")
        case "text":
            path.write_text(draw.choice(["[" * 10**6, '{"a":' * 10**5, "null", "[]", "1" * 10**6, '"a"', "{}"]))
        case _:
            pass
    return replacement


def _damage_json(path: Path, draw: random.Random) -> str:
    data = json.loads(path.read_text(encoding="utf-8"))
    description = change_json(data, draw)
    path.write_text(json.dumps(data))
    return description


def change_json(data: Any, draw: random.Random) -> str:
    """Change or delete one value somewhere in `data`, or rename its key."""
    places = list(_places(data, ""))
    if not places:
        return "nothing"
    short = [place for place in places if place[2].count(".") < 3 and "vocab" not in place[2]]
    container, key, name = draw.choice(short if short and draw.random() < 0.7 else places)
    match draw.randrange(8):
        case 0:
            del container[key]
            return f"{name} gone"
        case 1 if isinstance(container, dict):
            container[draw.choice(["x", "family", "kind", "a" * 10_000])] = container.pop(key)
            return f"{name} renamed"
        case 2:
            *_, place_name = draw.choice(places)
            value: Any = draw.choice(places)[0]
            container[key] = json.loads(json.dumps(value)) if len(json.dumps(value)) < 10_000 else place_name
        case 3 | 4:
            container[key] = draw.choice(ODD_VALUES)
        case _:
            container[key] = draw.choice(NUMBERS)
    return f"{name} = {str(container[key])[:30]}"


def _places(data: Any, name: str) -> Any:
    """Yield the container, key and name of every value."""
    items = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    for key, value in items:
        yield data, key, f"{name}.{key}"
        yield from _places(value, f"{name}.{key}")


def safe_header(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the header of a safetensors file and the data after it."""
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_safe_header(path: Path, header: dict[str, Any], numbers: bytes, *, length: int | None = None) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + numbers)


def _damage_header(path: Path, draw: random.Random) -> str:
    header, numbers = safe_header(path)
    description = change_json(header, draw)
    write_safe_header(path, header, numbers, length=draw.choice([None, None, None, *SIZES]))
    return description
