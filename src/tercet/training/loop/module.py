"""One optimizer step, as Lightning runs it.

A step takes its whole batch at once, in micro-batches whose sums and counts add up, so that accumulating four small
batches on two machines moves the weights as one big batch on one machine would. Everything random in a step follows
from (seed, step, micro-batch): a resumed run, one that also validates, or one of other devices draws the same dropout.
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
    """The loss or a gradient is no longer a number."""


class TrainingModule(pl.LightningModule):
    """Args:
    model: what to train.
    task: on what, and how.
    halving: of the micro-batches of a step that is out of memory.
    loss: Loss of a micro-batch, compiled or not; the task's by default.
    reuses_gradients: If True, the memory of a backward pass's gradients is overwritten by the next pass (CUDA graphs).
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
        self.last_loss = zero_loss(torch.device("cpu"))  # of the last step, over all devices
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
        # The run's own copy of the pretrained model has the weights that are frozen beside an adapter.
        for name in self._frozen_names:
            checkpoint["state_dict"].pop(name, None)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if names := self._frozen_names:  # sharded weights come another way, and none of them is frozen
            current_state = self.state_dict()
            checkpoint["state_dict"].update({name: current_state[name] for name in names})

    def _renumber(self, state: dict[str, Any]) -> None:
        """An optimizer's state with the numbers that parameters have in the model, by which sharded models find theirs,
        and not in its groups; whoever else loads it goes by the groups' lists."""
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
        """The weights that are the pretrained model's, of the model and of its average."""
        if self.task.recipe.adapter is None:
            return []
        names = [name for name, p in self.model.named_parameters(remove_duplicate=False) if not p.requires_grad]
        prefixes = ["model.", *([] if self.average is None else ["average.module."])]
        return [prefix + name for prefix in prefixes for name in names]

    @property
    def eval_model(self) -> AnyModel:
        """The model that is validated and exported: the mean of its steps where there is one, else as it is."""
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
        """Work out the loss and the gradients of a step, and say whether memory has sufficed."""
        try:
            self._pass(batches, step)
        except RuntimeError as error:  # which holds on to the activations, and is let go here
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
        # Here gradients are complete, and unscaled where fp16 scales them.
        limit = float("inf") if self.spec.clip_norm is None else self.spec.clip_norm
        norm = clip_gradients(self.model.parameters(), optimizer, limit)
        self.last_norm = norm
        if self.trainer.precision != "16-mixed":  # its scaler skips such steps by itself, as part of its search
            self._check(norm, "the gradient")

    @property
    def current_loss(self) -> float:
        """The last step's mean loss; on a GPU that of the last step whose figures were logged."""
        return float(self.last_loss.mean) if self.device.type == "cpu" else self._logged_loss

    @property
    def _may_synchronize(self) -> bool:
        """Whether the host may wait for this step: on a GPU only if its figures are logged or its weights are saved."""
        step, spec = self.global_step + 1, self.spec
        is_logged = step in (1, self.total_steps) or step % spec.log_every == 0
        return self.device.type == "cpu" or is_logged or step % spec.save_every == 0

    def _check(self, value: Tensor, name: str) -> None:
        if self._may_synchronize and not torch.isfinite(value):
            raise NonFiniteLoss(f"{name} is not a number at step {self.global_step + 1}{self._locate_bad_values()}")

    def _locate_bad_values(self) -> str:
        # Weights before gradients: a bad weight makes bad gradients everywhere.
        weights = list(self.model.named_parameters())
        gradients = [(f"the gradient of {name}", p.grad) for name, p in weights if p.grad is not None]
        for name, tensor in [*weights, *gradients]:
            if bad_values := int((~torch.isfinite(tensor)).sum()):
                return f": {name} has {bad_values} bad values"
        return ""


def step_seed(seed: int, step: int, micro_batch: int) -> int:
    """A seed of its own for each (seed, step, micro-batch)."""
    return ((seed * 1_000_003 + step) * 65_537 + micro_batch) % 2**63


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of `device`, as `torch.manual_seed` seeds those of all kinds of devices.

    It notes a traceback for each kind that is not in use, which takes a third of a millisecond.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


class MovingAverage(AveragedModel):
    """Weights averaged step by step; young averages forget faster, or they would long be those of the beginning.

    PyTorch's, but for its number of updates, which is counted on the host as well: to read it from a GPU makes the host
    wait for the step.
    """

    def __init__(self, model: AnyModel, decay: float) -> None:
        super().__init__(model)
        self.decay = decay
        self.updates: int | None = None  # not known, as after a state was loaded
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
    for part in (last, model):  # with these the backward pass begins
        fully_shard(part, mesh=mesh, offload_policy=policy, reshard_after_forward=False)
    methods = ["encode", "hidden", "logits", "classify"]  # into the model, besides its forward
    if hasattr(model, "transform"):  # otherwise mlm_transform returns its input, and needs no weights
        methods.append("mlm_transform")
    for method in methods:
        if hasattr(model, method):
            register_fsdp_forward_method(model, method)
