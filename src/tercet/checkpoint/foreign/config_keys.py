"""Reading of the settings in config.json files. Missing, invalid and unsupported values are rejected."""

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
ACTIVATION_NAMES = {native: foreign for foreign, native in reversed(ACTIVATIONS.items())}  # the first of several names


def read_value(config: Mapping[str, Any], key: str, kind: type[Value], default: Value | None = None) -> Value:
    """Return a value of the config.

    Args:
        config: Content of config.json.
        key: Key of the value.
        kind: Type of the value; a whole number is also accepted as a float.
        default: Value that the other library assumes if the key is missing or null; None if the key is required.

    Raises:
        UserError: If the value is missing without a default, or is of another type.
    """
    value = default if config.get(key) is None else config[key]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        verb = "has no" if value is None else f"has {shorten(repr(value))} as"
        raise UserError(f"config.json {verb} {key}; put back the {kind.__name__} that the weights were trained with")
    return value


def read_bool(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return a boolean of the config, or `default` if the key is missing or null. Raises UserError for other types."""
    value = default if config.get(key) is None else config[key]
    if not isinstance(value, bool):
        raise UserError(
            f"config.json has {shorten(repr(value))} as {key}; put back the true or false of the trained model"
        )
    return value


def read_activation(config: Mapping[str, Any], key: str) -> Activation:
    """Return Tercet's name of an activation in the config. Raises UserError if it is missing or not supported."""
    name = read_value(config, key, str)
    if name not in ACTIVATIONS:
        raise UserError(f"{key} is {name!r}, which Tercet does not support{suggest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


def read_model_type(config: Mapping[str, Any], *kinds: str) -> str:
    """Return `model_type` (if missing, the first of `kinds`). Raises UserError if it is not one of `kinds`."""
    kind = config.get("model_type", kinds[0])
    if kind not in kinds:
        raise UserError(f"model_type is {shorten(repr(kind))}; expected {' or '.join(map(repr, kinds))}")
    return str(kind)


def check_settings(config: Mapping[str, Any], required: Mapping[str, bool], kind: str) -> None:
    """Reject a config with unsupported values: each key must have the `required` value or be missing.

    Args:
        config: Content of config.json.
        required: Supported value of each key.
        kind: Name of the third-party model, for error messages.

    Raises:
        UserError: If a key has another value.
    """
    for key, value in required.items():
        if read_bool(config, key, value) != value:
            raise UserError(f"{key} is {str(not value).lower()}, which Tercet does not support for {kind}")


@contextmanager
def raise_config_errors(kind: str) -> Generator[None]:
    """Turn a ValueError of a spec or model into a UserError about the config of a third-party model.

    PyTorch's random generator has the same state afterwards. `kind` is the name of the model.
    """
    try:
        with torch.random.fork_rng(devices=[]):  # building torch's own layers draws from the global generator
            yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"the config of this {kind} is inconsistent: {error}") from None


def with_ids(spec: Spec, n_ids: int | None) -> Spec:
    """Return the spec with a vocabulary of `n_ids`; further rows of the embedding only pad the vocabulary.

    The spec is returned unchanged if `n_ids` is None or not smaller than the vocabulary, or if the source of a
    translator has its own vocabulary.
    """
    has_source_vocabulary = isinstance(spec, EncoderDecoderSpec) and spec.source_vocab_size is not None
    if n_ids is None or has_source_vocabulary or not 0 < n_ids < spec.vocab_size:
        return spec
    return replace(spec, vocab_size=n_ids, pad_vocab_to=spec.vocab_size)


@contextmanager
def name_in_errors(path: Path | str) -> Generator[None]:
    """Prefix the message of each UserError with `path`, which may also be a part of a file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def is_any_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Return whether a setting has one of the allowed values and the same type as that value: 1 is not True."""
    return any(type(value) is type(option) and value == option for option in allowed)
