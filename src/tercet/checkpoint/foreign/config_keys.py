"""Reading of config.json files. Unsupported values are rejected, and nothing is guessed."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from tercet.config import UserError, suggest
from tercet.messages import shorten
from tercet.models import AnySpec, EncoderDecoderSpec
from tercet.nn.specs import Activation

Value = TypeVar("Value", int, float, str)
Spec = TypeVar("Spec", bound=AnySpec)

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
}
ACTIVATION_NAMES = {native: foreign for foreign, native in reversed(ACTIVATIONS.items())}  # of several names the first


def read_value(config: Mapping[str, Any], key: str, kind: type[Value], default: Value | None = None) -> Value:
    """Return a value of the config; `default` is that of the library for a missing key.

    Raises:
        UserError: If the value is missing or of another type.
    """
    value = default if config.get(key) is None else config[key]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        verb = "has no" if value is None else f"has {shorten(repr(value))} as"
        raise UserError(f"config.json {verb} {key}; put back the {kind.__name__} that the weights were trained with")
    return value


def read_bool(config: Mapping[str, Any], key: str, default: bool) -> bool:
    value = default if config.get(key) is None else config[key]
    if not isinstance(value, bool):
        raise UserError(
            f"config.json has {shorten(repr(value))} as {key}; put back the true or false of the trained model"
        )
    return value


def read_activation(config: Mapping[str, Any], key: str) -> Activation:
    name = read_value(config, key, str)
    if name not in ACTIVATIONS:
        raise UserError(f"{key} is {name!r}, which Tercet does not support{suggest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


def read_model_type(config: Mapping[str, Any], *kinds: str) -> str:
    """Return the model type (default: first of `kinds`). Raises UserError if it is not in `kinds`."""
    kind = config.get("model_type", kinds[0])
    if kind not in kinds:
        raise UserError(f"model_type is {shorten(repr(kind))}; expected {' or '.join(map(repr, kinds))}")
    return str(kind)


def check_settings(config: Mapping[str, Any], required: Mapping[str, bool], kind: str) -> None:
    """Reject a config with unsupported values: each key must be as `required`, or missing."""
    for key, value in required.items():
        if read_bool(config, key, value) != value:
            raise UserError(f"{key} is {str(not value).lower()}, which Tercet does not support for {kind}")


@contextmanager
def raise_config_errors(kind: str) -> Generator[None]:
    """Raise ValueErrors of a spec or a model as errors of the config."""
    try:
        with torch.random.fork_rng(devices=[]):  # building torch's own layers draws from the global generator
            yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"the config of this {kind} is inconsistent: {error}") from None


def with_ids(spec: Spec, n_ids: int | None) -> Spec:
    """Return the spec for a tokenizer of `n_ids`; further rows of the embedding only pad the vocabulary."""
    has_source_vocabulary = isinstance(spec, EncoderDecoderSpec) and spec.source_vocab_size is not None
    if n_ids is None or has_source_vocabulary or not 0 < n_ids < spec.vocab_size:
        return spec
    return replace(spec, vocab_size=n_ids, pad_vocab_to=spec.vocab_size)


@contextmanager
def name_in_errors(path: Path) -> Generator[None]:
    """Prefix the errors of a reader with the path."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def is_any_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Return whether a setting has one of these values, of the same type: 1 is not True."""
    return any(type(value) is type(option) and value == option for option in allowed)
