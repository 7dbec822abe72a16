"""Suggested commands to use a run or prepared data. They work as printed, with a text from the data."""

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
    "chat": ("chat", "serve"), "vectors": ("embed",),
}  # fmt: skip
MAX_PROMPT = 32  # maximum characters of a prompt
DEFAULT_RECIPE = "demo"  # for prepared tokens, if no recipe was passed
MIN_CONTEXT = 8  # tokens; with less context, training is pointless


def next_steps(folder: Path, recipe: Mapping[str, Any]) -> list[str]:
    """Return suggested commands for a run.

    The prompt for `generate` is the recipe's `sample_prompt`, else the beginning of a text of the validation part.
    Other commands that need a text contain a text of the validation part. If no text is usable, `generate` has no
    prompt, and those other commands are left out.

    Args:
        folder: Run folder.
        recipe: Recipe of the run, as plain data.
    """
    name, kind = quote_path(folder), recipe["task"]["kind"]
    texts = _texts(folder, recipe["task"])
    lines = list[str]()
    for verb in () if recipe["data"].get("pair_field") else VERBS[kind]:  # such models need two texts
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
    data = recipe["data"]
    of_model = _permission([recipe["model"], data.get("tokenizer"), data.get("source_tokenizer")])
    of_evaluation = _permission([recipe["model"], data, recipe["task"]])
    return [
        *(line + of_model for line in lines),
        f"tercet evaluate {name}{of_evaluation}",
        f"tercet inspect {name}{of_model}",
        f"tercet watch {name} --export {report}{of_model}",
    ]


def _permission(parts: list[Any]) -> str:
    """Return the flag with which a command may import the packages of the custom parts; empty if there are none."""
    packages = _packages(parts)
    return f" --allow-code {','.join(packages)}" if packages else ""


def _packages(plain: Any) -> list[str]:
    """Return the packages of the custom parts in a recipe."""
    from tercet.custom_code import is_import_path

    match plain:
        case Mapping():
            kind, parts = plain.get("kind"), list(plain.values())
        case list() | tuple():
            kind, parts = None, list(plain)
        case _:
            return []
    own = [kind.partition(":")[0].partition(".")[0]] if isinstance(kind, str) and is_import_path(kind) else []
    return sorted({*own, *(package for part in parts for package in _packages(part))})


def next_steps_of_data(folder: Path, *, recipe: str | None = None, tokenizer: str | None = None) -> list[str]:
    """Return suggested commands for prepared tokens: train on them, summarize them, verify their files.

    The training command contains all flags that it needs, and a run folder that does not exist yet. It is left out if
    the recipe cannot train on the tokens.

    Args:
        folder: Folder of the prepared tokens.
        recipe: Name or path of the recipe; by default `DEFAULT_RECIPE`.
        tokenizer: Folder that was passed as --tokenizer. If the recipe fine-tunes a model, training starts
            from the model in this folder.
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
    if (context := min(sizes) - 1) < resolved.row_len:
        if context < MIN_CONTEXT:
            raise UserError("there are too few tokens")
        flags += ["--set", f"{'model' if pretrained is None else 'task'}.max_len={context}"]
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
    """Return the path as an argument of a command, with ./ before a path that begins like a flag."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def quote_path(path: str | Path) -> str:
    """Return the path as an argument of a command, quoted for a shell."""
    return shlex.quote(path_argument(path))


def _texts(folder: Path, task: Mapping[str, Any]) -> dict[str, str]:
    """Return texts for commands: "prompt" to continue, "text" to translate, embed or classify, and "masked" to fill.

    A text is "" if there is none that can be used.
    """
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

    Such a text is printable, on one line, and begins neither like a flag nor with "FILE:".
    """
    return text if text.isprintable() and not text.startswith(("-", "FILE:")) else ""


def _shorten(text: str) -> str:
    """Return the words of a text that fit completely in its first `MAX_PROMPT` characters."""
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
