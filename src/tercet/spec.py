"""Specs: settings as frozen dataclasses. The type of a number contains its range.

    @spec
    class Cosine:
        final: Annotated[float, Interval(ge=0, le=1)] = 0.1

    Cosine(final=2)     ValueError: final=2 must be at least 0 and at most 1

Ranges are checked for every spec, whether it comes from a recipe, a model folder or Python. Types that several settings
share, such as a width or a fraction, are defined here. Upper bounds are far above the values of any training run. They
reject values, for example with a typing error, that would overflow, exhaust memory, or let a program run forever.
"""

import dataclasses
import types
from collections.abc import Iterator
from functools import cache
from numbers import Real
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Interval as Interval
from annotated_types import Len as Len

from tercet import limits
from tercet.messages import show

Class = TypeVar("Class")

Layers = Annotated[int, Interval(ge=1, le=4096)]  # also numbers of heads
Index = Annotated[int, Interval(ge=0, lt=1 << 24)]  # number of a layer or position, or a token id
Width = Annotated[int, Interval(ge=1, le=1 << 20)]
Context = Annotated[int, Interval(ge=1, le=1 << 24)]  # length of a context or a stride, in tokens
Overlap = Annotated[int, Interval(ge=0, le=1 << 24)]  # tokens that two chunks of a text share
VocabularySize = Annotated[int, Interval(ge=0, le=1 << 24)]
Rows = Annotated[int, Interval(ge=1, le=1 << 24)]  # rows of a batch
Tokens = Annotated[int, Interval(ge=1, le=1 << 40)]
Steps = Annotated[int, Interval(ge=1, le=10**9)]
StepsOrNone = Annotated[int, Interval(ge=0, le=10**9)]
Samples = Annotated[int, Interval(ge=0, le=10**6)]  # samples printed during training, or tokens of each
Hours = Annotated[float, Interval(gt=0, le=100_000)]
Machines = Annotated[int, Interval(ge=1, le=1 << 16)]
Folds = Annotated[int, Interval(ge=2, le=1000)]  # folds of cross-validation
ItemCount = Annotated[int, Interval(ge=1, le=10**9)]  # documents, pairs, labeled texts or conversations
Calls = Annotated[int, Interval(ge=1, le=1000)]  # calls that score models on a sealed test part
Seed = Annotated[int, Interval(ge=0, lt=1 << 63)]

Share = Annotated[float, Interval(ge=0, le=1)]
ShareAboveZero = Annotated[float, Interval(gt=0, le=1)]
ShareBelowOne = Annotated[float, Interval(ge=0, lt=1)]
ShareBetween = Annotated[float, Interval(gt=0, lt=1)]
Threshold = Annotated[float, Interval(ge=0.25, le=1)]  # similarity of texts; lower ones would compare nearly all pairs
LearningRate = Annotated[float, Interval(ge=0, le=1000)]
WeightDecay = Annotated[float, Interval(ge=0, le=100)]
Epsilon = Annotated[float, Interval(ge=0, le=1)]
TargetMean = Annotated[float, Interval(ge=-limits.LABEL_NUMBER, le=limits.LABEL_NUMBER)]  # mean of numeric labels
TargetDeviation = Annotated[float, Interval(gt=1 / limits.LABEL_NUMBER, le=limits.LABEL_NUMBER)]
Deviation = Annotated[float, Interval(ge=0, le=1000)]  # standard deviation of initial weights

