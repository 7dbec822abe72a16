"""Record and edit the intermediate tensors of a forward pass, by the names of their modules.

    with record(model) as activations:
        logits = model(tokens)
    activations["stack.blocks.0.self_attention.weights"]  # (B, H, T, S)

The output of each module is recorded under the module's name. There are also these tensors:

    attention A       A.q A.k A.v A.scores A.mask A.weights A.heads    as in `attend_by_hand`; scores before the mask,
                                                                       after the cap. A subclass with its own `attend`
                                                                       only has q, k, v and heads.
    feed-forward F    F.activations                                    the input of F.down
    positions P       P.embed                                          the vector added to the embedding, if any

During recording, attention is computed by `attend_by_hand`, because fused kernels do not produce weights.
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
INPUTS_AND_HEADS = ("q", "k", "v", "heads")
COMPILED_ATTRIBUTE = "_compiled_call_impl"  # attribute in which torch stores the result of `module.compile()`


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Replacement of a tensor in a forward pass. Later computations use the new value.

    Attributes:
        name: Name of the tensor, as in `record`.
        value: New value: a number, or a tensor that broadcasts to the shape of the edited tensor, such as the same
            tensor of another recording.
        heads: Heads to edit (default: all). Only q, k, v, scores, weights and heads of an attention module have heads.
        positions: Positions to edit, which are indices of the second to last axis (default: all).
    """

    name: str
    value: Tensor | float = 0.0
    heads: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None

    def apply(self, tensor: Tensor) -> Tensor:
        """Return the edited tensor.

        Raises:
            ValueError: If the tensor does not have these heads or positions, or if the shape of the value does not fit.
        """
        is_edited = torch.ones((), dtype=torch.bool, device=tensor.device)
        if self.heads is not None:
            if self.name.rpartition(".")[2] not in ATTENTION:
                raise ValueError(
                    f"{self.name} has no heads; use q, k, v, scores, weights or heads of an attention module"
                )
            is_edited = is_edited & self._index_mask("head", self.heads, tensor, 1)
        if self.positions is not None:
            is_edited = is_edited & self._index_mask("position", self.positions, tensor, tensor.ndim - 2)
        value = torch.as_tensor(self.value, dtype=tensor.dtype, device=tensor.device)
        try:
            return torch.where(is_edited, value.expand_as(tensor), tensor)
        except RuntimeError:
            raise ValueError(
                f"edit of {self.name}: a value of shape {tuple(value.shape)} "
                f"does not broadcast to {tuple(tensor.shape)}"
            ) from None

    def _index_mask(self, kind: str, numbers: Sequence[int], tensor: Tensor, dim: int) -> Tensor:
        size = tensor.shape[dim]
        out_of_range = [number for number in numbers if not 0 <= number < size]
        if out_of_range:
            raise ValueError(f"{self.name} has no {kind} {out_of_range[0]}; it has {size}, 0 to {size - 1}")
        is_selected = torch.zeros(size, dtype=torch.bool, device=tensor.device)
        is_selected[list(numbers)] = True
        return is_selected.view(-1, *[1] * (tensor.ndim - 1 - dim))


@contextmanager
def record(
    model: nn.Module, *, edits: Sequence[Edit] = (), patterns: Sequence[str] = ("*",)
) -> Generator[dict[str, Tensor]]:
    """Record the tensors of each forward pass in the context, with edits applied.

    Each forward pass overwrites the tensors of the previous one. Without edits the outputs are unchanged up to
    rounding. Recorded tensors are detached. When the context ends, also with an exception, the model is restored.

    Args:
        model: Model to record.
        edits: Edits to apply, also to tensors whose names no pattern matches.
        patterns: Patterns of the names to record, with wildcards as in file names.

    Yields:
        A dictionary of the tensors by name, which is filled when the model is called.

    Raises:
        ValueError: If the model does not have a tensor with the name of an edit, or is already being recorded; at the
            end of the context, if no forward pass computed the tensor of an edit.
    """
    tensor_names = names(model)
    for edit in edits:
        if edit.name not in tensor_names:
            raise ValueError(f"the model has no tensor to edit called {edit.name!r}{suggest(edit.name, tensor_names)}")
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
        raise ValueError(f"edit not applied: no forward pass computed {', '.join(sorted(pending_edits))}")


def names(model: nn.Module) -> list[str]:
    """Return all names that `record` can record, in the order of the modules."""
    tensor_names: list[str] = []
    for name, part in model.named_modules():
        match part:
            case Attention():
                tensor_names += [
                    f"{name}.{kind}" for kind in (INPUTS_AND_HEADS if _has_own_attend(part) else ATTENTION)
                ]
            case FeedForward():
                tensor_names.append(f"{name}.activations")
            case PositionScheme():
                tensor_names.append(f"{name}.embed")
            case _:
                pass
        tensor_names += [name] if name else []
    return tensor_names


def _listen(undo: ExitStack, name: str, part: nn.Module, note: Note) -> None:
    """Add the hooks of one module, and register their removal in `undo`."""
    compiled = getattr(part, COMPILED_ATTRIBUTE, None)
    if compiled is not None:  # a module that was compiled without hooks ignores them
        undo.callback(setattr, part, COMPILED_ATTRIBUTE, compiled)
        setattr(part, COMPILED_ATTRIBUTE, None)
    match part:
        case Attention():
            attend = partial(_attend_by_part, part.attend) if _has_own_attend(part) else _attend
            _replace(undo, part, "attend", partial(attend, name, note))
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
        raise ValueError("the model is already being recorded; end that recording first")
    setattr(part, method, replacement)
    undo.callback(delattr, part, method)


def _attend(
    name: str, note: Note, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | BlockMask | None = None,
    causal: bool = False, **options: Any,
) -> Tensor:  # fmt: skip
    """Compute `attend_by_hand` and record its tensors.

    If every token may attend to every other, the recorded mask is all True.
    """
    if isinstance(mask, BlockMask):
        mask = dense_mask(mask)
    if mask is None and not causal:
        mask = torch.ones(1, 1, q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    return attend_by_hand(q, k, v, mask=mask, causal=causal, note=lambda kind, x: note(f"{name}.{kind}", x), **options)


def _has_own_attend(part: Attention) -> bool:
    return type(part).attend is not Attention.attend


def _attend_by_part(
    attend: Callable[..., Tensor], name: str, note: Note, q: Tensor, k: Tensor, v: Tensor, **options: Any
) -> Tensor:
    """Call the method of a subclass and record its inputs and its result."""
    q, k, v = (note(f"{name}.{kind}", x) for kind, x in (("q", q), ("k", k), ("v", v)))
    return note(f"{name}.heads", attend(q, k, v, **options))


def _embed(name: str, note: Note, embed: Callable[[Tensor], Tensor | None], positions: Tensor) -> Tensor | None:
    embedded = embed(positions)
    return None if embedded is None else note(name, embedded)


def _note_input(name: str, note: Note, _part: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (note(name, inputs[0]), *inputs[1:])


def _note_output(name: str, note: Note, _part: nn.Module, _inputs: Any, output: Any) -> Any:
    return note(name, output) if isinstance(output, Tensor) else output
