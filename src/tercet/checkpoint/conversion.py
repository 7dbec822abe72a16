"""From one kind of model folder to another: ours, or one that other people's programs open without us.

The source is whatever `load_model` opens. What can be refused is refused before anything is written. Then a whole new
folder is written beside its place and moved into it, so that a conversion that fails leaves nothing.
"""

import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tercet.checkpoint.atomic import refusal, write_atomically
from tercet.checkpoint.folder import load_model, save_trained
from tercet.checkpoint.foreign.ctranslate2_folder import ctranslate2_writer
from tercet.checkpoint.foreign.gguf_folder import gguf_writer
from tercet.checkpoint.foreign.onnx_folder import onnx_writer
from tercet.checkpoint.foreign.transformers_folder import transformers_writer
from tercet.checkpoint.trained import Trained
from tercet.config import UserError, suggest

# What a folder of any kind may hold of a model: in the way of a new one, which would be read together with it.
PARTS = (
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "source_tokenizer.json", "vocab.json",
    "merges.txt", "vocab.txt", "target_vocab.json", "source.spm", "target.spm", "card.json", "README.md",
    "chat_template.jinja", "model.bin", "vocabulary.json", "shared_vocabulary.json", "source_vocabulary.json",
    "target_vocabulary.json", "model.gguf", "model.onnx", "model.onnx.data", "encoder.onnx", "encoder.onnx.data",
    "decoder.onnx", "decoder.onnx.data",
)  # fmt: skip


def convert(src: Path | str, dst: Path | str, to: str | None = None, *, force: bool = False) -> Path:
    """Write the model of one folder as another folder.

    Args:
        src: the folder of a run or of a model, ours or one of those that `load_model` recognises, or a GGUF file.
        dst: a folder that is not there yet, or is empty.
        to: "hf" for one that the `transformers` library opens, or another kind of `WRITERS`; ours by default.
        force: write into a folder that holds something; files that are no part of a model stay.

    Returns:
        dst.

    Raises:
        UserError: where `src` is no model, `dst` is taken, or the model has no equal there.
    """
    if to is not None and to not in WRITERS:
        raise UserError(f"--to {to} is unknown{suggest(to, WRITERS)}")
    dst = Path(dst)
    _check_free(dst, Path(src), force=force)
    trained = load_model(src)
    write = _ours(trained) if to is None else WRITERS[to](trained)
    with _replace_folder(dst.resolve()) as folder:
        write(folder)
    return dst


Writer = Callable[[Path], None]


def _ours(trained: Trained) -> Writer:
    def write(folder: Path) -> None:
        save_trained(trained, folder)
        if (readme := trained.readme()) is not None:
            write_atomically(folder / "README.md", readme.encode())

    return write


WRITERS: dict[str, Callable[[Trained], Writer]] = {
    "hf": transformers_writer,
    "ctranslate2": ctranslate2_writer,
    "gguf": gguf_writer,
    "onnx": onnx_writer,
}


def _check_free(dst: Path, src: Path, *, force: bool) -> None:
    for path in (dst, *dst.parents):
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; give a folder that is not there yet")
    holding = [src.parent] if src.is_file() else [src / name for name in (".", "best", "last")]
    if dst.is_dir() and any(dst.resolve() == folder.resolve() for folder in holding):
        raise UserError(f"{dst} is the model that is to be converted; give another folder")
    if dst.is_dir() and any(dst.iterdir()) and not force:
        raise UserError(f"{dst} is not empty; give another folder, or --force to write over the model in it")


@contextmanager
def _replace_folder(dst: Path) -> Generator[Path]:
    """A new folder to write to, which takes the place of `dst` at the end; after an error all is as it was."""
    missing = [folder for folder in (dst.parent, *dst.parent.parents) if not folder.exists()]
    new = dst.with_name(f".{dst.name}.{os.getpid()}.new")
    try:
        dst.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        yield new
        if dst.is_dir():
            _move_into(new, dst)
        else:
            os.replace(new, dst)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()
        if isinstance(error, OSError):
            raise refusal(dst, error) from None
        raise


def _move_into(new: Path, dst: Path) -> None:
    for name in PARTS:
        (dst / name).unlink(missing_ok=True)
    for path in sorted(new.iterdir(), key=lambda path: path.name == "model.safetensors"):  # the weights make it whole
        os.replace(path, dst / path.name)
    new.rmdir()
