"""From one kind of model folder to another: ours, or one that the `transformers` library opens without us.

The source is whatever `load_model` opens. What can be refused is refused before anything is written. Then a whole new
folder is written beside its place and moved into it, so that a conversion that fails leaves nothing.
"""

import json
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from tercet.checkpoint.atomic import refusal, write_atomically
from tercet.checkpoint.auto_tokenizer import special_names, tokenizer_config, tokenizer_json
from tercet.checkpoint.bert import to_bert
from tercet.checkpoint.folder import Trained, load_model, save_model
from tercet.checkpoint.gpt2 import to_gpt2
from tercet.checkpoint.llama import to_llama
from tercet.checkpoint.marian import to_marian
from tercet.checkpoint.weights import write_tensors
from tercet.config import Plain, UserError, nearest
from tercet.models import AnyModel, DecoderOnly, EncoderDecoder, EncoderDecoderSpec, EncoderOnly
from tercet.nn import Rotary

# What a folder of any kind may hold of a model: in the way of a new one, which would be read together with it.
PARTS = (
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "source_tokenizer.json", "vocab.json",
    "merges.txt", "vocab.txt", "target_vocab.json", "source.spm", "target.spm", "card.json", "README.md",
)  # fmt: skip
OPENING = "## Open it with transformers"


def convert(src: Path | str, dst: Path | str, to: str | None = None, *, force: bool = False) -> Path:
    """Write the model of one folder as another folder.

    Args:
        src: the folder of a run or of a model, ours or one of those that `load_model` recognises.
        dst: a folder that is not there yet, or is empty.
        to: "hf" for one that the `transformers` library opens; ours by default.
        force: write into a folder that holds something; files that are no part of a model stay.

    Returns:
        dst.

    Raises:
        UserError: where `src` is no model, `dst` is taken, or the model has no equal there.
    """
    if to is not None and to not in WRITERS:
        raise UserError(f"--to {to} is unknown{nearest(to, WRITERS)}")
    dst = Path(dst)
    _check_free(dst, Path(src), force=force)
    trained = load_model(src)
    write = _ours(trained) if to is None else WRITERS[to](trained)
    with _in_its_place(dst.resolve()) as folder:
        write(folder)
    return dst


Writer = Callable[[Path], None]


def _ours(trained: Trained) -> Writer:
    own = trained.source_tokenizer is not trained.tokenizer

    def write(folder: Path) -> None:
        save_model(
            folder,
            trained.model,
            trained.tokenizer,
            trained.card,
            source_tokenizer=trained.source_tokenizer if own else None,
        )
        if (told := _readme(trained)) is not None:
            write_atomically(folder / "README.md", told.encode())

    return write


def _for_transformers(trained: Trained) -> Writer:
    """Everything is worked out here; to write it is all that is left."""
    model, tokenizer = trained.model, trained.tokenizer
    config, state = _equal(model)
    generation = _generation(trained)
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_id") for role in ("bos", "eos", "pad")}
    start = {"decoder_start_token_id": tokenizer.bos_id} if isinstance(model, EncoderDecoder) else {}
    dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    files = {
        "config.json": _json({**config, **ids, **start, "dtype": dtype}),
        "tokenizer.json": tokenizer_json(tokenizer, model.spec) + "\n",
        "tokenizer_config.json": _json(tokenizer_config(tokenizer, model.spec)),
        "README.md": _card(trained, config["architectures"][0]),
    }
    if generation is not None:
        files["generation_config.json"] = _json(generation)
    if trained.source_tokenizer is not tokenizer:
        files["source_tokenizer.json"] = tokenizer_json(trained.source_tokenizer, model.spec) + "\n"

    def write(folder: Path) -> None:
        for name, text in files.items():
            write_atomically(folder / name, text.encode())
        write_tensors(folder / "model.safetensors", state)

    return write


WRITERS: dict[str, Callable[[Trained], Writer]] = {"hf": _for_transformers}


