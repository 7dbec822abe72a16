"""A recipe: all that a run depends on, in one YAML file."""

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Self

from tercet.config import Plain, UserError, merge, parse, suggest, to_plain
from tercet.data import ConversationsSpec, LabelsSpec, PairsSpec, TextSpec
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
from tercet.spec import Name, ProblemType, check_range, spec
from tercet.training.recipe.files import read_settings
from tercet.training.recipe.other_data import REQUIRED
from tercet.training.recipe.pretrained import PRETRAINED_COPY, pretrained_spec
from tercet.training.recipe.specs import LoggingSpec, TrainingSpec
from tercet.training.recipe.task_specs import (
    ChatTaskSpec,
    LabelsTaskSpec,
    LanguageTaskSpec,
    MaskedTaskSpec,
    TaskSpec,
    TranslationTaskSpec,
)


@spec
class Recipe:
    """What to learn (`task`), from what (`data`), with what (`model`) and how (`training`). A recipe of each task has
    the data and the model that the task is about.

    Args:
        pretrained: the folder of a run or a model to go on from: its tokenizer, its weights, and its spec with the keys
            of `model` laid over it.
        adapter: what learns in the place of the pretrained weights, which stay as they are; null for these themselves.
        freeze: parts of the model that do not learn, by their names in it, such as "embedding" or "stack.blocks.0".
    """

    pretrained: Name | None = None
    adapter: LoRA | None = None
    freeze: tuple[Name, ...] = ()
    task: TaskSpec
    data: TextSpec | PairsSpec | LabelsSpec | ConversationsSpec
    model: AnySpec
    training: TrainingSpec
    logging: LoggingSpec = field(default_factory=LoggingSpec)

    def __post_init__(self) -> None:
        if self.adapter is not None and self.pretrained is None:
            raise ValueError("adapter goes on from a model that exists: set pretrained, or leave adapter out")
        if self.adapter is not None and self.freeze:
            raise ValueError("adapter leaves all other weights as they are: leave freeze out")
        training = self.training
        if training.shares_model and self.adapter is not None:
            raise ValueError(f"adapter is not tried with {training.strategy}, and needs another training.strategy")
        self.task.check_batches(training.data_parallel_size, ramp=training.batch_ramp is not None)
        if training.exact:
            self.task.check_exact(training.data_parallel_size)
        if training.shares_model and self.task.best_by in ("bleu", "f1", "pearson", "spearman"):
            raise ValueError(
                f"with {training.strategy} no device has the whole model: "
                f"task.best_by={self.task.best_by} needs another training.strategy"
            )
        if self.task.finds_micro_batch and isinstance(self.task, TranslationTaskSpec) and training.strategy == "fsdp":
            raise ValueError(
                "with fsdp devices take equally many micro-batches: set task.micro_batch_tokens to a number"
            )
        if training.tensor_parallel_size > 1:
            _check_tensor_parallel(self.model, training.tensor_parallel_size)

    def with_heads(self) -> Self:
        """With the heads that the task trains, and no others: nothing would ever be learnt by those."""
        return self

    def with_vocabulary(self, size: int, *, source_size: int | None = None) -> Self:
        """The tokenizers know the sizes, so a recipe need not say them; `source_size` where the source has its own."""
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
                f"training.label_smoothing spreads a share of one label over the others, and data.problem_type="
                f"{problem_type} has no such label; set it to 0"
            )

    @property
    def classifier(self) -> Classifier:
        head, problem_type = self.model.classifier or Classifier(), self.data.problem_type
        if head.problem_type != problem_type:  # another's labels, which say nothing of these
            head = replace(head, labels=(), target_mean=0.0, target_std=1.0, problem_type="single_label_classification")
        return replace(head, over=self.data.over, problem_type=problem_type)

    def with_heads(self) -> Self:
        pooler = self.data.over == "texts" and self.classifier.pooling == "pooler"
        model = replace(self.model, masked_head=None, pooler=pooler, next_sentence=False, classifier=self.classifier)
        return replace(self, model=model)

    def with_labels(self, labels: tuple[str, ...], *, mean: float = 0.0, std: float = 1.0) -> Self:
        """The data know the labels; of numbers their mean and standard deviation."""
        head = replace(self.classifier, labels=labels, target_mean=mean, target_std=std)
        return replace(self, model=replace(self.model, classifier=head))


