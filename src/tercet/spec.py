"""A spec: settings as a frozen dataclass, each number within the range that stands in its type.

    @spec
    class Cosine:
        final: Annotated[float, Interval(ge=0, le=1)] = 0.1

    Cosine(final=2)     ValueError: final=2 must be at least 0 and at most 1

The range holds however a spec is made: from a recipe, from a model's folder, or in Python. What several settings are,
such as a width or a share, is named here, once. The upper bounds are far above what is trained anywhere and far below
what would overflow, loop for ever or take all memory by a slip of the finger.
"""

import dataclasses
import types
from collections.abc import Iterator
from functools import cache
from numbers import Real
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from annotated_types import Interval as Interval
from annotated_types import Len as Len

from tercet import limits
from tercet.messages import show

Class = TypeVar("Class")

Layers = Annotated[int, Interval(ge=1, le=4096)]  # also heads
Index = Annotated[int, Interval(ge=0, lt=1 << 24)]  # of a layer, a token
Width = Annotated[int, Interval(ge=1, le=1 << 20)]
Context = Annotated[int, Interval(ge=1, le=1 << 24)]  # tokens that are looked at together, and strides over them
VocabularySize = Annotated[int, Interval(ge=0, le=1 << 24)]
Rows = Annotated[int, Interval(ge=1, le=1 << 24)]  # of a batch
Tokens = Annotated[int, Interval(ge=1, le=1 << 40)]
Steps = Annotated[int, Interval(ge=1, le=10**9)]
StepsOrNone = Annotated[int, Interval(ge=0, le=10**9)]
Samples = Annotated[int, Interval(ge=0, le=10**6)]  # for people to read
Machines = Annotated[int, Interval(ge=1, le=1 << 16)]
Seed = Annotated[int, Interval(ge=0, lt=1 << 63)]

Share = Annotated[float, Interval(ge=0, le=1)]
ShareAboveZero = Annotated[float, Interval(gt=0, le=1)]
ShareBelowOne = Annotated[float, Interval(ge=0, lt=1)]
ShareBetween = Annotated[float, Interval(gt=0, lt=1)]
LearningRate = Annotated[float, Interval(ge=0, le=1000)]
WeightDecay = Annotated[float, Interval(ge=0, le=100)]
Epsilon = Annotated[float, Interval(ge=0, le=1)]
TargetMean = Annotated[float, Interval(ge=-limits.LABEL_NUMBER, le=limits.LABEL_NUMBER)]  # of labels that are numbers
TargetDeviation = Annotated[float, Interval(gt=1 / limits.LABEL_NUMBER, le=limits.LABEL_NUMBER)]
Deviation = Annotated[float, Interval(ge=0, le=1000)]  # of weights when they begin

# What is asked of a trained model.
NewTokens = Annotated[int, Interval(ge=0, le=limits.NEW_TOKENS)]
PromptSamples = Annotated[int, Interval(ge=1, le=limits.SAMPLES)]
Temperature = Annotated[float, Interval(ge=0, le=1000)]
TopK = Annotated[int, Interval(ge=1, le=1 << 24)]
RepetitionPenalty = Annotated[float, Interval(ge=0.01, le=100)]  # beyond, scores of a float32 overflow
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
ShardTokens = Annotated[int, Interval(ge=1 << 8, le=1 << 32)]  # of a file of tokens, about
ShardGroup = Annotated[int, Interval(ge=1, le=1 << 16)]  # shards whose rows are shuffled together
Workers = Annotated[int, Interval(ge=1, le=1024)]  # processes
PoolLines = Annotated[int, Interval(ge=1, le=limits.POOL_LINES)]

# Of labels, in the words of the transformers library: one of several, any number of them, or a number.
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]

# A path, or the name of a file's column, an encoding, a project: what the system takes, and no NUL or line break.
Name = Annotated[str, Len(1, 4096)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def spec(cls: type[Class]) -> type[Class]:
    """A frozen dataclass with keywords alone, which refuses with a ValueError what is outside of its ranges, before its
    `__post_init__` looks at what must fit together. It is written as what differs from its defaults."""
    check_together = getattr(cls, "__post_init__", None)

    def check(self: Any) -> None:
        for field in dataclasses.fields(self):
            check_range(field.name, getattr(self, field.name), field_annotations(type(self))[field.name])
        if check_together is not None:
            check_together(self)

    attributes = {"__post_init__": check, "__settings__": True, "__repr__": _summary, "_repr_html_": _table}
    for name, value in attributes.items():  # which a type has not, says the type checker
        setattr(cls, name, value)
    return dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)


def _summary(self: Any) -> str:
    from tercet.notebook import summarize  # when one is shown, which few are

    return summarize(self)


def _table(self: Any) -> str:
    from tercet.notebook import settings_table

    return settings_table(self)


def check_problem_type(problem_type: ProblemType, over: str) -> None:
    """Raises:
    ValueError: where tokens are to have something else than one label each.
    """
    if over == "tokens" and problem_type != "single_label_classification":
        raise ValueError(f"problem_type={problem_type} applies to texts, and a token has one label; set over to texts")


@cache
def field_annotations(cls: type) -> dict[str, Any]:
    """The annotation of each field, with its ranges."""
    return get_type_hints(cls, include_extras=True)


def check_range(name: str, value: Any, annotation: Any) -> None:
    """Whether a value, or each of a tuple's, is within the ranges of an annotation: the one message for all of them.

    Raises:
        ValueError: with name, value and range.
    """
    nullable, choices = type(None) in get_args(annotation), tuple(literal_choices(annotation))
    if (value is None and nullable) or dataclasses.is_dataclass(value) or (isinstance(value, str) and value in choices):
        return
    alternatives = "".join(f", or {word}" for word in (*choices, *(["null"] if nullable else [])))
    for item in value if isinstance(value, tuple) else (value,):
        for bounds in find_bounds(annotation):
            if not is_within(item, bounds):
                raise ValueError(f"{name}={show(item)} must {describe(bounds)}{alternatives}")


def literal_choices(annotation: Any) -> Iterator[str]:
    """What may stand in a number's place: the members of `Literal` in `X | Literal[...]`."""
    for member in get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ():
        if get_origin(member) is Literal:
            yield from get_args(member)


def find_bounds(annotation: Any) -> Iterator[Interval | Len]:
    """All that stand in an annotation, also within `X | None` and `tuple[X, ...]`."""
    if get_origin(annotation) is Annotated:
        yield from (item for item in annotation.__metadata__ if isinstance(item, Interval | Len))
    elif get_origin(annotation) in (Union, types.UnionType, tuple):
        for member in get_args(annotation):
            yield from find_bounds(member)


def describe(bounds: Interval | Len) -> str:
    """`be at least 0 and below 1`."""
    if isinstance(bounds, Len):
        return f"have {bounds.min_length} to {bounds.max_length:,} characters, none of them a control character"
    words = {"above": bounds.gt, "at least": bounds.ge, "below": bounds.lt, "at most": bounds.le}
    return "be " + " and ".join(f"{word} {end:,}" for word, end in words.items() if end is not None)


def is_within(value: Any, bounds: Interval | Len) -> bool:
    """Whether a number is in its range; a text has its length, and no control character or half a surrogate pair."""
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
        and (bounds.le is None or number <= bounds.le)  # a NaN is above, below and equal to nothing
    )
