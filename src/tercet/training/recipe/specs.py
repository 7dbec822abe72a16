"""How to train, as settings that all tasks share; what belongs to one of them is in `training/recipe/task_specs.py`."""

from dataclasses import field
from typing import Annotated, Literal

from tercet.spec import (
    Interval,
    Machines,
    Name,
    Seed,
    ShareAboveZero,
    ShareBelowOne,
    ShareBetween,
    Steps,
    StepsOrNone,
    spec,
)
from tercet.training.optim.schedules import WSD, InverseSquareRoot, Noam, Schedule
from tercet.training.optim.specs import Muon, OptimizerSpec


@spec
class TrainingSpec:
    """How to train.

    Args:
        max_steps, max_epochs, max_hours: the length of the run; exactly one of them. Hours become steps when the run
            begins, by the speed that is measured then.
        batch_ramp: the share of the run's steps over which a batch grows, from one micro-batch on each device on;
            null for none.
        label_smoothing: the share of each target that is spread over the whole vocabulary; never in validation.
        ema: validate and export a moving average of the weights with this decay, such as 0.999; null for none.
        seed: of weights, data order and dropout.
        warmup_steps: over which the learning rate rises from near zero.
        clip_norm: the gradient's largest norm; null for none.
        precision: bf16 and fp16 keep the weights in fp32 (mixed).
        compile: auto measures, and keeps the faster. cuda_graphs compiles for one GPU, and replays a step's kernels as
            one launch.
        activation_checkpointing: keep each block's input alone, and work the rest out once more in the backward pass:
            less memory, a longer step, the same weights.
        validate_every, save_every, log_every: in steps.
        keep: of the checkpoints to go on from, the newest so many.
        patience: stop after so many validations without a better one; null for never.
        accelerator, devices, nodes, strategy: where to run; auto takes a GPU if there is one, and ddp where there are
            several devices. They may change in a run.
        rank_timeout: seconds without a sign of life after which one of several processes counts as lost, and the
            others end.
        reshard_after_forward: with fsdp, let go of a block's weights once it is worked out, and gather them anew in the
            backward pass and for each micro-batch. false keeps them, and whole gradients, to the end of a step: they
            are exchanged once, as with ddp, and only what is kept between steps is in pieces.
        cpu_offload: with fsdp on GPUs, keep each device's piece of the weights, their gradients and the optimizer's
            state in the host's memory, where the optimizer takes its step.
        exact: end with the same weights to the last bit whatever `devices`, `nodes`, `strategy` and, on a CPU, the
            number of threads are and become: micro-batches' gradients are added up in one order. Slower.
    """

    max_steps: Steps | None = None
    max_epochs: Steps | None = None
    max_hours: Annotated[float, Interval(gt=0, le=100_000)] | None = None
    batch_ramp: ShareAboveZero | None = None
    label_smoothing: ShareBelowOne = 0.0
    ema: ShareBetween | None = None
    seed: Seed = 1
    optimizer: OptimizerSpec = field(default_factory=Muon)
    schedule: Schedule = field(default_factory=WSD)
    warmup_steps: StepsOrNone = 0
    clip_norm: Annotated[float, Interval(gt=0, le=10**9)] | None = 1.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: Literal["auto", "always", "never", "cuda_graphs"] = "auto"
    activation_checkpointing: bool = False
    validate_every: Steps = 250
    save_every: Steps = 250
    log_every: Steps = 10
    keep: Annotated[int, Interval(ge=1, le=1000)] = 2
    patience: Steps | None = None
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    devices: Machines = 1
    nodes: Machines = 1
    strategy: Literal["auto", "single", "ddp", "fsdp", "tp"] = "auto"
    rank_timeout: Annotated[float, Interval(ge=5, le=86_400)] = 40.0
    reshard_after_forward: bool = True
    cpu_offload: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        if [self.max_steps, self.max_epochs, self.max_hours].count(None) != 2:
            raise ValueError("set exactly one of max_steps, max_epochs and max_hours; null takes another back")
        if isinstance(self.schedule, Noam | InverseSquareRoot) and not self.warmup_steps:
            raise ValueError(f"the {self.schedule.kind} schedule needs warmup_steps, such as 4000")
        if self.strategy == "single" and self.world_size > 1:
            raise ValueError(
                f"strategy=single is for one device, and there are {self.world_size}; set ddp, fsdp or auto"
            )
        if self.shares_model and self.ema is not None:
            raise ValueError(f"with {self.strategy} no device has the whole model: ema needs another strategy")
        if self.strategy == "tp" and self.nodes > 1:
            raise ValueError(f"strategy=tp is for the devices of one node, and there are {self.nodes} nodes; set fsdp")
        if self.strategy == "tp" and self.exact:
            raise ValueError("exact: with tp each device has a part of every sum; set strategy to fsdp or ddp")
        if not self.reshard_after_forward and self.strategy != "fsdp":
            raise ValueError(
                "reshard_after_forward=false keeps what fsdp gathers; set strategy to fsdp, or leave it out"
            )
        if self.cpu_offload and self.strategy != "fsdp":
            raise ValueError("cpu_offload moves the pieces that fsdp makes; set strategy to fsdp, or leave it out")
        if self.cpu_offload and self.exact:
            raise ValueError("exact: with cpu_offload the host takes a GPU's optimizer step; leave one of them out")
        if self.exact and self.batch_ramp is not None:
            raise ValueError("exact: a batch_ramp grows by a micro-batch on each device; leave one of them out")
        if self.exact and self.precision == "fp16":
            raise ValueError("exact: the scale of fp16's losses depends on the devices; set precision to bf16 or fp32")

    @property
    def shares_model(self) -> bool:
        """Whether several devices would have a piece of the weights each."""
        return self.strategy in ("fsdp", "tp")

    @property
    def is_sharded(self) -> bool:
        """Whether each device has a piece of the weights."""
        return self.shares_model and self.world_size > 1

    @property
    def tensor_parallel_size(self) -> int:
        """Devices that work on the same rows, with a part of each matrix."""
        return self.world_size if self.strategy == "tp" else 1

    @property
    def data_parallel_size(self) -> int:
        """In how many shares a batch is divided."""
        return self.world_size // self.tensor_parallel_size

    def data_parallel_rank(self, rank: int) -> int:
        """Which of these shares is that of process `rank` of all."""
        return rank // self.tensor_parallel_size

    @property
    def world_size(self) -> int:
        """Devices over all nodes."""
        return self.devices * self.nodes


@spec
class LoggingSpec:
    """Where figures go besides `metrics.csv`. `wandb: offline` needs no account; `wandb sync` sends it later."""

    tensorboard: bool = False
    wandb: Literal["none", "offline", "online"] = "none"
    wandb_project: Name = "tercet"
