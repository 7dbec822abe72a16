"""Training settings that all tasks share; `task_specs.py` has the settings of each task."""

from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Literal

from tercet.spec import (
    Hours,
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
    """Length, optimizer, schedule, precision and devices of a run.

    Args:
        max_steps, max_epochs, max_hours: Length of the run; exactly one of the three is set. A length in `--set`
            replaces that of the recipe, even if it is another of the three. Hours are converted to a number of steps
            when the run starts, by the speed measured at that time, so the run ends earlier or later if the speed
            changes.
        batch_ramp: Fraction of the run's steps over which the batch grows by whole micro-batches, starting at one
            micro-batch per device; null for a constant batch. No row is skipped. Requires a micro-batch size that is a
            number.
        label_smoothing: Fraction of each target's probability that is spread over the whole vocabulary, or over all
            labels. The metric `train/nll` and validation do not use it. Not supported for several labels per text or
            for regression.
        ema: Decay per step of an exponential moving average of the weights, such as 0.999; null for none. The average
            is validated and exported instead of the weights.
        seed: Seed of the weights, data order and dropout.
        optimizer: Optimizer and its learning rates.
        schedule: Learning-rate schedule.
        warmup_steps: Steps over which the learning rate rises linearly from near zero.
        clip_norm: Maximum L2 norm of all gradients together; null disables clipping.
        precision: Number format of matrix products. bf16 and fp16 keep the weights in fp32 (mixed precision). auto
            chooses by the device's instructions and, on a CPU, by the times of bf16 and of oneDNN, which are measured
            once per machine and cached.
        compile: Use of torch.compile. auto measures compiled and eager steps if the run is long enough to pay for
            compiling, and compiles if that saves more than a tenth of a step. It never compiles with `exact`, or for
            batches of changing shapes except on one GPU. There, the model and its loss are one graph, unless
            `activation_checkpointing` is set. cuda_graphs also replays the kernels of a step as one launch; it requires
            one GPU and batches of equal shape, and excludes `exact` and `activation_checkpointing`. auto tries it if
            kernel launches dominate a step. CUDA graphs have not yet been timed on a GPU.
        activation_checkpointing: If True, keep only the input of each block and recompute its activations in the
            backward pass. A step needs less memory and more time (a fifth more for GPT-2 124M on a CPU), and computes
            the same weights. May change when a run is resumed.
        validate_every, save_every, log_every: Intervals in steps. May change when a run is resumed.
        keep: Number of the newest checkpoints that are kept. May change when a run is resumed.
        patience: Number of consecutive validations without improvement after which the run stops; null for never. May
            change when a run is resumed.
        accelerator: Kind of device; auto uses a GPU if there is one.
        devices: Number of devices per machine; `--devices`, torchrun or srun can also set it. May change when a run is
            resumed.
        nodes: Number of machines; `--nodes`, torchrun or srun can also set it. May change when a run is resumed.
        strategy: single trains on one device. ddp copies the model to each device. fsdp shards the weights, and tp
            splits each block across the devices of one machine. Neither of these two supports `ema` or `adapter`, or
            computes BLEU, F1 or correlations during training, so these cannot be `task.best_by`. auto is ddp for
            several devices, and single for one. May change when a run is resumed.
        rank_timeout: Seconds without a heartbeat after which a process is considered lost and the others end. May
            change when a run is resumed.
        reshard_after_forward: If True, fsdp frees the weights of a block after its forward pass, and gathers them again
            in the backward pass and for each micro-batch. If False, it keeps the weights and whole gradients until the
            end of the step: they are communicated once, as with ddp, and only the state between steps is sharded. May
            change when a run is resumed.
        cpu_offload: If True, fsdp on GPUs keeps each device's shard of weights, gradients and optimizer state in host
            memory, and computes the optimizer step there. Excludes `exact`. May change when a run is resumed. Not yet
            run on a GPU.
        exact: If True, the weights are bitwise identical for any number of devices that is a power of two, any
            `strategy` except tp and, on a CPU, any number of threads, even if these change during the run. Gradients
            of micro-batches are summed in a fixed order for this, which is slower. Requires a micro-batch size that is
            a number. Excludes `batch_ramp`, `cpu_offload` and fp16.
    """

    max_steps: Steps | None = None
    max_epochs: Steps | None = None
    max_hours: Hours | None = None
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
            raise ValueError("set exactly one of max_steps, max_epochs and max_hours, and the others to null")
        if isinstance(self.schedule, Noam | InverseSquareRoot) and not self.warmup_steps:
            raise ValueError(f"the {self.schedule.kind} schedule requires warmup_steps; set it, for example to 4000")
        if self.strategy == "single" and self.world_size > 1:
            raise ValueError(
                f"strategy=single: expected one device, got {self.world_size}; set strategy to ddp, fsdp or auto"
            )
        if self.shares_model and self.ema is not None:
            raise ValueError(
                f"ema requires the whole model on one device, but strategy={self.strategy} splits it; set strategy to "
                "ddp, or ema to null"
            )
        if self.strategy == "tp" and self.nodes > 1:
            raise ValueError(f"strategy=tp: expected one node, got {self.nodes}; set strategy to fsdp")
        if self.strategy == "tp" and self.exact:
            raise ValueError(
                "exact does not support strategy=tp, which splits every sum over devices; set strategy to fsdp or ddp"
            )
        if not self.reshard_after_forward and self.strategy != "fsdp":
            raise ValueError(
                "reshard_after_forward=false requires strategy=fsdp; set it, or leave out reshard_after_forward"
            )
        if self.cpu_offload and self.strategy != "fsdp":
            raise ValueError("cpu_offload requires strategy=fsdp; set it, or leave out cpu_offload")
        if self.cpu_offload and self.exact:
            raise ValueError(
                "exact does not support cpu_offload, which moves the optimizer step to the host; leave one of them out"
            )
        if self.exact and self.batch_ramp is not None:
            raise ValueError(
                "exact does not support batch_ramp, which depends on the number of devices; leave one of them out"
            )
        if self.exact and self.precision == "fp16":
            raise ValueError(
                "exact does not support fp16, whose loss scale depends on the devices; set precision to bf16 or fp32"
            )

    @property
    def shares_model(self) -> bool:
        """True if the strategy splits the weights over devices."""
        return self.strategy in ("fsdp", "tp")

    @property
    def is_sharded(self) -> bool:
        """True if each device has only a part of the weights."""
        return self.shares_model and self.world_size > 1

    @property
    def tensor_parallel_size(self) -> int:
        """Number of devices that process the same rows, each with a part of every matrix."""
        return self.world_size if self.strategy == "tp" else 1

    @property
    def data_parallel_size(self) -> int:
        """Number of shares into which a batch is divided."""
        return self.world_size // self.tensor_parallel_size

    def data_parallel_rank(self, rank: int) -> int:
        """Return the index of the share of the batch that process `rank` trains on."""
        return rank // self.tensor_parallel_size

    @property
    def world_size(self) -> int:
        """Number of devices over all nodes."""
        return self.devices * self.nodes


@spec
class LoggingSpec:
    """Destinations of metrics in addition to `metrics.csv`.

    Args:
        tracker: Program that also receives the metrics and the settings, without a network: none, tensorboard, wandb
            (Weights & Biases), trackio or mlflow. Each requires the extra of its name, such as `tercet[mlflow]`. If it
            fails during training, its metrics are lost and training continues.
        project: Name of the project, which is MLflow's experiment. TensorBoard has none.
        online: If True, W&B uploads metrics during training; if False, `wandb sync` uploads the run later.
    """

    tracker: Literal["none", "tensorboard", "wandb", "trackio", "mlflow"] = "none"
    project: Name = "tercet"
    online: bool = False

    renamed_keys = MappingProxyType(
        {
            "tensorboard": "tracker: tensorboard",
            "wandb": "tracker: wandb, with online: true for uploads during training",
            "wandb_project": "project",
        }
    )
