"""Select the trainable weights of a model: all, all except frozen ones, or only an adapter and new weights."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tercet.config import UserError, suggest

if TYPE_CHECKING:
    from torch import nn

    from tercet.models import AnyModel
    from tercet.nn.specs import LoRA

HEAD = "classifier."  # the classifier is trained in addition to an adapter, since its labels are those of the run


def set_trainable(
    model: "AnyModel",
    new: Sequence[str] = (),
    *,
    freeze: Sequence[str] = (),
    adapter: "LoRA | None" = None,
    seed: int = 0,
) -> None:
    """Freeze parts of a model, and insert an adapter.

    Args:
        model: Model, changed in place.
        new: Names of weights that the pretrained model lacks. With an adapter, they are trained in addition to it;
            without one, all weights are trained and the names have no effect.
        freeze: Names of modules or parameters that are not trained, or patterns of parameter names such as "*.bias".
        adapter: Adapter that is trained instead of the pretrained weights; None to train these.
        seed: Seed of the initial weights of the adapter.

    Raises:
        UserError: If a name in `freeze` or a target of the adapter is not part of the model, or if no weight remains
            trainable.
    """
    if adapter is not None:
        from tercet.nn.lora import add_lora

        try:
            add_lora(model, adapter, seed=seed)
        except ValueError as error:
            raise UserError(f"adapter.{error}") from None
        for name, parameter in model.named_parameters():
            if name in new or name.startswith(HEAD):
                parameter.requires_grad_(True)
    for pattern in freeze:
        names = [name for name, _ in model.named_parameters() if _is_part(name, pattern)]
        if not names:
            modules = (name for name, _ in model.named_modules() if name)
            raise UserError(f"freeze: no module or parameter is called {pattern!r}{suggest(pattern, modules)}")
        for name in names:
            model.get_parameter(name).requires_grad_(False)
    if not trainable_parameters(model):
        raise UserError("freeze: no trainable weights remain; leave out a part")


def trainable_parameters(model: "nn.Module") -> "list[nn.Parameter]":
    """Return the trainable parameters of a model, each tied parameter only once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _is_part(name: str, pattern: str) -> bool:
    """Return whether `pattern` selects the parameter `name`.

    The pattern is the name of the parameter, the name of a module that contains it, or a pattern such as "*.bias".
    """
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)
