"""Recipes: all settings that determine a run, in one YAML file."""

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Self

from tercet.config import Plain, UnknownKey, UserError, merge, parse, suggest, to_plain
from tercet.data import ConversationsSpec, LabelsSpec, PairsSpec, QueriesSpec, TextSpec
from tercet.messages import show
from tercet.models import (
    AnySpec,
    Classifier,
    DecoderOnlySpec,
    EncoderDecoderSpec,
    EncoderOnlySpec,
    MaskedHead,
    model_spec,
    stack_specs,
)
from tercet.nn.specs import LoRA
from tercet.objectives import CustomObjective
from tercet.spec import Custom, Name, ProblemType, check_range, spec
from tercet.training.recipe.files import read_settings
from tercet.training.recipe.other_data import REQUIRED
from tercet.training.recipe.other_names import is_sentence, suggest_names
from tercet.training.recipe.pretrained import PRETRAINED_COPY, pretrained_spec
from tercet.training.recipe.sized import add_width_rules
from tercet.training.recipe.spec_keys import walk_keys
from tercet.training.recipe.specs import LoggingSpec, TrainingSpec
from tercet.training.recipe.task_specs import (
    ChatTaskSpec,
    LabelsTaskSpec,
    LanguageTaskSpec,
    MaskedTaskSpec,
    ObjectiveSpec,
    TaskSpec,
    TranslationTaskSpec,
    VectorsTaskSpec,
)


@spec
class Recipe:
    """The settings of a run: `task`, `data`, `model` and `training`.

    The recipe of each task has the data and model specs of that task.

    Args:
        pretrained: Pretrained model to start from: the folder of a run, of a Tercet model or of a model of the
            transformers library, or a GGUF file. `???` in a packaged recipe means that the caller must set it. The run
            uses the sizes, tokenizer and weights of the pretrained model, except for heads that the task does not
            train. If the caller passes a pretrained model to a recipe without one, only dropout and `classifier` of the
            recipe's `model` section apply, and its `max_len` becomes that of the task: the model keeps its context, but
            rows are not longer than in the recipe. Other model keys, of the caller or of a recipe with a pretrained
            model, replace those of the pretrained model, and are rejected if its weights do not fit. The run copies the
            model to `pretrained/` in its folder and then no longer needs the original.
        adapter: Adapter that is trained instead of the pretrained weights, which are then frozen; null trains the
            weights themselves.
        freeze: Names of modules or parameters that are not trained, such as "embedding", "stack.blocks.0" or
            "*.bias"; `tercet inspect` lists them.
        task: Objective and batch size.
        data: Source, validation part and tokenizer.
        model: Architecture.
        training: Length, optimizer, schedule and devices.
        logging: Additional destinations of metrics.
    """

    pretrained: Name | None = None
    adapter: LoRA | None = None
    freeze: tuple[Name, ...] = ()
    task: TaskSpec
    data: TextSpec | PairsSpec | LabelsSpec | ConversationsSpec | QueriesSpec
    model: AnySpec
    training: TrainingSpec
    logging: LoggingSpec = field(default_factory=LoggingSpec)

    def __post_init__(self) -> None:
        if self.adapter is not None and self.pretrained is None:
            raise ValueError("adapter requires a pretrained model; set pretrained, or leave out adapter")
        if self.adapter is not None and self.freeze:
            raise ValueError("adapter already freezes all other weights; leave out freeze")
        training = self.training
        if training.shares_model and self.adapter is not None:
            raise ValueError(
                f"adapter is not supported with training.strategy={training.strategy}; set another training.strategy"
            )
        self.task.check_batches(training.data_parallel_size, ramp=training.batch_ramp is not None)
        if training.exact:
            self.task.check_exact(training.data_parallel_size)
        if training.label_smoothing and (objective := objective_of(self)) is not None:
            raise ValueError(f"training.label_smoothing does not apply to task.objective={objective.kind}; set it to 0")
        if training.shares_model and self.task.best_by not in ("loss", "accuracy"):
            raise ValueError(
                f"task.best_by={self.task.best_by} requires the whole model on one device, but "
                f"training.strategy={training.strategy} splits it; set another training.strategy"
            )
        if self.task.finds_micro_batch and isinstance(self.task, TranslationTaskSpec) and training.strategy == "fsdp":
            raise ValueError(
                "fsdp requires the same number of micro-batches on each device; set task.micro_batch_tokens to a number"
            )
        if training.tensor_parallel_size > 1:
            _check_tensor_parallel(self.model, training.tensor_parallel_size)

    @property
    def row_len(self) -> int:
        """The maximum tokens of a training row: `task.max_len`, but at most the context of the model."""
        return min(self.task.max_len or self.model.max_len, self.model.max_len)

    def with_heads(self) -> Self:
        """Return the recipe whose model has the heads that the task trains, and no others."""
        return self

    def with_vocabulary(self, size: int, *, source_size: int | None = None) -> Self:
        """Return the recipe whose model has the given vocabulary size.

        Args:
            size: Vocabulary size in tokens; for translation with two tokenizers, that of the target.
            source_size: Vocabulary size of a separate source tokenizer; None if both sides share one. Only translation
                uses it.
        """
        model = replace(self.model, vocab_size=size)
        if isinstance(model, EncoderDecoderSpec):
            model = replace(model, source_vocab_size=source_size)
        return replace(self, model=model)


