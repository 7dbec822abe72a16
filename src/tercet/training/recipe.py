"""A recipe: all that a run depends on, in one YAML file."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from tercet.config import UserError, merge, nearest, parse, parse_yaml, plain, read_yaml
from tercet.data import DataSpec, LabelsSpec, PairsSpec
from tercet.models import AnySpec, Classifier, EncoderDecoderSpec, EncoderOnlySpec, MaskedHead, model_spec
from tercet.objectives import Masking
from tercet.training.optimizers import Muon, OptimizerSpec
from tercet.training.pretrained import BEGUN, pretrained_spec
from tercet.training.schedules import WSD, InverseSquareRoot, Noam, Schedule


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """How to train.

    Args:
        max_steps, max_epochs, max_hours: the length of the run; exactly one of them. Hours become steps when the run
            begins, by the speed that is measured then.
        batch_size: rows of an optimizer step, over all devices: the same run on one device or on eight.
        micro_batch_size: rows that go through the model at once on one device; all of its share by default.
        batch_ramp: the share of the run's steps over which a batch grows, from one micro-batch on each device on;
            null for none.
        batch_tokens, micro_batch_tokens: the same for sentence pairs, in tokens: rows times the longest of them.
        masking: what a masked language model is asked for.
        label_smoothing: the share of each target that is spread over the whole vocabulary; never in validation.
        ema: validate and export a moving average of the weights with this decay, such as 0.999; null for none.
        seed: of weights, data order and dropout.
        warmup_steps: over which the learning rate rises from near zero.
        clip_norm: the gradient's largest norm; null for none.
        precision: bf16 and fp16 keep the weights in fp32 (mixed).
        compile: auto measures, and keeps the faster.
        validate_every, save_every, log_every: in steps.
        validation_tokens: how many tokens to validate on, spread over the whole set; all of them by default.
        sample_prompt, sample_tokens: text written at each validation, by default after the first characters of the
            validation text; 0 tokens for none.
        validation_sentences: how many validation sentences to translate for BLEU; all by default, 0 for none.
        best_by: what makes a validation better: the loss; BLEU of a translator; accuracy of an encoder; F1 of labels.
        patience: stop after so many validations without a better one; null for never.
        accelerator, devices, nodes, strategy: where to run; auto takes a GPU if there is one.
    """

    max_steps: int | None = None
    max_epochs: int | None = None
    max_hours: float | None = None
    batch_size: int = 32
    micro_batch_size: int | None = None
    batch_ramp: float | None = None
    batch_tokens: int | None = None
    micro_batch_tokens: int | None = None
    masking: Masking | None = None
    label_smoothing: float = 0.0
    ema: float | None = None
    seed: int = 1
    optimizer: OptimizerSpec = field(default_factory=Muon)
    schedule: Schedule = field(default_factory=WSD)
    warmup_steps: int = 0
    clip_norm: float | None = 1.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: Literal["auto", "always", "never"] = "auto"
    validate_every: int = 250
    validation_tokens: int | None = None
    validation_sentences: int | None = None
    best_by: Literal["loss", "bleu", "accuracy", "f1"] = "loss"
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
        if [self.max_steps, self.max_epochs, self.max_hours].count(None) != 2:
            raise ValueError("set exactly one of max_steps, max_epochs and max_hours; null takes another back")
        for name in (
            "max_steps", "max_epochs", "batch_size", "micro_batch_size", "batch_tokens", "micro_batch_tokens",
            "validate_every", "validation_tokens", "save_every", "log_every", "patience", "devices", "nodes",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        for name in ("seed", "warmup_steps", "sample_tokens", "validation_sentences"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if self.max_hours is not None and self.max_hours <= 0:
            raise ValueError(f"max_hours={self.max_hours} must be positive")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"clip_norm={self.clip_norm} must be positive; null for none")
        self._check_batches()
        if isinstance(self.schedule, Noam | InverseSquareRoot) and not self.warmup_steps:
            raise ValueError(f"the {self.schedule.kind} schedule needs warmup_steps, such as 4000")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be at least 0 and below 1")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema={self.ema} must be between 0 and 1, such as 0.999; null for none")
        if self.strategy == "fsdp" and (self.ema is not None or self.best_by in ("bleu", "f1")):
            scored = "f1" if self.best_by == "f1" else "bleu"
            raise ValueError(f"with fsdp no device has the whole model: ema and best_by={scored} need another strategy")
        if self.best_by == "bleu" and self.validation_sentences == 0:
            raise ValueError("best_by=bleu needs translations; leave validation_sentences out, or set it above 0")

    def _check_batches(self) -> None:
        world, tokens, micro = self.devices * self.nodes, self.batch_tokens, self.micro_batch_tokens
        if tokens is None:
            if self.batch_size % world:
                raise ValueError(f"batch_size={self.batch_size} must be divisible by the {world} devices that share it")
            if self.batch_ramp is not None:
                self._check_ramp("batch_size", self.batch_size // world, self.micro_batch_size)
            if micro is not None:
                raise ValueError(f"micro_batch_tokens={micro} divides batch_tokens; set that as well")
            return
        if self.micro_batch_size is not None:
            raise ValueError(f"micro_batch_size={self.micro_batch_size} divides batch_size; with batch_tokens set "
                             "micro_batch_tokens")  # fmt: skip
        if micro is not None and tokens % micro:
            raise ValueError(f"batch_tokens={tokens} must be a multiple of micro_batch_tokens={micro}")
        if self.batch_ramp is not None:
            self._check_ramp("batch_tokens", tokens // world, micro)

    def _check_ramp(self, name: str, share: int, micro: int | None) -> None:
        if self.batch_ramp is None or not 0 < self.batch_ramp <= 1:
            raise ValueError(f"batch_ramp={self.batch_ramp} is a share of the run: above 0, at most 1; null for none")
        if micro is None or micro >= share or share % micro:
            raise ValueError(f"batch_ramp begins with one micro-batch: set micro_{name} to a divisor of the {share} "
                             "that a device takes, and smaller")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoggingSpec:
    """Where figures go besides `metrics.csv`. `wandb: offline` needs no account; `wandb sync` sends it later."""

    tensorboard: bool = False
    wandb: Literal["none", "offline", "online"] = "none"
    wandb_project: str = "tercet"


LEARNS_FROM = {"decoder-only": ("text",), "encoder-decoder": ("pairs",), "encoder-only": ("text", "labels")}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """`pretrained` is the folder of a run or a model to go on from: its tokenizer, its weights, and its spec with the
    keys of `model` laid over it."""

    pretrained: str | None = None
    data: DataSpec | PairsSpec | LabelsSpec
    model: AnySpec
    training: TrainingSpec
    logging: LoggingSpec = field(default_factory=LoggingSpec)

    def __post_init__(self) -> None:
        wanted = LEARNS_FROM[self.model.family]
        if self.data.kind not in wanted:
            named = " or ".join(wanted)
            raise ValueError(f"the {self.model.family} family learns from {named}; set data.kind to {named}")
        if self.training.masking is not None and not (self.data.kind == "text" and "labels" in wanted):
            raise ValueError("training.masking is for the encoder-only family on text; leave it out")

    def with_vocabulary(
        self, size: int, *, source_size: int | None = None, labels: tuple[str, ...] | None = None
    ) -> "Recipe":
        """The tokenizers know the sizes, so a recipe need not say them; `source_size` where the source has its own. So
        do the data know the `labels`."""
        model = replace(self.model, vocab_size=size)
        if isinstance(model, EncoderDecoderSpec):
            model = replace(model, source_vocab_size=source_size)
        if isinstance(model, EncoderOnlySpec) and model.classifier is not None and labels is not None:
            model = replace(model, classifier=replace(model.classifier, labels=labels))
        return replace(self, model=model)


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A packaged recipe by its name, or one's own by its path, with `changes` laid over it.

    Raises:
        UserError: where there is no such recipe, a key is unknown or a value does not fit.
    """
    return parse_recipe(merge(_read(name), changes or {}), name=f"recipe {name}")


