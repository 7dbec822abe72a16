"""Commands to use a trained run or prepared data, which work as printed, with a text from the data."""

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tercet.checkpoint import TrainedModel
    from tercet.tokens import Tokenizer

VERBS = {
    "language": ("generate",), "translation": ("translate",), "masked": ("fill", "embed"), "labels": ("classify",),
    "chat": ("chat", "serve"),
}  # fmt: skip
MAX_PROMPT = 32  # characters of a prompt
DEFAULT_RECIPE = "demo"  # the recipe for prepared tokens if none was passed
MIN_CONTEXT = 8  # tokens; with less context, training is pointless


def next_steps(folder: Path, recipe: Mapping[str, Any]) -> list[str]:
    """Return suggested commands for the run in `folder`.

    `generate` gets the recipe's `sample_prompt`, else the beginning of a text of the validation part. Other commands
    that need a text get one of the validation part. If there is no usable text, the prompt or the whole command is left
    out.

    Args:
        folder: Run folder.
        recipe: Recipe of the run.
    """
    name, kind = quote_path(folder), recipe["task"]["kind"]
    texts = _texts(folder, recipe["task"])
    lines = list[str]()
    for verb in VERBS[kind]:
        match verb:
            case "generate":
                lines.append(" ".join([f"tercet generate {name}", *map(shlex.quote, filter(None, [texts["prompt"]]))]))
            case "chat":
                lines.append(f"tercet chat {name}")
            case "serve":
                from tercet.serve.required_packages import missing_packages

                lines += [] if missing_packages() else [f"tercet serve {name}"]
            case _:
                text = texts["masked" if verb == "fill" else "text"]
                suffix = " --output vectors.npz" if verb == "embed" else ""
                lines += [f"tercet {verb} {name} {shlex.quote(text)}{suffix}"] if text else []
    report = quote_path(folder / "report.html")
    return [*lines, f"tercet evaluate {name}", f"tercet inspect {name}", f"tercet watch {name} --export {report}"]


def next_steps_of_data(folder: Path, *, recipe: str | None = None, tokenizer: str | None = None) -> list[str]:
    """Return commands for a prepared folder: train on it, summarize it, verify it.

    The training command uses a free run folder and contains all flags that it needs. It is left out if the recipe does
    not suit the tokens.

    Args:
        folder: Prepared folder.
        recipe: Name of the recipe.
        tokenizer: Folder that the tokenizer is from; a recipe for fine-tuning starts from the model in it.
    """
    from tercet.config import UserError

    name, lines = quote_path(folder), list[str]()
    with suppress(UserError):
        flags = _train_flags(folder, recipe or DEFAULT_RECIPE, tokenizer)
        lines.append(
            shlex.join(
                ["tercet", "train", path_argument(recipe or DEFAULT_RECIPE), "--data", path_argument(folder), *flags]
            )
        )
    return [*lines, f"tercet data {name}", f"tercet doctor --verify {name}"]


def _train_flags(folder: Path, recipe: str, tokenizer: str | None) -> list[str]:
    """Return the flags of `tercet train` in addition to recipe and data.

    Raises:
        UserError: If the recipe cannot train on these tokens.
    """
    from tercet.config import UserError
    from tercet.data.corpora.prepared import open_folder
    from tercet.training.recipe.files import read_settings
    from tercet.training.request import RunRequest, resolve

    out = _free_folder(Path("runs", folder.resolve().name))
    pretrained = tokenizer if read_settings(recipe).get("pretrained") is not None else None
    resolved = resolve(RunRequest(recipe=recipe, out=out, data=str(folder), pretrained=pretrained)).recipe
    flags = [] if pretrained is None else ["--pretrained", path_argument(pretrained)]
    tokens = open_folder(str(folder))
    tokenizer_of_tokens = tokens.tokenizer()
    if resolved.task.kind == "masked" and tokenizer_of_tokens.mask_id is None:
        raise UserError("the tokenizer has no mask token")
    sizes = max((part.tokens for part in tokens.contents.shards), default=0), tokens.contents.validation.tokens
    if (context := min(sizes) - 1) < resolved.model.max_len:
        if context < MIN_CONTEXT:
            raise UserError("there are too few tokens")
        flags += ["--set", f"model.max_len={context}"]
    return [*flags, "--out", str(out)]


def _free_folder(folder: Path) -> Path:
    """Return the folder, or if it exists the same name with a number appended."""
    number = 1
    free = folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def path_argument(path: str | Path) -> str:
    """Return the path as an argument; one that begins like a flag gets ./ in front."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def quote_path(path: str | Path) -> str:
    """Return the path as an argument, quoted for a shell."""
    return shlex.quote(path_argument(path))


def _texts(folder: Path, task: Mapping[str, Any]) -> dict[str, str]:
    """Return a "prompt", a "text" to process and a "masked" text; each is "" if there is none."""
    from tercet.checkpoint import load_model
    from tercet.config import UserError
    from tercet.explorer import opening_query

    with suppress(UserError, OSError):
        trained_model = load_model(folder)
        query = opening_query(trained_model)
        text = query.text
        if query.original_ids is not None:
            text = trained_model.tokenizer.decode(query.original_ids)
        text, masked = _usable(text), _usable(query.text)
        sample_prompt = _usable((task.get("sample_prompt") or "").removesuffix("\n"))
        return {
            "prompt": _readable(trained_model.tokenizer, sample_prompt)
            or _readable(trained_model.tokenizer, _shorten(text)),
            "text": _readable(trained_model.source_tokenizer, text),
            "masked": masked if _count_masks(trained_model, masked) == 1 else "",
        }
    return dict.fromkeys(("prompt", "text", "masked"), "")


def _usable(text: str) -> str:
    """Return the text if it can be an argument of a command, else "".

    It must be printable, on one line, and not begin like a flag or with "FILE:".
    """
    return text if text.isprintable() and not text.startswith(("-", "FILE:")) else ""


def _shorten(text: str) -> str:
    """Return the whole words of the text within `MAX_PROMPT` characters."""
    return text if len(text) <= MAX_PROMPT else text[:MAX_PROMPT].rsplit(" ", 1)[0].rstrip()


def _readable(tokenizer: "Tokenizer", text: str) -> str:
    """Return the text if the tokenizer can encode it without unknown tokens, else ""."""
    from tercet.config import UserError

    with suppress(UserError):
        ids = tokenizer.encode(text)
        return text if ids and tokenizer.unk_id not in ids else ""
    return ""


def _count_masks(trained_model: "TrainedModel", text: str) -> int:
    from tercet.config import UserError

    with suppress(UserError):
        return trained_model.tokenizer.encode_masked(text).tolist().count(trained_model.tokenizer.mask_id)
    return 0