@spec
class LanguageRecipe(Recipe):
    task: LanguageTaskSpec
    data: TextSpec
    model: DecoderOnlySpec


@spec
class MaskedRecipe(Recipe):
    task: MaskedTaskSpec
    data: TextSpec
    model: EncoderOnlySpec

    def with_heads(self) -> Self:
        head = self.model.masked_head or MaskedHead()
        model = replace(self.model, masked_head=head, pooler=False, next_sentence=False, classifier=None)
        return replace(self, model=model)


@spec
class TranslationRecipe(Recipe):
    task: TranslationTaskSpec
    data: PairsSpec
    model: EncoderDecoderSpec


@spec
class LabelsRecipe(Recipe):
    task: LabelsTaskSpec
    data: LabelsSpec
    model: EncoderOnlySpec

    def __post_init__(self) -> None:
        super().__post_init__()
        problem_type, best_by = self.data.problem_type, self.task.best_by
        if best_by not in LABELS_BEST_BY[problem_type]:
            raise ValueError(
                f"task.best_by={best_by} does not fit data.problem_type={problem_type}; "
                f"set it to {' or '.join(LABELS_BEST_BY[problem_type])}"
            )
        if self.training.label_smoothing and problem_type != "single_label_classification":
            raise ValueError(
                f"training.label_smoothing requires a single label per example, but data.problem_type={problem_type}; "
                "set training.label_smoothing to 0"
            )

    @property
    def classifier(self) -> Classifier:
        head, problem_type = self.model.classifier or Classifier(), self.data.problem_type
        if head.problem_type != problem_type:  # labels of another kind, such as those of a pretrained model
            head = replace(head, labels=(), target_mean=0.0, target_std=1.0, problem_type="single_label_classification")
        return replace(head, over=self.data.over, problem_type=problem_type)

    def with_heads(self) -> Self:
        pooler = self.data.over == "texts" and self.classifier.pooling == "pooler"
        model = replace(self.model, masked_head=None, pooler=pooler, next_sentence=False, classifier=self.classifier)
        return replace(self, model=model)

    def with_labels(self, labels: tuple[str, ...], *, mean: float = 0.0, std: float = 1.0) -> Self:
        """Return the recipe whose classifier has the labels of the data, or the scale of its numbers.

        Args:
            labels: Names of the labels; empty for regression.
            mean, std: Mean and standard deviation of the numbers to predict.
        """
        head = replace(self.classifier, labels=labels, target_mean=mean, target_std=std)
        return replace(self, model=replace(self.model, classifier=head))


@spec
class ChatRecipe(Recipe):
    task: ChatTaskSpec
    data: ConversationsSpec
    model: DecoderOnlySpec


