"""Find the model at a path: a model folder, the best or last model of a run, a GGUF file, or a model on the hub."""

from pathlib import Path

from tercet.checkpoint.hub import download_model, is_on_hub, parse_address
from tercet.checkpoint.run_record import PRETRAINED_COPY, check_run_links
from tercet.config import UserError, suggest
from tercet.reading.files import check_links
from tercet.tokens.forms import FORMS

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")  # a model has one of these
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")  # both replace the weights if only an adapter is stored
REQUIRED_FILES = ("config.json", "model.safetensors", "tokenizer.json")
# Sets of files, each of which can replace a required file.
ALTERNATIVES = {"model.safetensors": [*((name,) for name in WEIGHTS), ADAPTER], "tokenizer.json": FORMS}
GGUF = ".gguf"
MODELS = ("best", "last", PRETRAINED_COPY)  # subfolders of a run that contain a model


def find_model(path: Path) -> Path:
    """Return the folder or GGUF file of the model at `path`.

    Args:
        path: Model folder, run folder, GGUF file, folder with one GGUF file, or address such as `hf://user/name`, whose
            model is downloaded. The model of a run folder is `best`, or `last` if there is no `best`.

    Raises:
        UserError: If there is no complete model, there are several GGUF files, or a link leads out of the folder. If
            `path` does not exist, the message suggests the nearest name.
    """
    if is_on_hub(path):
        path = download_model(parse_address(path))
    if path.is_file():
        if path.suffix.lower() == GGUF:
            return path
        raise UserError(f"{path} is a file; pass its folder, or a {GGUF} file")
    if not path.is_dir():
        raise UserError(f"no such folder: {path}{_did_you_mean(path)}")
    folders = (path, path / "best", path / "last")
    complete = [folder for folder in folders if not _missing(folder)]
    partial = [folder for folder in folders if len(_missing(folder)) < len(REQUIRED_FILES)]
    if complete and complete[0] in (path, *partial[:1]):  # `last` does not replace an incomplete `best`
        _check_links(complete[0], path)
        return complete[0]
    if files := sorted(file for file in path.iterdir() if file.suffix.lower() == GGUF and file.is_file()):
        if len(files) == 1:
            check_links(path)
            return files[0]
        raise UserError(f"{path} has {len(files)} {GGUF} files; pass one of them, such as {files[0]}")
    if partial:
        missing, remedy = _missing(partial[0]), "train again"
        if missing == ["tokenizer.json"] and (partial[0] / "tokenizer_config.json").is_file():  # of `transformers`
            remedy = f"write it with AutoTokenizer.from_pretrained({str(partial[0])!r}).save_pretrained(FOLDER)"
        names = " and ".join(missing)
        raise UserError(f"incomplete model in {partial[0]}: {names} missing; copy the whole folder, or {remedy}")
    raise UserError(f"no model in {path}: it has no config.json, best/ or last/; train one with --out {path}")


def _check_links(model: Path, path: Path) -> None:
    """Check the links of a model's folder and of the run to which it belongs. Raises like `check_links`."""
    check_links(model)
    if model != path:
        check_links(path)
    if model.name in MODELS:
        check_run_links(model.parent)


def _missing(folder: Path) -> list[str]:
    def has_files(*names: str) -> bool:
        return all((folder / name).is_file() for name in names)

    if has_files(*ADAPTER) and not has_files("config.json"):  # written by peft, without other files
        return []
    return [
        name for name in REQUIRED_FILES if not any(has_files(*names) for names in ALTERNATIVES.get(name, [(name,)]))
    ]


def _did_you_mean(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    folders = {str(sibling): sibling.name for sibling in path.parent.iterdir() if sibling.is_dir()}
    guess = suggest(str(path), folders)
    return guess if guess.startswith("; did you mean") else ""
