"""What happens inside a model: every tensor of a pass under its module's own name, and what follows if one is changed.

    with record(model) as activations:
        logits = model(tokens)
    activations["stack.blocks.0.self_attention.weights"]  # (B, H, T, S)

Each module's output stands under the module's name. Beside them there are, of

    an attention A      A.q A.k A.v A.scores A.mask A.weights A.heads    as in `attend_by_hand`; scores before the mask
    a feed-forward F    F.activations                                    what F.down reads
    positions P         P.embed                                          what is added to the embedding, if it is

While it is on, attention is the formula, written out, so that there are weights to note; the fused one has none.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tercet.config import suggest
from tercet.nn import Attention, FeedForward
from tercet.nn.attention import Mask, Note, attend_by_hand
from tercet.nn.document_mask import BlockMask, dense_mask
from tercet.nn.positions import PositionScheme

ATTENTION = ("q", "k", "v", "scores", "mask", "weights", "heads")
COMPILED_ATTRIBUTE = "_compiled_call_impl"  # where torch keeps what `module.compile()` made


@dataclass(frozen=True, kw_only=True)
class Edit:
    """What stands in place of a tensor of the pass; the rest of the pass goes on from there.

    Attributes:
        name: as in `record`.
        value: a number, or a tensor that broadcasts to the whole one, such as the same name of another recording.
        heads: only these, of a tensor that has heads (q, k, v, scores, weights, heads); all by default.
        positions: only these, of the last dimension but one; all by default.
    """

    name: str
    value: Tensor | float = 0.0
    heads: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None

    def apply(self, tensor: Tensor) -> Tensor:
        """The tensor with the edit made.

        Raises:
            ValueError: for heads or positions that it does not have, or a value of another shape.
        """
        is_edited = torch.ones((), dtype=torch.bool, device=tensor.device)
        if self.heads is not None:
            if self.name.rpartition(".")[2] not in ATTENTION:
                raise ValueError(f"{self.name} has no heads; name its q, k, v, scores, weights or heads")
            is_edited = is_edited & self._index_mask("head", self.heads, tensor, 1)
        if self.positions is not None:
            is_edited = is_edited & self._index_mask("position", self.positions, tensor, tensor.ndim - 2)
        value = torch.as_tensor(self.value, dtype=tensor.dtype, device=tensor.device)
        try:
            return torch.where(is_edited, value.expand_as(tensor), tensor)
        except RuntimeError:
            raise ValueError(
                f"the edit of {self.name} has a value of shape {tuple(value.shape)} "
                f"for a tensor of {tuple(tensor.shape)}"
            ) from None

    def _index_mask(self, kind: str, numbers: Sequence[int], tensor: Tensor, dim: int) -> Tensor:
        size = tensor.shape[dim]
        out_of_range = [number for number in numbers if not 0 <= number < size]
        if out_of_range:
            raise ValueError(f"{self.name} has no {kind} {out_of_range[0]}; there are {size}, 0 to {size - 1}")
        is_selected = torch.zeros(size, dtype=torch.bool, device=tensor.device)
        is_selected[list(numbers)] = True
        return is_selected.view(-1, *[1] * (tensor.ndim - 1 - dim))


@contextmanager
def record(
    model: nn.Module, *, edits: Sequence[Edit] = (), patterns: Sequence[str] = ("*",)
) -> Generator[dict[str, Tensor]]:
    """Note the tensors of each pass made within, and make the edits on the way; a later pass overwrites an earlier one.

    The outputs stay what they were, to rounding; what is noted is detached from the graph. When it ends, with an
    exception too, the model is as it was.

    Args:
        patterns: patterns, as of file names, of the names to note; edits are made in any case.

    Yields:
        the tensors by name, filled as the model is called.

    Raises:
        ValueError: for an edit of a name that the model does not have or no pass came by, and for a model that is being
            recorded already.
    """
    tensor_names = names(model)
    for edit in edits:
        if edit.name not in tensor_names:
            raise ValueError(f"the model has no {edit.name!r}{suggest(edit.name, tensor_names)}")
    activations: dict[str, Tensor] = {}
    pending_edits = {edit.name for edit in edits}

    def note(name: str, tensor: Tensor) -> Tensor:
        for edit in edits:
            if edit.name == name:
                tensor = edit.apply(tensor)
                pending_edits.discard(name)
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            activations[name] = tensor.detach()
        return tensor

    with ExitStack() as undo:
        for name, part in model.named_modules():
            _listen(undo, name, part, note)
        yield activations
    if pending_edits:
        raise ValueError(f"no pass came by {', '.join(sorted(pending_edits))}, so the edit was not made")


def names(model: nn.Module) -> list[str]:
    """Every name that `record` may note, in the order of the modules."""
    tensor_names: list[str] = []
    for name, part in model.named_modules():
        match part:
            case Attention():
                tensor_names += [f"{name}.{kind}" for kind in ATTENTION]
            case FeedForward():
                tensor_names.append(f"{name}.activations")
            case PositionScheme():
                tensor_names.append(f"{name}.embed")
            case _:
                pass
        tensor_names += [name] if name else []
    return tensor_names


def _listen(undo: ExitStack, name: str, part: nn.Module, note: Note) -> None:
    """Hook one module, and leave in `undo` how to take the hook off."""
    compiled = getattr(part, COMPILED_ATTRIBUTE, None)
    if compiled is not None:  # what was compiled without hooks does not see them
        undo.callback(setattr, part, COMPILED_ATTRIBUTE, compiled)
        setattr(part, COMPILED_ATTRIBUTE, None)
    match part:
        case Attention():
            _replace(undo, part, "attend", partial(_attend, name, note))
        case FeedForward():
            hook = partial(_note_input, f"{name}.activations", note)
            undo.callback(part.down.register_forward_pre_hook(hook).remove)
        case PositionScheme():
            _replace(undo, part, "embed", partial(_embed, f"{name}.embed", note, part.embed))
        case _:
            pass
    if name:
        undo.callback(part.register_forward_hook(partial(_note_output, name, note)).remove)


def _replace(undo: ExitStack, part: nn.Module, method: str, replacement: Callable[..., Any]) -> None:
    if method in vars(part):
        raise ValueError("the model is being recorded already; end that recording first")
    setattr(part, method, replacement)
    undo.callback(delattr, part, method)


def _attend(
    name: str, note: Note, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | BlockMask | None = None,
    causal: bool = False, **options: Any,
) -> Tensor:  # fmt: skip
    """`attend_by_hand`, which notes its steps; where all see all there is a mask that says so."""
    if isinstance(mask, BlockMask):
        mask = dense_mask(mask)
    if mask is None and not causal:
        mask = torch.ones(1, 1, q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    return attend_by_hand(q, k, v, mask=mask, causal=causal, note=lambda kind, x: note(f"{name}.{kind}", x), **options)


def _embed(name: str, note: Note, embed: Callable[[Tensor], Tensor | None], positions: Tensor) -> Tensor | None:
    embedded = embed(positions)
    return None if embedded is None else note(name, embedded)


def _note_input(name: str, note: Note, _part: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (note(name, inputs[0]), *inputs[1:])


def _note_output(name: str, note: Note, _part: nn.Module, _inputs: Any, output: Any) -> Any:
    return note(name, output) if isinstance(output, Tensor) else output
