"""Model cards: origin and quality of a model, as README.md for people and as card.json for programs.

A card contains no date or time, so the same training gives a bitwise identical folder. Cards are shared together with
the model, so they are written without folders of this machine: `/home/me/novels.txt` becomes `./novels.txt`.
"""

import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Literal

import torch

from tercet.checkpoint.hub import is_on_hub
from tercet.messages import show
from tercet.models import AnySpec, stack_specs
from tercet.settings_yaml import write_yaml
from tercet.version import tercet_version

BEST_BY_TEXTS = {
    "loss": "best validation loss {:.4f}", "bleu": "highest BLEU {:.2f}", "accuracy": "highest accuracy {:.1%}",
    "f1": "highest F1 {:.1%}", "pearson": "highest Pearson correlation {:.3f}",
    "spearman": "highest Spearman correlation {:.3f}", "recall_at_1": "highest recall@1 {:.1%}",
    "recall_at_10": "highest recall@10 {:.1%}", "mrr": "highest MRR {:.3f}", "ndcg_at_10": "highest nDCG@10 {:.3f}",
}  # fmt: skip
PATHS = ("source", "target", "path", "pretrained", "chat_template")  # recipe keys whose values may be paths


@dataclass(frozen=True, kw_only=True, repr=False)
class Card:
    """Description of a trained model.

    Attributes:
        name: Name of the model; that of its run folder if Tercet trained it.
        step: Number of optimizer steps; 0 if Tercet did not train the model.
        tokens_seen: Number of training tokens, including repetitions.
        metrics: Metrics by name, such as {"val/loss": 1.47}; losses are in nats per token.
        data_name: Name or path of the training data.
        data_hash: SHA-256 of the training data, as hex digits.
        tokenizer_hash: SHA-256 of the tokenizer, as hex digits, and that of a different source tokenizer after a space.
        versions: Versions of Tercet, torch and Python, by lower-case name.
        git_commit: Commit of the repository in which the training was started; None outside a repository.
        recipe: The resolved recipe, as plain dictionaries.
        kept_as: Role of the model in its run: the best one by the task's `best_by`, or the last one; empty if the model
            is not from a run.
        changes: Changes of the recipe since the run was started, in the format of `run.json`.
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
        """Name of the metric by which the best model of the run was selected, such as "loss" or "bleu"."""
        task = self.recipe.get("task")
        best_by = task.get("best_by") if isinstance(task, Mapping) else None
        return best_by if isinstance(best_by, str) and best_by in BEST_BY_TEXTS else "loss"

    @property
    def choice(self) -> str:
        """Role of the model in its run, such as "best validation loss 1.2340 at step 800"; empty if unknown."""
        if self.kept_as == "best" and f"val/{self.best_by}" in self.metrics:
            return f"{BEST_BY_TEXTS[self.best_by].format(self.metrics[f'val/{self.best_by}'])} at step {self.step:,}"
        return f"last, at step {self.step:,}" if self.kept_as == "last" else ""

    @property
    def data_settings(self) -> dict[str, Any] | None:
        """The `data` of the recipe; None if Tercet did not train the model."""
        return data_settings(self.recipe)

    def remove_folders(self) -> "Card":
        """Return a copy for sharing, in which `./name` replaces each path that contains a folder."""
        return replace(self, data_name=_last_part(self.data_name), recipe=remove_folders(self.recipe))

    def strip_folders(self, text: str) -> str:
        """Return a text, such as an older version's README.md, without the folders of the card's paths."""
        for path in sorted({self.data_name, *_paths(self.recipe)}, key=len, reverse=True):
            text = text.replace(path, _last_part(path)) if path else text
        return text

    def __repr__(self) -> str:
        parts = (self.name, self.choice, f"trained on {self.data_name}" if self.data_name else "")
        return f"Card({', '.join(filter(None, parts))})"

    def facts(self, spec: AnySpec, *, n_parameters: int) -> dict[str, str]:
        """Return properties of the model as text, by their headings; unknown properties are "".

        Args:
            spec: Spec of the model.
            n_parameters: Number of parameters; tied ones count once.
        """
        return {
            "Family": spec.family,
            "Parameters": f"{n_parameters:,}",
            "Layers, width, heads": "; ".join(
                f"{stack.n_layers}, {stack.d_model}, {stack.n_heads}" for stack in stack_specs(spec)
            ),
            "Context": f"{spec.max_len:,} tokens",
            "Vocabulary": f"{spec.vocab_size:,} tokens",
            "Checkpoint": self.choice,
            "Trained for": f"{self.step:,} steps, {self.tokens_seen:,} tokens" if self.step else "",
            "Data": self.data_name,
            "Data hash": self.data_hash,
            "Tokenizer hash": self.tokenizer_hash,
            "Git commit": self.git_commit or "",
        }

    def to_markdown(self, spec: AnySpec, *, n_parameters: int) -> str:
        """Return the content of the model folder's README.md. The arguments are those of `facts`."""
        facts = self.facts(spec, n_parameters=n_parameters)
        parts = [f"# {self.name or 'A Tercet model'}\n", _table("", "", facts)]
        if self.metrics:
            metrics = {name: f"{value:.4f}" for name, value in sorted(self.metrics.items())}
            parts.append("## Metrics\n\nLosses are nats per token.\n\n" + _table("metric", "value", metrics))
        if self.versions:
            parts.append("## Versions\n\n" + _table("", "version", self.versions))
        if self.changes:
            changes = {
                f"{number}. after step {change.get('step')}": (
                    f"{change.get('key')}: {show(change.get('old'))} -> {show(change.get('new'))}"
                )
                for number, change in enumerate(self.changes, start=1)
            }
            parts.append("## Changes during training\n\n" + _table("when", "what", changes))
        if self.recipe:
            parts.append(f"## Recipe\n\n```yaml\n{write_yaml(self.recipe)}```\n")
        return "\n".join(parts)


