"""Lightning module of one optimizer step.

Losses and gradients of micro-batches are summed and divided by the number of targets of the whole step. Therefore,
except for rounding, a step without dropout does not depend on how its batch is split into micro-batches and over
devices. The random generators are seeded by (seed, step, micro-batch), so that dropout does not depend on resumes, on
validations or on the number of devices.
"""

from typing import Any, cast

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tercet.models import AnyModel, blocks_of
from tercet.objectives import Loss, count_targets, zero_loss
from tercet.training.compute.compiling import LossFunction, copy_gradients
from tercet.training.distributed.devices import free_unused_memory
from tercet.training.distributed.reduction import Reduction, make_reduction
from tercet.training.loop.out_of_memory import MicroBatchHalving, is_out_of_memory
from tercet.training.optim.adamw import clip_gradients
from tercet.training.optim.optimizers import base_rates, build_optimizer, set_rates
from tercet.training.optim.schedules import rate_factor
from tercet.training.recipe.specs import TrainingSpec
from tercet.training.tasks.task import Task


class NonFiniteLoss(Exception):
    """The loss or a gradient is not finite."""


class TrainingModule(pl.LightningModule):
    """Lightning module that trains a model on a task.

    Args:
        model: Model to train.
        task: Data and objective.
        halving: Object that halves the micro-batches if a step is out of memory.
        loss: Function that computes the loss of a micro-batch, compiled or not (default: `task.loss`).
        reuses_gradients: If True, each backward pass overwrites the memory of the gradients of the previous one, as
            with CUDA graphs.
    """

    def __init__(
        self,
        model: AnyModel,
        task: Task,
        halving: MicroBatchHalving,
        loss: LossFunction | None = None,
        *,
        reuses_gradients: bool = False,
    ) -> None:
        super().__init__()
        self.micro_batch_loss = task.loss if loss is None else loss
        self.reuses_gradients = reuses_gradients
        self.automatic_optimization = False
        self.model, self.task, self.halving = model, task, halving
        self.spec, self.total_steps = task.recipe.training, task.plan.steps
        self.average = MovingAverage(model, self.spec.ema) if self.spec.ema else None
        self.tokens_seen = 0
        self.last_loss = zero_loss(torch.device("cpu"))  # summed over all devices
        self.last_norm: Tensor | None = None
        self._logged_loss = float("nan")
        self.base_rates: list[float] = []
        self.reduction: Reduction

    def configure_model(self) -> None:
        if not self.spec.is_sharded or self.base_rates:
            return
        mesh = cast(Any, self.trainer.strategy).device_mesh
        if self.spec.strategy == "tp":
            from tercet.training.distributed.tensor_parallel import parallelize

            parallelize(self.model, mesh["tensor_parallel"])
        else:
            _shard(self.model, mesh["data_parallel"], self.spec)

    def configure_optimizers(self) -> Optimizer:
        optimizer = build_optimizer(self.spec.optimizer, self.model)
        cast(Any, optimizer).exact = self.spec.exact
        self.base_rates = base_rates(optimizer)
        return optimizer

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if not self.spec.is_sharded:
            for state in checkpoint["optimizer_states"]:
                self._renumber(state)
        # The weights that an adapter leaves frozen are already in the run's copy of the pretrained model.
        for name in self._frozen_names:
            checkpoint["state_dict"].pop(name, None)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if names := self._frozen_names:  # empty for sharded models, which do not support adapters
            current_state = self.state_dict()
            checkpoint["state_dict"].update({name: current_state[name] for name in names})

    def _renumber(self, state: dict[str, Any]) -> None:
        """Number the parameters in the state of an optimizer by their order in the model instead of in the groups.

        A sharded model can only load a state in the order of the model. An unsharded one maps the numbers through the
        lists of the parameter groups, and accepts any order.
        """
        number = {id(p): index for index, p in enumerate(self.parameters())}
        groups = cast(Any, self.optimizers()).param_groups
        new = {
            old: number[id(p)]
            for group, saved_group in zip(groups, state["param_groups"], strict=True)
            for old, p in zip(saved_group["params"], group["params"], strict=True)
        }
        state["state"] = {
            new[old]: parameter_state
            for old, parameter_state in sorted(state["state"].items(), key=lambda x: new[x[0]])
        }
        state["param_groups"] = [
            {**saved_group, "params": [new[old] for old in saved_group["params"]]}
            for saved_group in state["param_groups"]
        ]

    @property
    def _frozen_names(self) -> list[str]:
        """Names of the weights that an adapter leaves frozen, in the model and in its average; empty without one."""
        if self.task.recipe.adapter is None:
            return []
        names = [name for name, p in self.model.named_parameters(remove_duplicate=False) if not p.requires_grad]
        prefixes = ["model.", *([] if self.average is None else ["average.module."])]
        return [prefix + name for prefix in prefixes for name in names]

    @property
    def eval_model(self) -> AnyModel:
        """Model to validate and export: the moving average if there is one, else the trained model."""
        return self.model if self.average is None else cast(AnyModel, self.average.module)

    def on_train_start(self) -> None:
        self.tokens_seen = self.task.tokens_before(self.global_step)
        self.reduction = make_reduction(self.model, cast(Any, self.trainer.strategy).model, self.spec)

    def training_step(self, batches: list[Any], step: int) -> None:
        optimizer = cast(Optimizer, self.optimizers())
        step = self.global_step
        total = self.task.plan.length_at(step)
        factor = rate_factor(self.spec.schedule, step=step, warmup=self.spec.warmup_steps, total=total)
        set_rates(optimizer, self.base_rates, factor)
        while not self._try_passes(batches, step):
            optimizer.zero_grad(set_to_none=True)
            free_unused_memory()
            self.halving.halve(step)
            rank, world = self.spec.data_parallel_rank(self.global_rank), self.spec.data_parallel_size
            batches = move_data_to_device(self.task.batches(step, rank, world), self.device)
        self._check(self.last_loss.total, "the loss")
        if self.device.type != "cpu" and self._may_synchronize:
            self._logged_loss = float(self.last_loss.mean)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.tokens_seen = self.task.tokens_before(step + 1)

    def _try_passes(self, batches: list[Any], step: int) -> bool:
        """Compute the loss and the gradients of a step; return False if the device is out of memory."""
        try:
            self._pass(batches, step)
        except RuntimeError as error:  # its traceback references the activations, and is released here
            if is_out_of_memory(error):
                return False
            raise
        return True

    def _pass(self, batches: list[Any], step: int) -> None:
        targets = self.reduction.sum([count_targets(batch.targets) for batch in batches]).clamp(min=1)
        losses, first = list[Tensor](), self.spec.data_parallel_rank(self.global_rank) * len(batches)
        for index, batch in enumerate(batches):
            seed_generators(step_seed(self.spec.seed, step, micro_batch=first + index), self.device)
            part = self.micro_batch_loss(self.model, batch, smoothing=self.spec.label_smoothing)
            share = part.total * (self.reduction.scale / targets)
            with self.reduction.micro_batch(share, index, len(batches)):
                self.manual_backward(share)
            losses.append(torch.stack([part.total.detach(), part.plain]))
            if self.reuses_gradients and index == 0 and len(batches) > 1:
                copy_gradients(self.model)
        total, plain = self.reduction.sum(losses)
        self.last_loss = Loss(total, plain, targets)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        # At this point the gradients are complete and, with fp16, unscaled.
        limit = float("inf") if self.spec.clip_norm is None else self.spec.clip_norm
        norm = clip_gradients(self.model.parameters(), optimizer, limit)
        self.last_norm = norm
        if self.trainer.precision != "16-mixed":  # whose scaler skips steps with such gradients, and reduces the scale
            self._check(norm, "the gradient")

    @property
    def current_loss(self) -> float:
        """Mean loss per target of the last step; on a GPU, of the last step at which the host waited for it.

        On a GPU, the host waits only for steps that are logged or saved.
        """
        return float(self.last_loss.mean) if self.device.type == "cpu" else self._logged_loss

    @property
    def _may_synchronize(self) -> bool:
        """True if the host may wait for the current step: on a GPU, only if it is logged or saved."""
        step, spec = self.global_step + 1, self.spec
        is_logged = step in (1, self.total_steps) or step % spec.log_every == 0
        return self.device.type == "cpu" or is_logged or step % spec.save_every == 0

    def _check(self, value: Tensor, name: str) -> None:
        if self._may_synchronize and not torch.isfinite(value):
            raise NonFiniteLoss(f"{name} is not finite at step {self.global_step + 1}{self._locate_bad_values()}")

    def _locate_bad_values(self) -> str:
        # Weights are checked first, since one non-finite weight makes all gradients non-finite.
        weights = list(self.model.named_parameters())
        gradients = [(f"the gradient of {name}", p.grad) for name, p in weights if p.grad is not None]
        for name, tensor in [*weights, *gradients]:
            if bad_values := int((~torch.isfinite(tensor)).sum()):
                return f": {name} has {bad_values} non-finite values"
        return ""


