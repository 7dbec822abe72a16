"""Where a model comes from and how good it is: a card, for people as README.md and for programs as card.json.

It holds no time of day, so that the same training gives the same folder to the last bit. It is given to others with the
model, so what is written names no folder of this machine: of `/home/me/novels.txt` it says `./novels.txt`.
"""

import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Literal

import torch

from tercet.messages import show
from tercet.models import AnySpec, stack_specs
from tercet.settings_yaml import write_yaml
from tercet.version import tercet_version

BEST_BY_TEXTS = {
    "loss": "best validation loss {:.4f}", "bleu": "highest BLEU {:.2f}", "accuracy": "highest accuracy {:.1%}",
    "f1": "highest F1 {:.1%}", "pearson": "highest Pearson correlation {:.3f}",
    "spearman": "highest Spearman correlation {:.3f}",
}  # fmt: skip
PATHS = ("source", "target", "path", "pretrained", "chat_template")  # keys of a recipe, at any depth, that may be paths


@dataclass(frozen=True, kw_only=True, repr=False)
class Card:
    """What is worth knowing about a trained model.

    Attributes:
        step: optimizer steps taken.
        tokens_seen: training tokens read, repeats included.
        metrics: by name, such as {"validation_loss": 1.47}; losses are nats per token.
        data_hash, tokenizer_hash: sha256 as hex digits.
        git_commit: of the repository that the training was started in; None outside one.
        recipe: the resolved recipe, as plain dictionaries.
        kept_as: which of its run's models it is: the best by the task's `best_by`, or the last.
        changes: of the recipe since the run was begun, as `run.json` has them.
    """

    name: str = ""
    step: int = 0
    tokens_seen: int = 0
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    data_name: str = ""
    data_hash: str = ""
    tokenizer_hash: str = ""
    versions: dict[str, str] = field(default_factory=dict[str, str])
    git_commit: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict[str, Any])
    kept_as: Literal["", "best", "last"] = ""
    changes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def best_by(self) -> str:
        """What made a validation of its training better than another."""
        task = self.recipe.get("task")
        best_by = task.get("best_by") if isinstance(task, Mapping) else None
        return best_by if isinstance(best_by, str) and best_by in BEST_BY_TEXTS else "loss"

    @property
    def choice(self) -> str:
        """What it is among its run's models, such as "best validation loss 1.2340 at step 800"; nothing of others."""
        if self.kept_as == "best" and f"val/{self.best_by}" in self.metrics:
            return f"{BEST_BY_TEXTS[self.best_by].format(self.metrics[f'val/{self.best_by}'])} at step {self.step:,}"
        return f"last, at step {self.step:,}" if self.kept_as == "last" else ""

    @property
    def data_settings(self) -> dict[str, Any] | None:
        """The recipe's `data`; None where the model was not trained here."""
        return data_settings(self.recipe)

    def remove_folders(self) -> "Card":
        """The same, as it may leave this machine: of paths the last part alone."""
        return replace(self, data_name=_last_part(self.data_name), recipe=remove_folders(self.recipe))

    def strip_folders(self, text: str) -> str:
        """A text about the model, such as the README.md of one that an earlier version wrote, without its folders."""
        for path in sorted({self.data_name, *_paths(self.recipe)}, key=len, reverse=True):
            text = text.replace(path, _last_part(path)) if path else text
        return text

    def __repr__(self) -> str:
        parts = (self.name, self.choice, f"trained on {self.data_name}" if self.data_name else "")
        return f"Card({', '.join(filter(None, parts))})"

    def facts(self, spec: AnySpec, *, n_parameters: int) -> dict[str, str]:
        """What a model is, in words; "" where that is not known. `n_parameters` counts tied weights once."""
        return {
            "Family": spec.family,
            "Parameters": f"{n_parameters:,}",
            "Layers, width, heads": "; ".join(
                f"{stack.n_layers}, {stack.d_model}, {stack.n_heads}" for stack in stack_specs(spec)
            ),
            "Context": f"{spec.max_len:,} tokens",
            "Vocabulary": f"{spec.vocab_size:,} tokens",
            "Checkpoint": self.choice,
            "Trained for": f"{self.step:,} steps, {self.tokens_seen:,} tokens" if self.step else "",  # here
            "Data": self.data_name,
            "Data hash": self.data_hash,
            "Tokenizer hash": self.tokenizer_hash,
            "Git commit": self.git_commit or "",
        }

    def to_markdown(self, spec: AnySpec, *, n_parameters: int) -> str:
        """The model folder's README.md."""
        facts = self.facts(spec, n_parameters=n_parameters)
        parts = [f"# {self.name or 'A Tercet model'}\n", _table("", "", facts)]
        if self.metrics:
            metrics = {name: f"{value:.4f}" for name, value in sorted(self.metrics.items())}
            parts.append("## How good it is\n\nLosses are nats per token.\n\n" + _table("metric", "value", metrics))
        if self.versions:
            parts.append("## Made with\n\n" + _table("", "version", self.versions))
        if self.changes:
            changes = {
                f"{number}. after step {change.get('step')}": (
                    f"{change.get('key')}: {show(change.get('old'))} -> {show(change.get('new'))}"
                )
                for number, change in enumerate(self.changes, start=1)
            }
            parts.append("## Changed since it was begun\n\n" + _table("when", "what", changes))
        if self.recipe:
            parts.append(f"## Recipe\n\n```yaml\n{write_yaml(self.recipe)}```\n")
        return "\n".join(parts)


def data_settings(recipe: Mapping[str, Any]) -> dict[str, Any] | None:
    """A recipe's `data`; None where it has none. Older recipes said their task in it."""
    data: Any = recipe.get("data")
    return {key: data[key] for key in data if key != "kind"} if isinstance(data, Mapping) else None


def remove_folders(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe, or a part of it, with `./name` in the place of every path that names a folder."""

    def replace_path(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return remove_folders(value)
        if isinstance(value, list | tuple):  # the sources of a mixture
            return [replace_path(key, item) for item in value]
        return _last_part(value) if key in PATHS else value

    return {key: replace_path(key, value) for key, value in recipe.items()}


def _paths(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Every path in a recipe that names a folder."""
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            yield from _paths(value)
        elif isinstance(value, list | tuple):
            for item in value:
                yield from _paths({key: item})
        elif key in PATHS and _last_part(value) != value:
            yield value


def _last_part(path: Any) -> Any:
    """`./name`, a path still, where the name alone could be that of a dataset; what is no path stays."""
    return f"./{PurePath(path).name}" if isinstance(path, str) and "/" in path else path


def current_versions() -> dict[str, str]:
    """Of what decides the numbers a training gives."""
    return {"tercet": tercet_version(), "torch": str(torch.__version__), "python": platform.python_version()}


def git_commit(folder: Path | None = None) -> str | None:
    """The commit of the repository around `folder` (here by default); None where there is none, or no git."""
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None


def _table(left: str, right: str, rows: dict[str, str]) -> str:
    lines = [f"| {name} | {value} |" for name, value in rows.items() if value]
    return "\n".join([f"| {left} | {right} |", "|---|---|", *lines]) + "\n"
