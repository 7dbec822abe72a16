"""Models on the Hugging Face Hub: `hf://user/name`, or `hf://user/name@revision`, in place of a folder.

A download goes into the cache of `huggingface_hub`, which other programs share, and contains only the files that Tercet
reads: weights in safetensors, settings and tokenizers. Pickles and code are never downloaded.
"""

import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tercet.config import UserError
from tercet.messages import print_note, shorten, show
from tercet.offline import offline_variable

PREFIX = re.compile(r"hf:/{1,2}")  # a Path has a single slash
PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
ADDRESS = re.compile(rf"({PART}/{PART})(?:@((?:[A-Za-z0-9_][\w.+-]*/)*[A-Za-z0-9_][\w.+-]*))?", re.ASCII)
TOKENS = re.compile(r"hf_\w{8,}|(?<=Bearer )\S+")
LENGTH_NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")  # Sentence-Transformers
# Patterns of the files that Tercet reads. Only those of Sentence-Transformers and of shards contain a wildcard.
NEEDED_FILES = (
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
    "model-[0-9]*-of-[0-9]*.safetensors", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt",
    "target_vocab.json", "source.spm", "target.spm", "source_tokenizer.json", "chat_template.jinja",
    "chat_template.json", "card.json", "README.md", "manifest.json", "text_vectors.json", "text_vectors.safetensors",
    "modules.json", *(f"sentence_{name}_config.json" for name in LENGTH_NAMES),
    "config_sentence_transformers.json", "[0-9]_Pooling/config.json",
    "[0-9]_Dense/config.json", "[0-9]_Dense/model.safetensors", "[0-9]_Normalize/config.json",
)  # fmt: skip


@dataclass(frozen=True)
class HubModel:
    """A model on the hub.

    Attributes:
        repo: User or organization, and name: "user/name".
        revision: Branch, tag or commit; None for the main branch.
    """

    repo: str
    revision: str | None = None

    @property
    def name(self) -> str:
        """The name without the user."""
        return self.repo.partition("/")[2]

    def __str__(self) -> str:
        return f"hf://{self.repo}" + ("" if self.revision is None else f"@{self.revision}")


def is_on_hub(path: Path | str) -> bool:
    """Return whether a path begins with `hf://`, also if `Path` has removed one of the slashes."""
    return PREFIX.match(str(path)) is not None


def parse_address(path: Path | str) -> HubModel:
    """Return the model that a path with the prefix `hf://` names.

    Raises:
        UserError: If user, name or revision contain other characters than the hub allows, or could leave the cache.
    """
    address = PREFIX.sub("", str(path), count=1)
    match = ADDRESS.fullmatch(address)
    if match is None or ".." in address or "--" in match[1] or address.endswith((".git", ".lock")):
        raise UserError(
            f"{show(_redact('hf://' + address))} is not an address; write hf://user/name or hf://user/name@revision"
        )
    return HubModel(match[1], match[2])


@cache
def download_model(model: HubModel) -> Path:
    """Return the folder of a model in the cache of `huggingface_hub`, into which missing files are downloaded.

    Within a process, a model is looked up once, so that it does not change between two reads.

    Raises:
        UserError: If the model does not exist or cannot be downloaded, or its weights are not in safetensors.
    """
    with report_errors(model):
        from huggingface_hub import snapshot_download

        if offline_variable() is None:
            print_note(f"tercet: looking up {model}")
        folder = Path(
            snapshot_download(
                model.repo, revision=model.revision, allow_patterns=[*NEEDED_FILES], endpoint=hub_endpoint(),
                local_files_only=offline_variable() is not None,
            )
        )  # fmt: skip
    if not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{model} has no weights in safetensors, the only format that is downloaded; choose another model"
        )
    return folder


def name_of_folder(folder: Path) -> str:
    """Return the name of the model in a folder; in the cache of `huggingface_hub`, that of its repository."""
    repository = folder.parent.parent.name
    is_cached = folder.parent.name == "snapshots" and repository.startswith("models--")
    return repository.rpartition("--")[2] if is_cached else folder.name


def hub_endpoint() -> str | None:
    """Return the address of the hub; None for the default."""
    return os.environ.get("HF_ENDPOINT") or None


def _redact(text: str) -> str:
    """Return a text without access tokens."""
    return TOKENS.sub("***", text)


@contextmanager
def report_errors(model: HubModel) -> Generator[None]:
    """Turn every error of the library into one line with a remedy, without the token or a traceback of the library."""
    try:
        from huggingface_hub.utils import disable_progress_bars

        if not sys.stderr.isatty():
            disable_progress_bars()
        yield
    except UserError:
        raise
    except Exception as error:  # the library raises its own exceptions, those of its HTTP client, and OSError
        message = _describe(model, error)
    else:
        return
    raise UserError(_redact(message)) from None


def _describe(model: HubModel, error: Exception) -> str:
    from huggingface_hub import errors

    is_wrapped = isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception)
    cause: Any = error.__cause__ if is_wrapped else error  # why the hub was not asked for the missing files
    status = getattr(getattr(cause, "response", None), "status_code", None)
    variable = offline_variable()
    if isinstance(error, errors.LocalEntryNotFoundError) and variable is not None:
        return f"{model} is not in the cache, and {variable} is set; unset it, or fetch the model once with a network"
    if isinstance(cause, errors.GatedRepoError):
        page = f"{(hub_endpoint() or 'https://huggingface.co').rstrip('/')}/{model.repo}"
        return f"{model} is gated; accept its terms at {page}, then run `hf auth login`, or set HF_TOKEN"
    if isinstance(cause, errors.RevisionNotFoundError):
        return f"{model}: there is no revision {model.revision}; pass an existing branch, tag or commit"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return f"{model} does not exist, or is private; correct the name, or run `hf auth login`, or set HF_TOKEN"
    if status == 429:
        return f"{model}: too many requests; wait some minutes, and run `hf auth login` for a higher limit"
    if status in (401, 403):
        return f"{model}: the token does not permit this (status {status}); run `hf auth login` with another token"
    if status in (409, 412):
        return f"{model} has changed during the upload; run the same command again"
    if status is not None:
        return f"{model}: the hub answered with status {status} ({shorten(cause)}); try again later"
    return f"{model} cannot be reached ({shorten(cause)}); check the network, and run the same command again to resume"