def _equal(model: AnyModel) -> tuple[Plain, dict[str, Tensor]]:
    if isinstance(model, EncoderOnly):
        return to_bert(model)
    if isinstance(model, EncoderDecoder):
        return to_marian(model)
    return to_llama(model) if isinstance(model.spec.stack.position, Rotary) else to_gpt2(model)


def _generation(trained: Trained) -> Plain | None:
    """How theirs writes as ours does: a language model draws from all tokens, a translator writes no special ones."""
    tokenizer, spec = trained.tokenizer, trained.model.spec
    if isinstance(trained.model, EncoderOnly):
        return None
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_id") for role in ("bos", "eos", "pad")}
    ids = {name: number for name, number in ids.items() if number is not None}
    if isinstance(trained.model, DecoderOnly):
        return {**ids, "do_sample": True, "temperature": 1.0, "top_k": 0, "max_length": spec.max_len}
    if tokenizer.bos_id is None or tokenizer.eos_id is None:
        missing = "beginning" if tokenizer.bos_id is None else "end"
        raise UserError(f"{trained.folder}: the tokenizer has no token for the {missing} of a translation")
    special = {tokenizer.bos_id, tokenizer.pad_id, tokenizer.unk_id, *tokenizer.special_ids} - {tokenizer.eos_id, None}
    return {
        **ids,
        "decoder_start_token_id": tokenizer.bos_id,
        "suppress_tokens": sorted(number for number in special if number is not None),
        "do_sample": False,
        "max_length": spec.max_len,
    }


def _readme(trained: Trained) -> str | None:
    """What the source's folder says of the model."""
    path = trained.folder / "README.md"
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, UnicodeDecodeError):
        return None


def _card(trained: Trained, architecture: str) -> str:
    spec = trained.model.spec
    n_parameters = sum(parameter.numel() for parameter in trained.model.parameters())
    told = _readme(trained) or trained.card.to_markdown(spec, n_parameters=n_parameters)
    if OPENING in told:
        return told
    lines = [
        f"from transformers import AutoTokenizer, {architecture}",
        "",
        f'model = {architecture}.from_pretrained("this_folder")',
        'tokenizer = AutoTokenizer.from_pretrained("this_folder")',
    ]
    words = ""
    if trained.source_tokenizer is not trained.tokenizer:
        shared = isinstance(spec, EncoderDecoderSpec) and spec.source_vocab_size is None
        how = "is cut in its own way" if shared else "has a vocabulary of its own"
        pad = special_names(trained.source_tokenizer).get("pad")
        given = "" if pad is None else f", pad_token={pad!r}"
        lines[0] += ", PreTrainedTokenizerFast"
        lines.append(
            'source_tokenizer = PreTrainedTokenizerFast(tokenizer_file="this_folder/source_tokenizer.json", '
            f"split_special_tokens=True{given})"
        )
        words = f"\nThe source {how}, in source_tokenizer.json; the other tokenizer is the target's.\n"
    code = "\n".join(lines)
    return f"{told.rstrip()}\n\n{OPENING}\n\n```python\n{code}\n```\n{words}"


def _check_free(dst: Path, src: Path, *, force: bool) -> None:
    for path in (dst, *dst.parents):
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; give a folder that is not there yet")
    if dst.is_dir() and any(dst.resolve() == (src / name).resolve() for name in (".", "best", "last")):
        raise UserError(f"{dst} is the model that is to be converted; give another folder")
    if dst.is_dir() and any(dst.iterdir()) and not force:
        raise UserError(f"{dst} is not empty; give another folder, or --force to write over the model in it")


@contextmanager
def _in_its_place(dst: Path) -> Generator[Path]:
    """A new folder to write to, which takes the place of `dst` at the end; after an error all is as it was."""
    made = [folder for folder in (dst.parent, *dst.parent.parents) if not folder.exists()]
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
            for folder in made:
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


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
