"""Tensors and weights of one block of a forward pass."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tercet.config import Plain, UserError, suggest
from tercet.explorer.overview import LENS_TOKENS, NEXT_TOKENS
from tercet.explorer.packing import PackedType, pack, packed_size
from tercet.explorer.passes import Pass
from tercet.inspect.lens import stacks_of, stream_names
from tercet.models import AnyModel, EncoderDecoder
from tercet.models.vocabulary import Unembedding

MAX_EXACT_CHARACTERS = 1_000_000  # packed size of a block above which its numbers are sent as uint16


def block_names(model: AnyModel) -> list[str]:
    """Return the names that `block` accepts: of each block, and of each stack, for the parts around its blocks."""
    return [
        name
        for stack, part in stacks_of(model).items()
        for name in (stack, *(f"{stack}.blocks.{i}" for i in range(len(part.blocks))))
    ]


def block(forward_pass: Pass, name: str, *, parameters: PackedType | None = None) -> Plain:
    """Return the tensors of one block, or those around the blocks of a stack.

    In the answer, `same` maps each tensor that shares memory with an earlier one to that tensor's name.

    Args:
        forward_pass: Recorded pass.
        name: Name of a block or a stack; see `block_names`.
        parameters: Type with which the weights are packed; None to leave them out.

    Raises:
        UserError: If the model has no such block, or a tensor contains NaN or infinity.
    """
    model, activations = forward_pass.trained_model.model, forward_pass.recording.activations
    if name not in block_names(model):
        raise UserError(f"the model has no block {name!r}{suggest(name, block_names(model))}")
    is_stack = name in stacks_of(model)
    if is_stack:
        source, names = _embedding_name(model, name), _names_around(forward_pass, name)
    else:
        stack = name.partition(".")[0]
        stream = stream_names(model)[stack]
        source = stream[stream.index(name) - 1]
        names = [source, *(key for key in activations if key == name or key.startswith(f"{name}."))]
    duplicates = _find_shared({tensor: activations[tensor] for tensor in names})
    distinct_tensors = {tensor: activations[tensor] for tensor in names if tensor not in duplicates}
    exact = sum(packed_size(tensor.shape, "float32") for tensor in distinct_tensors.values()) <= MAX_EXACT_CHARACTERS
    answer: Plain = {
        "name": name,
        "input": source,
        "tensors": {key: pack(tensor[0], "float32" if exact else "uint16") for key, tensor in distinct_tensors.items()},
        "same": duplicates,
        "parameters": {} if parameters is None else packed_parameters(model, name, parameters),
    }
    if is_stack and name == forward_pass.recording.stack and forward_pass.recording.logits is not None:
        answer["unembedding"] = _unembedding(forward_pass)
    return answer


def _find_shared(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Map the name of each tensor that has the memory and shape of an earlier one to the name of that one.

    For example, dropout in evaluation mode returns its input.
    """
    first: dict[tuple[int, torch.Size], str] = {}
    owners = {name: first.setdefault((tensor.data_ptr(), tensor.shape), name) for name, tensor in tensors.items()}
    return {name: owner for name, owner in owners.items() if owner != name}


def parameters_of(model: AnyModel, name: str) -> dict[str, Tensor]:
    """Return the weights of a block, or those around the blocks of a stack except embeddings, by parameter name."""
    if name in stacks_of(model):
        prefixes = [f"{name}.embedding_norm.", f"{name}.final_norm."]
        prefixes += ["transform."] if name == list(stacks_of(model))[-1] else []
    else:
        prefixes = [f"{name}."]
    return {key: weight for key, weight in model.named_parameters() if key.startswith(tuple(prefixes))}


def packed_parameters(model: AnyModel, name: str, kind: PackedType) -> dict[str, Plain]:
    """Return the weights of `parameters_of`, packed with the type `kind`."""
    return {key: pack(weight, kind) for key, weight in parameters_of(model, name).items()}


def _embedding_name(model: AnyModel, stack: str) -> str:
    return "source_embedding" if isinstance(model, EncoderDecoder) and stack == "encoder" else "embedding"


def _names_around(forward_pass: Pass, stack: str) -> list[str]:
    """Return the names of the recorded tensors around the blocks of a stack, in the order of the forward pass."""
    model, activations = forward_pass.trained_model.model, forward_pass.recording.activations
    names = [_embedding_name(model, stack), "segment_embedding"]
    names += [f"{stack}.{part}" for part in ("position.embed", "embedding_norm", "dropout", "final_norm")]
    names += [key for key in activations if key == "transform" or key.startswith("transform.")]
    return [name for name in names if name in activations]


def _unembedding(forward_pass: Pass) -> Plain:
    """Return the unembedding's rows for the tokens that the page shows.

    These are the NEXT_TOKENS likeliest ones after the default row, and the LENS_TOKENS likeliest ones after each row.
    """
    logits, part = forward_pass.recording.logits, forward_pass.trained_model.model.unembedding
    assert logits is not None
    assert isinstance(part, Unembedding)
    likely = logits[forward_pass.at].topk(min(NEXT_TOKENS, logits.shape[-1])).indices.tolist()
    lens_ids = logits.topk(min(LENS_TOKENS, logits.shape[-1])).indices.unique().tolist()
    ids = sorted({*likely, *lens_ids})
    return {
        "ids": ids,
        "rows": pack(part.weight[ids]),
        "bias": None if part.bias is None else pack(part.bias[ids]),
        "softcap": part.softcap,
    }