@spec
class ChatRecipe(Recipe):
    task: ChatTaskSpec
    data: ConversationsSpec
    model: DecoderOnlySpec


# By what a validation is better, for each kind of label.
LABELS_BEST_BY: dict[ProblemType, tuple[str, ...]] = {
    "single_label_classification": ("loss", "accuracy", "f1"),
    "multi_label_classification": ("loss", "accuracy", "f1"),
    "regression": ("loss", "pearson", "spearman"),
}
RECIPES: dict[str, type[Recipe]] = {
    "language": LanguageRecipe, "masked": MaskedRecipe, "translation": TranslationRecipe, "labels": LabelsRecipe,
    "chat": ChatRecipe,
}  # fmt: skip
FAMILIES = {
    "language": "decoder-only", "masked": "encoder-only", "translation": "encoder-decoder", "labels": "encoder-only",
    "chat": "decoder-only",
}  # fmt: skip


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A packaged recipe by its name, or one's own by its path, with `changes` laid over it.

    Raises:
        UserError: where there is no such recipe, a key is unknown or a value does not fit.
    """
    return parse_recipe(read_settings(name, changes), name=f"recipe {name}")


def task_kind(settings: Mapping[str, Any], *, name: str) -> str:
    """The task of a recipe that is not parsed yet.

    Raises:
        UserError: where it names none, or none that there is.
    """
    task = settings.get("task")
    kind = task.get("kind") if isinstance(task, Mapping) else task
    if kind is None:
        raise UserError(f"{name} needs a task: {', '.join(RECIPES)}, such as `task: language`")
    if not isinstance(kind, str) or kind not in RECIPES:
        raise UserError(f"{name}: task: unknown kind {show(kind)}{suggest(kind, RECIPES)}")
    return kind


def parse_recipe(data: Mapping[str, Any], *, name: str, run: Path | None = None) -> Recipe:
    """The recipe in a mapping. `run` is its run's folder, whose own copy of the pretrained model is looked at."""
    settings, kind = dict(data), task_kind(data, name=name)
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
            f"{name}: the task {kind} trains {FAMILIES[kind]} models, and this one is {spec.family}: "
            f"set task to {' or '.join(k for k, family in FAMILIES.items() if family == spec.family)}, "
            f"or take another {'model' if pretrained is None else 'pretrained model'}"
        )
    settings["model"] = to_plain(spec)
    if isinstance(data.get("data"), Mapping) and data["data"].get("source") == REQUIRED:
        raise UserError(f"{name} learns from conversations of your own: give --data FILE, such as chat.jsonl")
    if kind == "masked" and isinstance(settings.get("data"), Mapping):
        settings["data"] = {"tokenizer": "wordpiece", **settings["data"]}
    return parse(RECIPES[kind], settings, name=name).with_heads()


def use_pretrained_copy(settings: Mapping[str, Any], out: Path, *, name: str = "recipe") -> Plain:
    """`settings`, where a run that has begun in `out` is to go on and the pretrained model it began with is gone: the
    run's own copy takes its place."""
    pretrained, copy = _pretrained_path(settings, name=name), out / PRETRAINED_COPY
    if pretrained is None or Path(pretrained).exists() or not (copy / "config.json").exists():
        return dict(settings)
    return merge(settings, {"pretrained": str(copy)})


def _pretrained_path(settings: Mapping[str, Any], *, name: str) -> str | None:
    """The path, which is looked at before the rest of the recipe is parsed."""
    pretrained = settings.get("pretrained")
    try:
        check_range("pretrained", pretrained, Name | None)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    if pretrained == REQUIRED:
        raise UserError(
            f"{name} goes on from a model that exists: give --pretrained FOLDER, a run's or a model's, or one that "
            "the transformers library keeps"
        )
    return pretrained


def _check_tensor_parallel(model: AnySpec, devices: int) -> None:
    """Raises:
    ValueError: where a model cannot be cut for so many devices.
    """
    for stack in stack_specs(model):
        for name, size in {"n_heads": stack.n_heads, "n_kv_heads": stack.kv_heads, "d_ff": stack.inner_width}.items():
            if size % devices:
                raise ValueError(f"strategy=tp shares out {name}={size}, which {devices} devices cannot equally")
        for name in ("attention", "activation"):  # from one seed, in each device's part
            if getattr(stack.dropout, name):
                raise ValueError(f"strategy=tp: devices would drop the same of their parts; set dropout.{name} to 0")
