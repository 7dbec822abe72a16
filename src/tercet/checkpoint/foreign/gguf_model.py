"""Import and export of GPT-2, Llama, Qwen3 and Arcee in the format of llama.cpp, by way of that of `transformers`.

The names and two layouts differ. Queries and keys of a Llama or Arcee rotate in pairs (i, i + K/2) in Tercet and
`transformers`, and in pairs (2i, 2i + 1) in llama.cpp, so the rows of their matrices are reordered. Matrices of a GPT-2
are stored as (out, in), and in `transformers` as (in, out). The activation is not stored: `ACTIVATION` lists that of
each architecture. The sizes in the settings must agree with the shapes of the tensors.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tercet.checkpoint.foreign.config_keys import ACTIVATION_NAMES
from tercet.checkpoint.foreign.gguf_file import GgufFile
from tercet.checkpoint.foreign.gguf_rotation import FREQUENCIES, TYPE, read_scaling, write_scaling
from tercet.checkpoint.foreign.gguf_settings import check_settings
from tercet.checkpoint.foreign.gguf_support import (
    ACTIVATION,
    INTERLEAVED,
    TITLES,
    Architecture,
    gguf_support,
    nearest_architecture,
)
from tercet.checkpoint.foreign.gpt2 import from_gpt2, gpt2_spec, to_gpt2
from tercet.checkpoint.foreign.llama import from_llama, llama_spec, to_llama
from tercet.checkpoint.foreign.state_dict import foreign_name
from tercet.checkpoint.weights import first_names
from tercet.config import Plain, UserError
from tercet.models import DecoderOnly, DecoderOnlySpec

LLAMA_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.N.input_layernorm": "blk.N.attn_norm",
    "model.layers.N.self_attn.q_proj": "blk.N.attn_q",
    "model.layers.N.self_attn.k_proj": "blk.N.attn_k",
    "model.layers.N.self_attn.v_proj": "blk.N.attn_v",
    "model.layers.N.self_attn.o_proj": "blk.N.attn_output",
    "model.layers.N.post_attention_layernorm": "blk.N.ffn_norm",
    "model.layers.N.mlp.up_proj": "blk.N.ffn_up",
    "model.layers.N.mlp.down_proj": "blk.N.ffn_down",
}
GATE = {"model.layers.N.mlp.gate_proj": "blk.N.ffn_gate"}
QK_NORMS = {
    "model.layers.N.self_attn.q_norm": "blk.N.attn_q_norm",
    "model.layers.N.self_attn.k_norm": "blk.N.attn_k_norm",
}
NAMES: dict[Architecture, dict[str, str]] = {
    "llama": LLAMA_NAMES | GATE,
    "qwen3": LLAMA_NAMES | GATE | QK_NORMS,
    "arcee": LLAMA_NAMES,
    "gpt2": {
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.ln_f": "output_norm",
        "lm_head": "output",
        "transformer.h.N.ln_1": "blk.N.attn_norm",
        "transformer.h.N.attn.c_attn": "blk.N.attn_qkv",
        "transformer.h.N.attn.c_proj": "blk.N.attn_output",
        "transformer.h.N.ln_2": "blk.N.ffn_norm",
        "transformer.h.N.mlp.c_fc": "blk.N.ffn_up",
        "transformer.h.N.mlp.c_proj": "blk.N.ffn_down",
    },
}
TRANSPOSED_WEIGHTS = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")  # of a GPT-2
BIAS_LAYERS = {"attention": ("attn_q", "attn_k", "attn_v", "attn_output"), "mlp": ("ffn_gate", "ffn_up", "ffn_down")}
BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)")


def from_gguf(file: GgufFile, *, n_ids: int) -> DecoderOnly:
    """Build the model in a GGUF file, in eval mode.

    Args:
        file: The file.
        n_ids: Number of the tokenizer's ids. Further rows of the embedding only pad the vocabulary.

    Raises:
        UserError: If the architecture or a feature is not supported, or the file is incomplete.
    """
    description = _describe(file)
    if description.kind == "gpt2":
        return from_gpt2(_config_of_gpt2(description), _state_of_gpt2(description), n_ids=n_ids)
    config = _config_of_llama(description)
    return from_llama(config, _state_of_llama(description, config), n_ids=n_ids)


def gguf_spec(file: GgufFile, *, n_ids: int) -> DecoderOnlySpec:
    """Return the spec of the model that `from_gguf` would build, from the settings and the tensors' names and shapes.

    No tensor is read, except for `rope_freqs.weight` if the file of a Llama contains it.

    Raises:
        UserError: If the architecture or a feature is not supported, or the file is incomplete.
    """
    description = _describe(file)
    if description.kind == "gpt2":
        return gpt2_spec(_config_of_gpt2(description), {}, n_ids=n_ids)
    return llama_spec(_config_of_llama(description), {}, n_ids=n_ids)


def to_gguf(model: DecoderOnly) -> tuple[Plain, dict[str, Tensor]]:
    """Return settings and tensors of a GGUF file for a model; the inverse of `from_gguf`.

    Raises:
        UserError: If the architecture does not support a feature of the model; the feature is named.
    """
    gguf_support(model.spec).check()
    kind = nearest_architecture(model.spec)
    config, state = to_gpt2(model) if kind == "gpt2" else to_llama(model, kind)
    tensors = {foreign_name(name, NAMES[kind]): tensor for name, tensor in state.items()}
    if kind == "gpt2":
        tensors = {name: tensor.T if name.endswith(TRANSPOSED_WEIGHTS) else tensor for name, tensor in tensors.items()}
        settings = _settings_of_gpt2(config)
    else:
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        tensors = {
            name: _interleave_rows(tensor, heads[part])
            if kind in INTERLEAVED and (part := _part(name)) in heads
            else tensor
            for name, tensor in tensors.items()
        }
        scaling, divisors = write_scaling(model.spec.stack)
        settings, tensors = settings_of_llama(config) | scaling, tensors | divisors
    return {"general.architecture": kind, **{f"{kind}.{key}": value for key, value in settings.items()}}, tensors


@dataclass(frozen=True)
class _Description:
    """A GGUF file and its architecture. Keys are passed without the prefix of the architecture, such as "llama."."""

    file: GgufFile
    kind: Architecture

    def read_int(self, key: str, default: int | None = None) -> int:
        value = self.file.settings.get(f"{self.kind}.{key}", default)
        if type(value) is not int or value < 1:
            raise UserError(f"{self.kind}.{key} is {value!r}; it must be a whole number of at least 1")
        return value

    def read_float(self, key: str, default: float | None = None) -> float:
        value = self.file.settings.get(f"{self.kind}.{key}", default)
        if type(value) is not float or not math.isfinite(value) or value <= 0:
            raise UserError(f"{self.kind}.{key} is {value!r}; it must be a number above 0")
        with np.errstate(over="ignore"):
            single = np.float32(value)
        return float(str(single)) if single == value else value  # shortest decimal of the float32: 1e-05

    def rotation(self) -> Any:
        """Return the kind of scaling of the rotation."""
        return self.file.settings.get(f"{self.kind}.{TYPE}", "none")

    def divisors(self) -> Tensor | None:
        """Return the numbers that frequencies of the rotation are divided by; None if the file has none."""
        return self.file.tensor(FREQUENCIES) if FREQUENCIES in self.file.locations else None

    def n_rows(self, name: str) -> int:
        return self.file.locations[name].shape[0]

    def check(self, keys: str, name: str, *shape: int) -> None:
        """Compare sizes in the settings with the shape of a matrix, before a model of that size is built.

        Args:
            keys: Keys of the settings that determine the shape, separated by spaces.
            name: Name of the matrix.
            shape: Shape according to the settings.

        Raises:
            UserError: If the matrix has another shape.
        """
        locations = self.file.locations[name].shape
        if locations != shape:
            names = " and ".join(f"{self.kind}.{key}" for key in keys.split())
            expected, actual = ("x".join(map(str, sizes)) for sizes in (shape, locations))
            raise UserError(f"{name} has shape {actual} instead of {expected}, as set by {names}; copy the file again")

    def state(self) -> dict[str, Tensor]:
        """Return all tensors by their names in `transformers`."""
        return {foreign_name(name, self.transformers_names()): self.file.tensor(name) for name in self.names()}

    def transformers_names(self) -> dict[str, str]:
        return {gguf_name: name for name, gguf_name in NAMES[self.kind].items()}

    def names(self) -> list[str]:
        return [name for name in self.file.locations if name != FREQUENCIES]

    def n_blocks(self) -> int:
        """Return the number of blocks. They must be alike, so that the model is not larger than its file.

        Raises:
            UserError: If a tensor is missing or unknown, the blocks differ, or `block_count` is another number.
        """
        blocks: dict[int, dict[str, tuple[int, ...]]] = {}
        for name in self.names():
            if match := BLOCK.fullmatch(name):
                blocks.setdefault(int(match[1]), {})[match[2]] = self.file.locations[name].shape
        if sorted(blocks) != list(range(len(blocks))) or not blocks:
            raise UserError("its blocks are not numbered consecutively from 0; copy the file again")
        odd_block = next((number for number, shapes in blocks.items() if shapes != blocks[0]), None)
        if len(blocks) != self.read_int("block_count"):
            raise UserError(
                f"{self.kind}.block_count is {self.read_int('block_count')}, but there are {len(blocks)} blocks"
            )
        if odd_block is not None:
            raise UserError(f"its block {odd_block} differs from block 0 in tensors or sizes; copy the file again")
        known_names = set(NAMES[self.kind].values())
        unknown = [name for name in self.names() if BLOCK.sub(r"blk.N.\2", name).rpartition(".")[0] not in known_names]
        required_names = [f"{name.replace('.N.', '.0.')}.weight" for name in known_names - {"output"}]
        missing = sorted(name for name in required_names if name not in self.file.locations)
        if unknown or missing:
            reason = f"lacks {first_names(missing)}" if missing else f"has {first_names(unknown)}"
            raise UserError(f"it {reason}, unlike a supported {TITLES[self.kind]}")
        return len(blocks)


def _describe(file: GgufFile) -> _Description:
    kind = file.settings.get("general.architecture")
    if not isinstance(kind, str) or kind not in NAMES:  # the value may be of any type
        raise UserError(f"its architecture is {kind!r}; supported: {', '.join(map(repr, NAMES))}")
    check_settings(file.settings, kind)
    return _Description(file, kind)


def _config_of_llama(description: _Description) -> Plain:
    if description.file.settings.get(f"{description.kind}.expert_count", 0):
        raise UserError("it is a mixture of experts, which Tercet does not support")
    n_blocks = description.n_blocks()
    heads = description.read_int("attention.head_count")
    kv_heads = description.read_int("attention.head_count_kv", heads)
    width = description.read_int("embedding_length")
    head_dim = description.read_int("attention.key_length", max(width // heads, 1))
    rotary_dim = description.read_int("rope.dimension_count", head_dim)
    if rotary_dim != head_dim or description.read_int("attention.value_length", head_dim) != head_dim:
        raise UserError(
            f"its keys are {head_dim} wide, of which {rotary_dim} are rotated; keys (attention.key_length), values "
            "(attention.value_length) and rotation (rope.dimension_count) must have equal widths"
        )
    inner, n_rows = description.read_int("feed_forward_length"), description.n_rows("token_embd.weight")
    description.check("embedding_length", "token_embd.weight", n_rows, width)
    description.check("feed_forward_length embedding_length", "blk.0.ffn_up.weight", inner, width)
    description.check("attention.head_count embedding_length", "blk.0.attn_q.weight", heads * head_dim, width)
    description.check("attention.head_count_kv embedding_length", "blk.0.attn_k.weight", kv_heads * head_dim, width)
    has_bias = {
        part: any(f"blk.0.{name}.bias" in description.file.locations for name in names)
        for part, names in BIAS_LAYERS.items()
    }
    base, context = description.read_float("rope.freq_base", 10_000.0), description.read_int("context_length")
    return {
        "model_type": description.kind,
        "vocab_size": n_rows,
        "max_position_embeddings": context,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": n_blocks,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": ACTIVATION_NAMES[ACTIVATION[description.kind]],
        "rms_norm_eps": description.read_float("attention.layer_norm_rms_epsilon"),
        "rope_theta": base,
        "rope_scaling": read_scaling(
            description.rotation(), description, description.divisors(), base=base, head_dim=head_dim, context=context
        ),
        "tie_word_embeddings": "output.weight" not in description.file.locations,
        **{f"{part}_bias": value for part, value in has_bias.items()},
    }


def _state_of_llama(description: _Description, config: Plain) -> dict[str, Tensor]:
    state, transformers_names, head_dim = description.state(), description.transformers_names(), config["head_dim"]
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for part, n in heads.items() if description.kind in INTERLEAVED else ():
        for name in [name for name in state if f".{part}." in name]:
            if len(state[name]) != n * head_dim or head_dim % 2:
                raise UserError(
                    f"{name} has {len(state[name])} rows; expected {n} heads of {head_dim} rows (an even number)"
                )
            state[name] = _deinterleave_rows(state[name], n)
    for part, names in BIAS_LAYERS.items():  # some files lack one of the four biases of attention, which is then zero
        for name in names if config[f"{part}_bias"] else ():
            if f"blk.N.{name}" not in transformers_names:
                continue
            for number in range(config["num_hidden_layers"]):
                bias_name = foreign_name(f"blk.{number}.{name}.bias", transformers_names)
                state.setdefault(bias_name, torch.zeros(len(state[bias_name.removesuffix("bias") + "weight"])))
    return state


def _config_of_gpt2(description: _Description) -> Plain:
    n_blocks = description.n_blocks()
    width, heads = description.read_int("embedding_length"), description.read_int("attention.head_count")
    inner, n_rows, context = (
        description.read_int("feed_forward_length"),
        description.n_rows("token_embd.weight"),
        description.read_int("context_length"),
    )
    description.check("embedding_length", "token_embd.weight", n_rows, width)
    description.check("context_length embedding_length", "position_embd.weight", context, width)
    description.check("feed_forward_length embedding_length", "blk.0.ffn_up.weight", inner, width)
    description.check("embedding_length", "blk.0.attn_qkv.weight", 3 * width, width)
    return {
        "model_type": "gpt2",
        "vocab_size": n_rows,
        "n_positions": context,
        "n_embd": width,
        "n_layer": n_blocks,
        "n_head": heads,
        "n_inner": inner,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": description.read_float("attention.layer_norm_epsilon"),
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": "output.weight" not in description.file.locations,
    }


def _state_of_gpt2(description: _Description) -> dict[str, Tensor]:
    transposed_names = {
        foreign_name(f"blk.0.{name}", description.transformers_names()).partition(".0.")[2]
        for name in TRANSPOSED_WEIGHTS
    }
    return {
        name: tensor.T if tensor.ndim == 2 and name.endswith(tuple(transposed_names)) else tensor
        for name, tensor in description.state().items()
    }


def settings_of_llama(config: Mapping[str, Any]) -> Plain:
    """Return the settings of a file, without the prefix of the architecture, for a config with the keys of a Llama."""
    return {
        "vocab_size": config["vocab_size"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.dimension_count": config["head_dim"],
        "rope.freq_base": float(config["rope_theta"]),
    }


def _settings_of_gpt2(config: Mapping[str, Any]) -> Plain:
    return {
        "context_length": config["n_positions"],
        "embedding_length": config["n_embd"],
        "block_count": config["n_layer"],
        "feed_forward_length": 4 * config["n_embd"] if config["n_inner"] is None else config["n_inner"],
        "attention.head_count": config["n_head"],
        "attention.layer_norm_epsilon": float(config["layer_norm_epsilon"]),
    }


def _interleave_rows(rows: Tensor, heads: int) -> Tensor:
    """Reorder the K rows of each head so that row i + K/2 follows row i."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)


def _deinterleave_rows(rows: Tensor, heads: int) -> Tensor:
    """Reverse `_interleave_rows`."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(rows.shape)


def _part(name: str) -> str:
    return name.split(".")[-2]