def data_settings(recipe: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the `data` of a recipe; None if there is none. In older recipes it contains the task as `kind`.

    This key is left out.
    """
    data: Any = recipe.get("data")
    return {key: data[key] for key in data if key != "kind"} if isinstance(data, Mapping) else None


def remove_folders(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a recipe, or of a part of one, in which `./name` replaces each path with a folder.

    Any text with a slash in the settings of a dataset of another package may be a path.
    """
    return {key: _replace_paths(key, value) for key, value in recipe.items()}


def _replace_paths(key: str, value: Any, *, in_dataset: bool = False) -> Any:
    if isinstance(value, Mapping):
        settings: Mapping[str, Any] = value
        in_dataset = in_dataset or key == "source"
        return {name: _replace_paths(name, item, in_dataset=in_dataset) for name, item in settings.items()}
    if isinstance(value, list | tuple):  # the sources of a mixture
        return [_replace_paths(key, item, in_dataset=in_dataset) for item in value]
    return _last_part(value) if key in PATHS or in_dataset else value


def _paths(recipe: Mapping[str, Any], *, in_dataset: bool = False) -> Iterator[str]:
    """Yield every path in a recipe that contains a folder."""
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            yield from _paths(value, in_dataset=in_dataset or key == "source")
        elif isinstance(value, list | tuple):
            for item in value:
                yield from _paths({key: item}, in_dataset=in_dataset)
        elif (key in PATHS or in_dataset) and _last_part(value) != value:
            yield value


def _last_part(path: Any) -> Any:
    """Return `./name` for a path, since a bare name could be a dataset; other values, and addresses, are unchanged."""
    is_path = isinstance(path, str) and "/" in path and not is_on_hub(path)
    return f"./{PurePath(path).name}" if is_path else path


def current_versions() -> dict[str, str]:
    """Return the versions of Tercet, PyTorch and Python, which determine the results of a training."""
    return {"tercet": tercet_version(), "torch": str(torch.__version__), "python": platform.python_version()}


def git_commit(folder: Path | None = None) -> str | None:
    """Return the commit of the repository around `folder` (default: current directory); None if git reports none."""
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None


def _table(left: str, right: str, rows: dict[str, str]) -> str:
    lines = [f"| {name} | {value} |" for name, value in rows.items() if value]
    return "\n".join([f"| {left} | {right} |", "|---|---|", *lines]) + "\n"
