"""Conversions write to free or forced folders, copy the right files, and leave nothing if they fail."""

import json
import os
from pathlib import Path

import pytest
import torch
import transformers
from converted import auto_tokenizer, load_in_transformers, save_folder
from folders_of_others import shaken, words

import tercet
from tercet.checkpoint import Card, convert, load_model, read_card, save_model
from tercet.checkpoint.foreign import transformers_folder
from tercet.config import UserError
from tercet.models import DecoderOnly, DecoderOnlySpec, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import ALiBi, Sinusoidal
from tercet.storage import lock_folder
from tercet.tokens import Tokenizer

STACK = StackSpec(d_model=8, n_layers=1, n_heads=2, d_ff=13)


def ours(folder: Path, stack: StackSpec = STACK) -> Path:
    model = DecoderOnly(DecoderOnlySpec(vocab_size=11, max_len=7, stack=stack))
    return save_folder(folder, shaken(model, 0))


def theirs(folder: Path) -> Path:
    config = transformers.GPT2Config(
        vocab_size=11, n_embd=8, n_head=2, n_layer=1, n_positions=7, bos_token_id=1, eos_token_id=2
    )
    shaken(transformers.GPT2LMHeadModel(config), 0).save_pretrained(folder)
    words(11).save(str(folder / "tokenizer.json"))
    (folder / "README.md").write_text("---\nlicense: mit\n---\nA model of theirs.\n")
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_card_is_the_same_with_and_without_loading_the_model(tmp_path: Path) -> None:
    folder = ours(tmp_path / "ours")
    assert read_card(folder) == load_model(folder).card
    foreign = convert(folder, tmp_path / "theirs", "hf")
    (foreign / "card.json").write_text('{"name": "another"}')  # not a file of this format
    assert read_card(foreign) == load_model(foreign).card == Card(name="theirs")


def test_conversion_from_python(tmp_path: Path) -> None:
    folder = tercet.convert(ours(tmp_path / "ours"), tmp_path / "theirs", to="hf")
    assert folder == tmp_path / "theirs"
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "config.json", "generation_config.json", "manifest.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"ours", "theirs"}


@pytest.mark.slow
def test_transformers_folder_becomes_a_tercet_folder(tmp_path: Path) -> None:
    source = theirs(tmp_path / "theirs")
    folder = convert(source, tmp_path / "ours")
    assert json.loads((folder / "config.json").read_text())["family"] == "decoder-only"
    before, after = load_model(source), load_model(folder)
    tokens = torch.randint(11, (2, 7))
    assert torch.equal(before.model(tokens), after.model(tokens))
    assert after.tokenizer.eos_id == before.tokenizer.eos_id == 2
    assert (folder / "README.md").read_text() == (source / "README.md").read_text()
    assert after.card.name == "theirs"


def test_run_is_converted_as_its_best_model_with_its_card(tmp_path: Path) -> None:
    trained_model = load_model(ours(tmp_path / "made"))
    card = Card(name="mine", step=7, metrics={"validation_loss": 1.25})
    save_model(tmp_path / "run" / "best", trained_model.model, trained_model.tokenizer, card)
    copy = convert(tmp_path / "run", tmp_path / "again")
    assert load_model(copy).card == card
    assert read_files(copy) == read_files(tmp_path / "run" / "best")
    readme = (convert(tmp_path / "run", tmp_path / "out", "hf") / "README.md").read_text()
    assert readme.startswith("# mine\n")
    assert "1.2500" in readme
    assert "GPT2LMHeadModel.from_pretrained" in readme
    reexported = convert(tmp_path / "out", tmp_path / "twice", "hf")
    assert read_files(reexported) == read_files(tmp_path / "out")


def test_same_model_gives_bytewise_equal_folders(tmp_path: Path) -> None:
    source = ours(tmp_path / "ours")
    first, second = (read_files(convert(source, tmp_path / name, "hf")) for name in ("one", "other"))
    assert first == second


def test_generation_stops_at_the_end_of_the_context(tmp_path: Path) -> None:
    folder = convert(ours(tmp_path / "ours"), tmp_path / "theirs", "hf")
    model = load_in_transformers(folder, transformers.AutoModelForCausalLM)
    model.generation_config.eos_token_id = None
    batch = auto_tokenizer(folder)(["w5 w6"], return_tensors="pt")
    assert model.generate(**batch).shape == (1, 7)
    settings = model.generation_config
    assert (settings.do_sample, settings.top_k, settings.max_length) == (True, 0, 7)


@pytest.mark.parametrize("force", [False, True])
def test_nonempty_folder_is_overwritten_only_with_force(force: bool, tmp_path: Path) -> None:
    source, target = ours(tmp_path / "ours"), tmp_path / "taken"
    target.mkdir()
    for name in ("notes.txt", "source_tokenizer.json", "pytorch_model.bin", "config.json"):
        (target / name).write_text("old")
    before = read_files(target)
    if not force:
        with pytest.raises(UserError, match=r"taken is not empty; choose another folder, or pass --force"):
            convert(source, target, "hf")
        assert read_files(target) == before
        return
    convert(source, target, "hf", force=True)
    assert read_files(target) == {**read_files(convert(source, tmp_path / "new", "hf")), "notes.txt": b"old"}
    assert load_model(target)