# Requests to a trained model.
NewTokens = Annotated[int, Interval(ge=0, le=limits.NEW_TOKENS)]
PromptSamples = Annotated[int, Interval(ge=1, le=limits.SAMPLES)]
Temperature = Annotated[float, Interval(ge=0, le=1000)]
TopK = Annotated[int, Interval(ge=1, le=1 << 24)]
RepetitionPenalty = Annotated[float, Interval(ge=0.01, le=100)]  # beyond this, float32 scores overflow
DraftTokens = Annotated[int, Interval(ge=1, le=limits.DRAFT_TOKENS)]
NGram = Annotated[int, Interval(ge=1, le=limits.NEW_TOKENS)]
Candidates = Annotated[int, Interval(ge=1, le=limits.CANDIDATES)]
BeamSize = Annotated[int, Interval(ge=1, le=limits.BEAM)]
LengthPenaltyPower = Annotated[float, Interval(ge=0, le=limits.MAX_LENGTH_PENALTY_POWER)]
CoverageWeight = Annotated[float, Interval(ge=0, le=1000)]
LengthRatio = Annotated[float, Interval(ge=0, le=1000)]
BatchTokens = Annotated[int, Interval(ge=1, le=limits.BATCH_TOKENS)]
BodyBytes = Annotated[int, Interval(ge=1, le=1 << 40)]
Seconds = Annotated[float, Interval(ge=0, le=86_400)]
ShardTokens = Annotated[int, Interval(ge=1 << 8, le=1 << 32)]  # approximate tokens per shard
ShardGroup = Annotated[int, Interval(ge=1, le=1 << 16)]  # shards whose rows are shuffled together
Workers = Annotated[int, Interval(ge=1, le=1024)]  # processes
PoolLines = Annotated[int, Interval(ge=1, le=limits.POOL_LINES)]

# The type of labels, with the names of the transformers library: one label per text, any number of labels per text, or
# one number per text.
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]

# A path, or the name of a column, an encoding or a project. Linux accepts paths of at most 4,096 bytes.
Name = Annotated[str, Len(1, 4096)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def spec(cls: type[Class]) -> type[Class]:
    """Make a class a frozen, keyword-only dataclass whose fields are checked against their ranges.

    A value out of range raises a ValueError, and a class or a text in place of a spec a TypeError. A `__post_init__` of
    the class is called after this check, and can check how fields fit together. The `repr` contains only the fields
    that differ from their defaults.

    Raises:
        TypeError: If a subclass of `Custom` has a field `kind`.
    """
    check_together = getattr(cls, "__post_init__", None)

    def check(self: Any) -> None:
        annotations = field_annotations(type(self))
        for field in dataclasses.fields(self):
            value, annotation = getattr(self, field.name), annotations[field.name]
            _check_instance(field.name, value, annotation)
            check_range(field.name, value, annotation)
        if check_together is not None:
            check_together(self)

    attributes = {"__post_init__": check, "__settings__": True, "__repr__": _summary, "_repr_html_": _table}
    for name, value in attributes.items():  # the type checker rejects plain assignments
        setattr(cls, name, value)
    decorated = dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)
    if issubclass(cls, Custom) and any(field.name == "kind" for field in dataclasses.fields(decorated)):  # type: ignore[arg-type]
        raise TypeError(f"remove the field kind of {cls.__name__}: the kind of a custom part is its import path")
    return decorated


class Custom:
    """Base class of specs that other packages define. A recipe selects them by import path.

    A union of specs that accepts custom ones contains a subclass of this class, such as `tercet.nn.CustomPosition`.
    Custom specs inherit from that subclass.

    Attributes:
        kind: Import path of the class, such as "my_package.fourier:Fourier".
    """

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.kind = f"{cls.__module__}:{cls.__qualname__}"


def _summary(self: Any) -> str:
    from tercet.notebook import summarize  # imported late, since specs are rarely printed

    return summarize(self)


def _table(self: Any) -> str:
    from tercet.notebook import settings_table

    return settings_table(self)


def check_problem_type(problem_type: ProblemType, over: str) -> None:
    """Check that a type of labels can be used for the labeled unit: texts have any type, tokens have single labels.

    Args:
        problem_type: Type of the labels.
        over: Labeled unit, "texts" or "tokens".

    Raises:
        ValueError: If the unit is tokens, and the type is not a single label.
    """
    if over == "tokens" and problem_type != "single_label_classification":
        raise ValueError(f"problem_type={problem_type} applies to texts, and a token has one label; set over to texts")


