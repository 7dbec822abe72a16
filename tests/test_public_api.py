"""The public API of `import tercet` is fully typed and documented."""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

import tercet
import tercet.nn
from tercet.evaluate.tasks.evaluation import EvaluationOptions
from tercet.generation import Beam, Sampling
from tercet.generation.specs import BeamOptions, SamplingOptions, TranslationOptions
from tercet.serve.serve_options import ServeOptions
from tercet.serve.server import serve


def public_functions() -> Iterator[tuple[str, Any]]:
    for name in tercet.__all__:
        export = getattr(tercet, name)
        if not inspect.isclass(export):
            yield name, export
            continue
        for attribute, member in vars(export).items():
            if inspect.isfunction(member) and not attribute.startswith("_"):
                yield f"{name}.{attribute}", member


def test_dir_shows_public_names_only() -> None:
    assert isinstance(tercet.nn, ModuleType)  # an imported submodule
    assert {name for name in dir(tercet) if not name.startswith("__")} == set(tercet.__all__)


@pytest.mark.parametrize(("name", "function"), list(public_functions()))
def test_every_keyword_has_a_type(name: str, function: Any) -> None:
    assert inspect.getdoc(function), name
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name != "self":
            assert parameter.annotation not in (Any, inspect.Parameter.empty), f"{name}: {parameter}"


@pytest.mark.parametrize(
    ("options", "function"), [(SamplingOptions, Sampling), (BeamOptions, Beam), (ServeOptions, serve)]
)
def test_options_are_keywords_of_their_function(options: Any, function: Any) -> None:
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)  # without ranges
    keywords = {
        name: hints[name]
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert get_type_hints(options) == keywords


def test_options_of_a_translation_are_the_keywords_of_translations() -> None:
    parameters = inspect.signature(tercet.Run.translations).parameters
    keywords = {name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
    assert set(get_type_hints(TranslationOptions)) == keywords | set(get_type_hints(BeamOptions))
    (beam_options,) = get_args(parameters["beam"].annotation)
    assert beam_options is BeamOptions


def test_options_of_an_evaluation_are_those_of_all_tasks() -> None:
    from tercet.evaluate import LanguageEvaluation, TranslationEvaluation, score_labels, score_masked

    tasks = (LanguageEvaluation.score, TranslationEvaluation.score, TranslationEvaluation.evaluate, score_masked)
    keywords = {
        name
        for function in (*tasks, score_labels)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert set(get_type_hints(EvaluationOptions)) == keywords - {"document_mask", "resamples"}