def test_conversion_keeps_subfolders_and_open_files(tmp_path: Path) -> None:
    source, target = ours(tmp_path / "ours"), ours(tmp_path / "taken")
    for name in ("logs", "model.gguf"):  # the second is also the name of a model file
        (target / name).mkdir()
    path = target / "logs" / "train.log"
    with path.open("a") as log:
        inodes = {entry.name: entry.stat().st_ino for entry in (target, target / "logs", target / "model.gguf", path)}
        convert(source, target, "hf", force=True)
        log.write("a line\n")
    assert path.read_text() == "a line\n"
    assert {
        entry.name: entry.stat().st_ino for entry in (target, target / "logs", target / "model.gguf", path)
    } == inodes
    assert not (target / "card.json").exists()
    assert load_model(target)


@pytest.mark.parametrize("dst", ["run", "run/last"])
def test_running_training_folder_is_not_overwritten(dst: str, tmp_path: Path) -> None:
    source, run = ours(tmp_path / "ours"), tmp_path / "run"
    ours(run / "last")
    (run / "run.json").write_text("")
    with lock_folder(run):
        before = read_files(run)
        with pytest.raises(UserError, match=rf"run is in use by process {os.getpid()} .*choose another folder"):
            convert(source, tmp_path / dst, force=True)
        assert read_files(run) == before
        assert load_model(convert(source, run / "exported"))  # a folder to which training does not write
    assert load_model(convert(source, tmp_path / dst, force=True))
    assert (run / "run.json").exists()


def test_empty_folder_is_used_and_parents_are_created(tmp_path: Path) -> None:
    source, empty = ours(tmp_path / "ours"), tmp_path / "empty"
    empty.mkdir()
    inode = empty.stat().st_ino
    assert load_model(convert(source, empty)).model.vocab_size == 11
    assert empty.stat().st_ino == inode, "processes in this folder keep it"
    assert load_model(convert(source, tmp_path / "a" / "b" / "c", "hf")).model.vocab_size == 11


def test_unwritable_places_are_rejected(tmp_path: Path) -> None:
    source = ours(tmp_path / "run" / "best")
    (tmp_path / "file").write_text("")
    before = read_files(tmp_path)
    for dst, message in (
        (tmp_path / "file", "file is a file; choose a new folder"),
        (tmp_path / "file" / "deep", "file is a file; choose a new folder"),
        (source, "best is the model to convert; choose another folder"),
        (tmp_path / "run", "run is the model to convert; choose another folder"),
    ):
        with pytest.raises(UserError, match=message):
            convert(tmp_path / "run", dst, "hf", force=True)
    with pytest.raises(UserError, match="--to hg is unknown; did you mean 'hf'"):
        convert(source, tmp_path / "new", "hg")
    with pytest.raises(UserError, match=r"no such folder: .*nothing"):
        convert(tmp_path / "nothing", tmp_path / "new")
    assert read_files(tmp_path) == before


@pytest.mark.parametrize("to", [None, "hf"])
@pytest.mark.parametrize("empty", [True, False])
def test_error_while_writing_leaves_nothing(
    to: str | None, empty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ours(tmp_path / "ours")
    if empty:
        (tmp_path / "new").mkdir()
    writes = []

    def full(descriptor: int) -> None:
        writes.append(descriptor)
        if len(writes) > 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="disk full while writing"):
        convert(source, tmp_path / "new" if empty else tmp_path / "deep" / "new", to)
    assert len(writes) > 2
    assert {path.name for path in tmp_path.iterdir()} == ({"ours", "new"} if empty else {"ours"})
    assert not any((tmp_path / "new").iterdir()) if empty else True


def test_interrupted_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(path: Path, tensors: object) -> None:
        raise KeyboardInterrupt

    source = ours(tmp_path / "ours")
    monkeypatch.setattr(transformers_folder, "write_tensors", interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "new", "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_rejected_conversion_keeps_existing_files(tmp_path: Path) -> None:
    source = ours(tmp_path / "ours", StackSpec(d_model=8, n_layers=1, n_heads=2, position=ALiBi()))
    target = convert(ours(tmp_path / "other"), tmp_path / "taken", "hf")
    before = read_files(target)
    with pytest.raises(UserError, match=r"stack\.position is alibi"):
        convert(source, target, "hf", force=True)
    assert read_files(target) == before


def test_translator_without_bos_is_rejected(tmp_path: Path) -> None:
    stack = StackSpec(d_model=8, n_layers=1, n_heads=2, placement="post", position=Sinusoidal())
    model = EncoderDecoder(EncoderDecoderSpec(vocab_size=11, max_len=7, encoder=stack, decoder=stack))
    save_model(tmp_path / "ours", model, Tokenizer(words(11, ("<pad>", "<eos>"))), Card())
    with pytest.raises(UserError, match="has no token for the beginning of a translation"):
        convert(tmp_path / "ours", tmp_path / "theirs", "hf")
