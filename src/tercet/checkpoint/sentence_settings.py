"""Settings by which the hidden states of a text become one vector, as two files in a Tercet folder.

    text_vectors.json           pooling, maximum length, prompts, activations of the dense layers
    text_vectors.safetensors    weights of the dense layers: 0.weight (D', D), 0.bias (D'), 1.weight, ...

A folder without these files has the default settings. Folders of Sentence-Transformers contain the same settings in
other files (`foreign/sentence_folder.py`, `foreign/sentence_export.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Interval
from torch import Tensor, nn

from tercet.checkpoint.weights import read_tensors, write_tensors
from tercet.config import UserError, parse, suggest, to_plain
from tercet.messages import counted
from tercet.nn.specs import Pooling
from tercet.reading.bounded_json import read_json_file
from tercet.spec import Width
from tercet.storage import write_atomically

SETTINGS, WEIGHTS = "text_vectors.json", "text_vectors.safetensors"

TextLength = Annotated[int, Interval(ge=3, le=1 << 30)]  # tokens of a text, with bos and eos
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity, "tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "sigmoid": nn.Sigmoid, "silu": nn.SiLU,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SentenceSettings:
    """Settings for the vector of a text.

    Attributes:
        pooling: "mean" of the hidden states of all tokens, that of the "first" token, or the "max" of each number.
        max_len: Maximum number of tokens of a text; None for the model's maximum.
        normalize: If True, Sentence-Transformers scales the vectors to length 1. In Tercet, the caller decides.
        dense: Activations of the layers that are applied to the pooled vector.
        prompts: Prompts by name, which Sentence-Transformers puts before a text on request. Tercet only stores them.
        include_prompt: If False, the tokens of such a prompt are left out of the pooling.
        similarity: Similarity of two vectors in Sentence-Transformers; None for its default.
        sizes: Sizes to which vectors may be cut, in addition to the whole vector (Matryoshka).
    """

    pooling: Pooling = "mean"
    max_len: TextLength | None = None
    normalize: bool = True
    dense: tuple[str, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict[str, str])
    include_prompt: bool = True
    similarity: Similarity | None = None
    sizes: tuple[Width, ...] = ()

    def __post_init__(self) -> None:
        for activation in self.dense:
            if activation not in ACTIVATIONS:
                raise ValueError(
                    f"unknown activation {activation!r} of a dense layer{suggest(activation, ACTIVATIONS)}"
                )

    def describe(self) -> str:
        """Return the settings that change vectors, in words."""
        longest = "" if self.max_len is None else f", at most {self.max_len} tokens"
        layers = f", {counted(len(self.dense), 'dense layer', 'dense layers')}" if self.dense else ""
        sizes = f", sizes {', '.join(map(str, self.sizes))}" if self.sizes else ""
        return f"pooling {self.pooling}{longest}{layers}{sizes}"


def build_projection(dense: Sequence[str], state: Mapping[str, Tensor], *, width: int, path: Path) -> nn.Sequential:
    """Return the dense layers with their activations, which map a pooled vector (D) to the vector of a text (D').

    Args:
        dense: Activations of the layers, at least one.
        state: Weights by their names in text_vectors.safetensors.
        width: Width D of the hidden states.
        path: Path of the weights, for the error message.

    Raises:
        UserError: If a weight is missing, unexpected, or has a wrong shape or type.
    """
    modules, rest = list[nn.Module](), dict(state)
    for number, activation in enumerate(dense):
        weight, bias = rest.pop(f"{number}.weight", None), rest.pop(f"{number}.bias", None)
        if (
            weight is None
            or weight.ndim != 2
            or weight.shape[1] != width
            or (bias is not None and bias.shape != weight.shape[:1])
            or not all(tensor.is_floating_point() for tensor in (weight, bias) if tensor is not None)
        ):
            raise UserError(f"{path} has no suitable weights for dense layer {number + 1}; copy it again")
        width = weight.shape[0]
        layer = nn.Linear(weight.shape[1], width, bias=bias is not None, device="meta")  # without random weights
        layer.weight = nn.Parameter(weight.float())
        if bias is not None:
            layer.bias = nn.Parameter(bias.float())
        modules += [layer, ACTIVATIONS[activation]()]
    if rest:
        raise UserError(f"{path} has unknown weights: {', '.join(sorted(rest))}; copy it again")
    return nn.Sequential(*modules).eval().requires_grad_(False)


def dense_layers(projection: nn.Sequential | None) -> list[nn.Linear]:
    """Return the dense layers of a projection, without their activations."""
    return [] if projection is None else [layer for layer in projection if isinstance(layer, nn.Linear)]


def write_text_vectors(folder: Path, settings: SentenceSettings, projection: nn.Sequential | None) -> None:
    """Write the files of the settings into a model folder, unless they are the defaults.

    Raises:
        UserError: If a file cannot be written.
    """
    if settings == SentenceSettings():
        return
    text = json.dumps(to_plain(settings), indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / SETTINGS, text.encode())
    if projection is not None:
        state = {
            f"{number}.{name}": tensor
            for number, layer in enumerate(dense_layers(projection))
            for name, tensor in layer.state_dict().items()
        }
        write_tensors(folder / WEIGHTS, state)


def read_text_vectors(folder: Path, width: int) -> tuple[SentenceSettings, nn.Sequential | None]:
    """Read the settings of a Tercet folder, and the dense layers (None if there are none).

    Args:
        folder: Model folder.
        width: Width D of the hidden states.

    Raises:
        UserError: If a file is damaged, or the dense layers do not fit the model.
    """
    path = folder / SETTINGS
    settings = parse(SentenceSettings, read_json_file(path), name=str(path)) if path.is_file() else SentenceSettings()
    if not settings.dense:
        return settings, None
    state = read_tensors(folder / WEIGHTS)
    return settings, build_projection(settings.dense, state, width=width, path=folder / WEIGHTS)
