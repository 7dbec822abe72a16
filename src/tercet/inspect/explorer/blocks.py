"""One block of a pass, whole: every tensor in it, and the weights that made them."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from tercet.config import Plain, UserError, nearest
from tercet.inspect.explorer.overview import BEST, LIKELY
from tercet.inspect.explorer.packing import Kind, pack, size
from tercet.inspect.explorer.reading import Pass
from tercet.inspect.lens import stacks_of, stream_names
from tercet.models import AnyModel, EncoderDecoder
from tercet.models.vocabulary import Unembedding

EXACT = 1_000_000  # characters up to which the numbers of a block are given as they are, beyond it in 65,535 steps


def block_names(model: AnyModel) -> list[str]:
    """What may be asked for: each stack, for what lies around its blocks, and each block."""
    return [
        name
        for stack, part in stacks_of(model).items()
        for name in (stack, *(f"{stack}.blocks.{i}" for i in range(len(part.blocks))))
    ]


def block(made: Pass, name: str, *, parameters: Kind | None = None) -> Plain:
    """The tensors of one block, or those around the blocks of a stack; `same` names those that another one is as well.

    Args:
        parameters: how to pack the weights that belong to them, if they are wanted.

    Raises:
        UserError: where the model has no such block, with the nearest name.
    """
    model, seen = made.trained.model, made.reading.seen
    known = block_names(model)
    if name not in known:
        raise UserError(f"the model has no block {name!r}{nearest(name, known)}")
    around = name in stacks_of(model)
    if around:
        source, chosen = _embedding(model, name), _around(made, name)
    else:
        stack = name.partition(".")[0]
        stream = stream_names(model)[stack]
        source = stream[stream.index(name) - 1]
        chosen = [source, *(one for one in seen if one == name or one.startswith(f"{name}."))]
    same = _shared({one: seen[one] for one in chosen})
    own = [one for one in chosen if one not in same]
    exact = sum(size(seen[one].shape, "float32") for one in own) <= EXACT
    answer: Plain = {
        "name": name,
        "input": source,
        "tensors": {one: pack(seen[one][0], "float32" if exact else "uint16") for one in own},
        "same": same,
        "parameters": {} if parameters is None else packed_parameters(model, name, parameters),
    }
    if around and name == made.stack and made.reading.logits is not None:
        answer["unembedding"] = _unembedding(made)
    return answer


def _shared(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The names of tensors that an earlier one is as well, such as what a dropout at rest leaves: sent once."""
    first: dict[tuple[int, torch.Size], str] = {}
    known = {name: first.setdefault((one.data_ptr(), one.shape), name) for name, one in tensors.items()}
    return {name: earlier for name, earlier in known.items() if earlier != name}


def parameters_of(model: AnyModel, name: str) -> dict[str, Tensor]:
    """The weights that belong to a block, or around the blocks of a stack; embeddings are seen, and not among them."""
    if name in stacks_of(model):
        prefixes = [f"{name}.embedding_norm.", f"{name}.final_norm."]
        prefixes += ["transform."] if name == list(stacks_of(model))[-1] else []
    else:
        prefixes = [f"{name}."]
    return {known: one for known, one in model.named_parameters() if known.startswith(tuple(prefixes))}


def packed_parameters(model: AnyModel, name: str, kind: Kind) -> dict[str, Plain]:
    return {known: pack(one, kind) for known, one in parameters_of(model, name).items()}


def _embedding(model: AnyModel, stack: str) -> str:
    return "source_embedding" if isinstance(model, EncoderDecoder) and stack == "encoder" else "embedding"


def _around(made: Pass, stack: str) -> list[str]:
    """In the order of the pass."""
    model, seen = made.trained.model, made.reading.seen
    names = [_embedding(model, stack), "segment_embedding"]
    names += [f"{stack}.{part}" for part in ("position.embed", "embedding_norm", "dropout", "final_norm")]
    names += [one for one in seen if one == "transform" or one.startswith("transform.")]
    return [one for one in names if one in seen]


def _unembedding(made: Pass) -> Plain:
    """The rows of the unembedding for the tokens that are shown: the likeliest ones of each place."""
    logits, part = made.reading.logits, made.trained.model.unembedding
    assert logits is not None
    assert isinstance(part, Unembedding)
    likely = logits[made.at].topk(min(LIKELY, logits.shape[-1])).indices.tolist()
    ids = sorted({*likely, *_numbers(logits.topk(min(BEST, logits.shape[-1])).indices)})
    return {
        "ids": ids,
        "rows": pack(part.weight[ids]),
        "bias": None if part.bias is None else pack(part.bias[ids]),
        "softcap": part.softcap,
    }


def _numbers(tensor: torch.Tensor) -> Iterable[int]:
    return map(int, tensor.unique().tolist())
