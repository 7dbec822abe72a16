"""Export of the best and the last model of a run, as folders from which they can be loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tercet.checkpoint.run_record import Change
from tercet.config import to_plain

if TYPE_CHECKING:
    import torch

    from tercet.training.loop.step_actions import Export
    from tercet.training.tasks.task import Task


def export_to(task: "Task", out: Path, changes: Sequence[Change]) -> "Export":
    """Return a function that saves the current model as the folder `best` or `last` in a run folder.

    Args:
        task: Task of the run.
        out: Run folder.
        changes: All changes of the recipe, for the model card.
    """
    from tercet.checkpoint import Card, current_versions, git_commit

    commit, versions = git_commit(), current_versions()

    def export(folder: Literal["best", "last"], module: Any, step: int, metrics: dict[str, float]) -> None:
        state = gathered_state(module.eval_model)
        if not module.trainer.is_global_zero:
            return
        card = Card(
            name=out.name, step=step, tokens_seen=module.tokens_seen, metrics=metrics, data_name=task.data_name,
            data_hash=task.data_hash, tokenizer_hash=task.tokenizer_hash, versions=versions, git_commit=commit,
            recipe=to_plain(task.recipe), kept_as=folder, changes=[change.to_plain() for change in changes],
        )  # fmt: skip
        # `state` may be that of the moving average. Only the weights of `module.model` have `requires_grad` flags.
        task.save(out / folder, module.model, card, state)

    return export


def gathered_state(model: "torch.nn.Module") -> "dict[str, torch.Tensor]":
    """Return the state dict of a model, with whole tensors on the CPU.

    All ranks must call this. Only the result on rank 0 contains the weights that are sharded.
    """
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    state: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if not isinstance(value, DTensor) or dist.get_rank() == 0:
            state[name] = whole.detach().cpu()
    return state