def parse_recipe(data: Mapping[str, Any], *, name: str, begun: Path | None = None) -> Recipe:
    """The recipe in a mapping. `begun` is its run's folder, whose own copy of the pretrained model is looked at."""
    spelt = dict(data)
    model = spelt.pop("model", {})
    if not isinstance(model, Mapping):
        raise UserError(f"{name}: model: expected a mapping of keys, got {model!r}")
    pretrained = spelt.get("pretrained")
    if begun is not None and pretrained is not None and (begun / BEGUN / "config.json").exists():
        pretrained = begun / BEGUN
    if pretrained is None:
        spec = model_spec(model, name=f"{name}: model")
    else:
        spec = pretrained_spec(Path(str(pretrained)), model, name=f"{name}: model")
    if isinstance(spelt.get("data"), Mapping):  # what a model learns from follows from what it is
        spelt["data"] = {"kind": LEARNS_FROM[spec.family][0], **spelt["data"]}
        if spec.family == "encoder-only" and spelt["data"]["kind"] == "text":
            spelt["data"] = {"tokenizer": "wordpiece", **spelt["data"]}
    if isinstance(spec, EncoderOnlySpec):
        spec = _with_heads(spec, spelt.get("data"), name)
    spelt["model"] = plain(spec)
    return parse(Recipe, spelt, name=name)


def as_begun(name: str, changes: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """`changes`, where a run that has begun in `out` is to go on and the pretrained model it began with is gone: the
    run's own copy takes its place."""
    given, copy = merge(_read(name), changes).get("pretrained"), out / BEGUN
    if given is None or Path(str(given)).exists() or not (copy / "config.json").exists():
        return dict(changes)
    return merge(changes, {"pretrained": str(copy)})


def _with_heads(spec: EncoderOnlySpec, data: Any, name: str) -> EncoderOnlySpec:
    """The spec with the heads that the data train, and no others: nothing would ever be learnt by those."""
    if not isinstance(data, Mapping) or data.get("kind") != "labels":
        head = spec.masked_head or MaskedHead()
        return replace(spec, masked_head=head, pooler=False, next_sentence=False, classifier=None)
    over = data.get("over", "texts")
    if over not in ("texts", "tokens"):
        raise UserError(f"{name}: data.over: {over!r} must be texts or tokens")
    classifier = replace(spec.classifier or Classifier(), over=over)
    pooler = over == "texts" and classifier.pooling == "pooler"
    return replace(spec, masked_head=None, pooler=pooler, next_sentence=False, classifier=classifier)


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
