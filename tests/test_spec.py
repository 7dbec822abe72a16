"""The ranges of numeric settings: stated in their types, and checked in recipes and in Python."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from tercet.data import LabelsSpec, PairsSpec, TextSpec
from tercet.explorer.queries import QUERIES
from tercet.generation import Beam, Draft, Lookup, Sampling
from tercet.models import Classifier, StackSpec
from tercet.nn import Rotary
from tercet.objectives import Masking
from tercet.serve.engine import Limits
from tercet.spec import check_range, field_annotations, find_bounds
from tercet.tokens.specs import Words
from tercet.training import TrainingSpec
from tercet.training.optim.schedules import WSD, Cosine, LinearDecay
from tercet.training.optim.specs import Adam, AdamW, Muon
from tercet.training.recipe.recipe import RECIPES
from tercet.training.recipe.task_specs import LanguageTaskSpec

HUGE = int("f" * 5000, 16)  # too long for Python to print


def specs(annotation: Any) -> Iterator[type]:
    """Yield all dataclasses that an annotation allows, and recursively those of their fields."""
    for member in (annotation, *get_args(annotation)):
        if dataclasses.is_dataclass(member) and isinstance(member, type):
            yield member
            for hint in get_type_hints(member).values():
                yield from specs(hint)


def all_specs(*roots: type) -> list[type]:
    return sorted({spec for root in roots for spec in specs(root)}, key=lambda spec: spec.__name__)


SPECS = all_specs(*RECIPES.values(), Limits, Sampling, Beam, Lookup, Draft, *QUERIES.values())


def numeric(annotation: Any) -> bool:
    """Return whether an annotation without its ranges allows a number; a boolean is not a number."""
    if annotation in (int, float):
        return True
    return get_origin(annotation) is not Literal and any(map(numeric, get_args(annotation)))


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return (annotation, *get_args(annotation))


def test_the_walk_finds_all_specs() -> None:
    assert {
        Muon,
        AdamW,
        Adam,
        TrainingSpec,
        Rotary,
        Masking,
        Words,
        Classifier,
        TextSpec,
        PairsSpec,
        LabelsSpec,
    } <= set(SPECS)
    assert len(SPECS) > 50


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.__name__)
def test_each_number_has_a_lower_and_an_upper_bound_and_each_text_a_length(spec: type) -> None:
    for name, plain in get_type_hints(spec).items():
        bounds = list(find_bounds(field_annotations(spec)[name]))
        if numeric(plain):
            assert bounds, f"{spec.__name__}.{name} has no range"
            for interval in bounds:
                assert (interval.ge is None) != (interval.gt is None), f"{spec.__name__}.{name} may be below all bounds"
                assert (interval.le is None) != (interval.lt is None), f"{spec.__name__}.{name} may be above all bounds"


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.__name__)
def test_value_outside_of_range_is_rejected(spec: type) -> None:
    """The fields are set from Python; `parse` uses the same check."""
    required = {
        field.name
        for field in dataclasses.fields(spec)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    plain = get_type_hints(spec)
    for name, annotation in field_annotations(spec).items():
        for interval in (item for item in find_bounds(annotation) if numeric(plain[name])):
            low = interval.gt if interval.ge is None else interval.ge - 1
            high = interval.lt if interval.le is None else interval.le * 2 + 1
            for value in (low, math.nan, "1", *([] if math.isinf(high) else [high, math.inf])):
                with pytest.raises(ValueError, match=f"{name}=.* must be "):
                    check_range(name, value, annotation)
                # Modules also check the types of their arguments while tests run, so the number must have the right
                # type.
                kind = float if float in _kinds(plain[name]) else int
                if not required - {name} and not isinstance(value, str) and (kind is float or isinstance(value, int)):
                    with pytest.raises(ValueError, match=f"{name}=.* must be "):
                        spec(**{name: kind(value)})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AdamW(lr=-1), "lr=-1 must be at least 0 and at most 1,000"),
        (lambda: Muon(momentum=5), "momentum=5 must be at least 0 and below 1"),
        (lambda: Adam(beta1=1.0), "beta1=1.0 must be at least 0 and below 1"),
        (lambda: WSD(cooldown=0), "cooldown=0 must be above 0 and at most 1"),
        (lambda: Cosine(final=math.nan), "final=nan must be at least 0 and at most 1"),
        (
            lambda: LinearDecay(final=HUGE),
            "final=an integer too large to display must be at least 0 and at most 1",
        ),
        (
            lambda: TrainingSpec(max_steps=10**12),
            "max_steps=1000000000000 must be at least 1 and at most 1,000,000,000, or null",
        ),
        (lambda: TextSpec(source="a\0b"), r"source='a\\x00b' must have 1 to 4,096 characters, none of them a control"),
        (lambda: Words(min_count=0), "min_count=0 must be at least 1"),
        (lambda: dataclasses.replace(AdamW(), weight_decay=-1), "weight_decay=-1 must be at least 0"),
    ],
)
def test_in_python(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"position": "rotary"}, r"position='rotary' is text; pass an object, such as position=Rotary\(\)"),
        ({"position": "rope"}, r"pass an object, such as position=Learned\(\), position=Sinusoidal\(\)"),
        ({"position": Rotary}, r"position is the class Rotary; pass an object, such as position=Rotary\(\)"),
        ({"dropout": "none"}, r"dropout='none' is text; pass an object"),
        ({"bias": "false"}, r"bias='false' is text; pass an object"),
    ],
)
def test_name_or_class_in_place_of_a_spec_is_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        StackSpec(d_model=8, n_layers=1, n_heads=2, **settings)


def test_objective_in_a_task_is_an_object() -> None:
    with pytest.raises(TypeError, match=r"objective is the class Adam; pass an object, such as objective=Adam\(\)"):
        LanguageTaskSpec(objective=Adam)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"objective='focal' is text; pass an object$"):
        LanguageTaskSpec(objective="focal")  # type: ignore[arg-type]
