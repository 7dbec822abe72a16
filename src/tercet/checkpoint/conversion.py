"""Conversion between model folders: to Tercet's own format, or to a format of another program.

The source is any model that `load_model` can open. All checks are made before anything is written, and the new folder
appears as a whole, so a failed conversion leaves nothing behind.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tercet.checkpoint.adapter import find_base
from tercet.checkpoint.export_problems import SENTENCE_TRANSFORMERS
from tercet.checkpoint.folder import load_model, save_trained
from tercet.checkpoint.foreign.ctranslate2_folder import ctranslate2_writer
from tercet.checkpoint.foreign.gguf_folder import gguf_writer
from tercet.checkpoint.foreign.onnx_folder import onnx_writer
from tercet.checkpoint.foreign.peft_folder import peft_writer
from tercet.checkpoint.foreign.sentence_export import sentence_transformers_writer
from tercet.checkpoint.foreign.transformers_folder import transformers_writer
from tercet.checkpoint.hub import is_on_hub, parse_address
from tercet.checkpoint.hub_upload import check_upload, upload_model
from tercet.checkpoint.model_files import replace_model_folder
from tercet.checkpoint.run_record import PRETRAINED_COPY, RECORD
from tercet.checkpoint.sentence_settings import SentenceSettings
from tercet.checkpoint.trained_model import TrainedModel
from tercet.config import UserError, suggest
from tercet.custom_code import allow_code as allow_packages
from tercet.messages import print_note
from tercet.storage import lock_folder
from tercet.storage.folder_lock import LOCK

MODELS = ("best", "last", PRETRAINED_COPY)  # subfolders of a run that contain a model


def convert(
    src: Path | str,
    dst: Path | str,
    to: str | None = None,
    *,
    merge: bool = False,
    force: bool = False,
    allow_code: str | Iterable[str] = (),
) -> Path:
    """Write a model in another format.

    Args:
        src: Folder of a run or of a model in any format that `load_model` recognizes, a GGUF file, or the address of a
            model on the hub, such as "hf://user/name".
        dst: Address to upload to, or folder to write, which must be new or empty unless `force` is True.
        to: "hf" for the `transformers` library, or another key of `WRITERS`; by default Tercet's own format.
        merge: If True, merge an adapter into its base model.
        force: If True, replace the model in a folder that is not empty. Files that are not part of a model, and
            subfolders, are left unchanged. The folder and the replaced files keep their owner and mode.
        allow_code: Packages that this process may import for custom parts of the model, such as "my_package".

    Returns:
        dst as a path.

    Raises:
        UserError: If `src` is not a model, `dst` is not empty, belongs to a running training or cannot be uploaded to,
            `merge` does not suit the model, or the format cannot represent the model.
    """
    allow_packages(allow_code)
    if to is not None and to not in WRITERS:
        raise UserError(f"--to {to} is unknown{suggest(to, WRITERS)}")
    if is_on_hub(dst):
        model = parse_address(dst)
        after = check_upload(model, force=force)
        with TemporaryDirectory() as folder:
            _convert(src, Path(folder, model.name), to, merge=merge)
            upload_model(Path(folder, model.name), model, after=after)
        return Path(dst)
    dst = Path(dst)
    _check_free(dst, Path(src), force=force)
    with ExitStack() as locks:
        if (run := _find_run(dst)) is not None:
            locks.enter_context(lock_folder(run))
        _convert(src, dst, to, merge=merge)
    return dst


def _convert(src: Path | str, dst: Path, to: str | None, *, merge: bool) -> None:
    trained_model = load_model(src)
    if merge and trained_model.adapter is None:
        raise UserError(f"{src} has no adapter to merge; omit --merge")
    if to == "peft" and merge:
        raise UserError("--to peft writes only the adapter; omit --merge")
    if trained_model.adapter is not None and not merge and to != "peft":
        raise UserError(
            f"{src} is an adapter; pass --merge to merge it into its base model, or --to peft to export only the "
            "adapter"
        )
    if trained_model.adapter is not None and _holds_model(dst, find_base(trained_model.folder, trained_model.adapter)):
        raise UserError(f"{dst} is the base model of the adapter {src}; choose another folder")
    if to not in (None, SENTENCE_TRANSFORMERS) and trained_model.sentence != SentenceSettings():
        print_note(
            f"tercet: {dst} does not contain the settings of {src} for text vectors "
            f"({trained_model.sentence.describe()}); --to {SENTENCE_TRANSFORMERS} exports them"
        )
    if to is None:
        save_trained(trained_model, dst, readme=trained_model.readme())
        return
    write = WRITERS[to](trained_model)
    with replace_model_folder(dst) as folder:
        write(folder)


Writer = Callable[[Path], None]
WRITERS: dict[str, Callable[[TrainedModel], Writer]] = {
    "hf": transformers_writer,
    SENTENCE_TRANSFORMERS: sentence_transformers_writer,
    "ctranslate2": ctranslate2_writer,
    "gguf": gguf_writer,
    "onnx": onnx_writer,
    "peft": peft_writer,
}


def _find_run(dst: Path) -> Path | None:
    """Return the run to which `dst` belongs, as its folder or one of its models; None if there is no such run.

    The run is locked during the conversion, since a training may be writing to it.
    """
    dst = dst.resolve()
    folders = (dst, dst.parent) if dst.name in MODELS else (dst,)
    return next((folder for folder in folders if any((folder / name).is_file() for name in (RECORD, LOCK))), None)


def _holds_model(dst: Path, model: Path) -> bool:
    """Return whether `dst` is the folder of a run, a model or a GGUF file, or one of the models of a run."""
    folders = [model.parent] if model.is_file() else [model / name for name in (".", *MODELS)]
    return dst.is_dir() and any(dst.resolve() == folder.resolve() for folder in folders)


def _check_free(dst: Path, src: Path, *, force: bool) -> None:
    for path in (dst, *dst.parents):
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; choose a new folder")
    if _holds_model(dst, src):
        raise UserError(f"{dst} is the model to convert; choose another folder")
    if dst.is_dir() and any(dst.iterdir()) and not force:
        raise UserError(f"{dst} is not empty; choose another folder, or pass --force to replace the model in it")
