"""Which weights of a model learn: all of them, all but frozen ones, or an adapter's and those that are new."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tercet.config import UserError, suggest

if TYPE_CHECKING:
    from torch import nn

    from tercet.models import AnyModel
    from tercet.nn.specs import LoRA

HEAD = "classifier."  # what says the labels, which are the run's own even where it begins with another's weights


def set_trainable(
    model: "AnyModel",
    new: Sequence[str] = (),
    *,
    freeze: Sequence[str] = (),
    adapter: "LoRA | None" = None,
    seed: int = 0,
) -> None:
    """Freeze parts of a model, and put an adapter into it.

    Args:
        new: Names of the weights that no pretrained model had.
        freeze: Names of parts that do not learn.
        adapter: What learns in place of the pretrained weights.
        seed: Seed of the adapter's initial weights.

    Raises:
        UserError: where a name is no part of the model, or nothing is left to learn.
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
            raise UserError(f"freeze: no part of the model is called {pattern!r}{suggest(pattern, modules)}")
        for name in names:
            model.get_parameter(name).requires_grad_(False)
    if not trainable_parameters(model):
        raise UserError("freeze: nothing is left to learn; leave a part out")


def trainable_parameters(model: "nn.Module") -> "list[nn.Parameter]":
    """Those that learn, tied ones once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _is_part(name: str, pattern: str) -> bool:
    """Whether a parameter is what `pattern` names, or within it: "stack.blocks.0", "encoder", "*.bias"."""
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)