@cache
def field_annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of a dataclass by field, including the ranges in `Annotated`."""
    return get_type_hints(cls, include_extras=True)


def check_range(name: str, value: Any, annotation: Any) -> None:
    """Check that a value, or each item of a tuple, is within the ranges of an annotation.

    Nested specs, None if the annotation allows it, and members of a `Literal` are always accepted.

    Args:
        name: Name of the value for the message.
        value: Value of a field.
        annotation: Type of the field, with its ranges.

    Raises:
        ValueError: If the value is not within the ranges; the message contains name, value and range.
    """
    nullable = type(None) in get_args(annotation)
    is_word = isinstance(value, str) and value in literal_choices(annotation)
    if (value is None and nullable) or dataclasses.is_dataclass(value) or is_word:
        return
    for item in value if isinstance(value, tuple) else (value,):
        for bounds in find_bounds(annotation):
            if not is_within(item, bounds):
                words = [*literal_choices(annotation), *(["null"] if nullable else [])]
                alternatives = "".join(f", or {word}" for word in words)
                raise ValueError(f"{name}={show(item)} must {describe(bounds)}{alternatives}")


def _check_instance(name: str, value: Any, annotation: Any) -> None:
    """Check that a field that contains a spec has not got its class or its name, as in `position="rotary"`.

    Raises:
        TypeError: If it has.
    """
    if isinstance(value, type):
        raise TypeError(f"{name} is the class {value.__name__}; pass an object, such as {name}={value.__name__}()")
    if not isinstance(value, str):
        return
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    specs: list[type] = [
        member
        for member in members
        if isinstance(member, type) and (dataclasses.is_dataclass(member) or _is_custom(member))
    ]
    if not specs or not all(member in specs or member in (bool, types.NoneType) for member in members):
        return
    kinds = {getattr(member, "kind", None): f"{member.__name__}()" for member in specs if not _is_custom(member)}
    examples = [kinds[value]] if value in kinds else kinds.values()
    choices = ", ".join(f"{name}={example}" for example in examples)
    raise TypeError(f"{name}={value!r} is text; pass an object{f', such as {choices}' if choices else ''}")


def _is_custom(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, Custom)


def literal_choices(annotation: Any) -> Iterator[str]:
    """Yield the words in an annotation `X | Literal[...]`, which are allowed instead of a number."""
    for member in get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ():
        if get_origin(member) is Literal:
            yield from get_args(member)


def find_bounds(annotation: Any) -> Iterator[Interval | Len]:
    """Yield all bounds in an annotation, including those within `X | None` and `tuple[X, ...]`."""
    if get_origin(annotation) is Annotated:
        yield from (item for item in annotation.__metadata__ if isinstance(item, Interval | Len))
    elif get_origin(annotation) in (Union, types.UnionType, tuple):
        for member in get_args(annotation):
            yield from find_bounds(member)


def describe(bounds: Interval | Len) -> str:
    """Return the bounds as the end of a sentence with "must", such as "be at least 0 and below 1"."""
    if isinstance(bounds, Len):
        return f"have {bounds.min_length} to {bounds.max_length:,} characters, none of them a control character"
    words = {"above": bounds.gt, "at least": bounds.ge, "below": bounds.lt, "at most": bounds.le}
    return "be " + " and ".join(f"{word} {end:,}" for word, end in words.items() if end is not None)


def is_within(value: Any, bounds: Interval | Len) -> bool:
    """Return whether a number is within an `Interval`, or a text has the length and characters that `Len` requires.

    Booleans and NaN are not within any interval. Control characters and unpaired surrogates are invalid in texts.
    """
    if isinstance(bounds, Len):
        has_length = isinstance(value, str) and bounds.min_length <= len(value) <= (bounds.max_length or len(value))
        return has_length and not any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in value)
    number: Any = value
    return (
        not isinstance(value, bool)
        and isinstance(value, Real)
        and (bounds.gt is None or number > bounds.gt)
        and (bounds.ge is None or number >= bounds.ge)
        and (bounds.lt is None or number < bounds.lt)
        and (bounds.le is None or number <= bounds.le)  # comparisons with NaN are false
    )