def step_seed(seed: int, step: int, micro_batch: int) -> int:
    """Return the seed of the random generators for a micro-batch.

    Within a run, all seeds differ if a step has at most 65,537 micro-batches.

    Args:
        seed: Seed of the run.
        step: Step, counted from 0.
        micro_batch: Index of the micro-batch in the step, over all devices.
    """
    return ((seed * 1_000_003 + step) * 65_537 + micro_batch) % 2**63


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of `device`.

    `torch.manual_seed` would also seed the kinds of devices that are not in use. This takes a third of a millisecond,
    because it stores a traceback for each.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


class MovingAverage(AveragedModel):
    """Exponential moving average of the weights, with a smaller decay in the first steps.

    The first update copies the weights. After n updates, the decay is min(decay, (1 + n) / (10 + n)); otherwise the
    first weights would dominate the average for long. The number of updates is also counted on the host, because
    reading it from a GPU would make the host wait for the step.

    Args:
        model: Model whose weights are averaged.
        decay: Maximum decay, such as 0.999.
    """

    def __init__(self, model: AnyModel, decay: float) -> None:
        super().__init__(model)
        self.decay = decay
        self.updates: int | None = None  # None if unknown, as after loading a state
        self.register_load_state_dict_post_hook(self._forget_updates)
        self.requires_grad_(False)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        n = int(self.n_averaged) if self.updates is None else self.updates
        weights = list(model.parameters())
        if n:
            update = get_ema_multi_avg_fn(min(self.decay, (1 + n) / (10 + n)))
            update(tuple(self.parameters()), tuple(weights), n)
        else:
            for average, weight in zip(self.parameters(), weights, strict=True):
                average.copy_(weight)
        for average, buffer in zip(self.module.buffers(), model.buffers(), strict=True):
            average.copy_(buffer)
        self.n_averaged += 1
        self.updates = n + 1

    def _forget_updates(self, *_: object) -> None:
        self.updates = None


def _shard(model: AnyModel, mesh: Any, spec: TrainingSpec) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard, register_fsdp_forward_method

    policy = CPUOffloadPolicy(pin_memory=torch.accelerator.is_available()) if spec.cpu_offload else OffloadPolicy()
    *blocks, last = blocks_of(model)
    for block in blocks:
        fully_shard(block, mesh=mesh, offload_policy=policy, reshard_after_forward=spec.reshard_after_forward)
    for part in (last, model):  # weights stay gathered after the forward pass, since the backward pass begins with them
        fully_shard(part, mesh=mesh, offload_policy=policy, reshard_after_forward=False)
    methods = ["encode", "hidden", "logits", "classify"]  # called directly; FSDP must gather weights before them
    if hasattr(model, "transform"):  # otherwise mlm_transform returns its input and has no weights
        methods.append("mlm_transform")
    for method in methods:
        if hasattr(model, method):
            register_fsdp_forward_method(model, method)
