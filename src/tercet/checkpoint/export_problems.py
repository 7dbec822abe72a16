"""Properties of a model that prevent its conversion to the format of another program.

The conversion makes the same checks. Since they need no weights, they show before training whether it will succeed.
"""

from collections.abc import Callable, Mapping

from tercet.checkpoint.foreign.ctranslate2_support import ctranslate2_support
from tercet.checkpoint.foreign.gguf_support import gguf_support
from tercet.checkpoint.foreign.onnx_folder import onnx_support
from tercet.checkpoint.foreign.peft_folder import peft_support
from tercet.checkpoint.foreign.transformers_folder import transformers_support
from tercet.config import UserError
from tercet.models import AnySpec, EncoderDecoderSpec, EncoderOnlySpec
from tercet.tokens import Tokenizer
from tercet.tokens.gguf import to_settings

SENTENCE_TRANSFORMERS = "sentence-transformers"
LIKE_HF = (SENTENCE_TRANSFORMERS, "peft")  # formats that contain a model of `transformers`
INAPPLICABLE = ("family", "classifier:")  # properties that a user does not change in order to convert a model
MAX_LISTED = 3  # maximum problems per format in a description


def export_problems(spec: AnySpec, tokenizer: Tokenizer | None = None) -> dict[str, list[str]]:
    """Return the formats to which a model cannot be converted, with the properties that prevent it.

    Example: `{"hf": ["stack.position: alibi"], "gguf": ["stack.position: alibi"]}`.

    Args:
        spec: Spec of the model.
        tokenizer: Tokenizer of the model, for a translator that of the target (default: only the spec is checked).
    """
    found = {name: problems(spec, tokenizer) for name, problems in PROBLEMS.items()}
    return {name: problems for name, problems in found.items() if problems}


def describe_export_problems(problems_by_format: Mapping[str, list[str]]) -> str | None:
    """Describe the result of `export_problems` in one line; return None if there are no problems.

    Formats that do not support any model of the same kind are left out, and so are those with the problems of hf.
    """
    formats: dict[str, list[str]] = {}  # by their problems
    for name, problems in problems_by_format.items():
        if name not in LIKE_HF and not problems[0].startswith(INAPPLICABLE):
            rest = f" and {len(problems) - MAX_LISTED} more" if len(problems) > MAX_LISTED else ""
            formats.setdefault(f"{', '.join(problems[:MAX_LISTED])}{rest}", []).append(name)
    words = [f"{' or '.join(names)} ({problems})" for problems, names in formats.items()]
    return f"cannot be converted to {' or '.join(words)}" if words else None


def _transformers_problems(spec: AnySpec, _tokenizer: Tokenizer | None) -> list[str]:
    return transformers_support(spec).describe()


def _peft_problems(spec: AnySpec, _tokenizer: Tokenizer | None) -> list[str]:
    return peft_support(spec).describe()


def _sentence_problems(spec: AnySpec, tokenizer: Tokenizer | None) -> list[str]:
    return _transformers_problems(spec, tokenizer) if isinstance(spec, EncoderOnlySpec) else [f"family: {spec.family}"]


def _ctranslate2_problems(spec: AnySpec, tokenizer: Tokenizer | None) -> list[str]:
    return ctranslate2_support(spec, has_end=tokenizer is None or tokenizer.eos_id is not None).describe()


def _gguf_problems(spec: AnySpec, tokenizer: Tokenizer | None) -> list[str]:
    problems = gguf_support(spec).describe()
    if tokenizer is not None and not isinstance(spec, EncoderDecoderSpec):
        try:
            to_settings(tokenizer, framed=isinstance(spec, EncoderOnlySpec))
        except UserError as error:
            problems.append(str(error).partition("; ")[0])
    return problems


def _onnx_problems(spec: AnySpec, _tokenizer: Tokenizer | None) -> list[str]:
    return onnx_support(spec).describe()


PROBLEMS: dict[str, Callable[[AnySpec, Tokenizer | None], list[str]]] = {  # by name of the format
    "hf": _transformers_problems,
    SENTENCE_TRANSFORMERS: _sentence_problems,
    "ctranslate2": _ctranslate2_problems,
    "gguf": _gguf_problems,
    "onnx": _onnx_problems,
    "peft": _peft_problems,
}
