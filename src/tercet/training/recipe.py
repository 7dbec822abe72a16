"""A recipe: all that a run depends on, in one YAML file."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from tercet.config import UserError, merge, nearest, parse, parse_yaml, plain, read_yaml
from tercet.data import DataSpec
from tercet.models import DecoderOnlySpec, model_spec
from tercet.training.optimizers import Muon, OptimizerSpec
from tercet.training.schedules import WSD, Noam, Schedule


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """How to train.

    Args:
        max_steps, max_epochs: the length of the run; exactly one of them.
        batch_size: rows of an optimizer step, over all devices: the same run on one device or on eight.
        micro_batch_size: rows that go through the model at once on one device; all of its share by default.
        seed: of weights, data order and dropout.
        warmup_steps: over which the learning rate rises from near zero.
        clip_norm: the gradient's largest norm; null for none.
        precision: bf16 and fp16 keep the weights in fp32 (mixed).
        compile: auto measures, and keeps the faster.
        validate_every, save_every, log_every: in steps.
        validation_tokens: how many tokens to validate on, spread over the whole set; all of them by default.
        sample_prompt, sample_tokens: text written at each validation, by default after the first characters of the
            validation text; 0 tokens for none.
        patience: stop after so many validations without a better one; null for never.
        accelerator, devices, nodes, strategy: where to run; auto takes a GPU if there is one.
    """

    max_steps: int | None = None
    max_epochs: int | None = None
    batch_size: int = 32
    micro_batch_size: int | None = None
    seed: int = 1
    optimizer: OptimizerSpec = field(default_factory=Muon)
    schedule: Schedule = field(default_factory=WSD)
    warmup_steps: int = 0
    clip_norm: float | None = 1.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: Literal["auto", "always", "never"] = "auto"
    validate_every: int = 250
    validation_tokens: int | None = None
    save_every: int = 250
    log_every: int = 10
    sample_prompt: str | None = None
    sample_tokens: int = 200
    patience: int | None = None
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"

    def __post_init__(self) -> None:
        if (self.max_steps is None) == (self.max_epochs is None):
            raise ValueError("set exactly one of max_steps and max_epochs; null takes the other back")
        for name in (
            "max_steps", "max_epochs", "batch_size", "micro_batch_size", "validate_every", "validation_tokens",
            "save_every", "log_every", "patience", "devices", "nodes",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        for name in ("seed", "warmup_steps", "sample_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"clip_norm={self.clip_norm} must be positive; null for none")
        world = self.devices * self.nodes
        if self.batch_size % world:
            raise ValueError(f"batch_size={self.batch_size} must be divisible by the {world} devices that share it")
        if isinstance(self.schedule, Noam) and not self.warmup_steps:
            raise ValueError("the noam schedule needs warmup_steps, such as 4000")


@dataclass(frozen=True, kw_only=True)
class LoggingSpec:
    """Where figures go besides `metrics.csv`. `wandb: offline` needs no account; `wandb sync` sends it later."""

    tensorboard: bool = False
    wandb: Literal["none", "offline", "online"] = "none"
    wandb_project: str = "tercet"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    data: DataSpec
    model: DecoderOnlySpec
    training: TrainingSpec
    logging: LoggingSpec = field(default_factory=LoggingSpec)

    def with_vocabulary(self, size: int) -> "Recipe":
        """The tokenizer knows the size, so a recipe need not say it."""
        return replace(self, model=replace(self.model, vocab_size=size))


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A packaged recipe by its name, or one's own by its path, with `changes` laid over it.

    Raises:
        UserError: where there is no such recipe, a key is unknown or a value does not fit.
    """
    return parse_recipe(merge(_read(name), changes or {}), name=f"recipe {name}")


def parse_recipe(data: Mapping[str, Any], *, name: str) -> Recipe:
    spelt = dict(data)
    model = spelt.pop("model", {})
    if not isinstance(model, Mapping):
        raise UserError(f"{name}: model: expected a mapping of keys, got {model!r}")
    spelt["model"] = plain(model_spec(model, name=f"{name}: model"))
    return parse(Recipe, spelt, name=name)


def recipe_names() -> dict[str, str]:
    """The packaged recipes, each with the comment on its first line."""
    files = (file for file in _packaged().iterdir() if file.name.endswith(".yaml"))
    texts = {file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8") for file in files}
    return {name: texts[name].splitlines()[0].removeprefix("#").strip() for name in sorted(texts)}


def recipe_text(name: str) -> str:
    """The YAML of a packaged recipe, comments and all."""
    if name not in recipe_names():
        raise UserError(f"unknown recipe {name!r}{nearest(name, recipe_names())}")
    return (_packaged() / f"{name}.yaml").read_text(encoding="utf-8")


def _read(name: str) -> dict[str, Any]:
    if name.endswith((".yaml", ".yml")):
        return read_yaml(Path(name))
    return parse_yaml(recipe_text(name), name=f"recipe {name}")


def _packaged() -> Any:
    return resources.files("tercet") / "recipes"
