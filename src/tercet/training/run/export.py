"""Export of the models that a run keeps, as folders that can be loaded on their own."""

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
    """Return the function that writes `best` and `last` into a run folder."""
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
        task.save(out / folder, module.model, card, state)  # the model has `requires_grad` flags, its average does not

    return export


def gathered_state(model: "torch.nn.Module") -> "dict[str, torch.Tensor]":
    """Return the state dict on the CPU; of sharded weights, only rank 0 gets the values."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    state: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if not isinstance(value, DTensor) or dist.get_rank() == 0:
            state[name] = whole.detach().cpu()
    return state
