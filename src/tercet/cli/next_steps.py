"""What can be done with a run that was trained: command lines that work as printed, with a text of its data."""

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
MAX_PROMPT = 32  # characters of a text that is to go on
DEFAULT_RECIPE = "demo"  # the recipe that tokens are trained by where none was named
MIN_CONTEXT = 8  # tokens; with fewer there is nothing worth training on


def next_steps(folder: Path, recipe: Mapping[str, Any]) -> list[str]:
    """Command lines for the run in `folder`, which `recipe` describes. What reads a text is given one of the validation
    part, or as the recipe's samples begin; where none is to be had, as of data that is gone, it is left out or, where
    there would be nothing to do without, the verb is."""
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
    """Command lines for the prepared folder: it is trained on as `recipe` says, in a run's folder that is free, with
    what else has to be said for that; where the recipe does not suit the tokens, it is only looked at.

    Args:
        tokenizer: the folder whose tokenizer was taken, from whose model a recipe for fine-tuning goes on.
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
    """What `tercet train` needs to be told beside recipe and data.

    Raises:
        UserError: where the recipe learns nothing from these tokens.
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
        raise UserError("the tokens know no mask")
    sizes = max((part.tokens for part in tokens.contents.shards), default=0), tokens.contents.validation.tokens
    if (context := min(sizes) - 1) < resolved.model.max_len:
        if context < MIN_CONTEXT:
            raise UserError("there are too few tokens")
        flags += ["--set", f"model.max_len={context}"]
    return [*flags, "--out", str(out)]


def _free_folder(folder: Path) -> Path:
    """The folder, or where it is there already the same with a number behind it."""
    number = 1
    free = folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def path_argument(path: str | Path) -> str:
    """The path as an argument; of what begins like a flag it is said that it lies here."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def quote_path(path: str | Path) -> str:
    """The same as a shell reads it."""
    return shlex.quote(path_argument(path))


def _texts(folder: Path, task: Mapping[str, Any]) -> dict[str, str]:
    """A text to begin with ("prompt"), to be read ("text"), and with a mask ("masked"); empty where there is none."""
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
    """The text, if a command line can have it as one word on one line that is no flag."""
    return text if text.isprintable() and not text.startswith(("-", "FILE:")) else ""


def _shorten(text: str) -> str:
    """The first words of it."""
    return text if len(text) <= MAX_PROMPT else text[:MAX_PROMPT].rsplit(" ", 1)[0].rstrip()


def _readable(tokenizer: "Tokenizer", text: str) -> str:
    """The text, if the tokenizer knows all of it."""
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