@spec
class VectorsRecipe(Recipe):
    task: VectorsTaskSpec
    data: QueriesSpec
    model: EncoderOnlySpec

    def __post_init__(self) -> None:
        super().__post_init__()
        width = self.model.stack.d_model
        if too_large := [size for size in self.task.sizes if size >= width]:
            raise ValueError(f"task.sizes: {too_large[0]} must be below the width of the model, d_model={width}")
        if self.training.label_smoothing:
            raise ValueError("training.label_smoothing does not apply to task: vectors; set it to 0")

    def with_heads(self) -> Self:
        model = replace(self.model, masked_head=None, pooler=False, next_sentence=False, classifier=None)
        return replace(self, model=model)


def objective_of(recipe: Recipe) -> CustomObjective | None:
    """Return the objective of another package with which a recipe trains; None for the default."""
    return recipe.task.objective if isinstance(recipe.task, ObjectiveSpec) else None


# Metrics by which the best model can be chosen, for each kind of label.
LABELS_BEST_BY: dict[ProblemType, tuple[str, ...]] = {
    "single_label_classification": ("loss", "accuracy", "f1"),
    "multi_label_classification": ("loss", "accuracy", "f1"),
    "regression": ("loss", "pearson", "spearman"),
}
RECIPES: dict[str, type[Recipe]] = {
    "language": LanguageRecipe, "masked": MaskedRecipe, "translation": TranslationRecipe, "labels": LabelsRecipe,
    "chat": ChatRecipe, "vectors": VectorsRecipe,
}  # fmt: skip
FAMILIES = {
    "language": "decoder-only", "masked": "encoder-only", "translation": "encoder-decoder", "labels": "encoder-only",
    "chat": "decoder-only", "vectors": "encoder-only",
}  # fmt: skip
# Flags that are often written as keys of a recipe, with their commands.
FLAGS = {"--out": "tercet train", "--restart": "tercet train", "--beam": "tercet translate"}


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return a packaged recipe, or the recipe in a YAML file, merged with `changes`.

    Args:
        name: Name of a packaged recipe, or path of a YAML file.
        changes: Changed keys, as nested mappings; None for none.

    Raises:
        UserError: If the recipe does not exist, a key is unknown or a value is invalid.
    """
    return parse_recipe(read_settings(name, changes), name=f"recipe {name}")


def task_kind(settings: Mapping[str, Any], *, name: str) -> str:
    """Return the kind of the task, such as "language", in the unparsed settings of a recipe.

    Args:
        settings: Settings, as read from YAML.
        name: Name of the recipe in error messages.

    Raises:
        UserError: If the task is missing or unknown.
    """
    task = settings.get("task")
    kind = task.get("kind") if isinstance(task, Mapping) else task
    if kind is None:
        raise UserError(f"{name} requires a task: {', '.join(RECIPES)}; for example `task: language`")
    if not isinstance(kind, str) or kind not in RECIPES:
        raise UserError(f"{name}: task: unknown kind {show(kind)}{suggest(kind, RECIPES)}")
    return kind


def parse_recipe(data: Mapping[str, Any], *, name: str, run: Path | None = None) -> Recipe:
    """Parse a recipe.

    Args:
        data: Settings, as read from YAML.
        name: Name of the recipe in error messages.
        run: Folder of the recipe's run. If it contains a copy of the pretrained model, the copy is read instead of the
            original. None for a recipe without a run.

    Raises:
        UserError: If a key is unknown, a value is invalid, a required setting is not set, or the model does not match
            the task.
    """
    kind = task_kind(data, name=name)
    try:
        return _parse_settings(data, kind, name=name, run=run)
    except UnknownKey as error:
        key = f"model.{error.key}" if error.problem.startswith(f"{name}: model") else error.key
        section, _, word = key.rpartition(".")
        keys = [key for key, _ in walk_keys(RECIPES[kind])]
        names = suggest_names(word, flags=FLAGS, keys=keys, section=section)
        if not names or is_sentence(names[0]):  # a sentence is about a flag
            raise
        if names[0] in FLAGS:
            raise UserError(f"{error.problem}; pass {names[0]} to `{FLAGS[names[0]]}` instead") from None
        raise UserError(f"{error.problem}; did you mean {' and '.join(map(repr, names))}?") from None


def _parse_settings(data: Mapping[str, Any], kind: str, *, name: str, run: Path | None) -> Recipe:
    """Parse the settings of a recipe with the task `kind`; the other arguments are those of `parse_recipe`."""
    settings = dict(data)
    model = settings.pop("model", {})
    if not isinstance(model, Mapping):
        raise UserError(f"{name}: model: expected a mapping of keys, got {show(model)}")
    if not {"family", "preset"} & model.keys():
        model = {"family": FAMILIES[kind], **model}
    pretrained = _pretrained_path(settings, name=name)
    if run is not None and pretrained is not None and (run / PRETRAINED_COPY / "config.json").exists():
        pretrained = run / PRETRAINED_COPY
    if pretrained is None:
        spec = model_spec(model, name=f"{name}: model")
    else:
        spec = pretrained_spec(Path(pretrained), model, name=f"{name}: model")
    if spec.family != FAMILIES[kind]:
        raise UserError(
            f"{name}: the task {kind} trains {FAMILIES[kind]} models, but this model is {spec.family}; "
            f"set task to {' or '.join(k for k, family in FAMILIES.items() if family == spec.family)}, "
            f"or choose another {'model' if pretrained is None else 'pretrained model'}"
        )
    settings = add_width_rules({**settings, "model": to_plain(spec)}, model.get("size"), model.get("init"))
    if isinstance(data.get("data"), Mapping) and data["data"].get("source") == REQUIRED:
        raise UserError(f"{name} requires conversations; pass --data FILE, such as chat.jsonl")
    if kind == "masked" and isinstance(settings.get("data"), Mapping):
        settings["data"] = {"tokenizer": "wordpiece", **settings["data"]}
    return parse(RECIPES[kind], settings, name=name).with_heads()


def use_pretrained_copy(settings: Mapping[str, Any], out: Path, *, name: str = "recipe") -> Plain:
    """Return `settings` with the run's copy as the pretrained model if the original no longer exists.

    The settings are returned unchanged if they have no pretrained model or the run has no copy.

    Args:
        settings: Settings of a recipe.
        out: Folder of the run that is resumed.
        name: Name of the recipe in error messages.
    """
    pretrained, copy = _pretrained_path(settings, name=name), out / PRETRAINED_COPY
    if pretrained is None or Path(pretrained).exists() or not (copy / "config.json").exists():
        return dict(settings)
    return merge(settings, {"pretrained": str(copy)})


def _pretrained_path(settings: Mapping[str, Any], *, name: str) -> str | None:
    """Return the path of the pretrained model, which is needed before the other settings are parsed.

    Raises:
        UserError: If the path is invalid, or required and not set.
    """
    pretrained = settings.get("pretrained")
    try:
        check_range("pretrained", pretrained, Name | None)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    if pretrained == REQUIRED:
        raise UserError(
            f"{name} requires a pretrained model; pass --pretrained FOLDER: a run, a model, or a folder of the "
            "transformers library"
        )
    return pretrained


def _check_tensor_parallel(model: AnySpec, devices: int) -> None:
    """Check that tensor parallelism can split each block over `devices`.

    Raises:
        ValueError: If a number of heads or the inner width is not divisible by `devices`, if all heads share a norm, if
            the model drops attention weights or activations, or if a part of another package would be split.
    """
    for stack in stack_specs(model):
        for part in (stack.activation, stack.feedforward, stack.attention):
            if isinstance(part, Custom):
                raise ValueError(f"strategy=tp does not split {part.kind}; set strategy to fsdp")
        if stack.qk_norm == "all_heads":
            raise ValueError("strategy=tp would compute qk_norm=all_heads from the heads of one device; set it to true")
        for name, size in {"n_heads": stack.n_heads, "n_kv_heads": stack.kv_heads, "d_ff": stack.inner_width}.items():
            if size % devices:
                raise ValueError(
                    f"strategy=tp: {name}={size} is not divisible by {devices} devices; change one of the two numbers"
                )
        # Each device has other heads and other columns, but the same seed, which would give all the same dropout mask.
        for name in ("attention", "activation"):
            if getattr(stack.dropout, name):
                raise ValueError(f"strategy=tp would drop the same elements on all devices; set dropout.{name} to 0")
